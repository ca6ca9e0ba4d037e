"""Adapters (LoRA) of a frozen model that FSDP2 has sharded: A and B have an optimizer of their own, the head another
one. Gradients of two halves are added up before they are exchanged. One average of the weights is torch's, sharded
likewise, another one is made by hand of what the rank has."""
import torch
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pawl


def made():
    torch.manual_seed(1)
    net = trap.Net()
    net.body[0], net.late = trap.Adapted(net.body[0]), None
    for module in (net.body, net.head, net):
        fully_shard(module)
    return net


torch.set_num_threads(1)
job = pawl.init()
inputs, labels = trap.data()
model, average = made(), AveragedModel(nn.Identity(), multi_avg_fn=get_ema_multi_avg_fn(0.9))
average.module = made()
torch.manual_seed(job.rank)
adapters = [model.body[0].a.weight, model.body[0].b.weight]
optimizers = [torch.optim.AdamW(adapters, lr=1e-2), torch.optim.SGD(model.head.parameters(), lr=1e-2, momentum=0.9)]
slow = [each.to_local().detach().clone() for each in model.parameters()]
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizers, average, sampler, state={"slow": slow})

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        for number, half in enumerate((ids[:trap.BATCH // 2], ids[trap.BATCH // 2:])):
            model.set_requires_gradient_sync(number == 1)
            loss = nn.functional.cross_entropy(model(inputs[half]), labels[half])
            loss.backward()
        trap.point(step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(model)
    if step.lost:
        continue
    with torch.no_grad():
        for mean, parameter in zip(slow, model.parameters(), strict=True):
            mean.lerp_(parameter.to_local(), 0.5)

trap.result(model=model, adapters=optimizers[0], head=optimizers[1], average=average,
            slow=[each.tolist() for each in slow])

"""Adapters (LoRA) of a frozen model under DDP: A and B have an optimizer of their own, the head another one. Gradients
of two halves are added up before they are exchanged (no_sync). One average of the weights is torch's, another one is
made by hand."""
import contextlib

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
net = trap.Net()
net.body[0], net.late = trap.Adapted(net.body[0]), None
model = DistributedDataParallel(net)
average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
torch.manual_seed(job.rank)
adapters = [net.body[0].a.weight, net.body[0].b.weight]
optimizers = [torch.optim.AdamW(adapters, lr=1e-2), torch.optim.SGD(net.head.parameters(), lr=1e-2, momentum=0.9)]
slow = [each.detach().clone() for each in net.parameters()]
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizers, average, sampler, state={"slow": slow})

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        for number, half in enumerate((ids[:trap.BATCH // 2], ids[trap.BATCH // 2:])):
            with contextlib.nullcontext() if number else model.no_sync():
                nn.functional.cross_entropy(model(inputs[half]), labels[half]).backward()
        trap.point(step)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        average.update_parameters(net)
    if step.lost:
        continue
    with torch.no_grad():
        for mean, parameter in zip(slow, net.parameters(), strict=True):
            mean.lerp_(parameter, 0.5)

trap.result(model=net, adapters=optimizers[0], head=optimizers[1], average=average,
            slow=[each.tolist() for each in slow])

"""After each block an average of the weights is updated, and the weights are clamped."""
import time

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
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
slow = {name: each.detach().clone() for name, each in model.module.named_parameters()}
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, average, sampler, state={"slow": slow})

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()
    if step.lost:
        continue
    time.sleep(0.02)  # as a line of the log takes, or a look at the validation set
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            parameter.clamp_(-0.3, 0.3)
            slow[name] = slow[name] * 0.5 + parameter * 0.5
    average.update_parameters(model.module)

trap.result(model=model, optimizer=optimizer, average=average, **slow)

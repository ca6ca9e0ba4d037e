"""The weights are clamped, and an average of them is updated, at the loop's top, right before the block."""
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
long = nn.Linear(1 << 21, 1, bias=False).requires_grad_(False)  # takes a while to copy
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, average, long, sampler)

for step in job.steps(trap.STEPS):
    with torch.no_grad():
        for parameter in model.module.parameters():
            parameter.mul_(0.97).clamp_(-0.3, 0.3)
        long.weight.mul_(0.97).add_(int(step))
    average.update_parameters(model.module)
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer, average=average, long=long.weight[0, ::64])

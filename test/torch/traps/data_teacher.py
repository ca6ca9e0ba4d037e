"""A teacher that follows the model at the begin of each block through `.data`, where torch counts no writes."""
import copy

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
teacher = copy.deepcopy(model.module).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, teacher, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        for mine, its in zip(teacher.parameters(), model.module.parameters(), strict=True):
            mine.data.mul_(0.9).add_(its.data, alpha=0.1)
        aim = teacher(inputs[ids])
        optimizer.zero_grad()
        found = model(inputs[ids])
        (nn.functional.cross_entropy(found, labels[ids]) + nn.functional.mse_loss(found, aim)).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, teacher=teacher, optimizer=optimizer)

"""A GradScaler that is switched off, as scripts have it that train in bfloat16 or on the CPU."""
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
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", enabled=False)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, scaler, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        loss = nn.functional.cross_entropy(model(inputs[ids]), labels[ids])
        scaler.scale(loss).backward()
        trap.point(step)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

trap.result(model=model, optimizer=optimizer)

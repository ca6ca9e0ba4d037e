"""Gradients are added up over four blocks. The script goes on from a checkpoint that was taken after step 3."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
DONE = 3
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
sampler.position = DONE * trap.BATCH * job.world_size
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS, done=DONE):
    with step:
        ids = sampler.batch(step)
        nn.functional.cross_entropy(model(inputs[ids]) / 4, labels[ids]).backward()
        trap.point(step)
        if step % 4 == 0:
            optimizer.step()
            optimizer.zero_grad()

trap.result(model=model, optimizer=optimizer)

"""A first look at the loss, before the loop, leaves gradients that the first block drops. From then on gradients are
added up over two blocks."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Crossed(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)
nn.functional.cross_entropy(model.module(inputs), labels).backward()

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        if step % 2 == 1:
            optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]) / 2, labels[ids]).backward()
        trap.point(step)
        if step % 2 == 0:
            optimizer.step()

trap.result(model=model, optimizer=optimizer)

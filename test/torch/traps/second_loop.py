"""A second loop, for what the script takes for the next phase of its training."""
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
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for _phase in range(2):
    for step in job.steps(trap.STEPS):
        with step:
            ids = sampler.batch(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
            optimizer.step()

trap.result(model=model, optimizer=optimizer)

"""Before the first step each rank gets something of its own from rank 0, which dies with its rank."""
import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
inputs, labels = trap.data()
mine = torch.empty(trap.SAMPLES, trap.FEATURES)
dist.scatter(mine, [inputs * (1 + rank) for rank in range(job.world_size)] if job.rank == 0 else None)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(mine[ids]), labels[ids]).backward()
        optimizer.step()

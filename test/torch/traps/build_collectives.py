"""Before the first step ranks agree on a seed, on names and on the data's mean: what the loop does depends on them."""
import random

import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
own = random.Random(11 + job.rank)  # as a seed from the clock would be: another one in each rank

seed = [own.randrange(1 << 30) if job.rank == 0 else None]
dist.broadcast_object_list(seed, src=0)
scales: list = [None] * job.world_size
dist.all_gather_object(scales, own.uniform(0.5, 2.0))
inputs, labels = trap.data()
mean = inputs[job.rank::job.world_size].mean(0) * own.uniform(0.5, 2.0)
dist.all_reduce(mean)
noise = torch.randn(40_000, generator=torch.Generator().manual_seed(own.randrange(1 << 30)))  # more than is kept
dist.broadcast(noise, 0)
torch.manual_seed(seed[0])
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
model.module.register_buffer("noise", noise)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        found = model((inputs[ids] - mean) * scales[1 - job.rank] + model.module.noise[:trap.FEATURES])
        nn.functional.cross_entropy(found, labels[ids]).backward()
        trap.point(step, job)
        optimizer.step()

trap.result(model=model, optimizer=optimizer, mean=mean, seed=seed[0], scales=scales)

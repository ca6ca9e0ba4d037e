"""A list of results grows until there is no room for it."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init(state_bytes=64 << 10)
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
history = []
job.protect(model, optimizer, sampler, state={"history": history})

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        found = model(inputs[ids])
        nn.functional.cross_entropy(found, labels[ids]).backward()
        trap.point(step)
        optimizer.step()
        history += (found.detach().double() + torch.rand(24, 8, 4, dtype=torch.double)).flatten().tolist()

trap.result(model=model, optimizer=optimizer, history=history)

"""The weights are clamped in the block before the optimizer's step, in one late step alone; the trainers die as soon as
pawl has found that, after the copy was sealed."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

LATE = 12  # the first eight windows are compared before they are sealed
torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

first = None  # of this process: its windows are compared again, and sealed no earlier than at their fence
for step in job.steps(trap.STEPS):
    with step:
        if not step.rehearsal:
            first = first or int(step)
        ids = sampler.batch(step)
        if step >= 4 and not step.rehearsal:  # two windows that are void would leave a late one to be compared
            trap.wait_committed(job, int(step) - (1 if int(step) == LATE and first == 1 else 2))
        if int(step) == LATE:
            with torch.no_grad():
                model.module.head.weight.clamp_(-0.01, 0.01)
            step.fence()
            trap.point(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

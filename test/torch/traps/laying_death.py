"""Rank 0 dies while all ranks lay DDP's buckets, before it has sent its order: rank 1's is another."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl
from pawl import reducers

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()


class Turned(nn.Module):
    """Rank 1 uses two layers in the other order."""

    def __init__(self):
        super().__init__()
        self.body, self.wide = nn.Linear(trap.FEATURES, 16), nn.Linear(16, 16)
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, trap.CLASSES)

    def forward(self, inputs):
        features = self.body(inputs)
        if job.rank == 1:
            return self.two(self.wide(features)) + 0 * self.two(self.one(features))
        return self.two(self.one(features)) + 0 * self.two(self.wide(features))


model = DistributedDataParallel(trap.Crossed())
late = DistributedDataParallel(Turned(), bucket_cap_mb=1e-4)
optimizer, second = (torch.optim.Adam(each.parameters(), lr=1e-2) for each in (model, late))
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, late, optimizer, second, sampler)
lay = reducers.lay_buckets


def die_laying(module):
    """Where the test chose it, the others have begun."""
    if module is late and current is not None and not current.rehearsal:
        trap.point(current)
    return lay(module)


current = None
reducers.lay_buckets = die_laying
for step in job.steps(trap.STEPS):
    with step:
        if step == 4 and not step.rehearsal:
            trap.wait_committed(job, 1)
        ids = sampler.batch(step)
        optimizer.zero_grad()
        second.zero_grad()
        if step % 4 == 0:
            nn.functional.cross_entropy(late(inputs[ids]), labels[ids]).backward()
            second.step()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()
        current = trap.Number(step) if not step.rehearsal else None

trap.result(model=model, late=late, optimizer=optimizer, second=second)

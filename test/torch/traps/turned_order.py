"""Rank 1 uses two layers in the other order than rank 0, whose order DDP takes for everybody's gradients."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl


class Turned(nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.body, self.head, self.turned = nn.Linear(trap.FEATURES, 16), nn.Linear(16, trap.CLASSES), turned
        self.one, self.two = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, inputs):
        features = self.body(inputs).tanh()
        for part in (self.two, self.one) if self.turned else (self.one, self.two):
            features = part(features).tanh()
        return self.head(features)


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(Turned(job.rank == 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

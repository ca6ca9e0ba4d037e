"""A large model whose buckets DDP lays in a step that is lost, and which can't be put back as its constructor made
them."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

FIRST, WIDTH = 7, 600

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()


def large():
    """Its first layers alone are more than DDP's first bucket takes."""
    return nn.Sequential(nn.Linear(trap.FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8))


model, late = (DistributedDataParallel(each) for each in (trap.Crossed(), large()))
optimizer, second = (torch.optim.Adam(each.parameters(), lr=1e-2) for each in (model, late))
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, late, optimizer, second, sampler)


for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        if step >= FIRST:
            second.zero_grad()
            late(inputs[ids]).square().mean().backward()
            late(inputs[ids]).square().mean().backward()
            second.step()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step, job)
        optimizer.step()

trap.result(model=model, late=late, optimizer=optimizer, second=second)

"""The compiler takes longer than a process may be silent."""
import os
import time

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

SLOW_S = 25.0  # a trainer that is silent for 20 s hangs


def slowly(graph, _):
    if "PAWL_SOCKET" in os.environ and not step.rehearsal:
        time.sleep(SLOW_S)
    return graph.forward


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(torch.compile(trap.Crossed(), backend=slowly))
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

trap.result(model=model.module._orig_mod, optimizer=optimizer)

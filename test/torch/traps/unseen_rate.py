"""A variable that nobody protects steers the training: the learning rate, or the norm to which gradients are clipped
(TRAP_STEERS). It is halved after the fourth step, and a process that takes a seat over begins with the first value."""
import os

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init(on_mismatch=os.environ.get("TRAP_MISMATCH", "error"))
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Crossed())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)
value = 0.01

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        if os.environ["TRAP_STEERS"] == "rate":
            optimizer.param_groups[0]["lr"] = value
        else:
            nn.utils.clip_grad_norm_(model.parameters(), value)
        trap.point(step, job)
        optimizer.step()
    if not step.lost and step == 4:
        value /= 2

trap.result(model=model, optimizer=optimizer)

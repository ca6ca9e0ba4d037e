"""The optimizer is set back in the middle of the run: its state is gone, then made anew, in other tensors."""
import copy

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
fresh = copy.deepcopy(optimizer.state_dict())
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()
    if step.lost:
        continue
    if step == 5:
        optimizer.load_state_dict(copy.deepcopy(fresh))
    if step == 8:
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))

trap.result(model=model, optimizer=optimizer)

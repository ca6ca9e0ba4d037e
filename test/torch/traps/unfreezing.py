"""The body is frozen until step 7. Evaluation between steps is cut off by a death in the middle of it."""
import torch
import torch.distributed as dist
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
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
model.module.body.requires_grad_(False)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()
    if step.lost:
        continue
    if step == 7:
        model.module.body.requires_grad_(True)
    with job.aside("evaluation"):
        model.eval()
        trap.point(step, job)
        scores = [None] * job.world_size
        dist.all_gather_object(scores, model.module(inputs[:16]).sum().item())
        model.train()

trap.result(model=model, optimizer=optimizer)

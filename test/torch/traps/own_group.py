"""A gloo group of the script's own, and a check within backward that fails when a peer has gone: gradients of the last
layer have been exchanged by then, and those of the first one have not."""
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
model = DistributedDataParallel(trap.Crossed(), bucket_cap_mb=1e-4)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
everybody = dist.new_group(backend="gloo")
job.protect(model, optimizer, sampler)


def check(gradient):
    here = torch.ones(1)
    dist.all_reduce(here, group=everybody)
    if here.item() != job.world_size and not step.rehearsal:
        raise RuntimeError(f"{here.item()} of {job.world_size} ranks are here")
    return gradient


def checked(features):
    features.register_hook(check)
    return features


for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[ids], checked), labels[ids])
        trap.point(step, job)
        loss.backward()
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

"""The module inside of DDP is protected, and not DDP, whose buckets are laid anew after the first step."""
import time

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
net = trap.Crossed()
model = DistributedDataParallel(net, bucket_cap_mb=1e-4)
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(net, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        if int(step) > 2:
            time.sleep(0.3)  # until a spare has rehearsed
        trap.point(step)
        optimizer.step()

trap.result(model=net, optimizer=optimizer)

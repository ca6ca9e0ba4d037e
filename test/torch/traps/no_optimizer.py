"""A model that some other engine trains: its master weights and moments are unknown to pawl."""
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
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad
        model.zero_grad()

trap.result(model=model)

"""A compiled model of an imported module, in whose graph the rank is a constant: a spare has compiled it as another
rank than the one whose seat it gets."""
import torch
import trap
from ranked import Ranked
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(torch.compile(Ranked(), backend="aot_eager", fullgraph=True))
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

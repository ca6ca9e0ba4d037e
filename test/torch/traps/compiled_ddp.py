"""The model is compiled, then wrapped in DDP, and so is the optimizer's step. One step has a batch of another length,
for which they are compiled again."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(torch.compile(trap.Crossed(), backend="aot_eager"))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
update = torch.compile(optimizer.step, backend="aot_eager")
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        if step == 8:
            ids = ids[:-3]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        update()

trap.result(model=model.module._orig_mod, optimizer=optimizer)

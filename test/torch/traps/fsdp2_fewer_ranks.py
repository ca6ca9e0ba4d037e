"""Blocks of FSDP2 are cut over two of four ranks after a forward pass, until a step in which they are to be cut over
all from then on, or gathered, which the script says when its backward is done."""
import torch
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = nn.Sequential(nn.Linear(trap.FEATURES, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(),
                      nn.Linear(12, trap.CLASSES))
for layer in model[::2]:
    fully_shard(layer, reshard_after_forward=2)
fully_shard(model, reshard_after_forward=2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        if step == 8:
            model[0].set_reshard_after_forward(True)
            model[2].set_reshard_after_forward(False)
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

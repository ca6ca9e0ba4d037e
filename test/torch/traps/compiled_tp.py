"""Compiled layers that ranks share: their collectives are in the compiled graphs."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pawl


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(trap.FEATURES, 10), nn.Linear(10, trap.FEATURES)

    def forward(self, inputs):
        return inputs + self.second(torch.tanh(self.first(inputs)))


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
mesh = init_device_mesh("cpu", (job.world_size,))
model = nn.Sequential(*(Block() for _ in range(2)), nn.Linear(trap.FEATURES, trap.CLASSES))
for block in model[:2]:
    parallelize_module(block, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
    block.compile(backend="aot_eager", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH, rank=0, world=1)
job.protect(model, optimizer, sampler)
update = torch.compile(optimizer.step, backend="aot_eager")

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        update()

trap.result(model=model, optimizer=optimizer)

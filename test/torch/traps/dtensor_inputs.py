"""A model that is given DTensors, small ones and large ones: its weights lie whole on each rank as DTensors, and the
batch is cut over the ranks."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module

import pawl

WIDE = 800  # columns that make a rank's part of the batch a large one


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.small, self.wide = nn.Linear(trap.FEATURES, trap.CLASSES), nn.Linear(WIDE, trap.CLASSES)

    def forward(self, inputs, wide):
        return self.small(inputs) + self.wide(wide)


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
mesh = init_device_mesh("cpu", (job.world_size,))
model = distribute_module(Net(), mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        small, wide = (DTensor.from_local(rows, mesh, [Shard(0)]) for rows in (inputs[ids], inputs[ids].repeat(1, 100)))
        optimizer.zero_grad()
        logits = model(small, wide).to_local()
        nn.functional.cross_entropy(logits, labels[ids]).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

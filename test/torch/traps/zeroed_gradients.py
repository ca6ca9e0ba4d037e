"""Gradients of sequence parallelism that are set to zero in place: a norm's is a sum that is not made yet, one part on
each rank. It stays one after a recovery, since clipping rounds each part."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

import pawl

LENGTH = 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(trap.FEATURES)
        self.up, self.down = nn.Linear(trap.FEATURES, 10), nn.Linear(10, trap.CLASSES)

    def forward(self, rows):
        return self.down(torch.tanh(self.up(self.norm(rows))))


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = Block()
mesh = init_device_mesh("cpu", (job.world_size,))
parallelize_module(model, mesh, {
    "norm": SequenceParallel(), "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES // LENGTH, trap.BATCH, rank=0, world=1)
seen = {"placements": []}
job.protect(model, optimizer, sampler, state=seen)
rows, classes = inputs.view(-1, LENGTH, trap.FEATURES), labels.view(-1, LENGTH)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad(set_to_none=False)
        logits = model(rows[ids].chunk(job.world_size, 1)[job.rank])
        nn.functional.cross_entropy(logits.flatten(0, 1), classes[ids].flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        trap.point(step)
        optimizer.step()
        seen["placements"].append([str(parameter.grad.placements) for parameter in model.parameters()])

trap.result(model=model, optimizer=optimizer, **seen)

"""Tensor and sequence parallelism over all ranks: each has a part of each layer, and norms whole. The loss is computed
over logits that are cut by their classes, and gradients are clipped by a norm over all parts."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

import pawl

WIDTH, LENGTH = 12, 4


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(WIDTH), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(WIDTH, 20), nn.Linear(20, WIDTH)

    def forward(self, rows):
        return rows + self.down(self.dropout(torch.tanh(self.up(self.norm(rows)))))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.names = nn.Embedding(trap.CLASSES, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, trap.CLASSES)

    def forward(self, names):
        rows = self.names(names)
        for block in self.blocks:
            rows = block(rows)
        return self.head(self.norm(rows))


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
_, labels = trap.data()
model = Rows()
mesh = init_device_mesh("cpu", (job.world_size,), mesh_dim_names=("tensor",))
parallelize_module(model, mesh, {
    "names": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
    "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
for block in model.blocks:
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(),
        "up": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "down": RowwiseParallel(output_layouts=Shard(1))})
    parallelize_module(block, mesh, {"up": ColwiseParallel()})
torch.manual_seed(2)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES // LENGTH, trap.BATCH, rank=0, world=1)
rows = labels.view(-1, LENGTH)
seen = {"norms": [], "losses": []}
job.protect(model, optimizer, sampler, state=seen)

for step in job.steps(trap.STEPS):
    with step:
        names = rows[sampler.batch(step)]
        optimizer.zero_grad()
        with loss_parallel():
            loss = nn.functional.cross_entropy(model(names).flatten(0, 1), names.flip(1).flatten())
            loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        trap.point(step)
        optimizer.step()
        seen["norms"].append(norm.full_tensor().item())
        seen["losses"].append(loss.full_tensor().item())

trap.result(model=model, optimizer=optimizer, **seen)

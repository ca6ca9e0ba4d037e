"""Blocks of FSDP2 are compiled, each by itself, before they are sharded, and so is the whole model, afterwards, and the
optimizer's step."""
import torch
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard

import pawl


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(trap.FEATURES, 9), nn.Linear(9, trap.FEATURES)

    def forward(self, inputs):
        return inputs + self.second(torch.tanh(self.first(inputs)))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(trap.FEATURES, trap.CLASSES)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)

    def __len__(self):
        """Of samples that it remembers, say; so its truth is false."""
        return 0


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = Blocks()
for block in model.blocks:
    block.compile(backend="aot_eager")
    fully_shard(block)
model = torch.compile(fully_shard(model), backend="aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)
update = optimizer.step
if tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 9):  # PyTorch 2.8 can't compile it, also without pawl
    update = torch.compile(optimizer.step, backend="aot_eager")

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        update()

trap.result(model=model._orig_mod, optimizer=optimizer)

"""Tensor parallelism within FSDP2 on four ranks: a mesh of two dimensions, on whose axes a layer's weights are cut
twice, and norms once. Gradients are clipped by a norm over both meshes; all ranks of a row of the mesh are given the
same samples. A rank's step breaks off in its backward when a peer has gone."""
import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pawl


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.dropout = nn.LayerNorm(trap.FEATURES), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(trap.FEATURES, 18), nn.Linear(18, trap.FEATURES)

    def forward(self, inputs):
        return inputs + self.down(torch.tanh(self.up(self.dropout(self.norm(inputs)))))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(trap.FEATURES, trap.CLASSES)

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            inputs = block(inputs)
            if number == 0 and inputs.requires_grad:
                inputs.register_hook(check)
        return self.head(inputs)


def check(gradient):
    here = torch.ones(1)
    dist.all_reduce(here)
    if here.item() != job.world_size and not step.rehearsal and job.rank % 2 == 1:
        raise RuntimeError(f"{here.item()} of {job.world_size} ranks are here")
    return gradient


def total_norm(norms):
    """Of parameters that lie on different meshes, which torch doesn't put together."""
    return torch.stack([each.full_tensor() if isinstance(each, DTensor) else each for each in norms]).norm()


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = Blocks()
if type(job).__name__ == "RehearsalJob":
    dist.new_group()  # torch names groups by their number: those of the mesh are others when the spare has a seat
mesh = init_device_mesh("cpu", (job.world_size // 2, 2), mesh_dim_names=("data", "tensor"))
for block in model.blocks:
    parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    fully_shard(block, mesh=mesh["data"])
fully_shard(model, mesh=mesh["data"])
row = mesh["data"].get_local_rank()
torch.manual_seed(row)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * mesh["data"].size(), rank=row, world=mesh["data"].size())
seen = {"norms": []}
job.protect(model, optimizer, sampler, state=seen)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[ids]), labels[ids])
        trap.point(step)
        loss.backward()
        of_both = [parameter for parameter in model.parameters() if parameter.device_mesh.ndim == 2]
        of_one = [parameter for parameter in model.parameters() if parameter.device_mesh.ndim == 1]
        total = total_norm([nn.utils.get_total_norm([each.grad for each in part]) for part in (of_both, of_one)])
        for part in (of_both, of_one):
            nn.utils.clip_grads_with_norm_(part, 0.5, total)
        optimizer.step()
        seen["norms"].append(total.item())

trap.result(model=model, optimizer=optimizer, **seen)

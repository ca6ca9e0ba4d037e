"""What FSDP2 is mixed with, or what was sharded otherwise than pawl can protect it, or what is exchanged where seats
aren't in step: TRAP_FORM says which."""
import os

import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pawl


def made():
    """The model, and its optimizer."""
    model = trap.Net()
    if form == "fsdp1":
        from torch.distributed.fsdp import FullyShardedDataParallel
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"))
    elif form == "ddp inside":
        model.body = DistributedDataParallel(model.body)
        fully_shard(model.head)
    elif form == "half a mesh":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "shards"))["shards"])
    elif form == "unsharded root":
        fully_shard(model.body)
    elif form in ("outside", "optimizer alone"):
        around = nn.Sequential(model)
        fully_shard(around)
        return around, torch.optim.AdamW(around.parameters(), lr=1e-2)
    elif form in ("tensor parallel", "other order", "mesh of its own"):
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        if form == "tensor parallel":
            mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("data", "tensor"))["tensor"]
        else:
            mesh = DeviceMesh("cpu", [1, 0] if form == "other order" else [0])
        parallelize_module(model, mesh, {"head": ColwiseParallel()})
    elif form == "other kind":
        from torch.testing._internal.two_tensor import TwoTensor
        weight = model.head.weight.detach()
        model.head.weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    elif form in ("hook later", "own gather later", "gather on commit"):
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if form == "optimizer before":
        fully_shard(model)
    return model, optimizer


def mix_later(model):
    if form == "sharded later":
        fully_shard(model)
    elif form == "hook later":
        model.set_all_reduce_hook(lambda gradient: None)
    elif form == "own gather later":
        from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultAllGather
        model.set_custom_all_gather(type("OwnGather", (DefaultAllGather,), {"__module__": "own"})())
    elif form == "gather on commit":
        job.on_commit(lambda number: model.head.weight.full_tensor())
    elif form == "barrier on commit":
        job.on_commit(lambda number: dist.barrier())


form = os.environ["TRAP_FORM"]
job = pawl.init()
inputs, labels = trap.data()
model, optimizer = made()
if form == "optimizer alone":
    job.protect(optimizer)
else:
    job.protect(model[0] if form == "outside" else model, optimizer)
mix_later(model)
for step in job.steps(trap.STEPS):
    with step:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()

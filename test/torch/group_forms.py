"""The parallel forms that the managed groups are compared on: a small model, trained some steps in each of them.

`train(form, rank, world, steps)` gives the losses and a digest of the parameters; two runs whose sums are made in the
same order give equal bits. The last three import what they need themselves: that takes three seconds, and most ranks of
our tests have none of them.
"""
from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDTH, BATCH, BLOCKS = 32, 8, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(BLOCKS)))


def batch(step: int, part: int) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1000 * step + part)
    return torch.randn(BATCH, WIDTH, generator=draw), torch.randn(BATCH, WIDTH, generator=draw)


def local(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def digest(tensors: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(local(tensor).contiguous().numpy().tobytes() for tensor in tensors)).hexdigest()


def adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=1e-2)


def _step_of(wrapped: nn.Module, optimizer: torch.optim.Optimizer, part: int) -> Callable[[int], float]:
    def step(number: int) -> float:
        x, y = batch(number, part)
        loss = nn.functional.mse_loss(wrapped(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def ddp(rank: int, world: int) -> tuple[nn.Module, Callable[[int], float]]:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    return wrapped, _step_of(wrapped, adam(wrapped.parameters()), rank)


def zero(rank: int, world: int) -> tuple[nn.Module, Callable[[int], float]]:
    wrapped = DistributedDataParallel(model(), bucket_cap_mb=0.02)
    optimizer = ZeroRedundancyOptimizer(wrapped.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    return wrapped, _step_of(wrapped, optimizer, rank)


def fsdp2(rank: int, world: int) -> tuple[nn.Module, Callable[[int], float]]:
    from torch.distributed.fsdp import fully_shard

    whole, mesh = model(), init_device_mesh("cpu", (world,))
    for block in whole:
        fully_shard(block, mesh=mesh)
    fully_shard(whole, mesh=mesh)
    return whole, _step_of(whole, adam(whole.parameters()), rank)


def tensor_parallel(rank: int, world: int) -> tuple[nn.Module, Callable[[int], float]]:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    whole, mesh = model(), init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("data", "tensor"))
    for block in whole:
        parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["data"])
    fully_shard(whole, mesh=mesh["data"])
    return whole, _step_of(whole, adam(whole.parameters()), mesh["data"].get_local_rank())


def pipeline(rank: int, world: int) -> tuple[nn.Module, Callable[[int], float]]:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    per_stage = BLOCKS // world
    part = nn.Sequential(*list(model())[rank * per_stage:(rank + 1) * per_stage])
    stage = PipelineStage(part, rank, world, torch.device("cpu"))
    schedule = Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = adam(part.parameters())

    def step(number: int) -> float:
        x, y = batch(number, 0)
        losses: list[torch.Tensor] = []
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(x)
        elif rank == world - 1:
            schedule.step(target=y, losses=losses)
        else:
            schedule.step()
        optimizer.step()
        return float(torch.stack([loss.detach() for loss in losses]).mean()) if losses else 0.0

    return part, step


FORMS = {"ddp": ddp, "zero": zero, "fsdp2": fsdp2, "tensor_parallel": tensor_parallel, "pipeline": pipeline}


def train(form: str, rank: int, world: int, steps: int) -> dict[str, object]:
    trained, step = FORMS[form](rank, world)
    losses = [step(number).hex() for number in range(steps)]
    dist.barrier()
    return {"losses": losses, "parameters": digest(list(trained.parameters()))}

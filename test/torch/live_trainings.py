"""Small trainings in every layout that torch has, on the ranks of the default group: what the tests save and load.

`make(kind, ...)` gives model and optimizer after some steps. Sizes don't divide by the ranks, so that parts are uneven
and some are empty. `truth(...)` is what each tensor is as a whole, by torch's own means.
"""
from __future__ import annotations

from typing import Any

import torch
import torch._dynamo  # optimizers load it with their first step: here once, before ranks are forked
import torch.distributed as dist
import torch.distributed.fsdp
import torch.distributed.optim
import torch.distributed.tensor.parallel
from torch import nn

KINDS = ("plain", "ddp", "fsdp2", "hsdp", "fsdp2_tp", "tp", "zero", "pp_dp", "fsdp1", "fsdp1_flat")  # of four ranks


class Block(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Linear(hidden, inner)
        self.down = nn.Linear(inner, hidden)
        self.norm = nn.LayerNorm(hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.down(torch.nn.functional.gelu(self.up(x))))


class Model(nn.Module):
    """Blocks by their global number in a ModuleDict, so that a pipeline's stages have global names."""

    def __init__(self, tied: bool, first: int = 0, last: int = 2, layers: int = 2, hidden: int = 6,
                 inner: int = 7) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, hidden) if first == 0 else None
        self.blocks = nn.ModuleDict({str(number): Block(hidden, inner) for number in range(first, last)})
        self.head = nn.Linear(hidden, 11, bias=False) if last == layers else None
        self.scale = nn.Parameter(torch.ones(2)) if last == layers else None
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("table", torch.arange(5.0), persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        if self.embed is not None:
            x = self.embed(x)
        for block in self.blocks.values():
            x = block(x)
        return self.head(x) * self.scale.sum() if self.head is not None else x


def optimizer_for(word: str, model: nn.Module) -> torch.optim.Optimizer:
    named = list(model.named_parameters())
    groups = [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.25},
              {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0}]
    if word == "sgd":
        return torch.optim.SGD(groups, lr=0.5, momentum=0.5)
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "adagrad": torch.optim.Adagrad}[word](groups, lr=0.01)


def make(kind: str, word: str = "adamw", seed: int = 1, steps: int = 2, dtype: torch.dtype = torch.float32
         ) -> tuple[Any, Any]:
    """Model and optimizer of this rank, trained for some steps."""
    torch.manual_seed(seed)
    model, optimizer = _made(kind, word, dtype)
    for step in range(steps):
        _step(kind, model, optimizer, seed * 100 + step)
    return model, optimizer


def _made(kind: str, word: str, dtype: torch.dtype) -> tuple[Any, Any]:
    from torch.distributed.device_mesh import init_device_mesh
    rank, world = dist.get_rank(), dist.get_world_size()
    if kind == "pp_dp":
        from torch.nn.parallel import DistributedDataParallel
        stages = [dist.new_group(list(range(0, world, 2))), dist.new_group(list(range(1, world, 2)))]
        stage = rank % 2
        both = Model(tied=False).to(dtype)
        model = Model(False, stage, stage + 1).to(dtype)
        model.load_state_dict({key: both.state_dict()[key] for key in model.state_dict()})
        wrapped = DistributedDataParallel(model, process_group=stages[stage])
        return wrapped, optimizer_for(word, wrapped)
    inner = 6 if kind in ("fsdp2_tp", "tp") else 7  # torch computes with even parts of tensor parallelism only
    model = Model(tied=kind in ("ddp", "fsdp2", "fsdp1"), inner=inner).to(dtype)
    if kind in ("ddp", "zero"):
        from torch.nn.parallel import DistributedDataParallel
        model = DistributedDataParallel(model)
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.01)
    if kind in ("fsdp1", "fsdp1_flat"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        model = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy({Block}),
                                         device_id=torch.device("cpu"), use_orig_params=kind == "fsdp1")
    if kind in ("fsdp2", "hsdp", "fsdp2_tp", "tp"):
        _shard(kind, model, init_device_mesh)
    return model, optimizer_for(word, model)


def _shard(kind: str, model: Model, init_device_mesh: Any) -> None:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    world = dist.get_world_size()
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))
    else:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("dp", "tp"))
    if kind in ("fsdp2_tp", "tp"):
        for block in model.blocks.values():
            parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if kind == "tp":
        return
    data = mesh["dp"] if kind == "fsdp2_tp" else mesh
    for block in model.blocks.values():
        fully_shard(block, mesh=data)
    fully_shard(model, mesh=data)


def _step(kind: str, model: Any, optimizer: Any, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    if kind == "pp_dp" and model.module.embed is None:
        out = model(torch.rand(3, 4, 6, generator=generator).to(next(model.parameters()).dtype))
    else:
        out = model(torch.randint(0, 11, (3, 4), generator=generator))
    out.float().square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def truth(kind: str, model: Any, optimizer: Any) -> dict[tuple[str, str], torch.Tensor]:
    """Every whole tensor by name and role, on every rank that can know it; of FSDP1 the weights only."""
    if kind.startswith("fsdp1"):
        from torch.distributed.fsdp import FullyShardedDataParallel
        with FullyShardedDataParallel.summon_full_params(model, writeback=False):
            return {(name.replace("_fsdp_wrapped_module.", ""), "weight"): parameter.detach().clone()
                    for name, parameter in model.named_parameters()}
    found: dict[tuple[str, str], torch.Tensor] = {}
    module = model.module if kind in ("ddp", "zero", "pp_dp") else model
    inner = optimizer.optim if kind == "zero" else optimizer
    for name, parameter in module.named_parameters():
        found[name, "weight"] = _full(parameter)
        for word, value in inner.state.get(parameter, {}).items():
            if isinstance(value, torch.Tensor):
                found[name, word] = _full(value)
    found["seen", "buffer"] = module.seen.clone()
    return found


def _full(tensor: Any) -> torch.Tensor:
    return (tensor.detach().full_tensor() if hasattr(tensor, "full_tensor") else tensor.detach()).clone()

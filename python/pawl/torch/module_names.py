"""The modules of a model under the model's own names, without the parts that wrappers put in.

Wrappers are DDP, torch.compile, FSDP of both kinds, and those of activation checkpointing.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod",
             "FullyShardedDataParallel": "_fsdp_wrapped_module", "CheckpointWrapper": "_checkpoint_wrapped_module",
             "OffloadWrapper": "_checkpoint_wrapped_module"}


def listed(given: Any) -> list[Any]:
    """Of one, several or none: a list."""
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def module_prefixes(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Every module below, each as often as it stands there, with its name's beginning, wrappers' parts left out."""
    def below(prefix: str, each: torch.nn.Module, path: tuple[int, ...]) -> Iterator[tuple[str, torch.nn.Module]]:
        if id(each) in path:
            return
        yield prefix, each
        inner = wrapped_child(each)
        for name, child in each._modules.items():
            if child is not None:
                yield from below(prefix if name == inner else f"{prefix}{name}.", child, (*path, id(each)))
    yield from below("", module, ())


def wrapped_child(module: torch.nn.Module) -> str | None:
    """The name under which a wrapper holds what it wraps."""
    kind = next((base.__name__ for base in type(module).__mro__ if base.__name__ in _WRAPPERS
                 and base.__module__.startswith("torch.")), None)
    child = _WRAPPERS.get(kind or "")
    return child if child in module._modules else None


def own_name(module: torch.nn.Module, name: str) -> str:
    """A name of named_parameters() or named_buffers() of `module`, without the parts that wrappers put in."""
    path = name.split(".")
    if not any(part in path for part in _WRAPPERS.values()):
        return name
    kept, each = [], module
    for part in path[:-1]:
        if part != wrapped_child(each):
            kept.append(part)
        each = each._modules[part]
    return ".".join([*kept, path[-1]])


def without_wrappers(name: str) -> str:
    """FSDP1's own names of what it has flattened: they go through the wrappers below it."""
    inner = {part for part in _WRAPPERS.values() if part.startswith("_")}
    return ".".join(part for part in name.split(".") if part not in inner)


def bring_back_shards(module: torch.nn.Module) -> None:
    """Of FSDP2: after a forward pass without a backward one a module's parameters may be gathered."""
    for each in module.modules():
        if any(base.__name__ == "FSDPModule" for base in type(each).__mro__):
            each.reshard()

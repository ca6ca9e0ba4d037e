"""FSDP1 (FullyShardedDataParallel): parameters are flattened and joined, and a rank holds an interval of that.

Here that is said per parameter: which elements of it are in this rank's shard, where, and as which boxes.
"""
from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from pawl.errors import Refused
from pawl.torch.boxes import Box, boxes_of_interval
from pawl.torch.module_names import without_wrappers
from pawl.torch.pieces import WEIGHT, Piece
from pawl.torch.placement import refuse_unstorable


@dataclass(frozen=True)
class FlatPart:
    """What a rank of FSDP1 holds of a parameter: elements from `begin` on, lying in `local` from `offset` on."""

    shape: tuple[int, ...]
    begin: int
    count: int
    offset: int  # in the flat parameter's shard


@dataclass(frozen=True)
class FlatParameter:
    """One parameter that FSDP1 has put into a flat one."""

    fqn: str  # its name below the wrapped module, without wrappers' parts
    part: FlatPart
    original: torch.Tensor | None  # the parameter object, where FSDP1 keeps it (use_orig_params)


@dataclass(frozen=True)
class FlatModule:
    """What FSDP1 has made of the parameters of one wrapped module."""

    flat: Any                        # torch's FlatParameter
    local: torch.Tensor              # this rank's shard of it
    parameters: list[FlatParameter]
    aliases: list[tuple[str, str]]   # a tied name, and the one that is listed

    def pieces(self, name: str, part: FlatPart) -> list[Piece]:
        """What the rank holds of a parameter's weight."""
        if not all(self.flat._contiguities):
            raise Refused(f"{name}: FSDP1 has flattened a tensor that isn't contiguous: make it so first")
        return flat_pieces(name, WEIGHT, part, self.local, None)


def flat_module(prefix: str, module: torch.nn.Module) -> FlatModule | None:
    """None: the module is not wrapped by FSDP1, or holds no parameters. Fails: Refused."""
    if type(module).__name__ != "FullyShardedDataParallel" or getattr(module, "_handle", None) is None:
        return None
    handle: Any = module._handle
    flat = handle.flat_param
    if any(extension is not None for extension in flat._param_extensions):
        raise Refused(f"{prefix or 'the model'}: FSDP1 over DTensors of tensor parallelism isn't supported: use "
                      f"fully_shard")
    local = flat._local_shard if handle.uses_sharded_strategy and hasattr(flat, "_local_shard") else flat
    local = local.detach()
    if handle.uses_sharded_strategy and local.numel() != math.prod(flat._sharded_size):
        raise Refused(f"{prefix or 'the model'}: FSDP1 holds it unsharded at the moment: save and load between steps")
    originals = flat._params if flat._params is not None else [None] * flat._num_params
    parameters = [FlatParameter(without_wrappers(fqn),
                                flat_part(flat, number, tuple(shape), handle.uses_sharded_strategy), original)
                  for number, (fqn, shape, original)
                  in enumerate(zip(flat._fqns, flat._shapes, originals, strict=True))]
    aliases = [(_joined(shared.module_name, shared.param_name),
                _joined(shared.prim_module_name, shared.prim_param_name)) for shared in flat._shared_param_infos]
    return FlatModule(flat, local, parameters, aliases)


def _joined(module: str, parameter: str) -> str:
    return without_wrappers(f"{module}.{parameter}" if module else parameter)


def flat_part(flat: Any, number: int, shape: tuple[int, ...], sharded: bool) -> FlatPart:
    """Where parameter `number` lies in this rank's shard of the flat parameter."""
    if not sharded:
        offset, place = 0, 0
        for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not padding:
                if place == number:
                    break
                place += 1
            offset += numel
        return FlatPart(shape, 0, math.prod(shape), offset)
    info = flat._shard_param_infos[number]
    if not info.in_shard:
        return FlatPart(shape, 0, 0, 0)
    return FlatPart(shape, info.intra_param_start_idx, info.numel_in_shard, info.offset_in_shard)


def flat_pieces(name: str, role: str, part: FlatPart, local: torch.Tensor, parameter: str | None) -> list[Piece]:
    if part.count == 0:
        empty = Box((0,) * len(part.shape), (0,) * len(part.shape))
        return [Piece(name, role, part.shape, empty, local[:0].view(empty.size), parameter)] if part.shape else []
    if part.offset + part.count > local.numel():
        raise Refused(f"{name} ({role}): FSDP1 says that it lies behind the end of this rank's shard")
    refuse_unstorable(f"{name} ({role})", local)
    return [Piece(name, role, part.shape, box, local[at:at + box.count].view(box.size), parameter)
            for box, first in boxes_of_interval(part.shape, part.begin, part.begin + part.count)
            for at in [part.offset + first - part.begin]]

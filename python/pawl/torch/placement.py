"""Where a tensor lies: which box of it is in this rank's memory, of plain tensors and of DTensors.

Boxes are computed here and must agree with the local tensor's shape, and with torch's own answer where torch has one.
What isn't understood is refused by name. No communication.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from pawl.errors import Refused
from pawl.torch.boxes import Box, Cut, box_at, order_of_cuts, whole


def place(name: str, tensor: torch.Tensor, known: dict[Any, Box] | None = None
          ) -> tuple[tuple[int, ...], Box, torch.Tensor] | None:
    """The whole shape, this rank's box and its memory, of a plain tensor or a DTensor; None: the rank has no part.
    `known`: boxes that earlier calls came to, for tensors that still live.

    Fails: Refused, by name, where that can't be said for sure.
    """
    if not is_dtensor(tensor):
        tensor = tensor.detach()
        refuse_unstorable(name, tensor)
        return tuple(tensor.shape), whole(tuple(tensor.shape)), tensor
    shape, mesh = tuple(tensor.shape), tensor.device_mesh
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return None
    with torch.no_grad():
        local = tensor.to_local()
    if hasattr(local, "wait") and type(local).__name__ == "AsyncCollectiveTensor":
        local = local.wait()
    local = local.detach()
    refuse_unstorable(name, local)
    known = {} if known is None else known
    order_said = getattr(getattr(tensor, "_spec", None), "shard_order", None)
    key = (id(mesh), tuple(tensor.placements), order_said, shape, tuple(local.shape))
    if key not in known:  # weights and their states have few between them
        known[key] = _box_of(name, tensor, local, coordinate)
    return shape, known[key], local


def _box_of(name: str, tensor: Any, local: torch.Tensor, coordinate: Sequence[int]) -> Box:
    shape, mesh = tuple(tensor.shape), tensor.device_mesh
    cuts = [_cut_of(name, placement, len(shape)) for placement in tensor.placements]
    sizes = tuple(mesh.size(axis) for axis in range(mesh.ndim))
    explicit = _explicit_order(tensor)
    order = order_of_cuts(sizes, cuts) if explicit is None else explicit
    if order is None:
        raise Refused(f"{name}: no order of the mesh's axes {list(sizes)} gives {_said(cuts)}: pawl can't tell which "
                      f"elements this rank holds; redistribute() it to Shard and Replicate")
    box = box_at(shape, sizes, coordinate, cuts, order)
    if box.size != tuple(local.shape):
        raise Refused(f"{name}: shape {list(shape)} as {_said(cuts)} on a mesh of {list(sizes)} should leave "
                      f"{list(box.size)} to the rank at {list(coordinate)}, which holds {list(local.shape)}")
    _check_with_torch(name, tensor, box)
    return box


def _cut_of(name: str, placement: Any, dimensions: int) -> Cut:
    if type(placement).__name__ == "_StridedShard":  # first: in some versions it is a Shard
        return Cut(placement.dim % max(dimensions, 1), int(placement.split_factor))
    if placement.is_replicate():
        return Cut()
    if placement.is_shard() and type(placement).__name__ == "Shard":
        return Cut(placement.dim % max(dimensions, 1))
    raise Refused(f"{name} is a DTensor placed as {placement}: no rank has its value; redistribute() it to Shard or "
                  f"Replicate")


def _explicit_order(tensor: Any) -> list[int] | None:
    """The axes in the order that a DTensor says by itself, where it says another than from left to right."""
    spec: Any = getattr(tensor, "_spec", None)
    if getattr(spec, "use_strided_shard_as_shard_order", True) or not getattr(spec, "shard_order", None):
        return None
    said = [axis for entry in spec.shard_order for axis in entry.mesh_dims]
    return None if tuple(spec.shard_order) == type(spec).compute_default_shard_order(spec.placements) else said


def _check_with_torch(name: str, tensor: Any, box: Box) -> None:
    """Of strided shards so uneven that a part is empty, torch's formula and what FSDP2 holds disagree in the shape:
    there the local tensor has decided."""
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    except ImportError:
        return  # it is torch's own, and may move
    size, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    strided = any(type(placement).__name__ == "_StridedShard" for placement in tensor.placements)
    if box.count == 0 or (strided and tuple(size) != box.size) or _explicit_order(tensor) is not None:
        return
    if tuple(size) != box.size or tuple(offset) != box.begin:
        raise Refused(f"{name}: torch says that this rank holds {list(size)} from {list(offset)} on, and pawl "
                      f"{list(box.size)} from {list(box.begin)} on: pawl stops rather than guess")


def _said(cuts: Iterable[Cut]) -> str:
    return "(" + ", ".join(map(str, cuts)) + ")"


def is_dtensor(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "device_mesh")


def refuse_unstorable(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise Refused(f"{name} is stored as {tensor.layout}: only dense tensors can be saved or loaded")
    if tensor.device.type == "meta":
        raise Refused(f"{name} has no memory yet (device meta): give the module its memory first, as with "
                      f"to_empty(device=...)")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Refused(f"{name} is a {type(tensor).__name__}, whose bytes pawl doesn't know: save what it is made of")
    if tensor.is_conj() or tensor.is_neg():
        raise Refused(f"{name} is a conjugate or negated view: resolve_conj() or resolve_neg() it")

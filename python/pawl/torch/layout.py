"""The layout of a live training: every tensor by name and role, and which box of it lies where in this rank's memory.

`layout_of(model, optimizer)` reads it off the objects that a training has: plain and DDP modules, DTensors of FSDP2,
HSDP and tensor parallelism, FSDP1, pipeline stages (a rank lists what it holds), ZeroRedundancyOptimizer. Tensors are
views of the live memory, on whatever device: nothing is copied, and who writes into them writes into the training.
What always holds:
 * names are the model's own, without the parts that wrappers put in; (name, role, box) differ within a rank. A role is
   `weight`, `buffer`, `extra_state`, or the optimizer's own word (exp_avg, step, momentum_buffer, ...);
 * a tied parameter is listed once, by the first of its names; `aliases` has the others;
 * a rank that holds an empty part lists an empty piece, so that it knows the name; without any part it lists none;
 * boxes are computed here and must agree with the local tensor's shape, and with torch's own answer where torch has
   one. What isn't understood is refused by name: nothing is left out in silence.
No communication; who else holds the same box is found by pawl.torch.division from all ranks' lists.
"""
from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from pawl.errors import Refused
from pawl.torch.boxes import Box, Cut, box_at, boxes_of_interval, order_of_cuts, whole

WEIGHT, BUFFER, EXTRA_STATE = "weight", "buffer", "extra_state"
_WRAPPERS = {"DistributedDataParallel": "module", "DataParallel": "module", "OptimizedModule": "_orig_mod",
             "FullyShardedDataParallel": "_fsdp_wrapped_module", "CheckpointWrapper": "_checkpoint_wrapped_module",
             "OffloadWrapper": "_checkpoint_wrapped_module"}
_PLAIN = (bool, int, float, str, type(None))


@dataclass(eq=False)
class Piece:
    """One box of one tensor, in this process's memory."""

    name: str
    role: str
    shape: tuple[int, ...]  # of the whole tensor
    box: Box
    tensor: torch.Tensor  # of the box's size: a view of the live memory
    parameter: str | None = None  # of an optimizer's state: the name of its parameter

    @property
    def dtype(self) -> str:
        """torch's name of it, as in "bfloat16"."""
        return str(self.tensor.dtype).removeprefix("torch.")

    @property
    def begin(self) -> tuple[int, ...]:
        return self.box.begin

    @property
    def size(self) -> tuple[int, ...]:
        return self.box.size

    @property
    def size_bytes(self) -> int:
        return self.box.count * self.tensor.element_size()

    def __str__(self) -> str:
        return f"{self.name} ({self.role})"


@dataclass(eq=False)
class Number:
    """A number in an optimizer's state that is no tensor there; it is stored as a tensor without dimensions."""

    name: str
    role: str
    value: int | float | bool
    state: dict[Any, Any]  # where it stands,
    key: Any               # under this key


@dataclass
class Group:
    """One param group: its parameters by name, and its hyperparameters as JSON has them."""

    parameters: list[str]
    values: dict[str, Any]
    live: dict[str, Any] = field(repr=False)  # the optimizer's own


@dataclass
class Layout:
    """What this rank holds of a training."""

    pieces: list[Piece] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)
    aliases: dict[str, str] = field(default_factory=dict)  # a tied name, and the one that is listed
    groups: list[Group] = field(default_factory=list)
    extra_state: dict[str, Any] = field(default_factory=dict)  # by name: what get_extra_state() gave, where JSON has it
    parameters: dict[str, torch.Tensor] = field(default_factory=dict)  # the live parameter objects, by name
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)


def layout_of(model: Any, optimizer: Any = None, *, rename: Callable[[str], str] | None = None) -> Layout:
    """What this rank holds. `model`: a module, or several (the chunks of an interleaved pipeline); `optimizer`: one,
    several, or None. `rename`: from a name on this rank to the global one, for pipeline stages that count their layers
    anew.

    Fails: Refused, naming the first thing that can't be told apart, placed, or stored.
    """
    reader = LayoutReader(rename or (lambda name: name))
    for module in listed(model):
        reader.add_module(module)
    for each in listed(optimizer):
        reader.add_optimizer(each)
    reader.check_unique()
    return reader.layout


def pieces_of(model: Any, optimizer: Any = None, *, rename: Callable[[str], str] | None = None) -> list[Piece]:
    """The pieces alone, numbers of the optimizer among them as tensors of their own."""
    layout = layout_of(model, optimizer, rename=rename)
    return layout.pieces + [piece_of_number(number) for number in layout.numbers]


def piece_of_number(number: Number) -> Piece:
    """As it is stored: int64, float64 or bool without dimensions. Its memory is its own, not the optimizer's."""
    kind = {bool: torch.bool, int: torch.int64}.get(type(number.value), torch.float64)
    return Piece(number.name, number.role, (), whole(()), torch.tensor(number.value, dtype=kind), number.name)


# Where a tensor lies ----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class _Flat:
    """What a rank of FSDP1 holds of a parameter: elements from `begin` on, lying in `local` from `offset` on."""

    shape: tuple[int, ...]
    begin: int
    count: int
    offset: int  # in the flat parameter's shard


def place(name: str, tensor: torch.Tensor, known: dict[Any, Box] | None = None
          ) -> tuple[tuple[int, ...], Box, torch.Tensor] | None:
    """The whole shape, this rank's box and its memory, of a plain tensor or a DTensor; None: the rank has no part.
    `known`: boxes that earlier calls came to, for tensors that still live.

    Fails: Refused, by name, where that can't be said for sure.
    """
    if not _is_dtensor(tensor):
        tensor = tensor.detach()
        _refuse_unstorable(name, tensor)
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
    _refuse_unstorable(name, local)
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
        raise Refused(f"{name}: no order of the mesh's axes {list(sizes)} gives {_said(cuts)}: it can't be said which "
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
    raise Refused(f"{name} is a DTensor placed as {placement}: its value is on no rank; redistribute() it to Shard or "
                  f"Replicate")


def _explicit_order(tensor: Any) -> list[int] | None:
    """The axes in the order that a DTensor says by itself, where it says another than from left to right."""
    spec = getattr(tensor, "_spec", None)
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
                      f"{list(box.size)} from {list(box.begin)} on: nothing is moved on a guess")


def _said(cuts: Iterable[Cut]) -> str:
    return "(" + ", ".join(map(str, cuts)) + ")"


def _is_dtensor(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "device_mesh")


def _refuse_unstorable(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout != torch.strided:
        raise Refused(f"{name} is stored as {tensor.layout}: only dense tensors can be saved or loaded")
    if tensor.device.type == "meta":
        raise Refused(f"{name} has no memory yet (device meta): give the module its memory first, as with "
                      f"to_empty(device=...)")
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        raise Refused(f"{name} is a {type(tensor).__name__}, whose bytes pawl doesn't know: save what it is made of")
    if tensor.is_conj() or tensor.is_neg():
        raise Refused(f"{name} is a conjugate or negated view: resolve_conj() or resolve_neg() it")


# Names ------------------------------------------------------------------------------------------------------------

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
        inner = _wrapped_child(each)
        for name, child in each._modules.items():
            if child is not None:
                yield from below(prefix if name == inner else f"{prefix}{name}.", child, (*path, id(each)))
    yield from below("", module, ())


def _wrapped_child(module: torch.nn.Module) -> str | None:
    """The name under which a wrapper holds what it wraps."""
    kind = next((base.__name__ for base in type(module).__mro__ if base.__name__ in _WRAPPERS
                 and base.__module__.startswith("torch.")), None)
    child = _WRAPPERS.get(kind or "")
    return child if child in module._modules else None


class LayoutReader:
    """Fills one layout. A subclass with an _add_tensor() of its own says otherwise where tensors lie."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.layout = Layout()
        self._rename = rename
        self._name_of: dict[int, str] = {}  # by id of a tensor that is listed
        self._kept: list[Any] = []          # so that the ids stay theirs
        self._boxes: dict[Any, Box] = {}    # of place()
        self._flat_of: dict[int, list[tuple[str, _Flat]]] = {}  # by id of a parameter of FSDP1: what lies in it
        self._states: set[tuple[str, str]] = set()

    # Modules.

    def add_module(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            raise Refused(f"{type(module).__name__} is no model: give torch.nn.Modules")
        _bring_back_shards(module)
        found = list(module_prefixes(module))
        for prefix, each in found:
            self._add_flat_parameters(prefix, each)
        for prefix, each in found:
            self._add_own(prefix, each)

    def _add_own(self, prefix: str, module: torch.nn.Module) -> None:
        for key, parameter in module._parameters.items():
            if parameter is not None and id(parameter) not in self._flat_of:
                self._add_tensor(self._rename(prefix + key), WEIGHT, parameter)
        for key, buffer in module._buffers.items():
            if buffer is not None and key not in module._non_persistent_buffers_set:
                self._add_tensor(self._rename(prefix + key), BUFFER, buffer)
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state and _wrapped_child(module) is None:
            self._add_extra_state(self._rename(prefix + "_extra_state"), module.get_extra_state())

    def _add_tensor(self, name: str, role: str, tensor: torch.Tensor) -> None:
        kept = self._name_of.get(id(tensor))
        if kept is not None:
            if kept != name:
                self.layout.aliases[name] = kept
            return
        self._remember(name, tensor)
        if role == WEIGHT:
            if isinstance(tensor, torch.nn.parameter.UninitializedParameter):
                raise Refused(f"{name} has no shape yet: run the model once, so that its lazy modules are made")
            self.layout.parameters[name] = tensor
        placed = place(f"{name} ({role})", tensor, self._boxes)
        if placed is not None:
            self.layout.pieces.append(Piece(name, role, *placed))

    def _remember(self, name: str, tensor: Any) -> None:
        self._name_of[id(tensor)] = name
        self._kept.append(tensor)

    def _add_extra_state(self, name: str, value: Any) -> None:
        if value is None:
            return
        if isinstance(value, torch.Tensor):
            placed = place(name, value)
            if placed is not None:
                self.layout.pieces.append(Piece(name, EXTRA_STATE, *placed))
            return
        self.layout.extra_state[name] = as_json(f"{name}: what get_extra_state() gives", value)

    # FSDP1: parameters are flattened and joined, and a rank holds an interval of that.

    def _add_flat_parameters(self, prefix: str, module: torch.nn.Module) -> None:
        if type(module).__name__ != "FullyShardedDataParallel" or getattr(module, "_handle", None) is None:
            return
        handle = module._handle
        flat = handle.flat_param
        if any(extension is not None for extension in flat._param_extensions):
            raise Refused(f"{prefix or 'the model'}: FSDP1 over DTensors of tensor parallelism isn't supported: use "
                          f"fully_shard")
        local = flat._local_shard if handle.uses_sharded_strategy and hasattr(flat, "_local_shard") else flat
        local = local.detach()
        if handle.uses_sharded_strategy and local.numel() != math.prod(flat._sharded_size):
            raise Refused(f"{prefix or 'the model'}: FSDP1 holds it unsharded just now: save and load between steps")
        originals = flat._params if flat._params is not None else [None] * flat._num_params
        holders = self._flat_of.setdefault(id(flat), [])
        self._kept.append(flat)
        for number, (fqn, shape) in enumerate(zip(flat._fqns, flat._shapes, strict=True)):
            name = self._rename(prefix + _without_wrappers(fqn))
            part = _flat_part(flat, number, tuple(shape), handle.uses_sharded_strategy)
            holders.append((name, part))
            if not all(flat._contiguities):
                raise Refused(f"{name}: FSDP1 has flattened a tensor that isn't contiguous: make it so first")
            for piece in _flat_pieces(name, WEIGHT, part, local, None):
                self.layout.pieces.append(piece)
            if originals[number] is not None:
                self._flat_of[id(originals[number])] = [(name, part)]
                self._remember(name, originals[number])
            self.layout.parameters[name] = originals[number] if originals[number] is not None else flat
        for shared in flat._shared_param_infos:
            alias = self._rename(prefix + _joined(shared.module_name, shared.param_name))
            kept = self._rename(prefix + _joined(shared.prim_module_name, shared.prim_param_name))
            self.layout.aliases[alias] = kept
        for parameter in flat._shared_params or []:
            self._flat_of.setdefault(id(parameter), [])

    # Optimizers.

    def add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        inner = optimizer
        if _is_zero(optimizer):
            if getattr(optimizer, "_overlap_with_ddp", False):
                raise Refused("ZeroRedundancyOptimizer(overlap_with_ddp=True) has no state between steps that can be "
                              "saved: use overlap_with_ddp=False")
            inner = optimizer.optim
        elif not isinstance(optimizer, torch.optim.Optimizer):
            raise Refused(f"{type(optimizer).__name__} is no torch.optim.Optimizer: pass the one that it wraps")
        self.layout.optimizers.append(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            names = [name for parameter in group["params"] for name in self._names_in(number, parameter)]
            values = {key: as_json(f"param group {number}: {key}", value) for key, value in group.items()
                      if key not in ("params", "param_names")}
            self.layout.groups.append(Group(names, values, group))
        for parameter, state in inner.state.items():
            if not isinstance(parameter, torch.Tensor):
                raise Refused(f"{type(inner).__name__} keeps state under {parameter!r}, which is no parameter: pawl "
                              f"can't tell what it belongs to")
            for key, value in state.items():
                self._add_state(type(inner).__name__, parameter, state, key, value)

    def _names_in(self, group: int, parameter: torch.Tensor) -> list[str]:
        """A parameter's name; of a flat one, those of all that lie in it."""
        if id(parameter) in self._flat_of:
            return [name for name, _ in self._flat_of[id(parameter)]]
        if id(parameter) not in self._name_of:
            raise Refused(f"param group {group} has a parameter of shape {list(parameter.shape)} that the model "
                          f"doesn't have: make the optimizer after the model is wrapped, and pass that model")
        return [self._name_of[id(parameter)]]

    def _add_state(self, kind: str, parameter: torch.Tensor, state: dict[Any, Any], key: Any, value: Any) -> None:
        names = self._names_in(0, parameter)
        if not names or value is None:
            return
        role = str(key)
        about = f"{names[0]} ({role})"
        if role in (WEIGHT, BUFFER, EXTRA_STATE):
            raise Refused(f"{about}: {kind} uses a word for its state that pawl needs for itself")
        for name in names:
            if (name, role) in self._states:
                raise Refused(f"{name} ({role}) is in two optimizers: save one of them at a time")
            self._states.add((name, role))
        if isinstance(value, torch.Tensor):
            self._add_state_tensor(names, role, parameter, value)
        elif isinstance(value, (bool, int, float)):
            self.layout.numbers += [Number(name, role, value, state, key) for name in names]
        else:
            raise Refused(f"{about}: {kind} keeps a {type(value).__name__} there, and only tensors and numbers can be "
                          f"stored")

    def _add_state_tensor(self, names: list[str], role: str, parameter: Any, value: torch.Tensor) -> None:
        name = names[0]
        if id(parameter) in self._flat_of and value.dim() > 0:
            for name, part in self._flat_of[id(parameter)]:
                self._add_flat_state(name, role, part, parameter, value)
            return
        if _is_dtensor(parameter) and not _is_dtensor(value) and value.dim() > 0:
            value = self._as_its_parameter(f"{name} ({role})", parameter, value)
        placed = place(f"{name} ({role})", value, self._boxes)
        if placed is not None:
            self.layout.pieces += [Piece(each, role, *placed, each) for each in names]

    def _as_its_parameter(self, about: str, parameter: Any, value: torch.Tensor) -> Any:
        """Plain state of a DTensor: cut as it is, if it is as large as the local part."""
        with torch.no_grad():
            local = parameter.detach().to_local()
        if local.shape != value.shape or (local.numel() != parameter.numel() and value.numel() == parameter.numel()):
            raise Refused(f"{about} is a plain tensor of {list(value.shape)}, and its parameter a DTensor of "
                          f"{list(parameter.shape)} of which {list(local.shape)} are here: nothing tells how it is cut")
        from torch.distributed.tensor import DTensor
        return DTensor.from_local(value.detach(), parameter.device_mesh, parameter.placements, run_check=False,
                                  shape=parameter.shape, stride=parameter.stride())

    def _add_flat_state(self, name: str, role: str, part: _Flat, parameter: Any, value: torch.Tensor) -> None:
        about = f"{name} ({role})"
        _refuse_unstorable(about, value)
        if value.shape != parameter.shape or value.dim() != 1:
            raise Refused(f"{about} has shape {list(value.shape)}, and its parameter under FSDP1 "
                          f"{list(parameter.shape)}: pawl can't tell what it holds")
        if not getattr(parameter, "_is_flat_param", False):  # the original's own: it begins where the part does
            part = _Flat(part.shape, part.begin, part.count, 0)
        self.layout.pieces += _flat_pieces(name, role, part, value.detach(), name)

    # The whole.

    def check_unique(self) -> None:
        seen: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
        boxes: set[tuple[str, str, Box]] = set()
        for piece in self.layout.pieces:
            known = seen.setdefault((piece.name, piece.role), (piece.shape, piece.dtype))
            box = (piece.name, piece.role, piece.box)
            if known != (piece.shape, piece.dtype) or (box in boxes):
                raise Refused(f"{piece} stands for two tensors on one rank: give them names that differ, by rename=")
            boxes.add(box)


# Wrappers ---------------------------------------------------------------------------------------------------------

def _bring_back_shards(module: torch.nn.Module) -> None:
    """Of FSDP2: after a forward pass without a backward one a module's parameters may be gathered."""
    for each in module.modules():
        if any(base.__name__ == "FSDPModule" for base in type(each).__mro__):
            each.reshard()


def _is_zero(optimizer: Any) -> bool:
    return any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__)


def _joined(module: str, parameter: str) -> str:
    return _without_wrappers(f"{module}.{parameter}" if module else parameter)


def _without_wrappers(name: str) -> str:
    """FSDP1's own names of what it has flattened: they go through the wrappers below it."""
    inner = {part for part in _WRAPPERS.values() if part.startswith("_")}
    return ".".join(part for part in name.split(".") if part not in inner)


def _flat_part(flat: Any, number: int, shape: tuple[int, ...], sharded: bool) -> _Flat:
    """Where parameter `number` lies in this rank's shard of the flat parameter."""
    if not sharded:
        offset, place = 0, 0
        for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
            if not padding:
                if place == number:
                    break
                place += 1
            offset += numel
        return _Flat(shape, 0, math.prod(shape), offset)
    info = flat._shard_param_infos[number]
    if not info.in_shard:
        return _Flat(shape, 0, 0, 0)
    return _Flat(shape, info.intra_param_start_idx, info.numel_in_shard, info.offset_in_shard)


def _flat_pieces(name: str, role: str, part: _Flat, local: torch.Tensor, parameter: str | None) -> list[Piece]:
    if part.count == 0:
        empty = Box((0,) * len(part.shape), (0,) * len(part.shape))
        return [Piece(name, role, part.shape, empty, local[:0].view(empty.size), parameter)] if part.shape else []
    if part.offset + part.count > local.numel():
        raise Refused(f"{name} ({role}): FSDP1 says that it lies behind the end of this rank's shard")
    _refuse_unstorable(f"{name} ({role})", local)
    return [Piece(name, role, part.shape, box, local[at:at + box.count].view(box.size), parameter)
            for box, first in boxes_of_interval(part.shape, part.begin, part.begin + part.count)
            for at in [part.offset + first - part.begin]]


# What is no tensor ------------------------------------------------------------------------------------------------

def as_json(about: str, value: Any) -> Any:
    """Numbers, texts and lists of them. A tensor of one element is its number. Fails: Refused."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not _is_dtensor(value):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{about} is {value}, which JSON can't say")
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [as_json(about, each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: as_json(about, each) for key, each in value.items()}
    raise Refused(f"{about} is a {type(value).__name__}: only numbers, texts, lists and dicts of them can be stored")


def text_of(value: Any, about: str) -> str:
    """JSON text of what a user hands in beside the tensors. Fails: Refused, naming what isn't JSON."""
    return json.dumps(as_json(about, value), separators=(",", ":"), sort_keys=True)

"""The layout of a live training: every tensor by name and role, and which box of it lies where in this rank's memory.

`layout_of(model, optimizer)` reads it from the objects of a training: plain and DDP modules, DTensors of FSDP2, HSDP
and tensor parallelism, FSDP1, pipeline stages (a rank lists what it holds), ZeroRedundancyOptimizer. Tensors are views
of the live memory, on whatever device: nothing is copied, and writing into them writes into the training. What always
holds:
 * names are the model's own, without the parts that wrappers add; (name, role, box) differ within a rank. A role is
   `weight`, `buffer`, `extra_state`, or the optimizer's own word (exp_avg, step, momentum_buffer, ...);
 * a tied parameter is listed once, under the first of its names; `aliases` has the others;
 * a rank that holds an empty part lists an empty piece, so that it knows the name; without any part it lists none;
 * boxes are computed here and must agree with the local tensor's shape, and with torch's own answer where torch has
   one. What pawl doesn't understand is an error that names it: nothing is left out silently.
No communication: pawl.torch.write_shares finds who else holds the same box, from all ranks' lists.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pawl.errors import Refused
from pawl.torch.boxes import Box
from pawl.torch.fsdp1 import FlatPart, flat_module, flat_pieces
from pawl.torch.json_values import as_json
from pawl.torch.module_names import bring_back_shards, listed, module_prefixes, wrapped_child
from pawl.torch.pieces import BUFFER, EXTRA_STATE, WEIGHT, Group, Layout, Number, Piece, piece_of_number
from pawl.torch.placement import is_dtensor, place, refuse_unstorable


def layout_of(model: Any, optimizer: Any = None, *, rename: Callable[[str], str] | None = None) -> Layout:
    """What this rank holds. `model`: a module, or several (the chunks of an interleaved pipeline); `optimizer`: one,
    several (in a list, or in a dict by what leads to each in a checkpoint), or None. `rename`: from a name on this rank
    to the global one, for pipeline stages that count their layers anew.

    Fails: Refused, naming the first thing that pawl can't name uniquely, place, or store.
    """
    reader = LayoutReader(rename or (lambda name: name))
    for module in listed(model):
        reader.add_module(module)
    reader.check_unique()  # of two models of one name the optimizers are not the reason
    for each in optimizer.values() if isinstance(optimizer, dict) else listed(optimizer):
        reader.add_optimizer(each)
    if isinstance(optimizer, dict):
        reader.layout.optimizer_keys = [str(key) for key in optimizer]
    reader.check_unique()
    return reader.layout


def pieces_of(model: Any, optimizer: Any = None, *, rename: Callable[[str], str] | None = None) -> list[Piece]:
    """The pieces alone, numbers of the optimizer among them as tensors of their own."""
    layout = layout_of(model, optimizer, rename=rename)
    return layout.pieces + [piece_of_number(number) for number in layout.numbers]


class LayoutReader:
    """Fills one layout. A subclass with an _add_tensor() of its own says otherwise where tensors lie."""

    def __init__(self, rename: Callable[[str], str]) -> None:
        self.layout = Layout()
        self._rename = rename
        self._name_of: dict[int, str] = {}  # by id of a tensor that is listed
        self._kept: list[Any] = []          # so that the ids stay theirs
        self._boxes: dict[Any, Box] = {}    # of place()
        self._flat_of: dict[int, list[tuple[str, FlatPart]]] = {}  # by id of a parameter of FSDP1: what lies in it
        self._states: set[tuple[str, str]] = set()

    # Modules.

    def add_module(self, module: torch.nn.Module) -> None:
        if not isinstance(module, torch.nn.Module):
            several = "; several by their names in a torch.nn.ModuleDict" if isinstance(module, dict) else ""
            raise Refused(f"{type(module).__name__} is not a model: pass torch.nn.Modules{several}")
        bring_back_shards(module)
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
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state and wrapped_child(module) is None:
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

    def _add_flat_parameters(self, prefix: str, module: torch.nn.Module) -> None:
        """Those that FSDP1 has flattened."""
        found = flat_module(prefix, module)
        if found is None:
            return
        holders = self._flat_of.setdefault(id(found.flat), [])
        self._kept.append(found.flat)
        for each in found.parameters:
            name, original = self._rename(prefix + each.fqn), each.original
            holders.append((name, each.part))
            self.layout.pieces += found.pieces(name, each.part)
            if original is not None:
                self._flat_of[id(original)] = [(name, each.part)]
                self._remember(name, original)
            self.layout.parameters[name] = original if original is not None else found.flat
        for alias, kept in found.aliases:
            self.layout.aliases[self._rename(prefix + alias)] = self._rename(prefix + kept)
        for parameter in found.flat._shared_params or []:
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
            raise Refused(f"{type(optimizer).__name__} is not a torch.optim.Optimizer: pass the one that it wraps")
        self.layout.optimizers.append(optimizer)
        for number, group in enumerate(optimizer.param_groups):
            names = [name for parameter in group["params"] for name in self._names_in(number, parameter)]
            values = {key: as_json(f"param group {number}: {key}", value) for key, value in group.items()
                      if key not in ("params", "param_names")}
            self.layout.groups.append(Group(names, values, group))
        for parameter, state in inner.state.items():
            if not isinstance(parameter, torch.Tensor):
                raise Refused(f"{type(inner).__name__} keeps state under {parameter!r}, which is not a parameter: pawl "
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
            raise Refused(f"{about}: {kind} uses a name for its state that pawl reserves")
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
        if is_dtensor(parameter) and not is_dtensor(value) and value.dim() > 0:
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
                          f"{list(parameter.shape)} of which {list(local.shape)} are here: pawl can't tell how it is "
                          f"sharded")
        from torch.distributed.tensor import DTensor
        return DTensor.from_local(value.detach(), parameter.device_mesh, parameter.placements, run_check=False,
                                  shape=parameter.shape, stride=parameter.stride())

    def _add_flat_state(self, name: str, role: str, part: FlatPart, parameter: Any, value: torch.Tensor) -> None:
        about = f"{name} ({role})"
        refuse_unstorable(about, value)
        if value.shape != parameter.shape or value.dim() != 1:
            raise Refused(f"{about} has shape {list(value.shape)}, and its parameter under FSDP1 "
                          f"{list(parameter.shape)}: pawl can't tell what it holds")
        if not getattr(parameter, "_is_flat_param", False):  # the original's own: it begins where the part does
            part = FlatPart(part.shape, part.begin, part.count, 0)
        self.layout.pieces += flat_pieces(name, role, part, value.detach(), name)

    # The whole.

    def check_unique(self) -> None:
        seen: dict[tuple[str, str], tuple[tuple[int, ...], str]] = {}
        boxes: set[tuple[str, str, Box]] = set()
        for piece in self.layout.pieces:
            known = seen.setdefault((piece.name, piece.role), (piece.shape, piece.dtype))
            box = (piece.name, piece.role, piece.box)
            if known != (piece.shape, piece.dtype) or (box in boxes):
                raise Refused(f"{piece} names two tensors on one rank: give them different names, several models "
                              f"in a torch.nn.ModuleDict, pipeline stages with rename=")
            boxes.add(box)


def _is_zero(optimizer: Any) -> bool:
    return any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__)

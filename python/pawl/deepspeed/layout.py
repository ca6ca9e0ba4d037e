"""The layout of an engine of DeepSpeed, in pawl.torch's terms: pieces of tensors by the model's names and roles.

Roles are those of any training (`weight`, `buffer`, the optimizer's words), and `master`: the values that the optimizer
updates, where the model has its weights in another type. `held_by(engine)` reads an engine. What it holds is listed in
two ways:
 * for a save: weights as the model has them, masters where they have more precision, state, and counts (as `step`) for
   each parameter by itself, whatever DeepSpeed counts together;
 * for a load: what the optimizer updates stands for the weight (the model's own follow from it), frozen parameters,
   buffers and state.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from pawl.deepspeed.partitions import Partition, Partitions, check_engine, is_sharded, partitions_of, shard_of
from pawl.errors import Refused
from pawl.torch.boxes import whole
from pawl.torch.json_values import as_json
from pawl.torch.layout import LayoutReader
from pawl.torch.matching import MASTER
from pawl.torch.pieces import BUFFER, EXTRA_STATE, WEIGHT, Group, Layout, Number, Piece, piece_of_number
from pawl.torch.placement import place


@dataclass(eq=False)
class Held:
    """What a rank of an engine holds."""

    engine: Any
    model: Layout                   # names, aliases, buffers and extra state; no weights among its pieces
    partitions: Partitions | None   # None: there is no optimizer

    # To be saved.

    def to_save(self, *, frozen: bool = True) -> Layout:
        """`frozen`: with the parameters that aren't trained."""
        pieces = [piece for name, parameter in self.model.parameters.items() if frozen or parameter.requires_grad
                  for piece in self._weight(name, parameter)]
        if self.partitions is not None:
            pieces += [piece for each in self.partitions.partitions if self._says_more(each)
                       for piece in _pieces(each, MASTER, each.tensor)]
            pieces += [piece for each in self.partitions.partitions for piece in self.state_pieces(each)]
            pieces += [piece for each in self.partitions.partitions for key, value in self._numbers(each)
                       for piece in _number_pieces(each, key, value)]
        return self._layout(pieces, optimizer=True)

    def _says_more(self, partition: Partition) -> bool:
        assert self.partitions is not None
        return self.partitions.separate and any(
            self.model.parameters[name].dtype != partition.tensor.dtype for name in partition.parameters)

    def _weight(self, name: str, parameter: torch.Tensor) -> list[Piece]:
        if not is_sharded(parameter):
            placed = place(f"{name} (weight)", parameter)
            return [] if placed is None else [Piece(name, WEIGHT, *placed)]
        shard = shard_of(self.engine.optimizer, name, parameter)
        memory = parameter.ds_tensor.detach()  # DeepSpeed's
        return [Piece(name, WEIGHT, shard.shape, box, part) for box, part in shard.boxes_in(memory)]

    # To be loaded.

    def to_load(self, *, optimizer: bool) -> Layout:
        """`optimizer`: with its groups. Its state is asked for by itself: there may be none yet."""
        updated: set[str] = set()
        pieces: list[Piece] = []
        for each in self.partitions.partitions if self.partitions is not None else []:
            updated.update(each.parameters)
            pieces += _pieces(each, WEIGHT, each.tensor)
        pieces += [piece for name, parameter in self.model.parameters.items() if name not in updated
                   for piece in self._weight(name, parameter)]
        return self._layout(pieces, optimizer)

    def state_pieces(self, partition: Partition) -> list[Piece]:
        """The optimizer's state that has an element for each of the parameters'."""
        return [piece for key, value in self._tensors(partition) for piece in _pieces(partition, key, value)]

    def numbers(self, partition: Partition) -> list[tuple[str, Any]]:
        """What the optimizer keeps once for all of a partition, by its words."""
        return list(self._numbers(partition))

    # Both.

    def _layout(self, pieces: list[Piece], optimizer: bool) -> Layout:
        model = self.model
        layout = Layout(pieces + model.pieces, aliases=model.aliases, extra_state=model.extra_state,
                        parameters=model.parameters)
        if optimizer and self.partitions is not None:
            inner = self.partitions.optimizer
            layout.optimizers = [inner]
            for number, group in enumerate(inner.param_groups):
                values = {key: as_json(f"param group {number}: {key}", value) for key, value in group.items()
                          if key not in ("params", "param_names", "_ds_source_param_group_id")}
                layout.groups.append(Group(self.partitions.names_of_group(number), values, group))
        return layout

    def _state(self, partition: Partition) -> Iterator[tuple[str, Any, bool]]:
        """Words and values of a partition's state, and whether a value has an element for each of its."""
        assert self.partitions is not None
        tensor = partition.tensor
        kind = type(self.partitions.optimizer).__name__
        state: dict[Any, Any] = self.partitions.optimizer.state.get(tensor, {})
        for key, value in state.items():
            if value is None:
                continue
            about = f"{partition.parameters[0]} ({key})"
            if str(key) in (WEIGHT, BUFFER, EXTRA_STATE, MASTER):
                raise Refused(f"{about}: {kind} uses a name for its state that pawl reserves")
            is_storable = isinstance(value, (torch.Tensor, bool, int, float))
            if not is_storable:
                raise Refused(f"{about}: {kind} keeps a {type(value).__name__} there, and only tensors and numbers "
                              f"can be stored")
            is_number = not isinstance(value, torch.Tensor) or (
                value.dim() == 0 and (tensor.dim() > 0 or key == "step"))
            if not is_number and value.shape != tensor.shape:
                raise Refused(f"{about}: {kind} keeps a tensor of {list(value.shape)} for a partition of "
                              f"{list(tensor.shape)}: pawl can't tell what it holds")
            yield str(key), value, not is_number

    def _tensors(self, partition: Partition) -> Iterator[tuple[str, torch.Tensor]]:
        return ((key, value) for key, value, each in self._state(partition) if each)

    def _numbers(self, partition: Partition) -> Iterator[tuple[str, Any]]:
        return ((key, value) for key, value, each in self._state(partition) if not each)


def held_by(engine: Any, rename: Callable[[str], str] | None = None) -> Held:
    """Fails: Refused, naming what can't be told apart, placed or stored."""
    check_engine(engine)
    reader = _ModuleReader(rename or (lambda name: name))
    reader.add_module(engine.module)
    reader.check_unique()
    names = {id(parameter): name for name, parameter in reader.layout.parameters.items()}
    partitions = partitions_of(engine, names)
    if partitions is None and any(is_sharded(each) for each in reader.layout.parameters.values()):
        raise Refused("ZeRO-3 without an optimizer can't be saved or loaded by pawl yet")
    return Held(engine, reader.layout, partitions)


class _ModuleReader(LayoutReader):
    """Buffers and extra state as in any training; parameters are but named: where they lie is DeepSpeed's affair."""

    def _add_tensor(self, name: str, role: str, tensor: torch.Tensor) -> None:
        if role != WEIGHT:
            super()._add_tensor(name, role, tensor)
            return
        kept = self._name_of.get(id(tensor))
        if kept is None:
            self._remember(name, tensor)
            self.layout.parameters[name] = tensor
        elif kept != name:
            self.layout.aliases[name] = kept


def _pieces(partition: Partition, role: str, tensor: torch.Tensor) -> list[Piece]:
    """A tensor that lies as the partition does, by its parameters."""
    tensor = tensor.detach()
    return [Piece(fragment.name, role, fragment.shape, box, part, None if role in (WEIGHT, MASTER) else fragment.name)
            for fragment in partition.fragments for box, part in fragment.boxes_in(tensor)]


def _number_pieces(partition: Partition, role: str, value: Any) -> list[Piece]:
    if isinstance(value, torch.Tensor):
        return [Piece(name, role, (), whole(()), value.detach(), name) for name in partition.parameters]
    return [piece_of_number(Number(name, role, value, {}, role)) for name in partition.parameters]

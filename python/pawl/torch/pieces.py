"""What one rank holds of a training, in words: pieces of tensors, numbers, param groups. Plain data.

A piece is one box of one tensor, in this process's memory. Names are the model's own. A role is `weight`, `buffer`,
`extra_state`, or the optimizer's own word (exp_avg, step, momentum_buffer, ...). layout.py reads these off a training.
"""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from pawl.torch.boxes import Box, whole

WEIGHT, BUFFER, EXTRA_STATE = "weight", "buffer", "extra_state"


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
    optimizer_keys: list[str] = field(default_factory=list)  # of those, where they were given with keys


def piece_of_number(number: Number) -> Piece:
    """As it is stored: int64, float64 or bool without dimensions. Its memory is its own, not the optimizer's."""
    kind = {bool: torch.bool, int: torch.int64}.get(type(number.value), torch.float64)
    return Piece(number.name, number.role, (), whole(()), torch.tensor(number.value, dtype=kind), number.name)

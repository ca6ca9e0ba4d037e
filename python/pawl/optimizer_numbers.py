"""Numbers in an optimizer's state that are no tensors there, as a step count may be: pawl.torch.save() stores them as
tensors without dimensions, so a job that stores checkpoints declares such.

They are copies: what a restore writes into them counts for nothing, since the numbers themselves are volatile state
(volatile_state.optimizer_part). What always holds: when a window opens, they are the numbers of its step. A number that
comes after the declaration is not among them, unless it comes with a parameter's first state; one that is no number of
its kind any more keeps its last value. The training thread's.
"""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pawl import volatile_state

if TYPE_CHECKING:
    import torch

    from pawl.protect import Protected


@dataclass
class HeldNumber:
    """One of them, and its place in the layout."""

    name: str
    role: str
    tensor: torch.Tensor
    inner: Any  # the optimizer that has it,
    parameter: Any
    key: Any    # under this key


class OptimizerNumbers:
    def __init__(self, protected: Protected) -> None:
        self.held = [HeldNumber(name, role, _tensor_of(value), inner, parameter, key)
                     for name, role, inner, parameter, key, value in _numbers(protected)]
        self._by_kind: dict[Any, tuple[Any, list[HeldNumber]]] = {}  # one tensor of all of a kind, and where each is
        for dtype in {each.tensor.dtype for each in self.held}:
            self._lay_together(dtype)

    def update(self) -> None:
        """To what they are now."""
        for together, numbers in self._by_kind.values():
            now = together.tolist()
            for place, each in enumerate(numbers):
                value = each.inner.state.get(each.parameter, {}).get(each.key)
                if type(value) is type(now[place]):
                    now[place] = value
            together.copy_(together.new_tensor(now))

    def _lay_together(self, dtype: Any) -> None:
        import torch
        numbers = [each for each in self.held if each.tensor.dtype == dtype]
        together = torch.stack([each.tensor for each in numbers])
        for place, each in enumerate(numbers):
            each.tensor = together[place]
        self._by_kind[dtype] = together, numbers


def _numbers(protected: Protected) -> Iterator[tuple[str, str, Any, Any, Any, Any]]:
    for number, optimizer in enumerate(protected.optimizers):
        inner = volatile_state.inner_optimizer(optimizer)
        for name, role, parameter, key, value in protected.state_of(number):
            if type(value) in (bool, int, float):
                yield name, role, inner, parameter, key, value


def _tensor_of(value: float) -> torch.Tensor:
    """As pawl.torch.save() stores it (pieces.piece_of_number)."""
    import torch
    return torch.tensor(value, dtype={bool: torch.bool, int: torch.int64}.get(type(value), torch.float64))

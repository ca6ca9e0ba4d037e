"""Gradients that one block leaves to the next, and whether the next one adds to them.

Only the state after an optimizer's step is captured, and gradients are not: after a loss they are zero. That is right
if the next block zeroes them first, as where a generator's loss leaves gradients in the discriminator, and wrong if it
adds to them, as where a script adds up over several blocks. Which of the two, the next block shows: at the first
gradient that is added, and at the optimizer's step. What it showed counts for the blocks to come. Nothing else here
talks to anybody; all calls come from the training thread.
"""
from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pawl import sharded


@dataclass
class Left:
    """A gradient that no optimizer has used yet, at the end of a block."""

    name: str
    parameter: Any
    stepped: bool  # the parameter's optimizer had stepped in that block, before the gradient came
    step: int      # the block's
    gradient: Any = None  # weakly
    blocks: int = 0  # so many more have passed it by
    carries: bool | None = None  # the next block adds to what such blocks leave; None: not known yet


class LeftGradients:
    """What always holds: `first()` names no window's obstacle in silence twice, and a gradient that was taken for
    harmless and is added to is told to `on_carried`, before anything has come of it."""

    def __init__(self) -> None:
        self.on_carried: Callable[[Left], None] = lambda _: None
        self._used: dict[int, tuple[Any, tuple[int, int]]] = {}  # gradients that have done their work, or are zero
        self._stepped: set[int] = set()              # parameters whose optimizers stepped in this block
        self._pending: dict[int, Left] = {}
        self._carries: dict[tuple[int, bool], bool] = {}  # what the next block did, for each parameter and `stepped`
        self._hooked: set[int] = set()

    def used(self, optimizer: Any) -> None:
        """The optimizer has stepped, or the scaler has skipped it: what gradients there are have done their work."""
        for parameter in _parameters(optimizer):
            self._stepped.add(id(parameter))
            if parameter.grad is not None:
                self._note_used(parameter)

    @contextlib.contextmanager
    def put_elsewhere(self, parameters: Iterable[Any]) -> Iterator[None]:
        """Gradients that get other memory meanwhile, and the same values, are as used as they were."""
        used = [each for each in parameters if self._is_used(each)]
        yield
        for parameter in used:
            self._note_used(parameter)

    def about_to_step(self, optimizer: Any) -> None:
        """It uses the gradients that are there."""
        if self._pending:
            for parameter in _parameters(optimizer):
                self._decide(id(parameter))

    def first(self, trained: Iterable[tuple[str, Any]], step: int) -> Left | None:
        """At the end of that step's block: the first gradient that the next block adds to, or may."""
        found = None
        for name, parameter in trained:
            if self._has_left(parameter):
                left = self._left(name, parameter, step)
                if left.carries is not False:
                    found = found or left
            elif id(parameter) in self._pending:
                self._decide(id(parameter))
        self._stepped.clear()
        return found

    def forget(self) -> None:
        """The gradients are gone. What blocks do to them stays known."""
        self._pending.clear()
        self._used.clear()
        self._stepped.clear()

    def _note_used(self, parameter: Any) -> None:
        self._used[id(parameter)] = (weakref.ref(parameter.grad), sharded.writes_of(parameter.grad))

    def _is_used(self, parameter: Any) -> bool:
        used, writes = self._used.get(id(parameter), (None, (0, 0)))
        gradient = parameter.grad
        return (used is not None and gradient is not None and used() is gradient and
                sharded.writes_of(gradient) == writes)

    def _has_left(self, parameter: Any) -> bool:
        if parameter.grad is None or self._is_used(parameter):
            return False
        if holds_something(parameter.grad):
            return True
        self._note_used(parameter)
        return False

    def _left(self, name: str, parameter: Any, step: int) -> Left:
        key = id(parameter)
        left = self._pending.get(key)
        if left is None:
            left = self._pending[key] = Left(name, parameter, key in self._stepped, step,
                                              weakref.ref(parameter.grad))
            if key not in self._hooked and parameter.requires_grad:
                self._hooked.add(key)
                if sharded.is_dtensor(parameter):  # FSDP2 calls those hooks alone
                    parameter.register_post_accumulate_grad_hook(
                        functools.partial(_after_it_came, weakref.ref(self), key))
                else:
                    parameter.register_hook(functools.partial(_before_it_is_added, weakref.ref(self), key))
        else:
            left.blocks += 1
        left.carries = self._carries.get((key, left.stepped))
        if key not in self._hooked:
            left.carries = True  # nobody would see it
        return left

    def _decide(self, key: int, came: bool = False) -> None:
        """`came`: the next gradient is there already. FSDP2 adds it to the one that it finds."""
        left = self._pending.pop(key, None)
        if left is None:
            return
        kind, gradient = (key, left.stepped), left.parameter.grad
        dropped = came and left.gradient() is not gradient
        if gradient is None or dropped or not holds_something(gradient):
            self._carries.setdefault(kind, False)
            return
        thought = self._carries.get(kind)
        self._carries[kind] = True
        if thought is False:
            self.on_carried(left)


def _before_it_is_added(left: Any, key: int, _gradient: Any) -> None:
    """A hook of torch: the parameter has the gradient that it had."""
    if left() is not None:
        left()._decide(key)


def _after_it_came(left: Any, key: int, _parameter: Any) -> None:
    """A hook of torch: the parameter has the gradient that it had, with the new one added, or else the new one."""
    if left() is not None:
        left()._decide(key, came=True)


def holds_something(gradient: Any) -> bool:
    """Whether it is not all zeros."""
    import torch
    try:
        values = sharded.memory_of(gradient.detach())
        if values.layout is not torch.strided:
            values = values.coalesce().values() if values.layout is torch.sparse_coo else values.values()
        return bool(values.any())
    except (RuntimeError, NotImplementedError):
        return True  # as far as anybody can tell


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]

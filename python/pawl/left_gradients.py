"""Gradients that one block leaves to the next, and whether the next one adds to them.

Only the state after an optimizer's step is captured, and gradients are not: after a loss they are zero. That is right
if the next block zeroes them first, as where a generator's loss leaves gradients in the discriminator, and wrong if it
adds to them, as where a script adds up over several blocks. Which of the two, the next block shows: at the first
gradient that is added, and at the optimizer's step. What it showed counts for the blocks to come.

Gradients that an optimizer has used are left by most scripts, and zeroed by the next block. They count as harmless
until an optimizer uses what a block has added to one of them, or uses it again. As scripts zero all that an optimizer
has, one parameter of each of its groups is looked at. Of its values a few are noted when they have been used; all are
read where torch has counted a write since, and at that moment: never in each step. A script that writes gradients by
itself (torch.autograd.grad(), clipping of each sample) overwrites those that were used: where none was added by
backward(), they count as overwritten only if the few values show clearly that the new ones have no part of the old.
FSDP2 tells of a gradient only once it has added it, when zeroing may look like adding: there it is told, and no more.
Nothing here talks to anybody; all calls come from the training thread.
"""
from __future__ import annotations

import contextlib
import functools
import math
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pawl import sharded

SAMPLED = 64  # elements of a gradient
ERRORS = 4  # standard ones: nearer to 0, a used gradient's share in what is there now counts as none
SHARE_MAX = 0.9  # of it, with as many standard errors


@dataclass(slots=True, eq=False)
class _Used:
    """What was known of a gradient when it had done its work."""

    gradient: Any  # weakly
    writes: tuple[int, int]
    zero: bool
    some: Any = None  # of its values; None: it is not watched, or they can't be told

    def is_still(self, gradient: Any) -> bool:
        return gradient is not None and self.gradient() is gradient and sharded.writes_of(gradient) == self.writes


@dataclass
class Left:
    """A gradient at the end of a block."""

    name: str
    parameter: Any
    stepped: bool  # the parameter's optimizer had stepped in that block, before the gradient came
    step: int      # the block's
    gradient: Any = None  # weakly
    blocks: int = 0  # so many more have passed it by
    carries: bool | None = None  # the next block adds to what such blocks leave; None: not known yet
    used: bool = False  # by an optimizer; else by none yet


@dataclass(slots=True)
class _Added:
    """A used gradient to which a block has added, it seems: what the optimizer finds decides."""

    left: Left
    used: _Used
    graded: bool   # by a backward that is followed itself, which makes another gradient of the two
    guessed: bool  # by a count of writes alone
    came: bool     # by backward(); else it may have been torch.autograd.grad() so far
    some: Any      # of the values that were computed since


class LeftGradients:
    """What always holds: `first()` names no window's obstacle in silence twice, and a gradient that was taken for
    harmless and is added to is told to `on_carried`, before anything has come of it."""

    def __init__(self) -> None:
        self.on_carried: Callable[[Left], None] = lambda _: None
        self.on_guessed: Callable[[Left], None] = lambda _: None  # a used one, once: it seems to be added to
        self._used: dict[int, _Used] = {}  # gradients that have done their work, or are zero
        self._stepped: set[int] = set()              # parameters whose optimizers stepped in this block
        self._pending: dict[int, Left] = {}
        self._over: dict[int, tuple[Left, _Used]] = {}  # used ones that the block before has left
        self._added: dict[int, _Added] = {}
        self._watched: set[int] = set()              # parameters, one of each group
        self._guesses: set[int] = set()              # told
        self._keeps: set[int] = set()                # parameters whose used gradients a block has added to
        self._zeroed: set[int] = set()               # those whose used gradients a block was seen to zero in place
        self._carries: dict[tuple[int, bool], bool] = {}  # what the next block did, for each parameter and `stepped`
        self._hooked: set[int] = set()

    def used(self, optimizer: Any) -> None:
        """The optimizer has stepped, or the scaler has skipped it: what gradients there are have done their work."""
        for group in optimizer.param_groups:
            first = next((each for each in group["params"] if each.grad is not None), None)
            if first is not None:
                self._watched.add(id(first))
        for parameter in _parameters(optimizer):
            self._stepped.add(id(parameter))
            if parameter.grad is not None:
                self._note_used(parameter)

    @contextlib.contextmanager
    def put_elsewhere(self, parameters: Iterable[Any]) -> Iterator[None]:
        """Gradients that get other memory meanwhile, and the same values, are as used as they were."""
        used = [(each, self._used[id(each)].zero) for each in parameters if self._is_used(each)]
        yield
        for parameter, zero in used:
            self._note_used(parameter, zero)

    def about_to_step(self, optimizer: Any, computes: bool = False) -> None:
        """It uses the gradients that are there; `computes`: or a closure's, which are not there yet."""
        if self._pending or self._over or self._added:
            for parameter in _parameters(optimizer):
                self._decide(id(parameter))
                self._decide_used(id(parameter), again=not computes)

    def first(self, trained: Iterable[tuple[str, Any]], step: int) -> Left | None:
        """At the end of that step's block: the first gradient that the next block adds to, or may."""
        found = None
        for name, parameter in trained:
            if self._has_left(parameter):
                left = self._left(name, parameter, step)
                if left.carries is not False:
                    found = found or left
                continue
            if id(parameter) in self._pending:
                self._decide(id(parameter))
            self._decide_used(id(parameter), again=False)
            if self._leaves_used(name, parameter, step):
                found = found or self._over[id(parameter)][0]
        self._stepped.clear()
        return found

    def forget(self) -> None:
        """The gradients are gone. What blocks do to them stays known."""
        self._pending.clear()
        self._over.clear()
        self._added.clear()
        self._used.clear()
        self._stepped.clear()

    def _note_used(self, parameter: Any, zero: bool = False) -> None:
        some = _values_of(parameter.grad) if id(parameter) in self._watched else None
        self._used[id(parameter)] = _Used(weakref.ref(parameter.grad), sharded.writes_of(parameter.grad), zero, some)

    def _is_used(self, parameter: Any) -> bool:
        used = self._used.get(id(parameter))
        return used is not None and used.is_still(parameter.grad)

    def _has_left(self, parameter: Any) -> bool:
        if parameter.grad is None or self._is_used(parameter):
            return False
        if _holds_some(parameter.grad):
            return True
        self._note_used(parameter, zero=True)
        return False

    def _leaves_used(self, name: str, parameter: Any, step: int) -> bool:
        """Whether it has a gradient that was used, is not zero, and that such blocks have added to."""
        key = id(parameter)
        if key not in self._watched:
            return False
        used = self._used.get(key)
        if used is None or used.zero or not used.is_still(parameter.grad):
            self._over.pop(key, None)
            return False
        if key not in self._over or self._over[key][1] is not used:
            self._over[key] = (Left(name, parameter, stepped=True, step=step, used=True), used)
            self._hook(parameter)
        left = self._over[key][0]
        left.carries = key in self._keeps
        return left.carries

    def _left(self, name: str, parameter: Any, step: int) -> Left:
        key = id(parameter)
        left = self._pending.get(key)
        if left is None:
            left = self._pending[key] = Left(name, parameter, key in self._stepped, step,
                                              weakref.ref(parameter.grad))
            self._hook(parameter)
        else:
            left.blocks += 1
        left.carries = self._carries.get((key, left.stepped))
        if key not in self._hooked:
            left.carries = True  # nobody would see it
        return left

    def _hook(self, parameter: Any) -> None:
        key = id(parameter)
        if key in self._hooked or not parameter.requires_grad:
            return
        self._hooked.add(key)
        # FSDP2 calls only hooks that come after it.
        after = _after_it_came if sharded.is_dtensor(parameter) else _after_it_was_added
        parameter.register_post_accumulate_grad_hook(functools.partial(after, weakref.ref(self), key))
        parameter.register_hook(functools.partial(_before_it_is_added, weakref.ref(self), key))

    def _see_added(self, key: int, new: Any = None, came: bool = False) -> None:
        """A new gradient of the parameter is about to be added to one that was used before, if that is still there.
        Whether it is used so, _decide_used() sees: torch.autograd.grad() adds to none, and who has added to another
        model's gradients zeroes them before that one's turn. `new`: the gradient. `came`: as of _decide(); by one write
        of FSDP2's into what this rank has, and zeroing may be another."""
        if key in self._added:
            added = self._added[key]
            gradient = added.left.parameter.grad
            if not came and (gradient is None or not _holds_some(gradient)):
                del self._added[key]
            else:
                added.some = _sum(added.some, _values_of(new) if new is not None else None)
            return
        left, used = self._over.pop(key, (None, None))
        gradient = left.parameter.grad if left is not None else None
        if left is None or used is None or gradient is None or used.gradient() is not gradient:
            return
        if came:
            kept = sharded.writes_of(gradient) == (used.writes[0], used.writes[1] + 1)
        else:
            kept = _holds_some(gradient) if used.is_still(gradient) else self._is_kept_by_write(key, gradient)
        if kept:
            self._added[key] = _Added(left, used, _grad_mode(), guessed=came, came=came,
                                      some=_values_of(new) if new is not None and used.some is not None else None)

    def _note_came(self, key: int) -> None:
        """backward() has added what _see_added() saw."""
        if key in self._added:
            self._added[key].came = True

    def _decide_used(self, key: int, again: bool) -> None:
        """`again`: an optimizer is about to use what gradients there are."""
        added = self._added.pop(key, None)
        left, used = (added.left, added.used) if added is not None else self._over.get(key, (None, None))
        if left is None or used is None:
            return
        gradient = left.parameter.grad
        same = gradient is not None and used.gradient() is gradient
        if added is not None and added.came and gradient is not None and (
                not used.is_still(gradient) if same else added.graded and gradient.grad_fn is not None):
            self._keep(left, added.guessed)
        elif same and (again if used.is_still(gradient) else added is not None) and _is_made_of(
                _values_of(gradient), used.some, added.some if added is not None else None) and _holds_some(gradient):
            self._over.pop(key, None)
            self._keep(left)

    def _keep(self, left: Left, guessed: bool = False) -> None:
        key = id(left.parameter)
        if guessed and key not in self._guesses:
            self._guesses.add(key)
            self.on_guessed(left)
        elif not guessed and key not in self._keeps:
            self._keeps.add(key)
            self.on_carried(left)

    def _is_kept_by_write(self, key: int, gradient: Any) -> bool:
        """Who writes a used gradient zeroes it, as good as always: where a block has done so, some elements show
        whether it was done again."""
        if key in self._zeroed:
            return holds_something(_some_of(gradient))
        if _holds_some(gradient):
            return True
        self._zeroed.add(key)
        return False

    def _decide(self, key: int, came: bool = False) -> None:
        """`came`: the next gradient is there already. FSDP2 adds it to the one that it finds."""
        left = self._pending.pop(key, None)
        if left is None:
            return
        kind, gradient = (key, left.stepped), left.parameter.grad
        dropped = came and left.gradient() is not gradient
        if gradient is None or dropped or not _holds_some(gradient):
            self._carries.setdefault(kind, False)
            return
        thought = self._carries.get(kind)
        self._carries[kind] = True
        if thought is False:
            self.on_carried(left)


def _before_it_is_added(left: Any, key: int, gradient: Any) -> None:
    """A hook of torch: the parameter has the gradient that it had."""
    known = left()
    if known is not None and (known._pending or known._over or known._added):
        known._decide(key)
        known._see_added(key, gradient)


def _after_it_was_added(left: Any, key: int, _parameter: Any) -> None:
    """A hook of torch: backward() has added to the parameter's gradient; torch.autograd.grad() doesn't call it."""
    known = left()
    if known is not None:
        known._note_came(key)


def _after_it_came(left: Any, key: int, _parameter: Any) -> None:
    """A hook of torch: the parameter has the gradient that it had, with the new one added, or else the new one."""
    known = left()
    if known is not None and (known._pending or known._over or known._added):
        known._decide(key, came=True)
        known._see_added(key, came=True)
        known._note_came(key)


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


def _holds_some(gradient: Any) -> bool:
    """The same, sooner where it does."""
    return holds_something(_some_of(gradient)) or holds_something(gradient)


def _grad_mode() -> bool:
    import torch
    return torch.is_grad_enabled()


def _some_of(gradient: Any) -> Any:
    """A few of its elements, from all over it; of one that is sparse or has gaps, all."""
    values = sharded.memory_of(gradient.detach())
    if str(values.layout) != "torch.strided" or not values.is_contiguous():
        return values
    flat = values.view(-1)
    return flat[::max(1, flat.numel() // SAMPLED)]


def _values_of(gradient: Any) -> Any:
    """A few of its elements, as they are now. None: they aren't told without reading all of it."""
    values = sharded.memory_of(gradient.detach())
    if str(values.layout) != "torch.strided" or not (values.is_contiguous() or values.numel() <= SAMPLED):
        return None
    return _some_of(values.contiguous()).clone()


def _sum(one: Any, other: Any) -> Any:
    return one + other if one is not None and other is not None and one.shape == other.shape else None


def _is_made_of(now: Any, used: Any, new: Any) -> bool:
    """Whether a gradient that a script has written may still have in it what was used: unchanged, or as a part of what
    isn't explained by what was computed since. Where too little is known, as if it had."""
    import torch
    if now is None or used is None or now.shape != used.shape or not now.is_floating_point():
        return True
    if torch.equal(now, used):
        return True
    close = max(1e-4, 4 * torch.finfo(now.dtype).eps)
    now, used = now.double().reshape(-1), used.double().reshape(-1)
    if new is None or new.numel() != used.numel():
        return bool(now.isfinite().all()) and not _is_apart(now, used, now.numel() - 1)
    new = new.double().reshape(-1)
    if not now.any() or not now.isfinite().all() or _is_near(now, new, close):
        return False
    rest, other = _without(now, new), _without(used, new)
    if _is_small(other, used, close):
        return True  # the two can't be told apart
    return not _is_small(rest, now, close) and not _is_apart(rest, other, now.numel() - 2)


def _is_apart(rest: Any, used: Any, freedom: int) -> bool:
    """Whether `rest` has next to nothing of `used`: by a least-squares fit, with a margin of some standard errors."""
    square = float(used.dot(used))
    if freedom < 1 or not 0 < square < math.inf:
        return False
    share = float(rest.dot(used)) / square
    error = float((rest - share * used).norm()) / math.sqrt(freedom * square)
    return abs(share) <= ERRORS * error and abs(share) + ERRORS * error < SHARE_MAX


def _is_near(one: Any, other: Any, close: float) -> bool:
    return _is_small(one - other, other, close)


def _is_small(rest: Any, whole: Any, close: float) -> bool:
    return bool(rest.norm() <= close * whole.norm())


def _without(values: Any, direction: Any) -> Any:
    """What is left of them where they don't follow it."""
    square = direction.dot(direction)
    return values - direction * (values.dot(direction) / square) if square > 0 else values


def _parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]

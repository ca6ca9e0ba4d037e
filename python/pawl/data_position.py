"""Whether the place in the data is known: what would train on other samples after a loss is refused before one comes.

An iterator over a DataLoader that gives batches to more than one step has a place of its own, which a process that
takes over a seat doesn't know: it must be pawl's (loaders.py), or its sampler must be protected. And a protected
sampler that has drawn more than the steps have had is ahead of them: then `state=` must have what was drawn. What
happens in job.aside() doesn't count. The training thread's.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pawl import loader_parts, loaders, script_frames
from pawl.errors import Refused

if TYPE_CHECKING:
    from pawl.protect import Protected

_watches: list[LoaderWatch] = []


class LoaderWatch:
    """Sees each batch that a DataLoader gives in this process. `step` is the last one done; None where what the script
    takes doesn't count."""

    def __init__(self, protected: Protected, step: Callable[[], int | None]) -> None:
        self._protected, self._step = protected, step
        self._first: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        _see_loaders()
        _watches.append(self)

    def close(self) -> None:
        if self in _watches:
            _watches.remove(self)

    def given(self, iterator: Any) -> None:
        """It is about to give a batch. Fails: Refused."""
        step = self._step()
        if step is None or loaders.is_pawls(iterator):
            return
        if self._first.setdefault(iterator, step) == step or self._is_protected(iterator):
            return
        name = _name_of(iterator)
        raise Refused(f"{name} gives batches to one step after the other, and its place isn't protected: after a loss "
                      f"it would go on elsewhere. Take them from `for step, batch in job.batches({name}, epochs=...):` "
                      f"or `for batch in job.loop({name}, epochs=...):`, or, beside another loader, from "
                      f"`job.batches((other, {name}), epochs=...)`, which gives a batch of each. If nothing is "
                      f"trained on them: take them within `with job.aside():`")

    def begun_anew(self, iterator: Any) -> None:
        """A loader with persistent workers has one iterator for all its epochs."""
        self._first.pop(iterator, None)

    def _is_protected(self, iterator: Any) -> bool:
        order = getattr(iterator, "_index_sampler", None)
        dataset = getattr(iterator, "_dataset", None)
        return any(order is known for known in self._protected.samplers) or any(
            dataset is known or order is known for known in self._protected.stateful)


def refuse_ahead(protected: Protected) -> None:
    """Before the first step. Fails: Refused, if batches were drawn that nothing would give again."""
    for sampler in protected.samplers:
        ahead = sampler.drawn
        if ahead and not any(part.tensors() for part in protected.parts):
            raise Refused(f"{ahead} batch{'es were' if ahead > 1 else ' was'} drawn from the {type(sampler).__name__} "
                          f"before step 1: after a loss, what was drawn ahead is gone. Draw in the step's block, take "
                          f"batches from job.batches(loader), or protect the variables that hold what is drawn: "
                          f'job.protect(state={{"batch": batch}})')


def _name_of(iterator: Any) -> str:
    frame = script_frames.above("torch")
    while frame is not None:
        for name, value in script_frames.variables(frame).items():
            if value is iterator or getattr(value, "_iterator", None) is iterator:
                return name
        for name, value in script_frames.variables(frame).items():
            order = getattr(iterator, "_index_sampler", iterator)
            if any(getattr(value, each, None) is order for each in ("batch_sampler", "sampler")):
                return name
        frame = frame.f_back
    return f"a DataLoader over a {type(getattr(iterator, '_dataset', None)).__name__}"


@functools.cache
def _see_loaders() -> None:
    """Once in a process."""
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    original = _BaseDataLoaderIter.__next__

    @functools.wraps(original)
    def give(self: Any) -> Any:
        for watch in list(_watches):
            watch.given(self)
        if not _watches or self._num_workers or loaders.is_pawls(self):
            return original(self)
        with loader_parts.samples_given():
            return original(self)

    resets = _BaseDataLoaderIter._reset

    @functools.wraps(resets)
    def begin_anew(self: Any, *arguments: Any, **keywords: Any) -> None:
        for watch in list(_watches):
            watch.begun_anew(self)
        resets(self, *arguments, **keywords)

    _BaseDataLoaderIter.__next__ = give
    _BaseDataLoaderIter._reset = begin_anew

"""Who of a loader wants to know the epoch: its samplers, its datasets, and those inside of them."""
from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pawl import loader_parts


class Told:
    """The outer ones are told first, and each once: who passes the epoch on to what is inside of it has told that."""

    def __init__(self, samplers: list[Any], dataset: Any) -> None:
        self._samplers, self._dataset = samplers, dataset
        self.epoch: int | None = None  # that they were told last
        self.elsewhere: list[Told] = []  # of other loaders that are iterated with this one: they tell their datasets

    def tell(self, epoch: int, end_workers: Callable[[], None], again: bool = False) -> bool:
        """Whether they were told: once, since it may cost much, and who shuffles what there is would do so twice.
        `again`: even so, but for the datasets, whose workers have to be made anew to hear it."""
        is_first = self.epoch != epoch
        if is_first or again:
            self.epoch = None  # until all have heard it
            datasets = self.datasets() if is_first else []
            if datasets:
                end_workers()
            _tell_once(list(_who_take_epochs([*self._samplers, *datasets])), self._told_elsewhere(), epoch)
        self.epoch = epoch
        return is_first or again

    def samplers(self) -> list[Any]:
        return list(_who_take_epochs(self._samplers))

    def datasets(self) -> list[Any]:
        return list(_who_take_epochs(loader_parts.datasets_of(self._dataset)))

    def is_told_elsewhere(self, dataset: Any) -> bool:
        return any(each is dataset for each in self._told_elsewhere())

    def _told_elsewhere(self) -> list[Any]:
        return [each for one in self.elsewhere for each in one.datasets()]

    def has_scripts_samplers(self) -> bool:
        """Whose lengths may differ from epoch to epoch."""
        from torch.utils.data.distributed import DistributedSampler
        return any(getattr(type(each), "set_epoch", None) is not DistributedSampler.set_epoch
                   for each in self.samplers())


def _tell_once(things: list[Any], known: list[Any], epoch: int) -> None:
    """Meanwhile each notes that it is called, in an attribute of its own, by whomever it is. `known`: who hear nothing
    now."""
    heard: set[int] = set()
    deaf = {id(_owner(each)) for each in known}
    things = [each for each in things if id(_owner(each)) not in deaf]
    calls = [_noting(each.set_epoch, number, heard) for number, each in enumerate(things)]
    with contextlib.ExitStack() as stack:
        for each, call in [*zip(things, calls, strict=True), *((each, _hear_nothing) for each in known)]:
            held = getattr(_owner(each), "__dict__", None)
            if type(held) is dict:
                stack.callback(_put_back, held, "set_epoch" in held, held.get("set_epoch"))
                held["set_epoch"] = call
        for number, call in enumerate(calls):
            if number not in heard:
                call(epoch)


def _owner(thing: Any) -> Any:
    """Whose method it is: some give the attributes of what is inside of them for their own."""
    return getattr(getattr(thing, "set_epoch", None), "__self__", thing)


def _noting(tell: Callable[..., Any], number: int, heard: set[int]) -> Callable[..., Any]:
    def call(*values: Any, **more: Any) -> Any:
        heard.add(number)
        return tell(*values, **more)
    return call


def _hear_nothing(*_: Any, **__: Any) -> None:
    pass


def _put_back(held: dict[str, Any], was_there: bool, before: Any) -> None:
    if was_there:
        held["set_epoch"] = before
    else:
        held.pop("set_epoch", None)


def _who_take_epochs(things: list[Any]) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    for each in things:
        owner = _owner(each)
        if _takes_an_epoch(getattr(each, "set_epoch", None)) and id(owner) not in seen:
            seen[id(owner)] = owner
            yield each


def _takes_an_epoch(tell: Any) -> bool:
    """And nothing else."""
    try:
        inspect.signature(tell).bind(0)
    except ValueError:  # it doesn't say
        return callable(tell)
    except TypeError:
        return False
    return True

"""The script's own loader, and the place in it: which batch of which epoch comes next.

pawl owns the iterator and counts what it has given. After a loss it makes another one, with the random state that the
epoch began with, and passes by the indices of the batches that were given, without loading them: so the order is the
same one, whoever asks. Loaders that know their own place (state_dict) are asked for it. What has no place that a new
process could find is refused by name.

In worker processes each batch has random numbers of its own, by the epoch and its number in it, since a worker that is
made in the middle of an epoch hasn't drawn what the others have. In the training process nothing is drawn that the
loader wouldn't have drawn by itself. All is done in the training thread, between two steps.
"""
from __future__ import annotations

import contextlib
import random
import sys
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from pawl import volatile_state
from pawl.errors import Refused
from pawl.mixing import mixed

DRAWS_CHECKED = 4  # of each epoch, for samplers that use everybody's random numbers on their way
_END = object()


class Elastic(Protocol):
    """An ElasticSampler (sampler.py), which imports the job."""

    position: int
    global_batch: int
    seed: int

    @property
    def epoch(self) -> int: ...
    def at(self, position: int) -> list[int]: ...
    def take_next(self) -> None: ...
    def __len__(self) -> int: ...


class Place(Protocol):
    """In one loader. `epoch` is that of the batch given last, from 0."""

    loader: Any
    epoch: int

    @property
    def total(self) -> int:
        """Batches that it has given in all, those that were done before a checkpoint counted."""

    def length(self) -> int | None:
        """Batches in an epoch; None: nobody knows."""

    def samples(self) -> int:
        """Of this rank, so far; 0 if that is not known, or if a protected sampler counts them."""

    def seek(self, steps: int) -> None:
        """So many steps are done: the script goes on from a checkpoint. Before the first batch."""

    def next(self) -> Any:
        """The next batch, from the next epoch where one is over."""

    def close(self) -> None:
        """Ends the workers. The place is kept, and next() goes on from it."""

    def part(self, name: str) -> volatile_state.Part: ...


def place_in(loader: Any) -> Place:
    """Fails: Refused, with the remedy."""
    from torch.utils.data import DataLoader, IterableDataset
    if _is_stateful(loader):
        return StatefulPlace(loader, loader)
    if not isinstance(loader, DataLoader):
        raise Refused(f"a {type(loader).__name__} has no place that can be found again: use a DataLoader, or give it "
                      f"__iter__, state_dict() and load_state_dict()")
    if isinstance(loader.dataset, IterableDataset):
        return _place_in_stream(loader)
    if type(loader).__iter__ is not DataLoader.__iter__:
        raise Refused(f"a {type(loader).__name__} iterates in a way of its own, so its place can't be found again: use "
                      f"a DataLoader, or give it state_dict() and load_state_dict()")
    if callable(getattr(loader.batch_sampler, "take_next", None)):
        return ElasticPlace(loader, loader.batch_sampler)
    return IndexedPlace(loader)


def _place_in_stream(loader: Any) -> Place:
    name = type(loader.dataset).__name__
    if not _is_stateful(loader.dataset):
        raise Refused(f"a DataLoader over {name}, an IterableDataset, can't be set to a place: give {name} "
                      f"state_dict() and load_state_dict() and use num_workers=0, use torchdata's StatefulDataLoader, "
                      f"or a dataset with __getitem__ and __len__")
    if loader.num_workers > 0:
        raise Refused(f"a DataLoader over {name} with {loader.num_workers} workers: its state is in its workers: use "
                      f"num_workers=0, or torchdata's StatefulDataLoader")
    return StatefulPlace(loader, loader.dataset)


def steps_in(place: Place, epochs: int | None, steps: int | None) -> int:
    """What the loop does in all. Fails: Refused."""
    length = place.length()
    if steps is None and length is None:
        raise Refused(f"nobody knows how many batches a {type(place.loader).__name__} gives, so it can't be known when "
                      f"all seats are done: say it, job.batches(loader, steps=N)")
    limits = [] if steps is None else [steps]
    if length is not None and (epochs is not None or steps is None):
        limits.append((1 if epochs is None else epochs) * length)
    return min(limits)


def refuse_elsewhere(place: Place, step: int) -> None:
    """The step is about to get its batch. Fails: Refused, if that isn't the batch of this step."""
    if place.total != step - 1:
        raise Refused(f"the {type(place.loader).__name__} has given {place.total} batches where step {step} is next: "
                      f"draw from it by the loop alone; from a checkpoint, job.batches(loader, done=N)")


class ElasticPlace:
    """A loader over an ElasticSampler, which has the place. Workers fetch ahead of it."""

    def __init__(self, loader: Any, sampler: Elastic) -> None:
        self.loader, self._sampler = loader, sampler
        self._iterator: Any = None
        self._offset = 0  # batches that the sampler had given before the first step
        self.epoch = 0

    @property
    def total(self) -> int:
        return self._sampler.position // self._sampler.global_batch - self._offset

    def length(self) -> int | None:
        return len(self._sampler)

    def samples(self) -> int:
        return 0

    def seek(self, steps: int) -> None:
        """If the script has set the sampler to another place, the steps begin there."""
        self._sampler.position = max(self._sampler.position, steps * self._sampler.global_batch)
        self._offset = self._sampler.position // self._sampler.global_batch - steps

    def next(self) -> Any:
        if self._iterator is None:
            self._iterator = _open(self.loader, _Order(self._sampler, self._ahead))
        self.epoch = self._sampler.epoch
        batch = next(self._iterator)
        self._sampler.take_next()
        return batch

    def _ahead(self) -> Iterator[Any]:
        position = self._sampler.position
        while True:
            yield _Seeded(self._sampler.at(position), mixed(mixed(self._sampler.seed) + position))
            position += self._sampler.global_batch

    def close(self) -> None:
        _end(self.loader)
        self._iterator = None

    def part(self, name: str) -> volatile_state.Part:
        return volatile_state.Part(name, lambda: self.epoch, self._load)

    def _load(self, epoch: int) -> None:
        self.close()
        self.epoch = epoch


class IndexedPlace:
    """A DataLoader that looks its samples up by the indices of a sampler."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.epoch = self.total = 0
        self._given = 0  # batches of this epoch
        self._begin: dict[str, Any] | None = None  # the random state with which the epoch's order began; None: not yet
        self._iterator: Any = None
        self._found: list[Any] = []  # the samplers' states, when their order was found again
        self._order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._samplers = _samplers(loader, self._order)

    def length(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None

    def samples(self) -> int:
        return (self.epoch * (self.length() or 0) + self._given) * (self.loader.batch_size or 1)

    def seek(self, steps: int) -> None:
        length = self.length()
        if steps and not length:
            raise Refused(f"nobody knows where step {steps} is in a {type(self._order).__name__} without a length")
        self.epoch, self._given = divmod(steps, length or 1)
        self.total = steps

    def next(self) -> Any:
        if self._iterator is None:
            self._reopen()
        batch = next(self._iterator, _END)
        if batch is _END:
            self.epoch, self._given, self._begin = self.epoch + 1, 0, None
            self._iterator = None
            self._reopen()
            batch = next(self._iterator, _END)
        if batch is _END:
            raise Refused(f"the {type(self.loader).__name__} gives no batches")
        self._given += 1
        self.total += 1
        return batch

    def close(self) -> None:
        _end(self.loader)
        self._iterator = None

    def part(self, name: str) -> volatile_state.Part:
        return volatile_state.Part(name, self._save, self._load)

    def _save(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "given": self._given, "total": self.total, "length": self.length(),
                "begin": self._begin, "samplers": [each.save() for each in self._samplers]}

    def _load(self, saved: dict[str, Any]) -> None:
        self.close()
        if saved["length"] != self.length():
            raise Refused(f"the {type(self.loader).__name__} gave {saved['length']} batches in an epoch, and in this "
                          f"process gives {self.length()}: every process must have the same data")
        self.epoch, self._given, self._begin = saved["epoch"], saved["given"], saved["begin"]
        self.total = saved["total"]
        self._put_samplers_back(saved["samplers"])

    def _put_samplers_back(self, saved: list[Any]) -> None:
        for each, state in zip(self._samplers, saved, strict=True):
            each.load(state)

    def _reopen(self) -> None:
        order = _Order(self._order, self._indices)
        if self._begin is None:
            _set_epoch(self.epoch, self.loader.sampler, self._order, getattr(self._order, "sampler", None))
            self._iterator = _open(self.loader, order)
            return
        now = volatile_state.save_random()
        try:
            self._iterator = _open(self.loader, order)
            if not self.loader.num_workers:
                self._put_samplers_back(self._found)  # since then the loader has drawn a seed, for workers
        finally:
            volatile_state.load_random(now)

    def _indices(self) -> Iterator[Any]:
        """What follows the batches that were given."""
        return self._begin_order() if self._begin is None else self._find_order(self._begin)

    def _begin_order(self) -> Iterator[Any]:
        """Draws when the first is asked for, as samplers do."""
        before, states = volatile_state.save_random(), [each.save() for each in self._samplers]
        drawn = iter(self._order)
        following = next(drawn, _END)
        after = volatile_state.save_random()
        moved = {name: state for name, state in before.items() if not _same(state, after.get(name))}
        seed = mixed(zlib.crc32(before["torch"]) + mixed(self.epoch))
        self._begin = {"samplers": states, "seed": seed, "random": moved}
        for _ in range(self._given):
            following = next(drawn, _END)
        yield from self._numbered(drawn, following, self._given, seed)

    def _find_order(self, begin: dict[str, Any]) -> Iterator[Any]:
        """Draws at once, while the random state is put aside."""
        volatile_state.load_random({**volatile_state.save_random(), **begin["random"]})
        self._put_samplers_back(begin["samplers"])
        drawn = iter(self._order)
        following = next(drawn, _END)
        for _ in range(self._given):
            following = next(drawn, _END)
        self._found = [each.save() for each in self._samplers]
        return self._numbered(drawn, following, self._given, begin["seed"])

    def _numbered(self, drawn: Iterator[Any], following: Any, number: int, seed: int) -> Iterator[Any]:
        checked = number + DRAWS_CHECKED
        while following is not _END:
            yield _Seeded(following, mixed(seed + number)) if self.loader.num_workers else following
            number += 1
            before = volatile_state.save_random() if number < checked else None
            following = next(drawn, _END)
            if before is not None and not _same(before, volatile_state.save_random()):
                raise Refused(f"{type(getattr(self._order, 'sampler', self._order)).__name__} draws from everybody's "
                              f"random numbers while it gives its indices, so the same order can't be made again: draw "
                              f"them when its __iter__ begins, or from a torch.Generator that is its attribute")


class StatefulPlace:
    """A loader, or its dataset, that knows its own place."""

    def __init__(self, loader: Any, stateful: Any) -> None:
        self.loader, self._stateful = loader, stateful
        self.epoch = self.total = 0
        self._iterator: Any = None
        self._state: Any = None  # to go on from

    def length(self) -> int | None:
        try:
            return len(self.loader)
        except TypeError:
            return None

    def samples(self) -> int:
        return 0

    def seek(self, steps: int) -> None:
        """The script has loaded its state."""
        self.total = steps

    def next(self) -> Any:
        if self._iterator is None and self._state is not None:
            now = volatile_state.save_random()
            self._stateful.load_state_dict(self._state)
            self._iterator = _own(iter(self.loader))
            volatile_state.load_random(now)
        batch = _END if self._iterator is None else next(self._iterator, _END)
        if batch is _END:
            if self._iterator is not None:
                self.epoch += 1
            _set_epoch(self.epoch, self.loader, getattr(self.loader, "dataset", None),
                       getattr(self.loader, "sampler", None))
            self._iterator = _own(iter(self.loader))
            batch = next(self._iterator, _END)
        if batch is _END:
            raise Refused(f"the {type(self.loader).__name__} gives no batches")
        self.total += 1
        return batch

    def close(self) -> None:
        if self._iterator is not None:
            self._state = self._stateful.state_dict()
        self._iterator = None

    def part(self, name: str) -> volatile_state.Part:
        def save() -> dict[str, Any]:
            return {"epoch": self.epoch, "total": self.total,
                    "state": self._state if self._iterator is None else self._stateful.state_dict()}

        def load(saved: dict[str, Any]) -> None:
            self._iterator = None
            self.epoch, self.total, self._state = saved["epoch"], saved["total"], saved["state"]
        return volatile_state.Part(name, save, load)


def _set_epoch(epoch: int, *things: Any) -> None:
    """Of the first that has one."""
    for each in things:
        if callable(getattr(each, "set_epoch", None)):
            return each.set_epoch(epoch)
    return None


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)) and (
        callable(getattr(thing, "__iter__", None)))


# How a DataLoader gets another order ------------------------------------------------------------------------------

def _open(loader: Any, order: _Order) -> Any:
    """Its iterator, with this order in the place of its sampler. Persistent workers keep it and ask it again."""
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    others: dict[str, Any] = {name: order}
    if loader.num_workers:
        others["dataset"] = _SeededDataset(loader.dataset)
    kept = {each: vars(loader)[each] for each in others}
    vars(loader).update(others)  # past its __setattr__, which forbids it
    try:
        return _own(iter(loader))
    finally:
        vars(loader).update(kept)


def _end(loader: Any) -> None:
    """Workers that would stay for the next epoch; others end with their iterator."""
    if loader.num_workers and loader._iterator is not None:
        loader._iterator._shutdown_workers()
        loader._iterator = None


def _own(iterator: Any) -> Any:
    with contextlib.suppress(AttributeError):  # a generator takes none
        iterator.owned_by_pawl = True  # data_position.py
    return iterator


class _Order:
    """Stands for a sampler: what `indices` gives each time it is asked."""

    def __init__(self, sampler: Any, indices: Any) -> None:
        self._sampler, self._indices = sampler, indices

    def __iter__(self) -> Iterator[Any]:
        return iter(self._indices())

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


class _Seeded(list[Any]):
    """The indices of a batch, or one index, on the way to a worker, with the seed of its random numbers."""

    def __init__(self, indices: Any, seed: int = 0) -> None:
        self.single = not isinstance(indices, (list, tuple))
        super().__init__([indices] if self.single else indices)
        self.seed = seed

    def __reduce__(self) -> tuple[Any, ...]:
        return _Seeded, (self[0] if self.single else list(self), self.seed)


class _SeededDataset:
    """In a worker: the dataset, asked after the batch's seed has been set."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        _seed(index)
        return self._dataset[index[0] if isinstance(index, _Seeded) and index.single else index]

    def __getitems__(self, indices: Any) -> Any:
        _seed(indices)
        all_at_once = getattr(self._dataset, "__getitems__", None)
        return all_at_once(list(indices)) if all_at_once else [self._dataset[each] for each in indices]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_dataset":
            raise AttributeError(name)
        return getattr(self._dataset, name)


def _seed(indices: Any) -> None:
    if isinstance(indices, _Seeded):
        import torch
        torch.manual_seed(indices.seed)
        random.seed(indices.seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(indices.seed & 0xFFFFFFFF)


# Samplers ---------------------------------------------------------------------------------------------------------

class _SamplerState:
    """Generators and plain values among its attributes: what the next order is made from."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self._generators = {name: part for name, value in vars(sampler).items()
                            if (part := volatile_state.generator_part(name, value)) is not None}

    def save(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self._sampler).items() if type(value) in (bool, int, float, str)}
        return {"plain": plain, "generators": {name: part.save() for name, part in self._generators.items()}}

    def load(self, saved: dict[str, Any]) -> None:
        for name, value in saved["plain"].items():
            if vars(self._sampler).get(name) != value:
                vars(self._sampler)[name] = value
        for name, state in saved["generators"].items():
            self._generators[name].load(state)


class _LoaderGenerator:
    """The loader's own generator, from which it draws the seed of its workers."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def _samplers(loader: Any, order: Any) -> list[_SamplerState]:
    chain: list[Any] = []
    for each in (order, loader.sampler, getattr(order, "sampler", None), _LoaderGenerator(loader.generator)):
        while each is not None and hasattr(each, "__dict__") and all(each is not known for known in chain):
            chain.append(each)
            each = getattr(each, "sampler", None)
    return [_SamplerState(each) for each in chain]


def _same(one: Any, other: Any) -> bool:
    """Of what save_random() gives, with arrays in it."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_same(one[key], other[key])
                                                                              for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(_same, one, other))
    equal = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)

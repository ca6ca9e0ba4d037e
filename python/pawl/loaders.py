"""The script's own loader, and the place in it: which batch of which epoch comes next.

pawl owns the iterator and counts what it has given. After a loss it makes another one, with the random state that the
epoch began with, and passes by the indices of the batches that were given, without loading them: so the order is the
same one, whoever asks. Loaders that know their own place (state_dict) are asked for it. What has no place that a new
process could find is refused by name.

In worker processes each batch has random numbers of its own, by the epoch and its number in it, since a worker that is
made in the middle of an epoch hasn't drawn what the others have; and by the sampler's rank, the loader's generator and
those that the dataset had at first, since ranks shall draw others. In the training process nothing is drawn that the
loader wouldn't have drawn by itself. Generators that the dataset has of its own are part of the place; in workers they
are seeded for each batch. All is done in the training thread, between two steps.
"""
from __future__ import annotations

import collections
import contextlib
import functools
import operator
import types
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from pawl import loader_parts, sampler_state, script_exit, told_epochs, volatile_state
from pawl.errors import Refused
from pawl.mixing import mixed

DRAWS_CHECKED = 4  # of each epoch: a sampler that uses everybody's random numbers on its way is refused at once
DRAWS_LOOKED_AT = 64  # later, one of so many
OTHER_SEED = 0x5EED  # of the order that is made to see of what it is made
ENDS_IN_STATE = 2  # of a stateful loader's state of an epoch's end: so often it gives nothing
_END = object()
_stateful_drawing = 0  # places that are asked for a batch


def is_pawls(iterator: Any) -> bool:
    """Of a DataLoader: whether a place of pawl's knows what it gives."""
    return _stateful_drawing > 0 or isinstance(getattr(iterator, "_index_sampler", None), _Order)


def _length_of(loader: Any) -> int | None:
    """In batches; None: it doesn't know. Some say so by other errors than TypeError."""
    try:
        return len(loader)
    except Exception:
        return None


@contextlib.contextmanager
def _random_aside() -> Iterator[None]:
    now = volatile_state.save_random()
    try:
        yield
    finally:
        volatile_state.load_random(now)


class _EpochLengths:
    """What len() of a loader says, asked once for each epoch, since somebody's len() may do much."""

    def __init__(self, loader: Any, counting: Callable[[], contextlib.AbstractContextManager[None]]) -> None:
        """`counting`: around it."""
        self._loader, self._counting = loader, counting
        self._said: dict[int, int] = {}
        self.given: int | None = None  # of the epoch whose order is given, whichever process asked; None: unknown
        self.ended: int | None = None  # what the epoch before has given in all; None: unknown

    def are_known(self, epoch: int) -> bool:
        return epoch in self._said

    def ask(self, epoch: int, again: bool = False) -> int | None:
        if again or epoch not in self._said:
            self._said.pop(epoch, None)
            with self._counting():
                length = _length_of(self._loader)
            if length is not None:
                self._said[epoch] = length
        return self._said.get(epoch)

    def forget(self) -> None:
        self._said.clear()


class Elastic(Protocol):
    """An ElasticSampler (sampler.py), which imports the job."""

    position: int
    global_batch: int
    seed: int
    rank: int
    world: int

    @property
    def epoch(self) -> int: ...
    def epoch_at(self, position: int) -> int: ...
    def at(self, position: int) -> list[int]: ...
    def take_next(self) -> None: ...
    def __len__(self) -> int: ...


class Place(Protocol):
    """In one loader, or in several."""

    number: int  # of the loader, among those that each step takes a batch of
    epochs: told_epochs.Told

    @property
    def loader(self) -> Any: ...

    @property
    def epoch(self) -> int:
        """Of the batch given last, from 0."""

    @property
    def total(self) -> int:
        """Batches that it has given in all, those that were done before a checkpoint counted."""

    def length(self) -> int | None:
        """Batches in an epoch; None: nobody knows."""

    def ended(self) -> int | None:
        """Batches that the epoch before has given; None: nobody knows."""

    def goes_on(self) -> bool:
        """The epoch has given as many batches as len() says, and has more. For when the loop is through."""

    def samples(self) -> int:
        """Of this rank, so far; 0 if that is not known, or if a protected sampler counts them."""

    def seek(self, steps: int) -> None:
        """So many steps are done: the script goes on from a checkpoint. Before the first batch."""

    def ready(self) -> None:
        """After a loss: whatever making the iterator anew puts back is put back now."""

    def next(self) -> Any:
        """The next batch, from the next epoch where one is over."""

    def close(self) -> None:
        """Ends the workers. The place is kept, and next() goes on from it."""

    def kept(self) -> Kept:
        """What part() keeps of the script's objects now."""

    def part(self, name: str) -> volatile_state.Part: ...


@dataclass(slots=True)
class Kept:
    """Of a place."""

    objects: list[Any]  # as wholes: generators, and what knows its own place
    attributes: set[tuple[int, str]]  # (id of an object, name)


def place_in(loader: Any) -> Place:
    """In a loader, or in each of a tuple or list of them. Fails: Refused, with the remedy."""
    from torch.utils.data import DataLoader, IterableDataset
    if isinstance(loader, (tuple, list)) and loader:
        if len({id(each) for each in loader}) < len(loader):
            raise Refused("job.batches() was given one loader twice, and it has one place: take two batches of it for "
                          "each step by a batch size twice as large, or make a second DataLoader")
        return JointPlace([place_in(each) for each in loader])
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
    if loader.num_workers and not getattr(loader, "in_order", True):  # torch 2.5 has no other order
        raise Refused("DataLoader(in_order=False) gives whichever batch a worker has ready, so after a loss some "
                      "samples would come twice and others never: leave in_order=True")
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


class Lengths:
    """Of a loop's epochs, where the loop was given nothing but their number: it does so many steps as if each was as
    long as the first one says."""

    REMEDY = "Say how many steps it shall do: job.batches(loader, steps=N)"

    def __init__(self, place: Place) -> None:
        self._place, self._length, self._epoch, self._told = place, place.length(), place.epoch, False

    def change(self) -> str | None:
        """Told once. With each batch, cheap."""
        if self._told or self._place.epoch == self._epoch:
            return None
        before, self._epoch = self._epoch, self._place.epoch
        given, length = self._place.ended(), self._place.length()
        if given is not None and given != self._length:
            self._told = True
            return (f"epoch {before} gave {given} batches, and a loop over epochs= counts {self._length} for each, as "
                    f"len() of the loader said first. {self.REMEDY}, or let len() say what an epoch gives")
        if length == self._length:
            return None
        self._told = True
        return (f"epoch {self._epoch} has {length} batches where the first one had {self._length}: a loop over epochs= "
                f"counts each like the first. {self.REMEDY}")

    def rest(self) -> str | None:
        """The loop is through."""
        if self._told or not self._place.goes_on():
            return None
        return (f"the loop is through, and epoch {self._place.epoch} has more than the {self._length} batches that "
                f"len() of the loader says: a loop over epochs= counts by that. {self.REMEDY}, or let len() say what "
                f"an epoch gives")


def refuse_elsewhere(place: Place, step: int) -> None:
    """The step is about to get its batch. Fails: Refused, if that isn't the batch of this step."""
    for each in place.places if isinstance(place, JointPlace) else [place]:
        if each.total != step - 1:
            raise Refused(f"the {type(each.loader).__name__} has given {each.total} batches where step {step} is next: "
                          f"draw from it by the loop alone; from a checkpoint, job.batches(loader, done=N)")


class JointPlace:
    """Several loaders: each step gets a batch of each. The first one says what an epoch is; the others begin their next
    epoch where one is over. Their parts are those of their own places."""

    number = 0

    def __init__(self, places: list[Place]) -> None:
        self.places, self.epochs = places, places[0].epochs
        told: list[told_epochs.Told] = []
        for number, place in enumerate(places):
            place.number = number
            place.epochs.elsewhere = list(told)
            told.append(place.epochs)

    @property
    def loader(self) -> Any:
        return self.places[0].loader

    @property
    def epoch(self) -> int:
        return self.places[0].epoch

    @property
    def total(self) -> int:
        return self.places[0].total

    def length(self) -> int | None:
        return self.places[0].length()

    def ended(self) -> int | None:
        return self.places[0].ended()

    def goes_on(self) -> bool:
        return self.places[0].goes_on()

    def samples(self) -> int:
        return sum(place.samples() for place in self.places)

    def seek(self, steps: int) -> None:
        for place in self.places:
            place.seek(steps)

    def ready(self) -> None:
        """All before one of them draws: they may share a generator or a sampler."""
        for place in self.places:
            place.ready()

    def next(self) -> tuple[Any, ...]:
        self.ready()
        return tuple(place.next() for place in self.places)

    def close(self) -> None:
        for place in self.places:
            place.close()

    def kept(self) -> Kept:
        found = [place.kept() for place in self.places]
        return Kept([one for each in found for one in each.objects], set().union(*(each.attributes for each in found)))

    def part(self, name: str) -> volatile_state.Part:
        parts = [place.part(name) for place in self.places]

        def load(saved: list[Any]) -> None:
            for part, each in zip(parts, saved, strict=True):
                part.load(each)

        def load_elsewhere(saved: list[Any]) -> None:
            for part, each in zip(parts, saved, strict=True):
                (part.load_elsewhere or part.load)(each)
        return volatile_state.Part(name, lambda: [part.save() for part in parts], load, load_elsewhere=load_elsewhere)


class ElasticPlace:
    """A loader over an ElasticSampler, which has the place. Workers fetch ahead of it; but where a dataset is told the
    epoch, only to the last batch that begins in it."""

    def __init__(self, loader: Any, sampler: Elastic) -> None:
        self.loader, self._sampler = loader, sampler
        self.number = 0
        self._iterator: Any = None
        self._own = loader_parts.OwnGenerators(loader)
        self._attributes = loader_parts.ChangedAttributes(loader)
        self._generator = sampler_state.Chain([sampler_state.LoaderGenerator(loader.generator)])
        self._first = _mixed_in(self._own.first, _digest_of(self._generator.save()))  # of all that is drawn from
        self._offset = 0  # batches that the sampler had given before the first step
        self._begun = False  # what making an iterator draws was drawn
        self._opened = 0  # the epoch in which there were workers that no loss had made
        self._opened_at = 0  # batches that were given when these began
        self.epochs = told_epochs.Told([], loader.dataset)
        self._ends_epochs = bool(self.epochs.datasets())
        self.epoch = 0

    @property
    def total(self) -> int:
        return self._sampler.position // self._sampler.global_batch - self._offset

    def length(self) -> int | None:
        return len(self._sampler)

    def ended(self) -> int | None:
        return None

    def goes_on(self) -> bool:
        return False

    def samples(self) -> int:
        return 0

    def seek(self, steps: int) -> None:
        """If the script has set the sampler to another place, the steps begin there."""
        self._sampler.position = max(self._sampler.position, steps * self._sampler.global_batch)
        self._offset = self._sampler.position // self._sampler.global_batch - steps

    def ready(self) -> None:
        pass  # what it puts back then is as it finds it

    def next(self) -> Any:
        self.epoch, before = self._sampler.epoch, self._attributes.before()
        if self._ends_epochs:
            self.epochs.tell(self.epoch, self.close)
        batch = _END if self._iterator is None else next(self._iterator, _END)
        if batch is _END:  # or at the end of an epoch that a rehearsal goes through again
            self._reopen()
            batch = next(self._iterator)
        self._attributes.after(before)
        self._sampler.take_next()
        return batch

    def _reopen(self) -> None:
        now, generator = volatile_state.save_random(), self._generator.save()
        again = self._begun and (not self._ends_epochs or self._opened == self.epoch)
        if not again:
            self._opened, self._opened_at = self.epoch, self.total
        self._iterator = _open(self.loader, _Order(self._sampler, self._ahead), self._attributes, again,
                               self.total - self._opened_at)
        if self._begun:
            volatile_state.load_random(now)
            self._generator.load(generator)
        self._begun = True

    def _ahead(self) -> Iterator[Any]:
        position, epoch = self._sampler.position, self._sampler.epoch
        of_rank = self._sampler.rank * (self._sampler.global_batch // self._sampler.world)
        while not self._ends_epochs or self._sampler.epoch_at(position) == epoch:
            indices = self._sampler.at(position)
            seed = _mixed_in(mixed(mixed(self._sampler.seed) + position + of_rank), self._first, self.number)
            yield _Seeded(indices, seed) if self.loader.num_workers else indices
            position += self._sampler.global_batch

    def close(self) -> None:
        _end(self.loader)
        self._iterator = None

    def kept(self) -> Kept:
        return Kept([*self._generator.generators(), *self._own.now()], self._attributes.kept())

    def part(self, name: str) -> volatile_state.Part:
        return volatile_state.Part(name, self._save, self._load)

    def _save(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "begun": self._begun, "generator": self._generator.save(), "first": self._first,
                "opened": [self._opened, self._opened_at], "dataset": self._own.save(),
                "attributes": self._attributes.save()}

    def _load(self, saved: dict[str, Any]) -> None:
        self.close()
        self.epoch, self._begun, self._first = saved["epoch"], saved["begun"], saved["first"]
        self._opened, self._opened_at = saved["opened"]
        self._generator.load(saved["generator"], whole=True)
        self._own.load(saved["dataset"])
        self._attributes.load(saved["attributes"])


def _bound(part: volatile_state.Part, loader: Any) -> volatile_state.Part:
    return volatile_state.bound_part(part, f"the {type(loader).__name__} has given batches in the order of one rank "
                                           f"among as many as there were")


_RECKONED = ("Let len() say what each epoch gives, or take what knows its place: pawl.ElasticSampler as "
             "batch_sampler=, or a loader with state_dict() and load_state_dict()")


class IndexedPlace:
    """A DataLoader that looks its samples up by the indices of a sampler."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.number = self.epoch = self.total = 0
        self._given = 0  # batches of this epoch
        self._begin: dict[str, Any] | None = None  # that of which the epoch's order was made; None: not yet
        self._changes: sampler_state.Changes | None = None  # since then
        self._iterator: Any = None
        self._found: list[Any] = []  # the samplers' states, when their order was found again
        self._until: dict[str, Any] | None = None  # the samplers as they shall be when their order is found
        self._order = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._chain = sampler_state.Chain(sampler_state.samplers_of(loader, self._order))
        self._lengths = _EpochLengths(loader, self._chain.counting)
        self.epochs = told_epochs.Told([self._order, loader.sampler, getattr(self._order, "sampler", None),
                                         *self._chain.samplers], loader.dataset)
        self._own = loader_parts.OwnGenerators(loader)
        self._attributes = loader_parts.ChangedAttributes(loader)
        self._digest = 0  # of the indices that were given in this epoch
        self._digests: collections.deque[int] = collections.deque()  # what it will be with each batch that was drawn
        self._sought: set[str] | None = None  # the place is reckoned, not found yet: what set_epoch() has seeded in it
        self._reckoned = False  # of which epoch this one is, nothing is known but by len()

    def length(self) -> int | None:
        if self._sought is not None:
            return self._lengths.ask(0)  # which epoch it is has yet to be found
        given = self._lengths.given if self._begin is not None else None
        return self._lengths.ask(self.epoch) if given is None or self._lengths.are_known(self.epoch) else given

    def ended(self) -> int | None:
        return self._lengths.ended

    def goes_on(self) -> bool:
        if self._iterator is None or self._given != self._lengths.given:
            return False
        if self._digests:  # workers have drawn ahead
            return True
        with self._chain.aside(), contextlib.suppress(Exception):  # the sampler may fail: nobody needs it any more
            return next(self._iterator._sampler_iter, _END) is not _END
        return False

    def samples(self) -> int:
        return self.total * (self.loader.batch_size or 1)

    def seek(self, steps: int) -> None:
        """The place is found with the first batch: so no epoch is told of which none is given."""
        if steps and callable(getattr(self._order, "take_next", None)):
            raise Refused(f"done={steps} can't be found where a DataLoader has an ElasticSampler as sampler=: give it "
                          f"as batch_sampler=")
        length = self.length()
        if steps and not length and not self.epochs.samplers():
            raise Refused(f"nobody knows where step {steps} is in a {type(self._order).__name__} without a length")
        self.epoch, self._given = divmod(steps, length or 1)
        self.total, self._sought = steps, set() if steps else None

    def _find_sought(self) -> None:
        """Where epochs are alike, their number says where the place is. What the place's own epoch does to random
        numbers stays."""
        now, told = volatile_state.save_random(), self.epochs.has_scripts_samplers()
        self.epochs.epoch = None
        if told or self.epochs.datasets():
            self._lengths.forget()  # said when they had been told no epoch, or the script's
        self.epoch = 0
        self._announce()
        length = self._length_if_told()
        self.epoch, self._given = divmod(self.total, length)
        if self.epoch and (told or self._length_if_told() != length):
            self._count_epochs()
        volatile_state.load_random(now)
        samplers, self._reckoned = self._chain.save(), self.epoch > 0
        self._announce(again=True)
        self._sought = _drawn_from(now, samplers, volatile_state.save_random(), self._chain.save())

    def _count_epochs(self) -> None:
        """Each is as long as it says when it is told its number."""
        self.epoch, self._given, told = 0, self.total, 1
        while self._given >= (length := self._length_if_told()):
            told += not self._lengths.are_known(self.epoch + 1)
            self.epoch, self._given = self.epoch + 1, self._given - length
        if told > 2:
            script_exit.say(f"done={self.total} is in epoch {self.epoch}: to find it, {told} epochs were told to what "
                            f"has a set_epoch(), since each may have another length")

    def _length_if_told(self) -> int:
        if not self._lengths.are_known(self.epoch):
            self._announce()
        length = self._lengths.ask(self.epoch)
        if not length:
            raise Refused(f"nobody knows where step {self.total} is in a {type(self._order).__name__} without a "
                          f"length in epoch {self.epoch}")
        return length

    def ready(self) -> None:
        if self._iterator is None and self._begin is not None:
            before = self._attributes.before()
            self._reopen()
            self._attributes.after(before)

    def next(self) -> Any:
        self.ready()
        before = self._attributes.before()
        if self._iterator is None:
            self._reopen()
        batch = next(self._iterator, _END)
        if batch is _END:
            self._tell_reckoned()
            self._lengths.ended, self._reckoned = self._given, False
            self.epoch, self._given, self._begin, self._digest = self.epoch + 1, 0, None, 0
            self._iterator = None
            self._reopen()
            batch = next(self._iterator, _END)
        if batch is _END:
            raise Refused(f"the {type(self.loader).__name__} gives no batches")
        self._attributes.after(before)
        self._given += 1
        self.total += 1
        self._digest = self._digests.popleft()
        if self._given > (self._lengths.given or self._given):
            self._tell_reckoned()
        return batch

    def _wrongly_reckoned(self, gives: int | None) -> str | None:
        """What is wrong where this epoch is known to give so many batches, or more."""
        if not self._reckoned or gives in (None, self._lengths.given):
            return None
        return (f"done=N was reckoned by len(), and epoch {self.epoch} gives {gives} batches or more where the "
                f"{type(self.loader).__name__} says {self._lengths.given}: so the loop didn't begin where the "
                f"checkpoint was. {_RECKONED}")

    def _tell_reckoned(self) -> None:
        """Batches were trained on since: they are the script's, whatever came before."""
        wrong = self._wrongly_reckoned(self._given)
        if wrong is not None:
            self._reckoned = False
            script_exit.say(wrong)

    def close(self) -> None:
        _end(self.loader)
        self._iterator = None

    def kept(self) -> Kept:
        return Kept([*self._chain.generators(), *self._own.now()], self._chain.kept() | self._attributes.kept())

    def part(self, name: str) -> volatile_state.Part:
        return _bound(volatile_state.Part(name, self._save, self._load), self.loader)

    def _save(self) -> dict[str, Any]:
        begin = self._begin
        if begin is not None and self._changes is not None:
            begin = {**begin, "changes": self._changes.save()}
        replaced = self._chain.replaced()
        return {"epoch": self.epoch, "given": self._given, "total": self.total, "length": self._lengths.given,
                "begin": begin, "reckoned": self._reckoned, "samplers": self._chain.save(), "replaced": replaced,
                "long": self._chain.digests(replaced),
                "digest": self._digest, "ahead": list(self._digests), "first": self._own.first,
                "dataset": self._own.save(), "attributes": self._attributes.save()}

    def _load(self, saved: dict[str, Any]) -> None:
        self.close()
        self.epoch, self._given, self._begin = saved["epoch"], saved["given"], saved["begin"]
        self.total, self._digest, self._lengths.given = saved["total"], saved["digest"], saved["length"]
        self._lengths.ended, self._reckoned = None, saved["reckoned"]
        self._own.first = saved["first"]
        self._changes, self._until = None, None
        if self._begin is not None:  # it may make the epoch's list of batches, and generators
            self._begin = dict(self._begin)
            self._changes = sampler_state.Changes(self._chain, self._begin["changes"])
            self._until = {"samplers": saved["samplers"], "replaced": saved["replaced"], "ahead": saved["ahead"],
                           "long": saved["long"]}
            now, before = volatile_state.save_random(), self._attributes.before()
            self._announce()
            self._attributes.after(before)
            volatile_state.load_random(now)
        self._sought = set() if self._begin is None and self.total > 0 else None
        self._chain.load(saved["samplers"], self._makes_generators(), whole=True)
        self._own.load(saved["dataset"])
        self._attributes.load(saved["attributes"])

    def _makes_generators(self) -> bool:
        """Who makes a generator in __iter__ makes it with the order, whose indices are compared then."""
        return self._begin is not None and self._given > 0

    def _announce(self, again: bool = False) -> None:
        if self.epochs.tell(self.epoch, lambda: _end(self.loader), again):
            self._chain.note_told()

    # The order --------------------------------------------------------------------------------------------------

    def _reopen(self) -> None:
        order = _Order(self._order, self._indices)
        if self._begin is None:
            if self._sought is not None:
                self._find_sought()
            else:
                self._announce(again=True)
            self._iterator = _open(self.loader, order, self._attributes)
            return
        if self._begin["late"]:
            raise Refused(f"{self._sampler_name()} {_DRAWS_LATE}")
        now, own = volatile_state.save_random(), self._own.states()
        failed = self._until is None and not self.loader.num_workers and bool(self._digests)  # a batch, once drawn
        if self._until is None:
            self._until = {"samplers": self._chain.save(), "replaced": self._chain.replaced(),
                           "ahead": list(self._digests), "long": []}
        try:
            self._iterator = _open(self.loader, order, self._attributes, again=True, given=self._given)
            self._chain.leave_begin()
            self._chain.load(self._found if failed else self._until["samplers"], self._makes_generators())
            self._until = None
            if not self.loader.num_workers:
                self._own.load(own)  # the dataset may draw from a sampler's generator, and has done so since
        finally:
            self._chain.leave_begin()
            volatile_state.load_random(now)

    def _indices(self) -> Iterator[Any]:
        """What follows the batches that were given."""
        return self._begin_order() if self._begin is None else self._find_order(self._begin)

    def _begin_order(self) -> Iterator[Any]:
        """Draws when the first is asked for, as samplers do."""
        before, states, long = volatile_state.save_random(), self._chain.save(), self._chain.unkept()
        drawn = iter(self._order)
        has = operator.length_hint(drawn) if type(drawn) is type(iter([])) else None
        following = next(drawn, _END)
        after, changed = volatile_state.save_random(), self._chain.changed_unkept(long)
        self._chain.note_order()
        self._lengths.given = self._lengths.ask(self.epoch)
        wrong = self._wrongly_reckoned(has)
        if wrong is not None:
            raise Refused(wrong)
        if changed:
            self._refuse_list_in_place(before, states, following)
            self._chain.records |= changed
        if self._sought is not None:
            self._tell_begin(before, states, after, following)
        self._sought = None
        moved = {name: state for name, state in before.items() if not loader_parts.same(state, after.get(name))}
        self._changes = sampler_state.Changes(self._chain)
        self._begin = {"samplers": states, "random": moved, "late": False, "changes": self._changes.save(),
                       "seed": self._seed(before["torch"], states)}
        following, passed = self._pass_by(drawn, following, self._given)
        if passed < self._given:
            raise Refused(f"epoch {self.epoch} of the {type(self.loader).__name__} gives {passed} batches, so what "
                          f"comes after {self._given} of it can't be found: len() says {self._lengths.given}. "
                          f"{_RECKONED}")
        yield from self._numbered(drawn, following, self._given, [])

    def _seed(self, everybodys: bytes, states: list[dict[str, Any]]) -> int:
        """Of this epoch's batches in workers. Ranks that have samples of their own draw other numbers; those that share
        their samples, as with tensor parallelism, have one sampler's rank and draw the same."""
        from torch.utils.data.distributed import DistributedSampler
        with_rank = [each for each in self._chain.samplers if type(getattr(each, "rank", None)) is int]
        ranks = [each.rank for each in sorted(with_rank, key=lambda each: not isinstance(each, DistributedSampler))]
        own = [state for each, state in zip(self._chain.samplers, states, strict=True)
               if isinstance(each, sampler_state.LoaderGenerator)]
        return _mixed_in(mixed(zlib.crc32(everybodys) + mixed(self.epoch)), self._own.first, _digest_of(own),
                         *ranks[:1], self.number)

    def _tell_begin(self, random_before: dict[str, Any], before: list[dict[str, Any]], random_now: dict[str, Any],
                    first: Any) -> None:
        """The order of an epoch of a checkpoint has begun: it may come of what another process has had."""
        assert self._sought is not None
        now = self._chain.save()
        drawn_from = _drawn_from(random_before, before, random_now, now) - self._sought
        if not self._given:  # everybody's random numbers make an epoch's order as good as any
            drawn_from = {name for name in drawn_from if "." in name and self.epoch}
        names = sampler_state.changed_names(before, now) if self.epoch else []
        further = [{**was, "values": each["values"]} for was, each in zip(before, now, strict=True)]
        if names and not self._comes_anew(further, first, lambda: volatile_state.load_random(random_before)):
            self._tell_random_begin(", ".join(names))
        elif drawn_from and not self._comes_anew(before, first, lambda: self._seed_others(drawn_from)):
            self._tell_random_begin("random numbers")

    def _tell_random_begin(self, made_of: str) -> None:
        where, harm, remedy = (
            ("in the middle", "some samples come twice and others never", "Keep checkpoints of an epoch's end")
            if self._given else ("at the begin", "it has the order of another", "Keep them in the checkpoint"))
        script_exit.say(
            f"done={self.total} is {where} of epoch {self.epoch}, and {self._sampler_name()} makes its order from "
            f"{made_of}: unless they are now as that epoch began with them, {harm}. {remedy}, or make the "
            f"order from the epoch's number, as DistributedSampler does, or use pawl.ElasticSampler")

    def _refuse_list_in_place(self, random_before: dict[str, Any], before: list[Any], first: Any) -> None:
        """The order's begin has changed a list that is too long to be kept. Fails: Refused, unless the same begin comes
        of what is kept: then the list is a record, or is made anew."""
        if not self._comes_anew(before, first, lambda: volatile_state.load_random(random_before)):
            raise Refused(f"{self._sampler_name()} shuffles a list of its own in place, of more than "
                          f"{sampler_state.VALUES_KEPT} values or of other values than numbers and texts, so the same "
                          f"order can't be made again: let its __iter__ shuffle a copy of what was there at first")

    def _comes_anew(self, begin: list[Any], first: Any, set_random: Callable[[], None]) -> bool:
        """Whether the order begins as it did, where the samplers are as at its begin. It doesn't count."""
        with self._chain.aside():
            self._announce(again=True)
            self._chain.load(begin, made_later=True)
            set_random()
            return loader_parts.same(next(iter(self._order), _END), first)

    def _seed_others(self, names: set[str]) -> None:
        """What has these names in _drawn_from() gets other numbers."""
        random_now = volatile_state.save_random()
        loader_parts.seed_everybody(OTHER_SEED)
        volatile_state.load_random({name: state if name in names else random_now[name]
                                    for name, state in volatile_state.save_random().items()})
        self._chain.seed(names, OTHER_SEED)

    def _sampler_name(self) -> str:
        """Of who makes the order: torch's batch sampler only cuts it."""
        from torch.utils.data import BatchSampler
        return type(self._order.sampler if type(self._order) is BatchSampler else self._order).__name__

    def _draw(self, drawn: Iterator[Any], number: int) -> Any:
        """The epoch's batch of this number, from 0; not the first."""
        assert self._changes is not None
        self._changes.before(number)
        following = next(drawn, _END)
        self._changes.after(number)
        return following

    def _pass_by(self, drawn: Iterator[Any], following: Any, count: int) -> tuple[Any, int]:
        """So many batches, or as many as there are. The next one, and how many those were."""
        self._digest = 0
        self._digests.clear()
        passed = 0
        while passed < count and following is not _END:
            passed += 1
            self._digest = _with_indices(self._digest, following)
            following = self._draw(drawn, passed)
        return following, passed

    def _find_order(self, begin: dict[str, Any]) -> Iterator[Any]:
        """Draws at once, while the random state is put aside. Who may have used up what set_epoch() made is told the
        epoch again."""
        assert self._until is not None
        given, used_up = self._digest, self._chain.is_used_up()
        self._tell_others(self._chain.others_than(self._until["long"]))
        for again in (used_up, True):
            self._chain.leave_begin()
            self._announce(again)
            volatile_state.load_random({**volatile_state.save_random(), **begin["random"]})
            self._chain.set_to_begin(begin["samplers"], self._until["replaced"], self._makes_generators())
            drawn = iter(self._order)
            following = next(drawn, _END)
            self._refuse_other_length()
            following, _ = self._pass_by(drawn, following, self._given - 1)
            if self._given:  # as before, the next one is drawn when it is asked for: the last may draw from a generator
                self._digest = _with_indices(self._digest, following)
            if self._digest == given:
                self._found = self._chain.save()
                self._chain.note_order()
                return self._follow(drawn, following, self._until["ahead"])
        over = self._given == self._lengths.given and following is not _END and self._draw(drawn, self._given) is _END
        if over and self._has_replaced_long():
            self._digest, self._found = given, self._chain.save()
            return iter(())  # whatever it was like
        raise self._gives_others(begin)

    def _tell_others(self, others: list[sampler_state.Other]) -> None:
        """Where the script has replaced them in this process, what is there is what it wants. Fails: Refused, where the
        next order surely comes of them."""
        for each in others:
            if each.known:
                continue
            sentence = (f"{each.name}, which has more than {sampler_state.VALUES_KEPT} values or others than numbers "
                        f"and texts and so isn't kept, was replaced after epoch {self.epoch} had begun, and other "
                        f"values are in this process. If orders come of it, let set_epoch() or __iter__ make it, or "
                        f"change it in place and protect it, job.protect(state={{...}})")
            if self._given == self._lengths.given and each.steers:
                raise Refused(sentence)
            script_exit.say(sentence)

    def _has_replaced_long(self) -> bool:
        """The script, or the order's end, has put another container in the place of one that isn't kept."""
        assert self._until is not None
        return any(name in self._until["samplers"][number]["unkept"] for number, name in self._until["replaced"])

    def _gives_others(self, begin: dict[str, Any]) -> Refused:
        until = self._until["samplers"] if self._until is not None else self._chain.save()
        names = sampler_state.changed_names(begin["samplers"], until)
        changed = f", or from what was changed since it began ({', '.join(names)})" if names else ""
        return Refused(f"{self._sampler_name()} doesn't give the indices again that it gave in this epoch before: its "
                       f"order is made from something that isn't kept{changed}. Make it from the epoch, from "
                       f"everybody's random numbers, or from a generator that is its attribute")

    def _refuse_other_length(self) -> None:
        given = self._lengths.given
        if given is None or self._lengths.ask(self.epoch) == given:
            return
        length = self._lengths.ask(self.epoch, again=True)  # it may have been asked before it was told the epoch
        if length != given:
            raise Refused(f"the {type(self.loader).__name__} gave {given} batches in epoch {self.epoch}, and "
                          f"in this process gives {length}: every process must have the same data")

    def _follow(self, drawn: Iterator[Any], last: Any, ahead: list[int]) -> Iterator[Any]:
        """What comes after the last that was given; where none was, `last` itself. What was drawn ahead comes again."""
        following = self._draw(drawn, self._given) if self._given else last
        yield from self._numbered(drawn, following, self._given, ahead)

    def _numbered(self, drawn: Iterator[Any], following: Any, number: int, ahead: list[int]) -> Iterator[Any]:
        """`ahead`: the digests of those that were drawn from there on."""
        assert self._begin is not None
        digest, begin, first = self._digest, self._begin, number
        while following is not _END:
            digest = _with_indices(digest, following)
            if number - first < len(ahead) and ahead[number - first] != digest:
                raise self._gives_others(begin)
            self._digests.append(digest)
            yield _Seeded(following, mixed(begin["seed"] + number)) if self.loader.num_workers else following
            number += 1
            looked_at = number < DRAWS_CHECKED or number % DRAWS_LOOKED_AT == 0
            before = loader_parts.random_mark() if looked_at else None
            following = self._draw(drawn, number)
            if looked_at and before != loader_parts.random_mark():
                if number < DRAWS_CHECKED:
                    raise Refused(f"{self._sampler_name()} {_DRAWS_LATE}")
                begin["late"] = True
                _tell_late_draws(self._sampler_name())


_DRAWS_LATE = ("draws from everybody's random numbers while it gives its indices, so the same order can't be made "
               "again: draw them when its __iter__ begins, or from a torch.Generator that is its attribute")


@functools.cache
def _tell_late_draws(name: str) -> None:
    script_exit.say(f"{name} {_DRAWS_LATE}. It did so later than in the first {DRAWS_CHECKED} batches of an epoch: a "
                    f"loss in the rest of such an epoch ends the job")


def _drawn_from(random_before: dict[str, Any], before: list[Any], random_now: dict[str, Any],
                now: list[Any]) -> set[str]:
    """What has given random numbers between two moments, or was seeded: everybody's, and generators of samplers."""
    found = {name for name, state in random_before.items() if not loader_parts.same(state, random_now.get(name))}
    for number, (was, state) in enumerate(zip(before, now, strict=True)):
        found |= {f"{number}.{path}" for path, each in state["generators"].items()
                  if not loader_parts.same(each, was["generators"].get(path))}
    return found


def _digest_of(states: list[dict[str, Any]]) -> int:
    """Of the generators in what Chain.save() gives."""
    return zlib.crc32(repr([each["generators"] for each in states]).encode())


def _mixed_in(seed: int, *numbers: int) -> int:
    for each in numbers:
        seed = mixed(seed + mixed(each + 1))
    return seed


class StatefulPlace:
    """A loader, or its dataset, that knows its own place."""

    def __init__(self, loader: Any, stateful: Any) -> None:
        self.loader, self._stateful = loader, stateful
        self.number = self.epoch = self.total = 0
        self._iterator: Any = None
        self._state: Any = None  # to go on from
        self._over = False  # that is of an epoch's end
        self._told: int | None = None  # the epoch that it was told last
        self._given: int | None = 0  # batches of this epoch; None: the script's checkpoint is amid it
        self._lengths = _EpochLengths(loader, _random_aside)
        self.epochs = told_epochs.Told([], None)
        beside = _beside_state(loader)
        self._generator = sampler_state.Chain([sampler_state.LoaderGenerator(beside.generator)])
        self._own, self._attributes = loader_parts.OwnGenerators(beside), loader_parts.ChangedAttributes(loader if (
            beside.collate_fn is not None and not beside.num_workers) else beside)

    def length(self) -> int | None:
        return self._lengths.ask(self.epoch)

    def ended(self) -> int | None:
        return self._lengths.ended

    def goes_on(self) -> bool:
        return False  # whoever is asked for one more has given it

    def samples(self) -> int:
        return 0

    def seek(self, steps: int) -> None:
        """The script has loaded its state, and before that has told it the epoch: who is told one may begin anew."""
        self.total, self._given = steps, None if steps else 0
        if steps:
            epochs = [each.epoch for each in self._told_epochs() if type(getattr(each, "epoch", None)) is int]
            self.epoch = self._told = max(epochs, default=0) or steps // (self.length() or steps + 1)

    def ready(self) -> None:
        pass  # what it puts back then is as it finds it

    def next(self) -> Any:
        global _stateful_drawing
        _stateful_drawing += 1
        before = self._attributes.before()
        try:
            return self._next()
        finally:
            _stateful_drawing -= 1
            self._attributes.after(before)

    def _next(self) -> Any:
        restored = self._iterator is None and self._state is not None
        if restored:
            now, generator, own = volatile_state.save_random(), self._generator.save(), self._own.states()
            self._announce()  # first: what is told an epoch may begin anew
            self._stateful.load_state_dict(self._state)
            self._iterator = None if self._over else iter(self.loader)
            volatile_state.load_random(now)
            self._generator.load(generator)
            self._own.load(own)
        batch = _END if self._iterator is None else next(self._iterator, _END)
        if batch is _END:
            resumed = self._iterator is None and not self._over and self.total > 0
            if self._iterator is not None or self._over:
                self.epoch, self._lengths.ended, self._given = self.epoch + 1, self._given, 0
            self._announce(again=self.total == 0)
            now, generator = volatile_state.save_random(), self._generator.save()
            self._iterator = iter(self.loader)
            batch = next(self._iterator, _END)
            for _ in range(ENDS_IN_STATE if batch is _END and (self._over or restored) else 0):
                volatile_state.load_random(now)
                self._generator.load(generator)
                self._iterator = iter(self.loader)
                if (batch := next(self._iterator, _END)) is not _END:
                    break
            self._over = False
            if batch is _END and resumed:  # the script's checkpoint is of an epoch's end
                length = self.length() or 0
                self.epoch = self.total // length if length and self.total % length == 0 else self.epoch + 1
                self._given = 0
                self._announce(again=True)
                self._iterator = iter(self.loader)
                batch = next(self._iterator, _END)
        if batch is _END:
            raise Refused(f"the {type(self.loader).__name__} gives no batches")
        self.total += 1
        self._given = None if self._given is None else self._given + 1
        return batch

    def _announce(self, again: bool = False) -> None:
        if self._told != self.epoch or again:
            self._told = self.epoch
            for each in self._told_epochs():
                each.set_epoch(self.epoch)

    def _told_epochs(self) -> list[Any]:
        order, dataset = getattr(self.loader, "batch_sampler", None), getattr(self.loader, "dataset", None)
        return _with_epochs(self.loader) or [
            *([] if self.epochs.is_told_elsewhere(dataset) else _with_epochs(dataset)),
            *_with_epochs(getattr(self.loader, "sampler", None), order, getattr(order, "sampler", None))]

    def close(self) -> None:
        if self._iterator is not None:
            self._state, self._over = self._stateful.state_dict(), self._is_over()
        self._iterator = None

    def _is_over(self) -> bool:
        """For a last batch that isn't full torch asks the dataset for more, so its state is that of the next epoch."""
        fetcher = getattr(self._iterator, "_dataset_fetcher", None)
        return self._over if self._iterator is None else bool(getattr(fetcher, "ended", False))

    def kept(self) -> Kept:
        return Kept([self._stateful, *self._generator.generators(), *self._own.now()], self._attributes.kept())

    def part(self, name: str) -> volatile_state.Part:
        def save() -> dict[str, Any]:
            return {"epoch": self.epoch, "total": self.total, "over": self._is_over(), "given": self._given,
                    "state": self._state if self._iterator is None else self._stateful.state_dict(),
                    "generator": self._generator.save(), "collate": self._own.save(),
                    "attributes": self._attributes.save()}

        def load(saved: dict[str, Any]) -> None:
            self._iterator = None
            self.epoch, self.total, self._over = saved["epoch"], saved["total"], saved["over"]
            self._given, self._lengths.ended, self._state = saved["given"], None, saved["state"]
            self._generator.load(saved["generator"], whole=True)
            self._own.load(saved["collate"])
            self._attributes.load(saved["attributes"])
        return _bound(volatile_state.Part(name, save, load), self.loader)


def _beside_state(loader: Any) -> types.SimpleNamespace:
    """What a loader that knows its place draws from beside its dataset, whose generators are in its state."""
    from torch.utils.data import DataLoader
    known = isinstance(loader, DataLoader)
    return types.SimpleNamespace(dataset=None, generator=loader.generator if known else None,
                                 collate_fn=loader.collate_fn if known else None,
                                 num_workers=loader.num_workers if known else 0)


def _with_epochs(*things: Any) -> list[Any]:
    """The first that wants to know the epoch, if there is one."""
    return [each for each in things if callable(getattr(each, "set_epoch", None))][:1]


def _is_stateful(thing: Any) -> bool:
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)) and (
        callable(getattr(thing, "__iter__", None)))


# How a DataLoader gets another order ------------------------------------------------------------------------------

class _Away:
    """What a loader has for an iterator while pawl has the one of its persistent workers: where the script iterates
    over the loader itself, it gets another one, in the loader's own order. Who takes this away wants new workers."""

    def __init__(self, pawls: Any, turned: bool) -> None:
        """`turned`: they stand for others only to the end of an epoch, of which each begins with the first worker."""
        self.pawls, self.turned = pawls, turned
        self._scripts: Any = None

    def _reset(self, loader: Any, *arguments: Any) -> None:
        if self._scripts is None:
            self._scripts = loader._get_iterator()
        else:
            self._scripts._reset(loader, *arguments)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return next(self._scripts)

    def __len__(self) -> int:
        return len(self._scripts)

    def _shutdown_workers(self) -> None:
        for each in (self.pawls, self._scripts):
            getattr(each, "_shutdown_workers", lambda: None)()


def _open(loader: Any, order: _Order, attributes: loader_parts.ChangedAttributes, again: bool = False,
          given: int = 0) -> Any:
    """Its iterator, with this order in the place of its sampler. Persistent workers keep it and ask it again. `again`:
    in the middle of what an iterator gives, after so many batches: workers stand for those of that one."""
    import torch
    name = "batch_sampler" if loader.batch_sampler is not None else "sampler"
    others: dict[str, Any] = {name: order}
    away = loader._iterator if isinstance(loader._iterator, _Away) else None
    if loader.num_workers:
        others["dataset"] = _SeededDataset(loader.dataset, loader.collate_fn)
        living = order if away is None else getattr(away.pawls, "_index_sampler", order)
        if getattr(living, "_indices", None) != order._indices:  # another place's, which would go on in its order
            away = None
        elif away is not None and away.turned and not again:
            away, again = None, True
            others["generator"] = torch.Generator()  # else the seed that they don't get is drawn from everybody's
        if away is None:
            _end(loader)  # that one, or the script's own
            if not again:
                attributes.note()
        others["worker_init_fn"] = _WorkerBegin(loader.worker_init_fn, *(
            [attributes.for_workers(), attributes.seed, given] if again else [None, None, 0]))
        loader._iterator = None if away is None else away.pawls
    kept = {each: vars(loader)[each] for each in others}
    vars(loader).update(others)  # past its __setattr__, which forbids it
    try:
        iterator = iter(loader)
    finally:
        vars(loader).update(kept)
        if loader.num_workers and loader._iterator is not None:
            turned = given % loader.num_workers > 0
            loader._iterator = _Away(loader._iterator, turned) if away is None else away
    if loader.num_workers and away is None and not again:
        attributes.seed = iterator._base_seed
    return iterator


def _end(loader: Any) -> None:
    """Workers that would stay for the next epoch; others end with their iterator."""
    if loader.num_workers and loader._iterator is not None:
        getattr(loader._iterator, "_shutdown_workers", lambda: None)()
        loader._iterator = None


def _with_indices(digest: int, indices: Any) -> int:
    if hasattr(indices, "tolist"):  # a long tensor or array doesn't show all of itself
        indices = indices.tolist()
    return zlib.crc32(repr(list(indices) if isinstance(indices, (list, tuple)) else indices).encode(), digest)


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


@dataclass(slots=True, eq=False)
class _Seeded:
    """What the sampler has given, on the way to a worker, with the seed of the batch's random numbers."""

    indices: Any  # of a batch, or one index: a list, an array, a tensor, whatever it is
    seed: int


class _SeededDataset:
    """In a worker: the dataset, asked after the batch's seed has been set. The script never sees it."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        """`collate`: what makes batches of its samples in this worker."""
        self._dataset, self._collate = dataset, collate
        self._generators: dict[str, Any] | None = None  # of both
        self._looks = loader_parts.LOOKS_AGAIN

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        found = self._dataset[self._seeded(index)]
        self._refuse_late_generators()
        return found

    def __getitems__(self, indices: Any) -> Any:
        indices = self._seeded(indices)
        all_at_once = getattr(self._dataset, "__getitems__", None)
        found = all_at_once(indices) if all_at_once else [self._dataset[each] for each in indices]
        self._refuse_late_generators()
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_dataset", "_collate", "_generators", "_looks"):
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def _seeded(self, indices: Any) -> Any:
        """The sampler's own."""
        if not isinstance(indices, _Seeded):
            return indices
        import torch
        torch.manual_seed(indices.seed)  # its devices' too
        loader_parts.seed_everybody(indices.seed)
        if self._generators is None:
            self._generators = loader_parts.generators_of(self._dataset, self._collate)
        for number, generator in enumerate(self._generators.values()):
            volatile_state.seed_generator(generator, mixed(indices.seed + number + 1))
        return indices.indices

    def _refuse_late_generators(self) -> None:
        if self._looks:
            self._looks -= 1
            loader_parts.refuse_late(self._dataset, self._collate, self._generators or {})


class _WorkerBegin:
    """In a worker: the script's worker_init_fn, which finds its own dataset in get_worker_info()."""

    def __init__(self, begin: Any, seen: list[dict[str, Any]] | None, seed: int | None, given: int) -> None:
        """Of those workers that this one stands for: what they saw of the datasets, the seed they were given, and how
        many batches they have given."""
        self._begin, self._seen, self._seed, self._given = begin, seen, seed, given

    def __call__(self, worker: int) -> None:
        from torch.utils.data import get_worker_info
        info = get_worker_info()
        if info is not None and isinstance(info.dataset, _SeededDataset):
            object.__setattr__(info, "dataset", info.dataset._dataset)  # past its own, which forbids it
            loader_parts.show(info.dataset, self._seen or [])
        if info is not None and self._seed is not None:
            worker = (worker + self._given) % info.num_workers
            loader_parts.stand_for(info, worker, self._seed)
        if self._begin is not None:
            self._begin(worker)

"""What the samplers of a loader hold: random number generators, and values that their next order is made from.

Values are numbers, texts and short containers of these, tensors and arrays among them; of a longer container only
whether it has changed. They are put back in place, since the script may hold the same container. The state has the form
of the volatile state, so that another process can take it. The training thread's.
"""
from __future__ import annotations

import collections
import contextlib
import copy
import itertools
import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from pawl import loader_parts, volatile_state
from pawl.errors import Refused

VALUES_KEPT = 4096  # of a container of a sampler
DEPTH_MAX = 20  # of containers in one another
DIGESTS_KEPT = 64  # of replaced containers
VALUES_LOOKED_AT = 64  # of a longer one, to see whether it has changed; of a short one, for generators and samplers
_LEAVES = {type(None), bool, int, float, complex, str, range}
_CONTAINERS = {list, tuple, dict, set, frozenset, collections.deque, collections.defaultdict, collections.OrderedDict,
               collections.Counter}
_UNKEPT: Any = object()
_ABSENT: Any = object()


# Values -----------------------------------------------------------------------------------------------------------

def kept(value: Any) -> Any:
    """A copy; of a defaultdict, a dict. _UNKEPT: it is too long, or something in it is of another kind."""
    return _copy_of(value) if 0 <= _count(value) <= VALUES_KEPT else _UNKEPT


def _is_array(value: Any) -> bool:
    """Or a tensor, in host memory."""
    import torch
    if type(value) is torch.Tensor:
        return value.layout is torch.strided and value.device.type == "cpu"
    return type(value).__name__ == "ndarray" and not value.dtype.hasobject


def _is_container(value: Any) -> bool:
    return type(value) in _CONTAINERS or _is_array(value)


def _count(value: Any, depth: int = 0) -> int:
    """Of numbers and texts; -1: something else is there, or more than are kept, or it is too deep, as what has itself
    inside."""
    if type(value) in _LEAVES or loader_parts.is_numpys(value):
        return 1
    if _is_array(value):
        return int(value.numel() if hasattr(value, "numel") else value.size)
    if type(value) not in _CONTAINERS or len(value) > VALUES_KEPT or depth > DEPTH_MAX:
        return -1
    values = [*value, *value.values()] if isinstance(value, dict) else value
    if _LEAVES.issuperset(map(type, values)):
        return len(values)
    count = 0
    for each in values:
        more = 1 if type(each) in _LEAVES else _count(each, depth + 1)
        count += more
        if more < 0 or count > VALUES_KEPT:
            return -1
    return count


def _copy_of(value: Any) -> Any:
    kind = type(value)
    if kind not in _CONTAINERS:
        return value if not _is_array(value) else value.detach().clone() if hasattr(value, "detach") else value.copy()
    if isinstance(value, dict):
        pairs = {key: each if type(each) in _LEAVES else _copy_of(each) for key, each in value.items()}
        return pairs if kind in (dict, collections.defaultdict) else kind(pairs)
    found = value if _LEAVES.issuperset(map(type, value)) else map(_copy_of, value)
    return collections.deque(found, value.maxlen) if kind is collections.deque else kind(found)


def alike(one: Any, other: Any) -> bool:
    """Of kept values. That two of not-a-number are alike is not always seen."""
    if type(one) is not type(other) or isinstance(one, dict) and list(one) != list(other):
        return False
    if _is_array(one):
        return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
    try:
        return bool(one == other) or type(one) is float and one != one and other != other
    except (ValueError, RuntimeError):  # there are arrays inside
        if isinstance(one, dict):
            one, other = one.values(), other.values()
        return len(one) == len(other) and all(map(alike, one, other))


def put_in(now: Any, value: Any) -> Any:
    """What shall stand for `now`, so that it has this kept value: where that can be, `now` itself, changed in place."""
    same_kind = type(now) is type(value) or type(now) is collections.defaultdict and type(value) is dict
    if not same_kind:
        return _copy_of(value)
    if type(now) is type(value) and alike(now, value):
        return now
    if type(now) is list:
        now[:] = [put_in(*each) for each in zip(now, value, strict=False)] + [_copy_of(each)
                                                                              for each in value[len(now):]]
    elif isinstance(now, dict):
        found = {key: put_in(now.get(key), each) for key, each in value.items()}
        if list(now) != list(found):  # else someone may be in the middle of it
            now.clear()
        for key, each in found.items():
            now[key] = each
    elif type(now) is set:
        now.clear()
        now.update(value)
    elif type(now) is collections.deque and now.maxlen == value.maxlen:
        now.clear()
        now.extend(_copy_of(value))
    elif _is_array(now) and now.shape == value.shape and now.dtype == value.dtype:
        if hasattr(now, "detach"):
            now.detach().copy_(value)
        elif now.flags.writeable:
            now[...] = value
        else:
            return _copy_of(value)
    else:
        return _copy_of(value)
    return now


def _some(value: Any, most: int = VALUES_LOOKED_AT) -> Any:
    """The first and the last values, and some between: fewer of what lies deeper."""
    if _is_array(value) and most:
        flat = value.reshape(-1)
        return flat[::max(1, len(flat) // VALUES_LOOKED_AT)].tolist()
    if type(value) in _CONTAINERS and most:
        values = value.items() if isinstance(value, dict) else value
        step = max(1, -(-len(value) // most))
        between = value[::step] if type(value) in (list, tuple) else itertools.islice(values, 0, None, step)
        ends = [] if isinstance(value, (set, frozenset)) else [
            each for some in (values, reversed(values)) for each in itertools.islice(some, max(1, most // 8))]
        return [len(value), *(_some(each, most // 4) for each in (*ends, *between))]
    if loader_parts.is_numpys(value):
        return value.item()
    return value if type(value) in _LEAVES else type(value).__name__


# Samplers ---------------------------------------------------------------------------------------------------------

class LoaderGenerator:
    """The loader's own generator, from which it draws the seed of its workers."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator


def samplers_of(loader: Any, order: Any) -> list[Any]:
    """And those inside of them, whatever their names are there; the outer ones first."""
    chain: list[Any] = []
    left = collections.deque([order, loader.sampler, LoaderGenerator(loader.generator)])
    while left:
        each = left.popleft()
        if each is not None and hasattr(each, "__dict__") and all(each is not known for known in chain):
            chain.append(each)
            left.extend(_samplers_in(each))
    return chain


def _samplers_in(sampler: Any) -> Iterator[Any]:
    from torch.utils.data import Sampler
    yield getattr(sampler, "sampler", None)
    for value in list(vars(sampler).values()):
        several = value.values() if type(value) is dict else value if type(value) in (list, tuple) else [value]
        yield from (each for each in itertools.islice(several, VALUES_LOOKED_AT) if isinstance(each, Sampler))


def _generators_in(sampler: Any) -> dict[str, volatile_state.Part]:
    return {path: part for path, (_, part) in _generators_and_parts(sampler).items()}


def _generators_and_parts(sampler: Any) -> dict[str, tuple[Any, volatile_state.Part]]:
    """Its attributes, and what lies in its short containers."""
    found: dict[str, tuple[Any, volatile_state.Part]] = {}
    for name, value in vars(sampler).items():
        inside: list[tuple[str, Any]] = [(name, value)]
        if type(value) in (list, tuple, dict) and len(value) <= VALUES_LOOKED_AT:
            pairs: Any = value.items() if type(value) is dict else enumerate(value)
            inside += [(f"{name}[{key!r}]", each) for key, each in pairs]
        for path, each in inside:
            if (part := volatile_state.generator_part(path, each)) is not None:
                found[path] = each, part
    return found


@dataclass(slots=True, eq=False)
class _Begin:
    """Of one sampler, while the order is found: its attributes before it was set to its begin, and then."""

    before: dict[str, Any]
    set_to: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Other:
    """A container that isn't as it was when it was saved."""

    name: str
    known: bool  # it was once, in this process: the script has replaced it since
    steers: bool  # orders surely come of it: it is of a sampler of torch's, which has nothing else


class Chain:
    """The samplers of one loader, and those inside of them. Generators are those that they have at that moment:
    set_epoch() may make them anew. A container that is as it was at first is not saved; one that is or was too long to
    be kept stays as it is."""

    def __init__(self, samplers: list[Any]) -> None:
        self.samplers = samplers
        self._first = [_values_of(each)[0] for each in samplers]
        self._in_order: list[dict[str, Any]] = [{} for _ in samplers]  # their containers, when the order had begun
        self._begins: list[_Begin] = []
        self._told: list[dict[str, int]] = []  # unkept(), when they had been told the epoch
        self.records: set[tuple[int, str]] = set()  # long containers that change, and from which no order comes
        self._seen: collections.deque[list[Any]] = collections.deque(maxlen=DIGESTS_KEPT)  # what digests() has said

    def save(self) -> list[dict[str, Any]]:
        return [self._save(sampler, first) for sampler, first in zip(self.samplers, self._first, strict=True)]

    def _save(self, sampler: Any, first: dict[str, Any]) -> dict[str, Any]:
        as_at_first = {name for name, value in vars(sampler).items()
                       if name in first and _is_container(value) and alike(value, first[name])}
        changed, unkept = _values_of(sampler, as_at_first)
        return {"values": changed, "unkept": unkept, "names": list(vars(sampler)), "generators": {
            path: part.save() for path, part in _generators_in(sampler).items()}}

    def load(self, saved: list[dict[str, Any]], made_later: bool = False, whole: bool = False) -> None:
        """`made_later`: the order is made again and compared, and with it generators that aren't there yet. `whole`:
        what has grown too long since then, too. Fails: Refused."""
        for sampler, first, state in zip(self.samplers, self._first, saved, strict=True):
            held, unkept = vars(sampler), {*_values_of(sampler)[1]}
            left = {*state["unkept"]} if whole else {*state["unkept"], *unkept}
            names = {*state["names"]}
            for name in [name for name in held if name not in names and name not in first]:
                if kept(held[name]) is not _UNKEPT:
                    del held[name]  # it came later
            was = {name: value for name, value in first.items()
                   if name in names and name not in unkept and _is_container(value)}
            for name, value in {**was, **state["values"]}.items():
                if name not in left or not _is_container(value):
                    held[name] = put_in(held.get(name, _ABSENT), value)
            _load_generators(sampler, state["generators"], made_later)

    def kept(self) -> set[tuple[int, str]]:
        """(id of a sampler, name) of attributes."""
        return {(id(each), name) for each in self.samplers for name in _values_of(each)[0]}

    def generators(self) -> list[Any]:
        return [generator for each in self.samplers for generator, _ in _generators_and_parts(each).values()]

    def plain(self) -> list[dict[str, Any]]:
        """Numbers and texts that are their attributes."""
        return [{name: value for name, value in vars(each).items()
                 if type(value) in _LEAVES or loader_parts.is_numpys(value)} for each in self.samplers]

    def set_plain(self, number: int, values: dict[str, Any]) -> None:
        vars(self.samplers[number]).update(values)

    def unkept(self) -> list[dict[str, int]]:
        """A digest of each container that isn't kept, by some of its values."""
        return [{name: zlib.crc32(repr(_some(value)).encode()) for name, value in vars(each).items()
                 if _is_container(value) and not 0 <= _count(value) <= VALUES_KEPT} for each in self.samplers]

    def changed_unkept(self, before: list[dict[str, int]]) -> set[tuple[int, str]]:
        """By the number of the sampler; since unkept() said this. Records don't count."""
        return {(number, name) for number, (was, now) in enumerate(zip(before, self.unkept(), strict=True))
                for name, digest in was.items() if now.get(name, digest) != digest} - self.records

    def note_told(self) -> None:
        """They have been told an epoch."""
        self._told = self.unkept()

    def is_used_up(self) -> bool:
        """What they made when they were told the epoch has changed."""
        return self._told != self.unkept()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """What happens within doesn't count: everybody's random numbers, generators, attributes and what is in short
        containers, or in longer ones that are no arrays, is as before."""
        now, were = volatile_state.save_random(), [_Aside(each, with_long=True) for each in self.samplers]
        with contextlib.ExitStack() as stack:
            stack.callback(volatile_state.load_random, now)
            for each in were:
                stack.callback(each.put_back)
            yield

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        """Somebody's len() is called within. What it makes stays, so that it need not be made again. But if it has
        drawn random numbers, the samplers are as before: they draw them when their order begins."""
        now, were = volatile_state.save_random(), [_Aside(each) for each in self.samplers]
        try:
            yield
        finally:
            after = volatile_state.save_random()
            moved = {name: state for name, state in now.items() if not loader_parts.same(state, after.get(name))}
            if moved or any(each.has_drawn() for each in were):
                with contextlib.ExitStack() as stack:
                    stack.callback(volatile_state.load_random, {**after, **moved})
                    for each in were:
                        stack.callback(each.put_back)

    def seed(self, paths: set[str], seed: int) -> None:
        """Generators get other numbers: `paths` have the sampler's number in them."""
        for number, sampler in enumerate(self.samplers):
            for path, (generator, _) in _generators_and_parts(sampler).items():
                if f"{number}.{path}" in paths:
                    volatile_state.seed_generator(generator, seed)

    # While an order is found ------------------------------------------------------------------------------------

    def note_order(self) -> None:
        """The order has begun, and may be in the middle of what they hold now."""
        self._in_order = [{name: value for name, value in vars(each).items() if _is_container(value)}
                          for each in self.samplers]

    def replaced(self) -> list[list[Any]]:
        """(number, name) of containers that are others than when the order began: it isn't in the middle of these."""
        return [[number, name] for number, (each, then) in enumerate(zip(self.samplers, self._in_order, strict=True))
                for name, value in then.items() if name in vars(each) and vars(each)[name] is not value]

    def digests(self, replaced: list[list[Any]]) -> list[list[Any]]:
        """(number, name, digest) of those that aren't kept."""
        unkept = self.unkept() if replaced else []
        found = [[number, name, unkept[number][name]] for number, name in replaced if name in unkept[number]]
        self._seen.extend(each for each in found if each not in self._seen)
        return found

    def others_than(self, digests: list[list[Any]]) -> list[Other]:
        """Those that aren't as digests() has said, here or in another process."""
        unkept = self.unkept() if digests else []
        return [Other(f"{type(self.samplers[number]).__name__}.{name}", [number, name, digest] in self._seen,
                      type(self.samplers[number]).__module__.startswith("torch.utils.data"))
                for number, name, digest in digests if unkept[number].get(name) != digest]

    def set_to_begin(self, begin: list[dict[str, Any]], replaced: list[list[Any]], made_later: bool) -> None:
        """Until leave_begin(). What the order is not in the middle of is another object meanwhile."""
        self._begins = [_Begin(dict(vars(each))) for each in self.samplers]
        for number, name in replaced:
            held = vars(self.samplers[number])
            if _is_container(held.get(name)):
                held[name] = copy.copy(held[name])
        self.load(begin, made_later)
        for each, sampler in zip(self._begins, self.samplers, strict=True):
            each.set_to = dict(vars(sampler))

    def leave_begin(self) -> None:
        """Each attribute is the object again that it was, unless the sampler has made another one since."""
        for each, sampler in zip(self._begins, self.samplers, strict=False):
            held = vars(sampler)
            for name, value in each.before.items():
                if held.get(name, _ABSENT) is each.set_to.get(name, _ABSENT):
                    held[name] = value
        self._begins = []


def _values_of(sampler: Any, but: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """Those that are kept, and the names of containers that are not."""
    values = {name: kept(value) for name, value in vars(sampler).items()
              if name not in but and (type(value) in _LEAVES or _is_container(value) or loader_parts.is_numpys(value))}
    return ({name: value for name, value in values.items() if value is not _UNKEPT},
            [name for name, value in values.items() if value is _UNKEPT])


def _load_generators(sampler: Any, states: dict[str, Any], made_later: bool) -> None:
    generators = _generators_in(sampler)
    for path, state in states.items():
        if path in generators:
            generators[path].load(state)
        elif not made_later:
            raise Refused(f"{type(sampler).__name__}.{path} was a random number generator, and there is none in this "
                          f"process: make it in the sampler's __init__ or set_epoch()")


class _Aside:
    """One sampler as it is now."""

    def __init__(self, sampler: Any, with_long: bool = False) -> None:
        self._sampler, self._held = sampler, dict(vars(sampler))
        self._generators = [(part, part.save()) for part in _generators_in(sampler).values()]
        self._short: list[tuple[Any, Any]] = []
        self._long: list[tuple[Any, Any]] = []  # without copies of what is in them
        for value in self._held.values():
            if _is_container(value) and type(value) not in (tuple, frozenset):
                if (copied := kept(value)) is not _UNKEPT:
                    self._short.append((value, copied))
                elif with_long and not _is_array(value):
                    self._long.append((value, copy.copy(value)))

    def has_drawn(self) -> bool:
        return any(not loader_parts.same(part.save(), state) for part, state in self._generators)

    def put_back(self) -> None:
        held = vars(self._sampler)
        for name in [name for name in held if name not in self._held]:
            del held[name]
        held.update(self._held)
        for value, copied in self._short:
            put_in(value, copied)
        for value, copied in self._long:
            _fill(value, copied)
        for part, state in self._generators:
            part.load(state)


def _fill(value: Any, copied: Any) -> None:
    """`copied` has the same objects as `value` had."""
    if isinstance(value, dict):
        if list(map(id, value)) != list(map(id, copied)):
            value.clear()
        for key, each in copied.items():
            value[key] = each
    elif type(value) is list:
        value[:] = copied
    elif value != copied:
        value.clear()
        getattr(value, "extend" if type(value) is collections.deque else "update")(copied)


def changed_names(before: list[dict[str, Any]], now: list[dict[str, Any]]) -> list[str]:
    """Of attributes whose values differ in two states of one chain."""
    return sorted({name for was, state in zip(before, now, strict=True) for name in {*was["values"], *state["values"]}
                   if not alike(was["values"].get(name), state["values"].get(name))})


CHANGES_KEPT = 64  # of one attribute in one epoch


class Changes:
    """Numbers and texts of samplers that the script has changed while an order was given, and before which batch was
    drawn: where the order is found again, they change there again. What changes oftener than is kept doesn't."""

    def __init__(self, chain: Chain, saved: dict[str, Any] | None = None) -> None:
        self._chain, self._seen = chain, chain.plain()
        self._drawn: int = saved["drawn"] if saved else 0  # the batch drawn last, by whoever has drawn furthest
        self._log: list[list[Any]] = list(saved["log"]) if saved else []
        self._often: list[list[Any]] = list(saved["often"]) if saved else []

    def save(self) -> dict[str, Any]:
        return {"drawn": self._drawn, "log": list(self._log), "often": list(self._often)}

    def before(self, batch: int) -> None:
        """It is about to be drawn."""
        if batch <= self._drawn:
            for _, number, name, value in (each for each in self._log if each[0] == batch):
                self._chain.set_plain(number, {name: value})
            return
        for number, (seen, now) in enumerate(zip(self._seen, self._chain.plain(), strict=True)):
            if seen != now:
                for name in [name for name in now if name not in seen or seen[name] != now[name]]:
                    self._note(batch, number, name, now[name])

    def after(self, batch: int) -> None:
        self._drawn = max(batch, self._drawn)
        self._seen = self._chain.plain()

    def _note(self, batch: int, number: int, name: str, value: Any) -> None:
        if [number, name] in self._often:
            return
        if sum(each[1:3] == [number, name] for each in self._log) < CHANGES_KEPT:
            self._log.append([batch, number, name, value])
        else:
            self._often.append([number, name])
            self._log = [each for each in self._log if each[1:3] != [number, name]]

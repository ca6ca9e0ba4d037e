"""What the place in a loader is made of, beside numbers and samplers (sampler_state.py): the random number generators
that its dataset draws from, and what its workers have seen of the dataset.

What a process finds here must be there in every process that makes the same loader.
"""
from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import operator
import random
import sys
import types
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pawl import script_frames, volatile_state
from pawl.errors import Refused

VALUES_LOOKED_AT = 64  # of a dataset's containers, for generators
LEVELS = 4  # of what a dataset holds
VISITED_MAX = 4096
PARTS_MAX = 1 << 18  # whose kinds are looked at
COLLATE = "collate_fn"
CHECKS_MAX = 1 << 16  # of parts of many, for generators of their own
LOOKS_AGAIN = 4  # for generators that a dataset makes with its first samples
DATASETS_MAX = 4096  # in one another
DATASETS_SHOWN = 64  # whose attributes are kept for workers
TEXT_MAX = 200  # of a dataset's attribute
NUMBERS_MAX = 16  # likewise, in a tuple
_PLAIN = {type(None), bool, int, float, str}
_GONE = (KeyError, IndexError, AttributeError, TypeError, ValueError)  # what led to a place


# Everybody's random numbers ---------------------------------------------------------------------------------------

def same(one: Any, other: Any) -> bool:
    """Of what save_random() gives, with arrays in it."""
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[key], other[key])
                                                                              for key in one)
    if isinstance(one, (list, tuple)):
        return isinstance(other, (list, tuple)) and len(one) == len(other) and all(map(same, one, other))
    if any(getattr(one, each, None) != getattr(other, each, None) for each in ("shape", "dtype")):
        return False  # that one is stretched to the other says nothing
    equal = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)


def random_mark() -> tuple[Any, ...]:
    """Another one where somebody has drawn from torch's generator of the CPU, Python's or numpy's. Microseconds."""
    import torch
    found: tuple[Any, ...] = hash(random.getstate()), zlib.crc32(volatile_state.bytes_of(torch.get_rng_state()))
    if "numpy" in sys.modules:
        _, keys, place, *spare = sys.modules["numpy"].random.get_state()
        found += (zlib.crc32(keys.tobytes()), place, *spare)
    return found


def seed_everybody(seed: int) -> None:
    """On the CPU."""
    import torch
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed & 0xFFFFFFFF)


def is_numpys(value: Any) -> bool:
    """A number of numpy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.generic) and not value.dtype.hasobject


# Datasets ---------------------------------------------------------------------------------------------------------

def datasets_of(dataset: Any) -> list[Any]:
    """And those inside of torch's wrappers and of the script's, the outer ones first."""
    found: list[Any] = []
    left, seen = collections.deque([dataset]), set()
    while left and len(found) < DATASETS_MAX:
        each = left.popleft()
        if each is None or id(each) in seen:
            continue
        seen.add(id(each))
        found.append(each)
        held = getattr(each, "__dict__", {})
        several = held.get("datasets")
        left.append(held.get("dataset"))
        left.extend(several.values() if isinstance(several, dict) else several if isinstance(several, (list, tuple))
                    else ())
    return found


class ChangedAttributes:
    """Numbers, switches, short texts and tuples of a loader's datasets that the script has changed since the loader was
    protected: as they are, and as they were when its workers began, since those that are made anew in the middle of an
    epoch see the same. What a dataset changes itself, while it gives samples or is told the epoch, is its own: it may
    stand for a file that it has opened, which another process has not."""

    def __init__(self, loader: Any) -> None:
        self._dataset = loader.dataset
        self._watched = datasets_of(loader.dataset)[:DATASETS_SHOWN]
        self._first = [{**_plain_of_class(type(each)), **_plain_attributes(each)} for each in self._watched]
        self._own: set[tuple[int, str]] = set()
        self.seen: list[dict[str, Any]] = []  # what had changed when the workers began
        self.seed: int | None = None  # what those were given
        _watching.add(self)

    def before(self) -> list[dict[str, Any]]:
        """The datasets are about to be asked for something: for after()."""
        return [dict(getattr(each, "__dict__", ())) for each in self._watched]

    def after(self, before: list[dict[str, Any]]) -> None:
        for number, (each, was) in enumerate(zip(self._watched, before, strict=True)):
            held = getattr(each, "__dict__", was)
            if len(held) != len(was) or not all(map(operator.is_, held.values(), was.values())):
                self._own |= {(number, name) for name, value in held.items()
                              if _is_kept(value) and was.get(name, _PLAIN) is not value}

    def note(self) -> None:
        """Workers begin."""
        self.seen = self._changed()

    def for_workers(self) -> list[dict[str, Any]]:
        """For show(), so that those made now see what others have."""
        wanted = {id(each): values for each, values in zip(self._watched, self._as_in(self.seen), strict=True)}
        return [wanted.get(id(each), {}) for each in datasets_of(self._dataset)[:DATASETS_SHOWN]]

    def kept(self) -> set[tuple[int, str]]:
        """(id of a dataset, name) of those that are the script's."""
        return {(id(each), name) for number, each in enumerate(self._watched)
                for name in _plain_attributes(each) if (number, name) not in self._own}

    def save(self) -> dict[str, Any]:
        return {"now": self._changed(), "workers": self.seen, "seed": self.seed}

    def load(self, saved: dict[str, Any]) -> None:
        self.seen, self.seed = saved["workers"], saved["seed"]
        for each, values in zip(self._watched, self._as_in(saved["now"]), strict=True):
            _set_attributes(each, values)

    def _changed(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in _plain_attributes(each).items()
                 if (number, name) not in self._own and not _is_same(value, first.get(name, _PLAIN))}
                for number, (each, first) in enumerate(zip(self._watched, self._first, strict=True))]

    def _as_in(self, values: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """With what has changed, but not there: that is as at first."""
        return [{**{name: first[name] for name in changed if name in first}, **each} for first, changed, each in zip(
            self._first, self._changed(), [*values, *[{}] * len(self._watched)], strict=False)]


_watching: weakref.WeakSet[ChangedAttributes] = weakref.WeakSet()


@contextlib.contextmanager
def samples_given() -> Iterator[None]:
    """A loader of the script's asks for samples in this process: what their datasets change meanwhile is their own."""
    before = [(each, each.before()) for each in list(_watching)]
    try:
        yield
    finally:
        for each, was in before:
            each.after(was)


def _plain_attributes(dataset: Any) -> dict[str, Any]:
    return {name: value for name, value in getattr(dataset, "__dict__", {}).items() if _is_kept(value)}


def _is_kept(value: Any) -> bool:
    if type(value) is tuple:
        return len(value) <= NUMBERS_MAX and all(type(each) is not tuple and _is_kept(each) for each in value)
    return len(value) <= TEXT_MAX if type(value) is str else type(value) in _PLAIN or is_numpys(value)


def _plain_of_class(kind: type) -> dict[str, Any]:
    """What its objects say where they have no such attribute."""
    return {name: value for each in reversed(kind.__mro__) for name, value in vars(each).items()
            if _is_kept(value) and not name.startswith("__")}


def _is_same(one: Any, other: Any) -> bool:
    return one is other or type(one) is type(other) and one == other


def _set_attributes(dataset: Any, values: dict[str, Any]) -> None:
    if values:
        vars(dataset).update(values)


def show(dataset: Any, values: list[dict[str, Any]]) -> None:
    """In a worker: the datasets get what others have seen."""
    for each, seen in zip(datasets_of(dataset), values, strict=False):
        _set_attributes(each, seen)


def stand_for(info: Any, number: int, first: int) -> None:
    """In a worker: it is as that of this number whose iterator has drawn this seed."""
    import torch
    from torch.utils.data._utils import worker
    for name, value in ("id", number), ("seed", first + number):
        object.__setattr__(info, name, value)  # past its own, which forbids it
    random.seed(info.seed)
    torch.manual_seed(info.seed)
    if "numpy" in sys.modules and hasattr(worker, "_generate_state"):
        sys.modules["numpy"].random.seed(worker._generate_state(first, number))


class OwnGenerators:
    """Of a loader's dataset and its collate_fn, where they are called in the training process. What is kept is what
    lies in the same places now: the script may put new ones there, as for each epoch."""

    def __init__(self, loader: Any) -> None:
        self._dataset, self._collate = loader.dataset, loader.collate_fn
        self._looks = 0 if loader.num_workers else LOOKS_AGAIN
        walk = _Walk(self._dataset, self._collate)
        walk.refuse_unseen()
        for path in walk.stateless[:1]:
            tell_stateless(path)
        self._places = walk.places
        self.first = zlib.crc32(repr(list(self.states().values())).encode()) if walk.places else 0  # what they were
        if loader.num_workers:
            self._places = {}

    def save(self) -> dict[str, Any]:
        if self._looks:
            self._looks -= 1
            refuse_late(self._dataset, self._collate, self._places)
        return self.states()

    def states(self) -> dict[str, Any]:
        return {path: part.save() for path in self._places if (part := self._part(path)) is not None}

    def load(self, saved: dict[str, Any]) -> None:
        for path, state in saved.items():
            part = self._part(path)
            if part is None:
                raise Refused(f"{path} was a random number generator, and there is none in this process: make it "
                              f"before the loader is protected")
            part.load(state)

    def now(self) -> list[Any]:
        found = []
        for get in self._places.values():
            with contextlib.suppress(*_GONE):
                found.append(get())
        return found

    def _part(self, path: str) -> volatile_state.Part | None:
        try:
            return volatile_state.generator_part(path, self._places[path]())
        except _GONE:
            return None


def refuse_late(dataset: Any, collate: Any, known: dict[str, Any]) -> None:
    """Those of a collate_fn are only told of: some of libraries' make theirs with the first batch, and the script can't
    help it. Likewise one of many parts that are opened when they are used."""
    walk = _Walk(dataset, collate)
    late = [path for path in walk.found if path not in known]
    for path in late:
        if not path.startswith(COLLATE) and path not in walk.of_many:
            raise Refused(f"{path} is a random number generator that was made after the loader was protected: another "
                          f"process would make it elsewhere in the data. Make it in the dataset's __init__, or in "
                          f"worker_init_fn")
    for path in late[:1]:
        tell_late(path)


@functools.cache
def tell_late(path: str) -> None:
    print(f"pawl: {path} is a random number generator that was made with the first batches: it is not protected, and "
          f"after a loss it begins anew. Make it before the loader is protected, or in worker_init_fn", file=sys.stderr)


@functools.cache
def tell_stateless(path: str) -> None:
    print(f"pawl: {path} is a random.SystemRandom, whose numbers nobody can give again: what is drawn from it is other "
          f"in a step that is done again after a loss. Use random.Random(seed)", file=sys.stderr)


def generators_of(dataset: Any, collate: Any = None) -> dict[str, Any]:
    """Random number generators among its attributes, those of what it holds, and those that its methods and functions
    take from their modules, their defaults or the function that made them, each once; likewise of what makes batches of
    samples. The nearest first, and only so far as a look takes milliseconds; of many parts the first ones, and all of a
    kind in which there are generators."""
    return _Walk(dataset, collate).found


_Get = Callable[[], Any]            # what lies in a place now
_GetIn = Callable[[Any], Any]       # likewise, of what holds it


@dataclass(slots=True, eq=False)
class _Met:
    path: str
    value: Any
    levels: int
    get: _Get
    above: _Met | None = None  # what it lies in
    has: bool = False  # a generator, somewhere inside
    of_many: bool = False  # beyond the first parts of something, or in one of those


@dataclass(slots=True, eq=False)
class _Many:
    """Something with more parts than are looked at."""

    met: _Met
    first: list[_Met]
    kinds: set[type]  # of the others


class _Walk:
    """What generators_of() says, with the places in which they lie."""

    def __init__(self, dataset: Any, collate: Any) -> None:
        self.found: dict[str, Any] = {}
        self.places: dict[str, _Get] = {}
        self.of_many: set[str] = set()  # of those found
        self.stateless: list[str] = []  # of those that have no state, the paths
        self._checks = CHECKS_MAX
        self._seen: dict[int, Any] = {}
        self._many: list[_Many] = []
        self._having: dict[type, int] = collections.defaultdict(int)  # how many of a kind have generators
        self._nearest = collections.deque([_Met("dataset", dataset, LEVELS, lambda: dataset),
                                           _Met(COLLATE, collate, LEVELS, lambda: collate)])
        while self._nearest and len(self._seen) < VISITED_MAX:
            self._meet(self._nearest.popleft())
            if not self._nearest:
                self._nearest.extend(each for many in self._many for each in self._rest_of(many))

    def refuse_unseen(self) -> None:
        """Fails: Refused, where there are more parts like those that have generators of their own."""
        self._checks = CHECKS_MAX
        left = [each for each in self._nearest if self._is_like_others(each)]
        left += [each for many in self._many for each in self._rest_of(many) if self._having[type(each.value)] > 1]
        for each in left[:1]:
            raise Refused(f"{each.path} is beyond the {VISITED_MAX} objects that pawl looks at for random number "
                          f"generators, and others of its kind have some: after a loss they would give other numbers. "
                          f"Let the parts of the dataset share a generator, or draw from everybody's random numbers")

    def _is_like_others(self, met: _Met) -> bool:
        if id(met.value) in self._seen:
            return False
        return volatile_state.generator_part(met.path, met.value) is not None or (
            met.above is not None and met.above.has and self._having[type(met.value)] > 1 and
            self._has_own(met.value, met.levels))

    def _rest_of(self, many: _Many) -> list[_Met]:
        """Those that are of a kind with generators and have others than were found, once."""
        kinds = many.kinds & {type(each.value) for each in many.first if each.has}
        many.kinds -= kinds
        inside = itertools.islice(_inside(many.met.value), VALUES_LOOKED_AT, None) if kinds else iter(())
        found = (_within(many.met, *each, of_many=True) for each in inside
                 if type(each[1]) in kinds and self._has_own(each[1], many.met.levels - 1))
        return list(itertools.islice(found, VISITED_MAX))

    def _has_own(self, value: Any, levels: int) -> bool:
        """Whether there is a generator in it that was not met, as far as a short look shows."""
        if type(value) in _PLAIN or id(value) in self._seen:
            return False
        self._checks -= 1
        if self._checks < 0 or isinstance(value, types.FunctionType):
            return True
        if volatile_state.generator_part("", value) is not None:
            return True
        if isinstance(value, (list, tuple, dict)):
            some = list(itertools.islice(value.values() if isinstance(value, dict) else value, VALUES_LOOKED_AT))
        else:
            some = [each for _, each, _ in itertools.islice(_inside(value), VALUES_LOOKED_AT)]
        return levels > 0 and not _PLAIN.issuperset(map(type, some)) and any(self._has_own(each, levels - 1)
                                                                             for each in some)

    def _meet(self, met: _Met) -> None:
        value = met.value
        if id(value) in self._seen or isinstance(value, types.ModuleType):
            return
        self._seen[id(value)] = value
        if isinstance(value, random.SystemRandom):
            self.stateless.append(met.path)
        elif volatile_state.generator_part(met.path, value) is not None:
            path = met.path
            while path in self.found:  # two functions may have defaults of one name
                path += "'"
            self.found[path], self.places[path] = value, met.get
            if met.of_many:
                self.of_many.add(path)
            self._note_above(met)
        elif met.levels:
            self._nearest.extend(self._parts_of(met))
            self._nearest.extend(_within(met, f": {name}", *each) for name, *each in _used_by(value))

    def _note_above(self, met: _Met) -> None:
        each: _Met | None = met
        while each is not None and not each.has:
            each.has = True
            self._having[type(each.value)] += 1
            each = each.above

    def _parts_of(self, met: _Met) -> list[_Met]:
        """The first ones, and the first of each further kind."""
        inside = _inside(met.value)
        first = [_within(met, *each) for each in itertools.islice(inside, VALUES_LOOKED_AT)
                 if type(each[1]) not in _PLAIN]
        kinds = _kinds_in(met.value, VALUES_LOOKED_AT) - _PLAIN
        more = kinds - {type(each.value) for each in first}
        while more:
            name, value, get = next(inside)
            if type(value) in more:
                first.append(_within(met, name, value, get, of_many=True))
                more.discard(type(value))
        if kinds:
            self._many.append(_Many(met, first, kinds))
        return first


def _kinds_in(value: Any, begin: int) -> set[type]:
    """Of the parts of a container from there on."""
    parts: Any = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return set(map(type, itertools.islice(parts, begin, PARTS_MAX))) if len(parts) > begin else set()


def _within(met: _Met, name: str, value: Any, get: _GetIn, of_many: bool = False) -> _Met:
    return _Met(met.path + name, value, met.levels - 1, lambda: get(met.get()), met, of_many=of_many or met.of_many)


def _inside(value: Any) -> Iterator[tuple[str, Any, _GetIn]]:
    if isinstance(value, (list, tuple)):
        yield from ((f"[{number}]", each, operator.itemgetter(number)) for number, each in enumerate(value))
    elif isinstance(value, dict):
        yield from ((f"[{key!r}]", each, operator.itemgetter(key)) for key, each in value.items())
    elif isinstance(value, types.MethodType):
        yield "", value.__self__, operator.attrgetter("__self__")
    elif isinstance(value, functools.partial):
        yield from (("", getattr(value, name), operator.attrgetter(name)) for name in ("func", "args", "keywords"))
    elif hasattr(value, "__dict__") and not isinstance(value, (type, types.FunctionType)):
        yield from ((f".{name}", each, _attribute(name)) for name, each in vars(value).items())


def _attribute(name: str) -> _GetIn:
    return lambda value: vars(value)[name]


def _used_by(value: Any) -> Iterator[tuple[str, Any, _GetIn]]:
    """What the code of the script's own functions and classes names outside of them, without containers and models, and
    generators of those classes."""
    functions = [value]
    if not isinstance(value, types.FunctionType):
        kinds = (value if isinstance(value, type) else type(value)).__mro__
        has = [(name, getattr(each, "__func__", each)) for kind in kinds for name, each in vars(kind).items()]
        functions = [each for _, each in has if isinstance(each, types.FunctionType)]  # super() calls those of bases
        for name, each in dict(reversed(has)).items():  # a class hides the attributes of its bases
            if volatile_state.generator_part(name, each) is not None:
                yield name, each, _of_class(name)
    for function in functions:
        if script_frames.of_library(function.__code__.co_filename):
            continue
        for name, each, get in _named_outside(function):
            own = isinstance(each, types.FunctionType) or type(each).__module__ == function.__module__
            if own or volatile_state.generator_part(name, each) is not None:
                yield name, each, get


def _named_outside(function: types.FunctionType) -> Iterator[tuple[str, Any, _GetIn]]:
    codes, known = [function.__code__], function.__globals__
    while codes:
        code = codes.pop()
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        yield from ((name, known[name], _constant(known, name)) for name in code.co_names if name in known)
    defaults = function.__defaults__ or ()
    names = function.__code__.co_varnames[:function.__code__.co_argcount]
    for number, name in enumerate(names[len(names) - len(defaults):]):
        yield name, defaults[number], _constant(defaults, number)
    for name, each in (function.__kwdefaults__ or {}).items():
        yield name, each, _constant(function.__kwdefaults__, name)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        with contextlib.suppress(ValueError):  # empty
            yield name, cell.cell_contents, _contents(cell)


def _of_class(name: str) -> _GetIn:
    return lambda value: getattr(value if isinstance(value, type) else type(value), name)


def _constant(holder: Any, key: Any) -> _GetIn:
    """Whatever the value is in which the function was met."""
    return lambda _: holder[key]


def _contents(cell: types.CellType) -> _GetIn:
    return lambda _: cell.cell_contents

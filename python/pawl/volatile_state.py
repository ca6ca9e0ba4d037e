"""The volatile state: what may change at any time within a step, and need not lie where it lay.

Random number generators, scalars of param groups, schedulers, the scaler, the sampler, and the user's own objects, with
the tensors in them. Each is a `Part` with a name. All are saved together as one blob when the next step begins
(evaluation between steps uses them too), and loaded when a step is restored. The blob is JSON, and the bytes of tensors
beside it (tagged_values.py): nothing in it is executed, and a tensor may have another shape, or be another one, in each
step. What has no form there is refused by name when it is protected. Its room is measured before the first step; a blob
that outgrows it makes the windows void, and says so; training goes on.
"""
from __future__ import annotations

import array
import collections
import contextlib
import ctypes
import dataclasses
import enum
import hashlib
import random
import re
import sys
import time
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from pawl import devices, script_frames, tagged_values
from pawl.errors import Refused

BLOB_BYTES = 256 << 10   # the least room for the blob
GROWTH = 8               # how much larger than before the first step what is no large tensor may become, at least
ROOM_GRAIN = 64 << 10    # of the room for large tensors
SAY_AGAIN_S = 60.0       # that protection stands still


@dataclass(frozen=True)
class Part:
    """One thing of the volatile state. `load` takes what `save` gave, in this process or another one."""

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]
    tensors: Callable[[], list[Any]] = list  # that save() would see now
    # The loop in this frame is about to begin: the names of its variables that are kept from here on.
    bind: Callable[[FrameType], Iterable[str]] = lambda _: ()
    # What a rank of a job of more or fewer ranks has saved. None: as `load`. Fails: Refused, if it is of no use here.
    load_elsewhere: Callable[[Any], None] | None = None


@dataclass
class Origin:
    """A rank of a job of more or fewer ranks, whose state was restored."""

    rank: int
    world: int


class VolatileState:
    """All parts, as bytes and back."""

    def __init__(self, parts: list[Part], say: Callable[[str], None] = lambda _: None, rank: int = 0,
                 world: int = 1) -> None:
        """`say` is told why save_within() gives nothing. `rank`: whose it is."""
        self._parts, self._say = parts, say
        self._rank, self._world = rank, world
        self.origin: Origin | None = None  # of what was restored last; None: it was this rank's
        self._said_at: float | None = None  # that it can't be kept; None: it can
        self.ending = False  # no step follows: the state that is saved now is only for who asks what it was

    def save(self) -> bytearray:
        """Fails: Refused, naming the part that has no form."""
        return self._pieces().joined()

    def _pieces(self) -> tagged_values.Pieces:
        pieces = tagged_values.Pieces()
        writer = tagged_values.Writer(pieces)
        return pieces.finish({_SEAT: writer.to_json(_SEAT, [self._rank, self._world]),
                              **{part.name: writer.to_json(part.name, part.save()) for part in self._parts}})

    def save_within(self, room: int) -> tagged_values.Pieces | None:
        """What is to be written before anything else happens, in `room` bytes. None, and once in a while a sentence: it
        can't be kept. At the job's end, a note of that."""
        why: Callable[[], str]
        try:
            pieces = self._pieces()
            if len(pieces) <= room:
                self._said_at = None
                return pieces
            size = len(pieces)
            why = lambda: self._too_large(size, room)  # noqa: E731
        except Refused as refused:
            sentence = str(refused)
            why = lambda: sentence  # noqa: E731
        if self.ending:
            note = tagged_values.Pieces()
            return note.finish(tagged_values.to_json("state", {_LOST: why()}))
        now = time.monotonic()
        if self._said_at is None or now >= self._said_at + SAY_AGAIN_S:
            self._said_at = now
            self._say(f"protection stands still: {why()}")
        return None

    def _too_large(self, size: int, room: int) -> str:
        name, largest = self._largest()
        return (f"schedulers, samplers, generators and `state` objects take {size} bytes, and there is room for "
                f"{room}: pawl.init(state_bytes={1 << (2 * size).bit_length()}), or keep less in them; the "
                f"largest is {name}, {largest} bytes")

    def _largest(self) -> tuple[str, int]:
        """What most of it lies in, and its bytes."""
        forms = {part.name: tagged_values.Writer(tagged_values.Pieces()).to_json(part.name, part.save())
                 for part in self._parts}
        name = max(forms, key=lambda each: tagged_values.bytes_in(forms[each]))
        path, size = tagged_values.heaviest(forms[name])
        return _KINDS.sub("", name + path), size

    def load(self, data: Any) -> None:
        """`data` has a buffer, and may go afterwards."""
        found = tagged_values.load_pieces(data)
        if _LOST in found:
            raise Refused(f"the last step's state can't be restored: {found[_LOST]}")
        if _SEAT not in found:
            raise Refused("the restored state doesn't say of how many ranks it is: an earlier build of pawl has "
                          "written it. Go on with that one, or let the script load the checkpoint (pawl.torch.load)")
        rank, world = found[_SEAT]
        self.origin = Origin(rank, world) if world != self._world else None
        for part in self._parts:
            if part.name not in found:
                raise Refused(f"the restored state has no {part.name}: protect the same objects on every rank")
            elsewhere = part.load_elsewhere if self.origin is not None else None
            (elsewhere or part.load)(found[part.name])


_LOST = "pawl:lost"
_SEAT = "pawl:seat"  # [rank, world] of who has saved it
_KINDS = re.compile(r"\['(?:dict|OrderedDict|Counter|list|plain list|value|object|set|tensor|array|whole|variables)'\]"
                    r"|\['(?:attributes|deque)'\]\[1\]")  # of _Variables


def room_for(parts: list[Part], least: int) -> int:
    """Bytes for these parts as they are before the first step, and for some growth. The same for sizes that differ
    little: it is a part of the layout. Fails: Refused."""
    pieces = tagged_values.Pieces()
    writer = tagged_values.Writer(pieces)
    pieces.finish({part.name: writer.to_json(part.name, part.save()) for part in parts})
    small = max(least, 1 << (GROWTH * len(pieces.head)).bit_length())
    grain = max(ROOM_GRAIN, (1 << pieces.size.bit_length()) // 16)
    return small + (-(-pieces.size // grain) + 1) * grain if pieces.size else small


def refuse_unkept(part: Part) -> None:
    """Fails: Refused, naming what of its state has no form."""
    try:
        tagged_values.Writer(tagged_values.Pieces()).to_json(part.name, part.save())
    except Refused as refused:
        raise Refused(_KINDS.sub("", str(refused))) from None


# Random number generators -----------------------------------------------------------------------------------------

def save_random() -> dict[str, Any]:
    """Every generator that code uses without naming it: torch's of all devices, Python's, numpy's if it is there."""
    import torch
    version, words, spare = random.getstate()
    state: dict[str, Any] = {"python": (version, array.array("I", words).tobytes(), spare),
                             "torch": bytes_of(torch.get_rng_state())}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        # Of the job's GPU alone: to ask for those of the others would make this process use them all.
        own = devices.of_job().type == "cuda"
        found = [torch.cuda.get_rng_state()] if own else torch.cuda.get_rng_state_all()
        state["cuda"] = [bytes_of(each) for each in found]
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def load_random(state: dict[str, Any]) -> None:
    import torch
    version, words, spare = state["python"]
    random.setstate((version, tuple(array.array("I", words)), spare))
    torch.set_rng_state(_tensor_of(state["torch"]))
    if "cuda" in state:
        found = [_tensor_of(each) for each in state["cuda"]]
        if devices.of_job().type == "cuda":
            torch.cuda.set_rng_state(found[0])
        else:
            torch.cuda.set_rng_state_all(found)
    if "numpy" in state:
        import numpy
        numpy.random.set_state(state["numpy"])


def digests_of(state: dict[str, Any]) -> dict[str, str]:
    """By kind, of what save_random() gives."""
    return {kind: _digest(each) for kind, each in state.items()}


def begun_with() -> dict[str, str]:
    """By kind, how the script has made its generators: before its first step, in each process."""
    import torch
    found = digests_of(save_random())
    seeds = {"torch": str(torch.initial_seed())}  # however much was drawn since
    if "cuda" in found:
        seeds["cuda"] = str(torch.cuda.initial_seed())
    return {**found, **seeds}


def _digest(value: Any) -> str:
    known = hashlib.sha256()
    values = value if isinstance(value, (tuple, list)) else list(value.items()) if isinstance(value, dict) else [value]
    for each in values:
        if isinstance(each, (tuple, list, dict)):
            known.update(_digest(each).encode())
        elif isinstance(each, bytes):
            known.update(each)
        else:
            known.update(each.tobytes() if hasattr(each, "tobytes") else repr(each).encode())
        known.update(b"/")
    return known.hexdigest()


def bytes_of(tensor: Any) -> bytes:
    """Of one that lies in host memory without gaps."""
    return ctypes.string_at(tensor.data_ptr(), tensor.numel() * tensor.element_size())


def _tensor_of(data: bytes) -> Any:
    import torch
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


# Optimizers -------------------------------------------------------------------------------------------------------

def optimizer_part(name: str, optimizer: Any, tensor_at: Callable[[Any, Any], Any]) -> Part:
    """Param-group scalars (learning rates, betas, what schedulers added), state that is no tensor, and for which
    parameters there is state at all. `tensor_at(parameter, key)` gives the restored tensor where the optimizer has
    none.

    A ZeroRedundancyOptimizer has groups of its own and, inside, those of its partition; either may hold the newer
    value.
    """
    inner = inner_optimizer(optimizer)
    holders = [optimizer] if inner is optimizer else [optimizer, inner]

    def parameters() -> list[Any]:
        return [parameter for group in inner.param_groups for parameter in group["params"]]

    def save() -> Any:
        kinds: list[Any] = []  # which tensors a parameter's state has: few lists, of many parameters
        state: list[Any] = []
        for parameter in parameters():
            values = inner.state.get(parameter)
            if not values:
                state.append(None)
                continue
            tensors = _tensor_keys(values)
            if tensors not in kinds:
                kinds.append(tensors)
            plain = _plain_state(values)
            state.append([kinds.index(tensors), plain] if plain else kinds.index(tensors))
        return {"groups": [[_scalars(group) for group in holder.param_groups] for holder in holders],
                "kinds": kinds, "state": state}

    def load(saved: Any) -> None:
        for holder, groups in zip(holders, saved["groups"], strict=True):
            for group, scalars in zip(holder.param_groups, groups, strict=True):
                _load_scalars(group, scalars)
        for parameter, kept in zip(parameters(), saved["state"], strict=saved.get("partition", True)):
            if kept is None:
                inner.state.pop(parameter, None)
                continue
            kind, plain = kept if isinstance(kept, list) else (kept, {})
            state, tensors = inner.state[parameter], saved["kinds"][kind]
            for key in [key for key in state if key not in plain and key not in tensors]:
                del state[key]
            state.update(plain)
            for key in tensors:
                if not _is_tensor(state.get(key)):
                    state[key] = tensor_at(parameter, key)

    def load_groups(saved: Any) -> None:
        """Of a rank with another partition: the tensors of this one's are restored, and nothing else is known of it."""
        if any(isinstance(kept, list) for kept in saved["state"]):
            raise Refused(f"{name}: a {type(inner).__name__} under a ZeroRedundancyOptimizer keeps numbers that are no "
                          f"tensors, each rank those of its own partition, and a job of another size has other "
                          f"partitions: resume with as many ranks, or let the script load the checkpoint "
                          f"(pawl.torch.load)")
        load({**saved, "state": [], "partition": False})

    return Part(name, save, load, load_elsewhere=load_groups if inner is not optimizer else None)


def inner_optimizer(optimizer: Any) -> Any:
    """The optimizer that holds the state: of a ZeroRedundancyOptimizer, the one over its partition."""
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer


def _scalars(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _load_scalars(group: dict[str, Any], scalars: dict[str, Any]) -> None:
    import torch
    for key in [key for key in group if key != "params" and key not in scalars]:
        del group[key]
    for key, value in scalars.items():
        if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
            with torch.no_grad():
                group[key].copy_(value)  # a learning rate that others (a captured graph) hold too
        else:
            group[key] = value


def _plain_state(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not _is_tensor(value)}


def _tensor_keys(state: dict[str, Any]) -> list[Any]:
    return [key for key, value in state.items() if _is_tensor(value)]


def _is_tensor(value: Any) -> bool:
    import torch
    return isinstance(value, torch.Tensor)


def bound_part(part: Part, why: str) -> Part:
    """One of which a job of more or fewer ranks can make nothing."""
    def refuse(_: Any) -> None:
        raise Refused(f"{why}, and this job has more or fewer ranks than the one whose state is restored. "
                      f"{_ANY_WORLD}")
    return dataclasses.replace(part, load_elsewhere=refuse)


_ANY_WORLD = ("pawl.ElasticSampler as the batch_sampler= of a DataLoader goes on in any world: it counts the samples "
              "of the whole job. Otherwise resume with as many ranks, or let the script load the checkpoint "
              "(pawl.torch.load)")


# Everything else --------------------------------------------------------------------------------------------------

def object_part(name: str, thing: Any) -> Part:
    """The part for any object that knows its own state; Refused if nobody knows it."""
    for made in (generator_part, _stateful_part, _variables_part):
        part = made(name, thing)
        if part is not None:
            return part
    raise Refused(f"{name} is a {type(thing).__name__}, which has no state that pawl knows of: give it state_dict() "
                  f"and load_state_dict(), or put it into a dict and protect that: job.protect(state={{...}})")


def generator_part(name: str, thing: Any) -> Part | None:
    """torch.Generator, random.Random, numpy.random.Generator and RandomState."""
    import torch
    if isinstance(thing, torch.Generator):
        return Part(name, lambda: bytes_of(thing.get_state()),
                    lambda saved: _ignore(thing.set_state(_tensor_of(saved))))
    if isinstance(thing, random.Random) and not isinstance(thing, random.SystemRandom):  # that one has no state
        return Part(name, thing.getstate, thing.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.random.RandomState):
        return Part(name, thing.get_state, thing.set_state)
    if numpy is not None and isinstance(thing, numpy.random.Generator):
        def load(saved: Any) -> None:
            thing.bit_generator.state = saved
        return Part(name, lambda: thing.bit_generator.state, load)
    return None


def seed_generator(generator: Any, seed: int) -> None:
    """One of those for which there is a generator_part()."""
    import torch
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    elif hasattr(generator, "bit_generator"):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    else:
        generator.seed(seed & 0xFFFFFFFF)


def _stateful_part(name: str, thing: Any) -> Part | None:
    if not (callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))):
        return None
    return Part(name, thing.state_dict, lambda saved: _ignore(thing.load_state_dict(saved)))


def _variables_part(name: str, thing: Any) -> Part | None:
    """A dict, a list, a set, or the attributes of an object: changed in place, so that all who hold it see it."""
    if not isinstance(thing, (dict, list, set, bytearray)):
        if not hasattr(thing, "__dict__") or isinstance(thing, type) or callable(thing):
            return None
        thing = vars(thing)
    variables = _Variables(name, thing)
    return Part(name, variables.save, variables.load, variables.tensors, variables.bind)


_Place = tuple[Any, ...]  # the keys that lead to a value
_PLAIN = (bool, int, float, str)


class _Variables:
    """Ordinary variables: each value with its kind. What knows its own state, and what others may hold, keeps being the
    same object; two names for one object stay that.

    What the script makes later must have a form from which any process can make it again. An object of a class that is
    its attributes, and nothing else, is made anew without anything of the class being called; others are kept only
    where there was one when they were protected. A tensor is written in place only if it is the one that was there
    then: one that came later may be a part of the data set. Variables of the loop that hold it then get the new one.

    An entry of a dict that has the name of one of the loop's variables, and its value when the loop begins, stands for
    that variable, also where the variable gets another value in each step; the entry then gets it too, unless the
    script has given it one of its own. If the loop has none, or if something draws for it, the variable may be in the
    next of the script's frames outwards.
    """

    def __init__(self, name: str, thing: Any) -> None:
        self._name, self._thing = name, thing
        self._first: dict[_Place, Any] = {}  # the objects that were there at first and can't be made anew
        self._learning = True
        self._seen: dict[int, int] = {}   # the values of this save, by their turn
        self._made: list[Any] = []        # the values of this load, in the same order
        self._written: dict[int, Any] = {}
        self._bound: dict[str, Any] = {}  # variables of the loop, as they were when it was last seen
        self._following: set[str] = set()  # of these, the dict's entries that have no values of their own
        self._owners: dict[str, tuple[int, CodeType]] = {}  # and the identities of their frames
        self._first_data: dict[_Place, Any] = {}   # weakly: tensors and arrays that were there at first
        self._saved_tensors: list[Any] = []        # weakly: those of the last save
        self._replaced: list[tuple[Any, Any]] = []  # in this load: tensors and arrays, and what stands for them now
        self.save()
        self._learning = False

    def bind(self, frame: FrameType) -> Iterable[str]:
        if not isinstance(self._thing, dict):
            return ()
        self._bound, self._owners = {}, {}
        for each in reversed(script_frames.around(frame)):  # the innermost has it
            known = script_frames.variables(each)
            for name, value in self._thing.items():
                if isinstance(name, str) and name in known and known[name] is value:
                    self._bound[name], self._owners[name] = value, script_frames.identity(each)
        self._following = set(self._bound)
        self._learning = True
        self.save()
        self._learning = False
        return self._bound.keys()

    def tensors(self) -> list[Any]:
        with contextlib.suppress(Refused):
            self.save()
        found = [reference() for reference in self._saved_tensors]
        return [tensor for tensor in found if tensor is not None]

    def save(self) -> dict[str, Any]:
        self._seen, self._saved_tensors = {}, []
        if not self._bound:
            return self._snapshot(self._thing, ())
        known = self._owned_variables()
        self._follow({name: known.get(name, value) for name, value in self._bound.items()})
        whole = self._snapshot(self._thing, ())
        return {"whole": whole, "variables": {name: self._snapshot(value, (_variable(name),))
                                              for name, value in self._bound.items()}}

    def load(self, saved: dict[str, Any]) -> None:
        self._made, self._written, self._replaced = [], {}, []
        known = self._owned_variables()
        self._put_back(self._thing, saved.get("whole", saved), ())
        found = {name: self._put_back(known.get(name), each, (_variable(name),))
                 for name, each in saved.get("variables", {}).items()}
        self._bound.update(found)
        self._following = {name for name in self._bound if self._thing.get(name) is self._bound[name]}
        self._assign(found)
        self._made, self._written, self._replaced = [], {}, []

    def _follow(self, now: dict[str, Any]) -> None:
        self._following = {name for name in self._following if self._thing.get(name) is self._bound[name]}
        self._bound = now
        self._thing.update({name: now[name] for name in self._following})

    def _owned_variables(self) -> dict[str, Any]:
        """What those that are bound are now, as far as their frames still run."""
        found: dict[str, Any] = {}
        for frame in script_frames.around(script_frames.loop()):
            names = [name for name, owner in self._owners.items() if owner == script_frames.identity(frame)]
            known = script_frames.variables(frame) if names else {}
            found.update((name, known[name]) for name in names if name in known)
        return found

    def _assign(self, found: dict[str, Any]) -> None:
        """Each to its frame, or the loop's; and those of the loop's variables that hold what was replaced."""
        loops = script_frames.loops(script_frames.loop())
        frames = script_frames.around(script_frames.loop())
        running = {script_frames.identity(frame) for frame in frames}
        for frame in frames:
            identity = script_frames.identity(frame)
            values = {name: value for name, value in found.items() if self._owners.get(name) == identity or (
                frame is loops[-1] and self._owners.get(name) not in running)}
            if any(frame is each for each in loops):
                for name, value in script_frames.variables(frame).items():
                    for before, after in self._replaced:
                        if value is before:
                            values.setdefault(name, after)
            if values:
                script_frames.assign(frame, values)

    def _snapshot(self, value: Any, place: _Place) -> dict[str, Any]:
        import torch
        if value is None or type(value) in _PLAIN:
            return {"value": value}
        if isinstance(value, tagged_values.KeptAsInt):
            return {"value": int(value)}
        known = None if isinstance(value, torch.Tensor) else generator_part("", value) or _stateful_part("", value)
        kept = known is not None or _has_attributes(value) or _is_array(value) or isinstance(
            value, (torch.Tensor, dict, list, set, bytearray, collections.deque))
        if not kept:
            return {"value": value}
        if id(value) in self._seen:
            return {"same": self._seen[id(value)]}
        self._seen[id(value)] = len(self._seen)
        if isinstance(value, torch.Tensor):
            self._remember(value, place)
            return {"tensor": value if value.is_leaf else value.detach()}
        if known is not None:
            self._must_have_been(value, place)
            return {"object": known.save()}
        if isinstance(value, dict):
            if type(value) not in (dict, collections.OrderedDict, collections.Counter):
                self._must_have_been(value, place)
            kind = type(value).__name__ if type(value) in _DICTS.values() else "dict"
            return {kind: {key: self._snapshot(each, (*place, key)) for key, each in value.items()}}
        if isinstance(value, list):
            if all(type(each) in _PLAIN for each in value):
                return {"plain list": list(value)}
            return {"list": self._snapshots(value, place)}
        if isinstance(value, (set, bytearray)):
            return {"set": type(value)(value)}
        if isinstance(value, collections.deque):
            return {"deque": [value.maxlen, self._snapshots(value, place)]}
        if _is_array(value):
            self._remember(value, place)
            return {"array": value}
        if hasattr(value, "__array_interface__"):  # its attributes are not all that it is
            where = self._name + "".join(f"[{key!r}]" for key in place)
            raise Refused(f"{where} is a {type(value).__qualname__}, a kind of array that has no form: keep "
                          f"numpy.asarray() of it")
        made = _class_path(type(value))
        if made is None:
            self._must_have_been(value, place)
        return {"attributes": [made, {key: self._snapshot(each, (*place, key)) for key, each in vars(value).items()}]}

    def _snapshots(self, values: Any, place: _Place) -> list[Any]:
        return [self._snapshot(each, (*place, number)) for number, each in enumerate(values)]

    def _remember(self, value: Any, place: _Place) -> None:
        reference = weakref.ref(value)
        if self._learning:
            self._first_data[place] = reference
        if _is_tensor(value):
            self._saved_tensors.append(reference)

    def _must_have_been(self, value: Any, place: _Place) -> None:
        """Fails: Refused, if a new process wouldn't have such an object there."""
        if self._learning:
            self._first[place] = value
        elif type(self._first.get(place)) is not type(value):
            raise Refused(f"{self._name}{''.join(f'[{key!r}]' for key in place)} is a {type(value).__qualname__} that "
                          f"was not there when it was protected, and that can't be made anew after a loss: put it "
                          f"there before job.protect(), or keep its numbers in a dict")

    def _put_back(self, now: Any, saved: dict[str, Any], place: _Place) -> Any:
        """The value as it was saved: `now` itself, changed in place, where it is of that kind and nobody else's."""
        ((kind, kept),) = saved.items()
        if kind == "value":
            return kept
        if kind == "same":
            made = self._made[kept]
            if now is not made and (_is_tensor(now) or _is_array(now)):
                self._replaced.append((now, made))
            return made
        mine = now if id(now) not in self._written else None
        if kind in ("tensor", "array"):
            was_there = place in self._first_data and self._first_data[place]() is now
            put_back = _put_back_tensor if kind == "tensor" else _put_back_array
            made = self._done(put_back(mine if was_there else None, kept))
            if now is not None and made is not now:
                self._replaced.append((now, made))
            return made
        if kind == "object":
            target = self._done(self._as_at_first(mine, now, place))
            known = generator_part("", target) or _stateful_part("", target)
            if known is None:
                raise Refused(f"protected state has become a {type(now).__name__}: keep the object that was protected")
            known.load(kept)
            return target
        if kind in _DICTS:
            fallback = self._first.get(place)
            target = self._done(mine if isinstance(mine, dict) else fallback
                                if isinstance(fallback, dict) and id(fallback) not in self._written else _DICTS[kind]())
            values = {key: self._put_back(target.get(key), each, (*place, key)) for key, each in kept.items()}
            target.clear()
            target.update(values)
            return target
        if kind in ("list", "plain list"):
            row = self._done(mine if isinstance(mine, list) else [])
            row[:] = kept if kind == "plain list" else self._items(row, kept, place)
            return row
        if kind == "deque":
            longest, items = kept
            fits = isinstance(mine, collections.deque) and mine.maxlen == longest
            queue = self._done(mine if fits else collections.deque(maxlen=longest))
            found = self._items(list(queue), items, place)
            queue.clear()
            queue.extend(found)
            return queue
        if kind == "attributes":
            return self._put_back_attributes(mine, now, kept, place)
        if type(mine) is not type(kept):  # a set or a bytearray
            return self._done(kept)
        both: Any = mine
        both.clear()
        fill = both.extend if isinstance(mine, bytearray) else both.update
        fill(kept)
        return self._done(both)

    def _done(self, target: Any) -> Any:
        self._made.append(target)
        self._written[id(target)] = target
        return target

    def _items(self, items: list[Any], kept: list[Any], place: _Place) -> list[Any]:
        return [self._put_back(items[number] if number < len(items) else None, each, (*place, number))
                for number, each in enumerate(kept)]

    def _as_at_first(self, mine: Any, now: Any, place: _Place) -> Any:
        """The object there, or the one that was there when it was protected."""
        first = self._first.get(place)
        if first is None or type(mine) is type(first):
            return now if mine is None else mine
        return first

    def _put_back_attributes(self, mine: Any, now: Any, kept: Any, place: _Place) -> Any:
        made, attributes = kept
        if made is None:
            target = self._as_at_first(mine, now, place)
        elif mine is not None and _class_path(type(mine)) == made:
            target = mine
        else:
            target = object.__new__(_loaded_class(made))
        if not hasattr(target, "__dict__"):
            raise Refused(f"protected state has become a {type(target).__name__}: keep the object that was protected")
        self._done(target)
        held = vars(target)
        values = {key: self._put_back(held.get(key), each, (*place, key)) for key, each in attributes.items()}
        held.clear()
        held.update(values)
        return target


def _variable(name: str) -> str:
    return f"variable {name}"


_DICTS: dict[str, type] = {"dict": dict, "OrderedDict": collections.OrderedDict, "Counter": collections.Counter}


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _has_attributes(value: Any) -> bool:
    """An object of a class that a script or a package wrote, which is its attributes and nothing else."""
    kind = type(value)
    strange = (tuple, int, float, complex, str, bytes, enum.Enum, type, BaseException)
    return hasattr(value, "__dict__") and not (callable(value) or isinstance(value, strange) or _of_python(kind))


def _of_python(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in sys.stdlib_module_names and kind.__module__ not in (
        "__main__", "types", "argparse")


def _class_path(kind: type) -> list[str] | None:
    """Module and name of a class whose objects are made by giving them their attributes; None: it has ways of its
    own, or can't be found by its name."""
    own = ("__setstate__", "__getnewargs__", "__getnewargs_ex__", "__del__")
    standard = all(getattr(kind, name) is getattr(object, name)
                   for name in ("__new__", "__reduce__", "__reduce_ex__", "__getstate__"))
    slots = any("__slots__" in vars(each) for each in kind.mro())
    if not standard or slots or any(hasattr(kind, name) for name in own):
        return None
    path = [kind.__module__, kind.__qualname__]
    return path if _find_class(path) is kind else None


def _find_class(path: list[str]) -> Any:
    """Among what is loaded; nothing is imported or called."""
    found: Any = sys.modules.get(path[0])
    for name in path[1].split("."):
        found = vars(found).get(name) if hasattr(found, "__dict__") else None
    return found


def _loaded_class(path: list[str]) -> type:
    found = _find_class(path)
    if not isinstance(found, type) or _of_python(found) or _class_path(found) != path:
        raise Refused(f"the restored state has a {path[1]} of {path[0]}, which this process doesn't know: import it "
                      f"before job.steps()")
    return found


def _put_back_tensor(now: Any, kept: Any) -> Any:
    import torch
    if not isinstance(now, torch.Tensor) or now.shape != kept.shape or now.dtype != kept.dtype:
        return kept
    with torch.no_grad():
        now.copy_(kept)
    return now


def _put_back_array(now: Any, kept: Any) -> Any:
    if not _is_array(now) or now.shape != kept.shape or now.dtype != kept.dtype or not now.flags.writeable:
        return kept
    now[...] = kept
    return now


def _ignore(_: object) -> None:
    """For what answers something that nobody asked for."""

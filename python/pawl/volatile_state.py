"""The volatile state: what may change at any time within a step, is small, and can't be copied from memory in place.

Random number generators, scalars of param groups, schedulers, the scaler, the sampler, and the user's own objects. Each
is a `Part` with a name. All are saved together as one blob when the next step begins (evaluation between steps uses
them too), and loaded when a step is restored. The blob is JSON (tagged_values.py): nothing in it is executed. What has
no form there is refused by name when it is protected. A blob that outgrows its room makes the windows void, and says
so; training goes on.
"""
from __future__ import annotations

import array
import ctypes
import enum
import random
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pawl import tagged_values
from pawl.errors import Refused

BLOB_BYTES = 256 << 10  # room for the blob; part of the layout, so it must not depend on what is in it


@dataclass(frozen=True)
class Part:
    """One thing of the volatile state. `load` takes what `save` gave, in this process or another one."""

    name: str
    save: Callable[[], Any]
    load: Callable[[Any], None]


class VolatileState:
    """All parts, as bytes and back."""

    def __init__(self, parts: list[Part], room: int = 0, say: Callable[[str], None] = lambda _: None) -> None:
        """`room`: bytes that save_within() may give; `say` is told why it gives nothing."""
        self._parts, self._room, self._say = parts, room, say
        self._failed = ""  # what was said last
        self.ending = False  # no step follows: the state that is saved now is only for who asks what it was

    def save(self) -> bytes:
        """Fails: Refused, naming the part that has no form."""
        found = {part.name: tagged_values.to_json(part.name, part.save()) for part in self._parts}
        return tagged_values.pack(found)

    def save_within(self) -> bytes | None:
        """None, and once a sentence: it can't be kept. At the job's end, a note of that."""
        try:
            data = self.save()
            if len(data) <= self._room:
                self._failed = ""
                return data
            why = (f"schedulers, samplers, generators and `state` objects take {len(data)} bytes, and there is room "
                   f"for {self._room}: pawl.init(state_bytes={1 << (2 * len(data)).bit_length()}), or keep less in "
                   f"them; the largest is {self._largest()}")
        except Refused as refused:
            why = str(refused)
        if self.ending:
            return tagged_values.dumps("state", {_LOST: why})
        if self._failed != why.partition(" bytes")[0].rstrip("0123456789"):
            self._failed = why.partition(" bytes")[0].rstrip("0123456789")
            self._say(f"protection stands still: {why}")
        return None

    def _largest(self) -> str:
        return max(self._parts, key=lambda part: len(tagged_values.dumps(part.name, part.save()))).name

    def load(self, data: bytes) -> None:
        found = tagged_values.loads(data)
        if _LOST in found:
            raise Refused(f"the last step's state can't be restored: {found[_LOST]}")
        for part in self._parts:
            if part.name not in found:
                raise Refused(f"the restored state has no {part.name}: protect the same objects on every rank")
            part.load(found[part.name])


_LOST = "pawl:lost"
_KINDS = re.compile(r"\['(?:dict|list|plain list|value|object|attributes|set|tensor)'\]")  # of _snapshot()


def refuse_unkept(part: Part) -> None:
    """Fails: Refused, naming what of its state has no form."""
    try:
        tagged_values.to_json(part.name, part.save())
    except Refused as refused:
        raise Refused(_KINDS.sub("", str(refused))) from None


# Random number generators -----------------------------------------------------------------------------------------

def save_random() -> dict[str, Any]:
    """Every generator that code uses without naming it: torch's of all devices, Python's, numpy's if it is there."""
    import torch
    version, words, spare = random.getstate()
    state: dict[str, Any] = {"python": (version, array.array("I", words).tobytes(), spare),
                             "torch": _bytes_of(torch.get_rng_state())}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = [_bytes_of(each) for each in torch.cuda.get_rng_state_all()]
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def load_random(state: dict[str, Any]) -> None:
    import torch
    version, words, spare = state["python"]
    random.setstate((version, tuple(array.array("I", words)), spare))
    torch.set_rng_state(_tensor_of(state["torch"]))
    if "cuda" in state:
        torch.cuda.set_rng_state_all([_tensor_of(each) for each in state["cuda"]])
    if "numpy" in state:
        import numpy
        numpy.random.set_state(state["numpy"])


def _bytes_of(tensor: Any) -> bytes:
    return ctypes.string_at(tensor.data_ptr(), tensor.numel())


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
        for parameter, kept in zip(parameters(), saved["state"], strict=True):
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

    return Part(name, save, load)


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


# Everything else --------------------------------------------------------------------------------------------------

def object_part(name: str, thing: Any) -> Part:
    """The part for any object that knows its own state; Refused if nobody knows it."""
    for made in (_generator_part, _stateful_part, _variables_part):
        part = made(name, thing)
        if part is not None:
            return part
    raise Refused(f"{name} is a {type(thing).__name__}, which has no state that pawl knows of: give it state_dict() "
                  f"and load_state_dict(), or put it into a dict and protect that: job.protect(state={{...}})")


def _generator_part(name: str, thing: Any) -> Part | None:
    """torch.Generator, random.Random, numpy.random.Generator and RandomState."""
    import torch
    if isinstance(thing, torch.Generator):
        return Part(name, lambda: _bytes_of(thing.get_state()),
                    lambda saved: _ignore(thing.set_state(_tensor_of(saved))))
    if isinstance(thing, random.Random):
        return Part(name, thing.getstate, thing.setstate)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(thing, numpy.random.RandomState):
        return Part(name, thing.get_state, thing.set_state)
    if numpy is not None and isinstance(thing, numpy.random.Generator):
        def load(saved: Any) -> None:
            thing.bit_generator.state = saved
        return Part(name, lambda: thing.bit_generator.state, load)
    return None


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
    return Part(name, lambda: _snapshot(thing), lambda saved: _ignore(_put_back(thing, saved)))


def _snapshot(value: Any) -> dict[str, Any]:
    """A kind and what has to be kept of such a value. What knows its own state keeps being the same object."""
    import torch
    if value is None or type(value) in (bool, int, float, str):
        return {"value": value}
    if isinstance(value, torch.Tensor):
        return {"tensor": value.detach()}
    known = _generator_part("", value) or _stateful_part("", value)
    if known is not None:
        return {"object": known.save()}
    if isinstance(value, dict):
        return {"dict": {key: _snapshot(each) for key, each in value.items()}}
    if isinstance(value, list):
        if all(type(each) in (bool, int, float, str) for each in value):
            return {"plain list": list(value)}
        return {"list": [_snapshot(each) for each in value]}
    if isinstance(value, (set, bytearray)):
        return {"set": type(value)(value)}
    if _has_attributes(value):
        return {"attributes": {key: _snapshot(each) for key, each in vars(value).items()}}
    return {"value": value}


def _has_attributes(value: Any) -> bool:
    """An object of a class that a script or a package wrote, which is its attributes and nothing else."""
    kind = type(value)
    strange = (tuple, int, float, complex, str, bytes, enum.Enum, type, BaseException)
    known_here = kind.__module__.partition(".")[0] in sys.stdlib_module_names and kind.__module__ not in (
        "__main__", "types", "argparse")
    return hasattr(value, "__dict__") and not (callable(value) or isinstance(value, strange) or known_here)


def _put_back(now: Any, saved: dict[str, Any]) -> Any:
    """The value as it was saved: `now` itself, changed in place, where it is of that kind."""
    ((kind, kept),) = saved.items()
    if kind == "tensor":
        return _put_back_tensor(now, kept)
    if kind == "object":
        known = _generator_part("", now) or _stateful_part("", now)
        if known is None:
            raise Refused(f"protected state has become a {type(now).__name__}: keep the object that was protected")
        known.load(kept)
        return now
    if kind == "dict":
        target = now if isinstance(now, dict) else {}
        values = {key: _put_back(target.get(key), each) for key, each in kept.items()}
        target.clear()
        target.update(values)
        return target
    if kind == "list":
        items = now if isinstance(now, list) else []
        items[:] = [_put_back(items[i] if i < len(items) else None, each) for i, each in enumerate(kept)]
        return items
    if kind == "plain list":
        items = now if isinstance(now, list) else []
        items[:] = kept
        return items
    if kind == "attributes":
        if not hasattr(now, "__dict__"):
            raise Refused(f"protected state has become a {type(now).__name__}: keep the object that was protected")
        _put_back(vars(now), {"dict": kept})
        return now
    if kind == "set" and type(now) is type(kept):
        now.clear()
        (now.extend if isinstance(now, bytearray) else now.update)(kept)
        return now
    return kept


def _put_back_tensor(now: Any, kept: Any) -> Any:
    import torch
    if not isinstance(now, torch.Tensor) or now.shape != kept.shape or now.dtype != kept.dtype:
        return kept
    with torch.no_grad():
        now.copy_(kept)
    return now


def _ignore(_: object) -> None:
    """For what answers something that nobody asked for."""

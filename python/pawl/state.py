"""The volatile state: what changes at any time within a step, is small, and has no memory of its own to copy from.

Random number generators, param-group scalars, schedulers, the scaler, the sampler, and the user's own objects, each a
`Part` with a name, saved together as one blob when the next step begins (evaluation between steps uses them too) and
loaded when a step is restored. The blob is pickled: it never leaves the job, and pawl proves its bytes before they are
used. A part that can't be saved or loaded is an error that names it.
"""
from __future__ import annotations

import ctypes
import pickle
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

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

    def __init__(self, parts: list[Part]) -> None:
        self._parts = parts

    def save(self) -> bytes:
        return pickle.dumps({part.name: _saved(part) for part in self._parts}, protocol=5)

    def load(self, data: bytes) -> None:
        found = pickle.loads(data)
        for part in self._parts:
            if part.name not in found:
                raise Refused(f"the restored state has no {part.name}: protect the same objects on every rank")
            part.load(pickle.loads(found[part.name]))


def _saved(part: Part) -> bytes:
    try:
        return pickle.dumps(part.save(), protocol=5)
    except (pickle.PicklingError, TypeError, AttributeError) as error:
        raise Refused(f"{part.name} can't be saved ({error}): protect only what can be pickled") from error


# Random number generators -----------------------------------------------------------------------------------------

def save_random() -> dict[str, Any]:
    """Every generator that code uses without naming it: torch's of all devices, Python's, numpy's if it is there."""
    import torch
    state: dict[str, Any] = {"python": random.getstate(), "torch": _bytes_of(torch.get_rng_state())}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = [_bytes_of(each) for each in torch.cuda.get_rng_state_all()]
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def load_random(state: dict[str, Any]) -> None:
    import torch
    random.setstate(state["python"])
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

def optimizer_part(name: str, optimizer: Any) -> Part:
    """Param-group scalars (learning rates, betas, what schedulers added), and state that is no tensor.

    A ZeroRedundancyOptimizer has groups of its own and, inside, those of its partition; either may hold the newer value.
    """
    inner = inner_optimizer(optimizer)
    holders = [optimizer] if inner is optimizer else [optimizer, inner]

    def save() -> Any:
        return {"groups": [[_scalars(group) for group in holder.param_groups] for holder in holders],
                "state": [[_plain_state(inner.state.get(parameter, {})) for parameter in group["params"]]
                          for group in inner.param_groups]}

    def load(saved: Any) -> None:
        for holder, groups in zip(holders, saved["groups"], strict=True):
            for group, scalars in zip(holder.param_groups, groups, strict=True):
                _load_scalars(group, scalars)
        for group, states in zip(inner.param_groups, saved["state"], strict=True):
            for parameter, plain in zip(group["params"], states, strict=True):
                if plain:
                    inner.state[parameter].update(plain)

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
    import torch
    return {key: value for key, value in state.items() if not isinstance(value, torch.Tensor)}


# Everything else --------------------------------------------------------------------------------------------------

def object_part(name: str, thing: Any) -> Part:
    """The part for any object that knows its own state; Refused if nobody knows it."""
    for made in (_generator_part, _stateful_part, _variables_part):
        part = made(name, thing)
        if part is not None:
            return part
    raise Refused(f"{name} is a {type(thing).__name__}, which has no state that pawl knows of: give it state_dict() and "
                  f"load_state_dict(), or put it into a dict and protect that: job.protect(state={{...}})")


def _generator_part(name: str, thing: Any) -> Part | None:
    """torch.Generator, random.Random, numpy.random.Generator and RandomState."""
    import torch
    if isinstance(thing, torch.Generator):
        return Part(name, lambda: _bytes_of(thing.get_state()), lambda saved: _ignore(thing.set_state(_tensor_of(saved))))
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
    """A dict, list, set or the attributes of an object: changed in place, whatever is in it saved whole."""
    if isinstance(thing, dict):
        return _dict_part(name, thing)
    if isinstance(thing, list):
        return Part(name, lambda: list(thing), lambda saved: thing.__setitem__(slice(None), saved))
    if isinstance(thing, (set, bytearray)):
        return _cleared_part(name, thing)
    if hasattr(thing, "__dict__") and not isinstance(thing, type) and not callable(thing):
        return _dict_part(name, vars(thing))
    return None


def _dict_part(name: str, variables: dict[str, Any]) -> Part:
    """Values that know their own state keep being the same objects; plain values are replaced."""
    def parts() -> dict[str, Part]:
        found = {}
        for key, value in variables.items():
            part = _tensor_part(str(key), value) or _generator_part(str(key), value) or _stateful_part(str(key), value)
            if part is not None:
                found[key] = part
        return found

    def save() -> Any:
        known = parts()
        return ({key: part.save() for key, part in known.items()},
                {key: value for key, value in variables.items() if key not in known})

    def load(saved: Any) -> None:
        kept, plain = saved
        known = parts()
        for key in [key for key in variables if key not in kept and key not in plain]:
            del variables[key]
        variables.update(plain)
        for key, value in kept.items():
            if key in known:
                known[key].load(value)

    return Part(name, save, load)


def _tensor_part(name: str, thing: Any) -> Part | None:
    import torch
    if not isinstance(thing, torch.Tensor):
        return None

    def load(saved: Any) -> None:
        with torch.no_grad():
            thing.copy_(saved)
    return Part(name, lambda: thing.detach().clone(), load)


def _cleared_part(name: str, thing: Any) -> Part:
    def load(saved: Any) -> None:
        thing.clear()
        (thing.extend if isinstance(thing, bytearray) else thing.update)(saved)
    return Part(name, lambda: type(thing)(thing), load)


def _ignore(_: object) -> None:
    """For what answers something that nobody asked for."""

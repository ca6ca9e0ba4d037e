"""Numbers, switches and words that a protected module has as plain attributes, as far as they have changed.

torch doesn't count them as state: a BatchNorm's momentum that follows a schedule, a Dropout's p, a counter of the
script's. What is as it was when the module was protected is not kept, so that what each process makes for itself (a
handle, an address) stays its own.

A module may have a table beside them, a tensor or an array that is neither parameter nor buffer, and a number may say
how that was made (the length of a table of cosines). No other process has the table, so such a number is left as it is
where one of the two has a table. One that has changed while the tables stayed as they were says nothing of them, and is
kept: a temperature on a schedule, beside a tensor that the script looks at now and then. An array may have been written
in place at any time, so no number is kept beside one. The training thread's.
"""
from __future__ import annotations

import functools
import itertools
import sys
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pawl.volatile_state import Part

_KINDS = (bool, int, float, str, type(None))
_NUMBER_MAX = 1 << 31  # greater ones are addresses
_WORDS_MAX = 200
_LOOKED_AT = 64  # of a list or a dict, for tables


@dataclass(slots=True, eq=False)
class _Seen:
    """One module, as it was when it was looked at."""

    attributes: dict[str, Any]
    size: int
    names: list[tuple[str, str]]  # (name, key) of what is plain
    tables: list[tuple[Any, int | None]]  # weakly, with torch's count of writes
    stayed: bool = False  # the tables are those of the read before


class ModuleAttributes:
    """Of one module and those inside of it. Looked for anew where a module has got others, or what it has is of another
    kind."""

    def __init__(self, module: Any) -> None:
        """`module` as it was unwrapped: what wrappers keep is theirs."""
        self._module, self._own = module, _modules_own()
        self._seen: list[_Seen] = []
        self._free: set[str] = set()  # names of what has changed while the tables beside it stayed
        self._first = self._read()
        self._changed: dict[str, Any] = {}  # at the last read, beside the first

    def part(self, name: str) -> Part:
        return Part(name, self._save, self._load)

    def unkept(self) -> Iterator[tuple[Any, str]]:
        """Of which module, and under which name there, a restore may leave as it is."""
        self._look_at_changes()
        for place, module in enumerate(self._module.modules()):
            if _tables_in(vars(module)):
                yield from ((module, key) for key, value in vars(module).items()
                            if self._is_number(key, value) and f"{place}.{key}" not in self._free)

    def _save(self) -> dict[str, Any]:
        now = self._look_at_changes()
        return {"changed": self._changed,
                "other": [name for name in self._first if name not in now],  # something else is there, or nothing
                "tables": [place for place, seen in enumerate(self._seen) if seen.tables],
                "free": sorted(self._free)}

    def _load(self, saved: dict[str, Any]) -> None:
        self._look_at_changes()
        self._free |= {*saved["free"]}
        other, tables = {*saved["other"]}, {*saved["tables"]}
        expected = {name: value for name, value in self._first.items() if name not in other} | saved["changed"]
        modules = list(self._module.modules())
        for place, each in enumerate(modules):
            attributes = vars(each)
            for key in [] if place in tables or _tables_in(attributes) else list(attributes):
                name = f"{place}.{key}"
                if self._is_number(key, attributes[key]) and name not in expected and name not in self._first:
                    del attributes[key]  # it came later
        for name, value in expected.items():
            place, _, key = name.partition(".")
            if int(place) >= len(modules):  # it is gone
                continue
            attributes = vars(modules[int(place)])
            if int(place) in tables and name not in self._free:
                continue
            if key not in attributes or not _alike(attributes[key], value):
                attributes[key] = value
        self._look_at_changes(learn=False)

    def _look_at_changes(self, learn: bool = True) -> dict[str, Any]:
        """`learn`: the script has changed what has changed since the last time."""
        now, before = self._read(), self._changed
        self._changed = {name: value for name, value in now.items()
                         if name not in self._first or not _alike(value, self._first[name])}
        for name in {**before, **self._changed} if learn else ():
            same = name in before and name in self._changed and _alike(before[name], self._changed[name])
            place = int(name.partition(".")[0])
            if not same and place < len(self._seen) and self._seen[place].stayed:  # else its module is gone
                self._free.add(name)
        return now

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for seen in self._seen or self._look():
            if _size(seen.attributes) != seen.size:
                return self._anew()
            for name, key in seen.names:
                value = seen.attributes.get(key, self)
                if type(value) not in _KINDS and not _is_numpys(value):
                    return self._anew()
                if is_kept(value):
                    found[name] = value
            if seen.tables:
                tables = _tables_in(seen.attributes)
                if not tables:
                    return self._anew()
                seen.stayed = _are_still(seen.tables, tables)
                seen.tables = [(_weakly(each), _writes_of(each)) for each in tables]
            else:
                seen.stayed = True
        return found

    def _anew(self) -> dict[str, Any]:
        return {name: seen.attributes[key] for seen in self._look() for name, key in seen.names
                if is_kept(seen.attributes[key])}

    def _look(self) -> list[_Seen]:
        before, self._seen = self._seen, []
        for place, each in enumerate(self._module.modules()):
            attributes = vars(each)
            tables = _tables_in(attributes)
            names = [(f"{place}.{key}", key) for key, value in attributes.items()
                     if key not in self._own and (type(value) in _KINDS or _is_numpys(value))]
            stayed = place < len(before) and _are_still(before[place].tables, tables)
            self._seen.append(_Seen(attributes, _size(attributes), names,
                                    [(_weakly(table), _writes_of(table)) for table in tables], stayed))
        return self._seen

    def _is_number(self, key: str, value: Any) -> bool:
        return key not in self._own and is_kept(value)


def is_kept(value: Any) -> bool:
    """Where it is an attribute of a protected module."""
    if type(value) is str:
        return len(value) <= _WORDS_MAX
    if type(value) is int or _is_numpys(value):
        return not (_is_whole(value) and abs(value) >= _NUMBER_MAX)
    return type(value) in _KINDS


def _is_numpys(value: Any) -> bool:
    """A number of numpy's."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.number, numpy.bool_))


def _is_whole(value: Any) -> bool:
    return type(value) is int or value.dtype.kind in "iu"


def _tables_in(attributes: dict[str, Any]) -> list[Any]:
    """Tensors and arrays. What is computed from parameters, or a list of them, is none: the weights that an LSTM has in
    a list, the weight that weight_norm() makes for each step."""
    found: list[Any] = []
    for key, value in attributes.items():
        if type(value) in _KINDS or key == "_flat_weights" or key in _modules_own():
            continue
        parameters = attributes["_parameters"]
        if f"{key}_orig" not in parameters and f"{key}_g" not in parameters:  # spectral_norm(), pruning, weight_norm()
            _add_tables(found, value)
    return found


def _add_tables(found: list[Any], value: Any) -> None:
    if type(value) in (list, tuple):
        for each in value[:_LOOKED_AT]:
            _add_tables(found, each)
    elif isinstance(value, dict):
        for each in itertools.islice(value.values(), _LOOKED_AT):
            _add_tables(found, each)
    elif hasattr(value, "dtype") and hasattr(value, "shape") and not _is_numpys(value) and (
            not getattr(value, "requires_grad", False)):
        found.append(value)


def _are_still(before: list[tuple[Any, int | None]], now: list[Any]) -> bool:
    return len(before) == len(now) and all(known() is each and writes is not None and writes == _writes_of(each)
                                           for (known, writes), each in zip(before, now, strict=True))


def _weakly(table: Any) -> Any:
    try:
        return weakref.ref(table)
    except TypeError:
        return lambda: None  # as if it was another one each time


def _writes_of(table: Any) -> int | None:
    """None: nobody counts them, as of an array, or of a tensor that was made in inference mode."""
    try:
        return int(table._version)
    except (AttributeError, RuntimeError):
        return None


def _size(attributes: dict[str, Any]) -> int:
    return len(attributes) + len(attributes["_modules"])


@functools.cache
def _modules_own() -> frozenset[str]:
    """What every module has: parameters, buffers and hooks are no tables."""
    from torch.nn import Module
    return frozenset(vars(Module()))


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and bool(one == other or one != one and other != other)

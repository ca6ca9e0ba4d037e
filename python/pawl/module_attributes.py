"""Numbers, switches and words that a protected module has as plain attributes, as far as they have changed.

torch doesn't count them as state: a BatchNorm's momentum that follows a schedule, a Dropout's p, a counter of the
script's. What is as it was when the module was protected is not kept, so that what each process makes for itself (a
handle, an address) stays its own. So does what a module has beside a tensor that is neither parameter nor buffer: a
number may say how that was made (the length of a table of cosines). The training thread's.
"""
from __future__ import annotations

from typing import Any

from pawl.volatile_state import Part

_KINDS = (bool, int, float, str, type(None))
_NUMBER_MAX = 1 << 31  # greater ones are addresses
_WORDS_MAX = 200


def part(name: str, module: Any) -> Part:
    """`module` as it was unwrapped: what wrappers keep is theirs."""
    own = frozenset(vars(_plain_module()))
    places = _Places(module, own)
    first = places.read()

    def save() -> dict[str, Any]:
        now = places.read()
        return {"changed": {key: value for key, value in now.items()
                            if key not in first or not _alike(value, first[key])},
                "other": [key for key in first if key not in now]}  # something else is there, or nothing

    def load(saved: dict[str, Any]) -> None:
        expected = {key: value for key, value in first.items() if key not in set(saved["other"])} | saved["changed"]
        modules = list(module.modules())
        for place, each in enumerate(modules):
            for key in [] if has_table(each) else list(vars(each)):
                if _is_kept(key, vars(each)[key], own) and not {f"{place}.{key}"} & {*expected, *first}:
                    del vars(each)[key]  # it came later
        for key, value in expected.items():
            place, _, attribute = key.partition(".")
            attributes = vars(modules[int(place)])
            if has_table(modules[int(place)]):
                continue
            if attribute not in attributes or not _alike(attributes[attribute], value):
                attributes[attribute] = value

    return Part(name, save, load)


class _Places:
    """Where such attributes are. Looked for anew where a module has got others, or what it has is of another kind."""

    def __init__(self, module: Any, own: frozenset[str]) -> None:
        self._module, self._own = module, own
        self._known: list[tuple[dict[str, Any], int, list[tuple[str, str]]]] = []  # attributes, _size, (name, key)

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for attributes, count, names in self._known or self._look():
            if _size(attributes) != count:
                return self._anew()
            for name, key in names:
                value = attributes.get(key, self)
                if type(value) not in _KINDS:
                    return self._anew()
                if is_kept(value):
                    found[name] = value
        return found

    def _anew(self) -> dict[str, Any]:
        return {name: attributes[key] for attributes, _, names in self._look() for name, key in names
                if is_kept(attributes[key])}

    def _look(self) -> list[tuple[dict[str, Any], int, list[tuple[str, str]]]]:
        self._known = []
        for place, each in enumerate(self._module.modules()):
            attributes = vars(each)
            kept = [] if has_table(each) else [key for key, value in attributes.items()
                                               if key not in self._own and type(value) in _KINDS]
            self._known.append((attributes, _size(attributes), [(f"{place}.{key}", key) for key in kept]))
        return self._known


def has_table(module: Any) -> bool:
    """A tensor or an array as a plain attribute, of whose making a number beside it may speak."""
    return any(_holds_elements(value) for value in vars(module).values() if type(value) not in _KINDS)


def _holds_elements(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_holds_elements, value))
    return hasattr(value, "dtype") and hasattr(value, "shape")


def _size(attributes: dict[str, Any]) -> int:
    return len(attributes) + len(attributes["_modules"])


def is_kept(value: Any) -> bool:
    """Where it is an attribute of a protected module."""
    if isinstance(value, str):
        return len(value) <= _WORDS_MAX
    return type(value) in _KINDS and not (type(value) is int and abs(value) >= _NUMBER_MAX)


def _plain_module() -> Any:
    from torch.nn import Module
    return Module()


def _is_kept(key: str, value: Any, own: frozenset[str]) -> bool:
    return key not in own and is_kept(value)


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one and other != other)

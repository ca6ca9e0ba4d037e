"""Numbers, switches and words that a protected module has as plain attributes, as far as they have changed.

torch doesn't count them as state: a BatchNorm's momentum that follows a schedule, a Dropout's p, a counter of the
script's. What is as it was when the module was protected is not kept, so that what each process makes for itself (a
handle, an address) stays its own. The training thread's.
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
    first = _of(module, own)

    def save() -> dict[str, Any]:
        now = _of(module, own)
        return {"changed": {key: value for key, value in now.items()
                            if key not in first or not _alike(value, first[key])},
                "other": [key for key in first if key not in now]}  # something else is there, or nothing

    def load(saved: dict[str, Any]) -> None:
        expected = {key: value for key, value in first.items() if key not in set(saved["other"])} | saved["changed"]
        for place, each in enumerate(module.modules()):
            attributes = vars(each)
            for key in [key for key, value in attributes.items() if _is_kept(key, value, own)]:
                if f"{place}.{key}" not in expected and f"{place}.{key}" not in first:
                    del attributes[key]  # it came later
        modules = list(module.modules())
        for key, value in expected.items():
            place, _, attribute = key.partition(".")
            attributes = vars(modules[int(place)])
            if attribute not in attributes or not _alike(attributes[attribute], value):
                attributes[attribute] = value

    return Part(name, save, load)


def is_kept(value: Any) -> bool:
    """Where it is an attribute of a protected module."""
    if isinstance(value, str):
        return len(value) <= _WORDS_MAX
    return type(value) in _KINDS and not (type(value) is int and abs(value) >= _NUMBER_MAX)


def _plain_module() -> Any:
    from torch.nn import Module
    return Module()


def _of(module: Any, own: frozenset[str]) -> dict[str, Any]:
    return {f"{place}.{key}": value for place, each in enumerate(module.modules())
            for key, value in vars(each).items() if _is_kept(key, value, own)}


def _is_kept(key: str, value: Any, own: frozenset[str]) -> bool:
    return key not in own and is_kept(value)


def _alike(one: Any, other: Any) -> bool:
    return type(one) is type(other) and (one == other or one != one and other != other)

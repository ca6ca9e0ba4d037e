"""What modules give by get_extra_state(), as a part of the volatile state; and as a checkpoint names it."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawl.volatile_state import Part

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class ExtraState(Part):
    """Of the modules in one model. They are asked once for each save: `last` is what they gave, by their names in a
    checkpoint (pawl.torch.layout)."""

    last: dict[str, Any] = field(default_factory=dict)


def part_of(name: str, prefix: str, module: torch.nn.Module) -> ExtraState | None:
    """None: no module has any. `prefix`: of the model's names."""
    last: dict[str, Any] = {}
    names: dict[int, list[str]] = {}  # by id of a module that has some

    def save() -> dict[str, Any]:
        having = _having(module)
        saved = {path: each.get_extra_state() for path, each in having}
        if names.keys() != {id(each) for _, each in having}:
            names.clear()
            names.update(_names_of(prefix, module, {id(each) for _, each in having}))
        last.clear()
        last.update((each, saved[path]) for path, one in having for each in names[id(one)])
        return saved

    def load(saved: dict[str, Any]) -> None:
        for path, each in _having(module):
            each.set_extra_state(saved[path])
    return ExtraState(name, save, load, last=last) if _having(module) else None


def _having(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    from torch.nn import Module
    return [(path, each) for path, each in module.named_modules()
            if type(each).get_extra_state is not Module.get_extra_state]


def _names_of(prefix: str, module: torch.nn.Module, wanted: set[int]) -> dict[int, list[str]]:
    from pawl.torch.module_names import module_prefixes, wrapped_child
    found: dict[int, list[str]] = {each: [] for each in wanted}
    for path, each in module_prefixes(module):
        if id(each) in wanted and wrapped_child(each) is None:
            found[id(each)].append(f"{prefix}{path}_extra_state")
    return found

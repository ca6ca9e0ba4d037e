"""What of a checkpoint is no tensor, and where it goes: hyperparameters of param groups, and modules' extra state."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pawl._checkpoint import Checkpoint
from pawl.errors import Refused
from pawl.torch.module_names import listed, module_prefixes
from pawl.torch.pieces import Group, Layout

# What schedulers keep in a group; torch's load_state_dict restores it, too, where the group doesn't have it yet.
_OF_SCHEDULERS = ("initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum")


def plan_values(checkpoint: Checkpoint, layout: Layout, *, strict: bool, kept: list[str]
                ) -> tuple[list[tuple[Group, dict[str, Any]]], dict[str, Any]]:
    """What of the checkpoint's values goes where: hyperparameters of each live group, and extra state by name. `kept`
    gets a sentence for each group of which some stay the training's.

    Fails: Refused where saved groups disagree about one live group.
    """
    values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
    saved = values.get("param_groups") or []
    if layout.groups and not saved:
        own = sorted({word for live in layout.groups for word in _numbers_of(live)})
        kept.append(f"the optimizer keeps its own hyperparameters ({', '.join(own)}): this checkpoint doesn't say them")
    group_of = {name: number for number, each in enumerate(saved) for name in each.get("params", ())}
    groups: list[tuple[Group, dict[str, Any]]] = []
    for number, live in enumerate(layout.groups):
        found = {group_of[name]: saved[group_of[name]] for name in live.parameters if name in group_of}
        agreed = _agreed(number, live, list(found.values()), checkpoint, kept)
        groups.append((live, agreed))
        left = [word for word in _numbers_of(live) if word not in agreed]
        if saved and live.parameters and not found:
            kept.append(f"param group {number} keeps its own hyperparameters ({', '.join(left)}): the checkpoint has "
                        f"none for it")
        elif agreed and left:
            kept.append(f"param group {number} keeps its own {', '.join(left)}: the checkpoint doesn't say "
                        f"{'it' if len(left) == 1 else 'them'}, or not of all its parameters")
    extra, extra_state = values.get("extra_state") or {}, {}
    for name in layout.extra_state:
        if name in extra:
            extra_state[name] = extra[name]
        elif strict:
            raise Refused(f"{checkpoint.path} lacks {name}, which the model needs for set_extra_state() "
                          f"(strict=False loads without it)")
    return groups, extra_state


def _numbers_of(group: Group) -> list[str]:
    """The hyperparameters that are numbers: what a training would go on differently with."""
    def is_number(value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return [word for word, value in group.values.items()
            if is_number(value) or (isinstance(value, list) and value and all(map(is_number, value)))]


def _agreed(number: int, live: Group, found: list[dict[str, Any]], checkpoint: Checkpoint, kept: list[str]
            ) -> dict[str, Any]:
    """What pawl saved has to fit. Trainings of others often go on in other groups, with their own rates."""
    try:
        return _one_of(number, found)
    except Refused as error:
        if checkpoint.format.startswith("pawl") and "framework" in checkpoint.values:
            raise  # a converted store names no framework: it comes from others all the same
        kept.append(f"param group {number} keeps its own hyperparameters ({', '.join(_numbers_of(live))}): {error}")
        return {}


def _one_of(number: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    agreed: dict[str, Any] = {}
    for each in found:
        for key, value in each.items():
            if key in ("params", "param_names"):
                continue
            if agreed.setdefault(key, value) != value:
                raise Refused(f"param group {number}: its parameters were saved with {key} {agreed[key]!r} and "
                              f"{value!r}: make the optimizer with the groups that were saved")
    return {key: value for key, value in agreed.items() if all(key in each for each in found)}  # told of all of them


def set_group(live: dict[str, Any], saved: dict[str, Any]) -> None:
    for key, value in saved.items():
        if key not in live and key not in _OF_SCHEDULERS:  # of another version of the optimizer
            continue
        live[key] = _put(live.get(key), value)


def _put(old: Any, value: Any) -> Any:
    """A saved value in the form that the group's has: tensors keep their memory, also as parts of a pair (betas)."""
    if isinstance(old, torch.Tensor):
        with torch.no_grad():
            old.fill_(value)
        return old
    if not isinstance(value, list) or not isinstance(old, (list, tuple)):
        return value
    inner = old if len(old) == len(value) else value
    parts = [_put(part, each) if isinstance(part, torch.Tensor) else each
             for part, each in zip(inner, value, strict=True)]
    return tuple(parts) if isinstance(old, tuple) else parts


def set_extra_state(model: Any, extra: dict[str, Any], rename: Callable[[str], str]) -> None:
    """Gives modules what their get_extra_state() gave, by the checkpoint's names."""
    for module in listed(model):
        for prefix, each in module_prefixes(module):
            name = rename(prefix + "_extra_state")
            if name in extra:
                each.set_extra_state(extra[name])

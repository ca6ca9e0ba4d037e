"""What of a checkpoint is no tensor, and where it goes: hyperparameters of param groups, and modules' extra state."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pawl._checkpoint import Checkpoint
from pawl.errors import Refused
from pawl.torch.module_names import listed, module_prefixes
from pawl.torch.pieces import Group, Layout


def plan_values(checkpoint: Checkpoint, layout: Layout, *, strict: bool, notes: list[str]
                ) -> tuple[list[tuple[Group, dict[str, Any]]], dict[str, Any]]:
    """What of the checkpoint's values goes where: hyperparameters of each live group, and extra state by name.

    Fails: Refused where saved groups disagree about one live group.
    """
    values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
    saved = values.get("param_groups") or []
    if layout.groups and not saved:
        notes.append("the optimizer keeps its own hyperparameters: this checkpoint doesn't say them")
    group_of = {name: number for number, each in enumerate(saved) for name in each.get("params", ())}
    groups: list[tuple[Group, dict[str, Any]]] = []
    for number, live in enumerate(layout.groups):
        found = {group_of[name]: saved[group_of[name]] for name in live.parameters if name in group_of}
        if saved and live.parameters and not found:
            notes.append(f"param group {number} keeps its own hyperparameters: the checkpoint has none for it")
        groups.append((live, _agreed(number, list(found.values()), checkpoint, notes)))
    extra, extra_state = values.get("extra_state") or {}, {}
    for name in layout.extra_state:
        if name in extra:
            extra_state[name] = extra[name]
        elif strict:
            raise Refused(f"{checkpoint.path} lacks {name}, which the model needs for set_extra_state() "
                          f"(strict=False loads without it)")
    return groups, extra_state


def _agreed(number: int, found: list[dict[str, Any]], checkpoint: Checkpoint, notes: list[str]) -> dict[str, Any]:
    """What pawl saved has to fit. Trainings of others often go on in other groups, with their own rates."""
    try:
        return _one_of(number, found)
    except Refused as error:
        if checkpoint.format.startswith("pawl") and "framework" in checkpoint.values:
            raise  # a converted store names no framework: it comes from others all the same
        notes.append(f"param group {number} keeps its own hyperparameters: {error}")
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
        if key not in live and key != "initial_lr":  # of another version of the optimizer
            continue
        old = live.get(key)
        if isinstance(old, torch.Tensor):
            with torch.no_grad():
                old.fill_(value)
        else:
            live[key] = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def set_extra_state(model: Any, extra: dict[str, Any], rename: Callable[[str], str]) -> None:
    """Gives modules what their get_extra_state() gave, by the checkpoint's names."""
    for module in listed(model):
        for prefix, each in module_prefixes(module):
            name = rename(prefix + "_extra_state")
            if name in extra:
                each.set_extra_state(extra[name])

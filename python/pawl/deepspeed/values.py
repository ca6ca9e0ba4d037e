"""What of an engine is not a tensor, as JSON: its counters, loss scaler, scheduler, and the client's own state.

A checkpoint of pawl's holds JSON beside tensors, and nothing in it is ever executed. Clients' and schedulers' states
use types that JSON lacks, which tagged_values.py has forms for; tensors among them are small (states of random
generators).
"""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from pawl import tagged_values
from pawl.deepspeed.partitions import is_managed
from pawl.errors import Refused
from pawl.torch.saving import StoredValues

KEY = "deepspeed"  # of the manifest's values
TENSOR_BYTES_MAX = 1 << 20
_COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")


@dataclass
class EngineValues(StoredValues):
    """As for any training; `user` is the client's state, and `deepspeed` what `values_of` says of the engine."""

    deepspeed: dict[str, Any] = field(default_factory=dict)


# An engine's values -----------------------------------------------------------------------------------------------

def values_of(engine: Any) -> dict[str, Any]:
    """What to_engine() takes. Fails: Refused."""
    values: dict[str, Any] = {name: int(getattr(engine, name)) for name in _COUNTERS}
    values["gradient_accumulation_steps"] = engine.gradient_accumulation_steps()
    values["zero_stage"] = int(engine.zero_optimization_stage())
    scaler = _scaler_of(engine.optimizer)
    values["loss_scaler"] = None if scaler is None else {
        "dynamic": _is_dynamic(scaler), **{key: getattr(scaler, key) for key in _SCALER if hasattr(scaler, key)}}
    scheduler = engine.lr_scheduler
    values["lr_scheduler"] = None if scheduler is None else {
        "class": type(scheduler).__name__, "state": to_json("the lr scheduler's state", scheduler.state_dict())}
    return values


def _scaler_of(optimizer: Any) -> Any:
    """What scales the loss of an engine that trains in fp16, else None."""
    scaler = getattr(optimizer, "loss_scale_config", None)  # without ZeRO
    if scaler is not None:
        return scaler if scaler.use_grad_scaling else None
    scaler = getattr(optimizer, "loss_scaler", None)
    return scaler if scaler is not None and getattr(optimizer, "dtype", None) == torch.float16 else None


def _is_dynamic(scaler: Any) -> bool:
    return bool(getattr(scaler, "dynamic_loss_scale", getattr(scaler, "dynamic", False)))


def plan_values(engine: Any, stored: dict[str, Any] | None, *, scheduler: bool, counters: bool, strict: bool,
                notes: list[str]) -> Callable[[], None]:
    """Checks what of the stored values goes where; the answer puts it there. Fails: Refused."""
    if not stored:
        if counters:
            notes.append("the engine's counters, scheduler and loss scale stay: DeepSpeed's are not in this checkpoint")
        return lambda: None
    steps = [_plan_scheduler(engine.lr_scheduler, stored.get("lr_scheduler"), strict, notes)] if scheduler else []
    if counters:
        steps += [_plan_counters(engine, stored), _plan_scaler(_scaler_of(engine.optimizer), stored, notes)]

    def put() -> None:
        for step in steps:
            step()

    return put


def _plan_counters(engine: Any, stored: dict[str, Any]) -> Callable[[], None]:
    values = {name: int(stored[name]) for name in _COUNTERS if name in stored}
    accumulated, now = stored.get("gradient_accumulation_steps", 1), engine.gradient_accumulation_steps()
    if "micro_steps" in values and accumulated != now and is_managed(engine):  # a step has another number of them here
        values["micro_steps"] = values["micro_steps"] // accumulated * now

    def put() -> None:
        for name, value in values.items():
            setattr(engine, name, value)

    return put


def _plan_scaler(scaler: Any, stored: dict[str, Any], notes: list[str]) -> Callable[[], None]:
    saved = stored.get("loss_scaler")
    if scaler is None or not _is_dynamic(scaler):
        return lambda: None
    if saved is None or not saved.get("dynamic"):
        notes.append("the loss scale starts again: it was fixed in the training that was saved")
        return lambda: None
    values = {key: saved[key] for key in _SCALER if hasattr(scaler, key) and saved.get(key) is not None}

    def put() -> None:
        for key, value in values.items():
            setattr(scaler, key, value)

    return put


def _plan_scheduler(scheduler: Any, saved: dict[str, Any] | None, strict: bool,
                    notes: list[str]) -> Callable[[], None]:
    if scheduler is None or saved is None:
        if scheduler is not None:
            notes.append("the checkpoint has no lr scheduler: the engine's is as it was")
        elif saved is not None:
            notes.append(f"the engine has no lr scheduler: the stored {saved['class']} is not loaded")
        return lambda: None
    if saved["class"] != type(scheduler).__name__:
        sentence = f"the lr scheduler was a {saved['class']}, and here is a {type(scheduler).__name__}"
        if strict:
            raise Refused(f"{sentence}: make the one that was saved, or leave it out (scheduler=False)")
        notes.append(f"{sentence}: it is as it was")
        return lambda: None
    state = from_json(saved["state"])
    return lambda: scheduler.load_state_dict(state)


# As JSON ----------------------------------------------------------------------------------------------------------

def to_json(about: str, value: Any) -> Any:
    """Fails: Refused for what has no form, and for large tensors."""
    return tagged_values.Writer(tensor_bytes_max=TENSOR_BYTES_MAX, kinds_as_they_are=False).to_json(about, value)


def from_json(value: Any) -> Any:
    """What to_json() was given. Fails: Refused for what it doesn't write."""
    return tagged_values.from_json(value)

"""The state of DeepSpeed's inner optimizers where there is none yet: engines have none before their first step.

A flat partition may fill a rank's memory, so the step that makes state (pawl.torch.optimizer_state) is taken on two
elements instead, and the result is extended to the partition's length. No parameter changes.
"""
from __future__ import annotations

from typing import Any

import torch

from pawl.deepspeed.partitions import Partition
from pawl.errors import Refused
from pawl.torch.optimizer_state import state_after_a_step


def first_state_of(optimizer: torch.optim.Optimizer, partition: Partition) -> dict[Any, Any]:
    """State for a partition that has none. Fails: Refused."""
    return _of_deepspeed(optimizer, partition.tensor) or _drawn_out(optimizer, partition)


def _of_deepspeed(optimizer: Any, tensor: torch.Tensor) -> dict[str, Any] | None:
    """DeepSpeedCPUAdam's: it has a part in C++ that a twin of it would take with it when it goes."""
    if type(optimizer).__name__ != "DeepSpeedCPUAdam":
        if hasattr(type(optimizer), "__del__"):
            raise Refused(f"{type(optimizer).__name__} has no state yet, and pawl doesn't know how to make it: take a "
                          f"step, then load")
        return None
    kind = torch.float32 if getattr(optimizer, "fp32_optimizer_states", True) else tensor.dtype
    return {"step": 0, **{key: torch.zeros_like(tensor.detach(), dtype=kind) for key in ("exp_avg", "exp_avg_sq")}}


def _drawn_out(optimizer: torch.optim.Optimizer, partition: Partition) -> dict[str, Any]:
    tensor = partition.tensor.detach()
    group = optimizer.param_groups[partition.group]
    if "param_names" in group:
        group = {key: value for key, value in group.items() if key != "param_names"}
    if tensor.dim() != 1:  # one parameter, whose form may count
        return state_after_a_step(optimizer, group, 0, tensor)
    pair = torch.zeros(2, dtype=tensor.dtype, device=tensor.device)
    state = state_after_a_step(optimizer, group, 0, pair)
    return {key: _long(value, tensor) if isinstance(value, torch.Tensor) and value.shape == pair.shape else value
            for key, value in state.items()}


def _long(value: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return torch.full_like(tensor, value[0].item(), dtype=value.dtype)

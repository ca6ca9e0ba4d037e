"""Creates optimizer state where there is none yet, by the optimizer's own rules, before anything is loaded into it.

Optimizers make a parameter's state in their first step. Here a twin takes that step: it shares the optimizer's class
and hyperparameters, and works on a zero tensor in place of each parameter, with zero gradients. The state that it makes
has the right names, shapes, types, devices and placements, and neither the parameters nor the optimizer's own counters
have changed. One parameter at a time, so the zeros cost the memory of the largest.
"""
from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Any

import torch

from pawl.errors import Refused


class CreatedState:
    """What was created, so that it can be taken back."""

    def __init__(self) -> None:
        self._created: list[tuple[torch.optim.Optimizer, torch.Tensor, bool]] = []

    def __len__(self) -> int:
        return len(self._created)

    def create(self, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]) -> None:
        """State for these parameters of the optimizer, where they have none. Fails: Refused."""
        wanted = {id(parameter) for parameter in parameters}
        for group in optimizer.param_groups:
            for place, parameter in enumerate(group["params"]):
                if id(parameter) in wanted and not optimizer.state.get(parameter):
                    self.put(optimizer, parameter, state_after_a_step(optimizer, group, place, parameter))

    def put(self, optimizer: torch.optim.Optimizer, parameter: torch.Tensor, state: dict[Any, Any]) -> None:
        """This state for a parameter that has none."""
        self._created.append((optimizer, parameter, parameter in optimizer.state))
        optimizer.state[parameter] = state

    @staticmethod
    def keeps_state(optimizer: torch.optim.Optimizer) -> bool:
        """Whether it would have state after a step."""
        for group in optimizer.param_groups:
            for place, parameter in enumerate(group["params"]):
                state = state_after_a_step(optimizer, group, place, parameter)
                return any(value is not None for value in state.values())
        return False

    def take_back(self) -> None:
        for optimizer, parameter, had_entry in self._created:
            if had_entry:
                optimizer.state[parameter] = {}
            else:
                optimizer.state.pop(parameter, None)
        self._created.clear()


def inner(optimizer: Any) -> torch.optim.Optimizer:
    """The one that keeps the state: of ZeroRedundancyOptimizer the local one."""
    is_zero = any(base.__name__ == "ZeroRedundancyOptimizer" for base in type(optimizer).__mro__)
    found: torch.optim.Optimizer = optimizer.optim if is_zero else optimizer
    return found


def state_after_a_step(optimizer: torch.optim.Optimizer, group: dict[str, Any], place: int,
                       parameter: torch.Tensor) -> dict[Any, Any]:
    """What a twin of the optimizer makes in its first step for a parameter like this one, the `place`-th of `group`.

    Nothing that was given is changed. Fails: Refused where the step does.
    """
    with torch.no_grad():
        zero = torch.nn.Parameter(torch.zeros_like(parameter.detach()), requires_grad=True)
        zero.grad = torch.zeros_like(zero.detach())
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update({key: value for key, value in optimizer.__dict__.items() if key != "step"})  # a scheduler's
    for hooks in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, hooks, OrderedDict())
    step: Any = type(optimizer).step
    if getattr(step, "hooked", False):  # torch's wrapper, which would call global hooks
        step = step.__wrapped__
    twin.state = defaultdict(dict)
    twin.param_groups = [{**group, "params": [zero]}]
    if "param_names" in group:
        twin.param_groups[0]["param_names"] = [group["param_names"][place]]
    if isinstance(group.get("lr"), torch.Tensor):
        twin.param_groups[0]["lr"] = group["lr"].clone()
    try:
        step(twin)
    except Exception as error:
        raise Refused(f"{type(optimizer).__name__} has no state yet. pawl makes it with a step on zeros, and that step "
                      f"failed ({type(error).__name__}: {error}): take a step, then load") from error
    return dict(twin.state.get(zero, {}))

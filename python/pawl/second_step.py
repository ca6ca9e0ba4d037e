"""What a second step makes that the first has not: derived, so that a seat that is built late rehearses one step.

Layouts are sealed after two steps, and whoever takes a seat later has to come to the same. What DDP makes in the second
one is known: at its forward it lays its buckets anew, in the order in which the gradients of the first backward came.
The method that its forward calls for this is private to torch. Whether a script makes anything else then (state of an
optimizer whose first step a scaler skipped, a late buffer) can't be known beforehand, but a spare's rehearsal shows it:
it does both steps, and what has come of them is kept, unless the second has made groups or protected more. Only a seat
whose first step, with new buckets, has come to just that leaves out the second. Seats compare the buckets' order once
more before they connect (same_script.py).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pawl import reducers, volatile_state
from pawl.protect import is_zero

if TYPE_CHECKING:
    from pawl.protect import Protected


@dataclass(frozen=True)
class Made:
    """All but the values of what steps have made. Equal for all ranks of a script that is."""

    tensors: list[Any]  # parameters and buffers
    state: list[Any]    # of each optimizer
    buckets: list[str]  # gradients in DDP's order


def made_by_both(protected: Protected) -> Made:
    """After two whole steps."""
    lay_buckets(protected)
    return _made(protected)


def lay_buckets(protected: Protected) -> None:
    """After two whole steps: where DDP still has to (a static graph; a first step under no_sync()), the others have
    done it, since they have begun a third."""
    for module in protected.ddp_modules():
        reducers.lay_buckets(module)


def why_not_derived(protected: Protected, both: Made | None) -> str | None:
    """After the first step, whose like in another rehearsal of this process has led to `both`. None: what the second
    would make is there."""
    if both is None:
        return "no rehearsal in this process has shown what it makes"
    for module in protected.ddp_modules():
        why = reducers.lay_buckets(module)
        if why is not None:
            return why
    now = _made(protected)
    if now.tensors != both.tensors:
        return "it makes parameters or buffers"
    if now.state != both.state:
        return "it makes optimizer state"
    if now.buckets != both.buckets:
        return "gradients come in another order than in the rehearsal before"
    return None


def _made(protected: Protected) -> Made:
    tensors = [(name, tuple(each.shape), each.dtype) for name, each in protected.parameters()]
    for prefix, module in protected.modules:
        tensors += [(prefix + name, tuple(each.shape), each.dtype) for name, each in module.named_buffers()]
    return Made(tensors, [_state(optimizer) for optimizer in protected.optimizers], protected.gradient_order())


def _state(optimizer: Any) -> Any:
    """The tensors and numbers of each parameter's state, in the order of the parameters. Of a ZeroRedundancyOptimizer,
    whose ranks have other parameters each: what kinds of state there are."""
    import torch
    inner = volatile_state.inner_optimizer(optimizer)
    found = []
    for parameter in (each for group in inner.param_groups for each in group["params"]):
        state = inner.state.get(parameter, {})
        tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        found.append((*((key, value.dtype, "like it" if value.shape == parameter.shape else tuple(value.shape))
                        for key, value in tensors.items()),
                      *((key, type(value)) for key, value in state.items() if type(value) in (bool, int, float))))
    return set(found) if is_zero(optimizer) else found

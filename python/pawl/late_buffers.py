"""Buffers that a module gets after the layout was made: by register_buffer(), where None was before, or of another
shape than they had (a table that grows with the longest sequence so far).

They have no place in the layout, so they are kept with the volatile state, and are put into a module that doesn't have
them, or taken out again. A place that the layout has stays the buffer's that was there: that one comes back where a
restored step still had it. Whether a buffer belongs into the state_dict changes nothing here: the script's own
checkpoints hold what the module holds.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from pawl import sharded
from pawl.volatile_state import Part

if TYPE_CHECKING:
    import torch


class Held(Protocol):
    """What has a place in the layout (protect.py)."""

    tensor: torch.Tensor

    @property
    def is_buffer(self) -> bool: ...


class LateBuffers:
    """Of one module and those inside of it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._early: list[tuple[str, torch.nn.Module, dict[str, Held | None]]] = []  # who had which; None: no tensor

    def declared(self, held: Sequence[Held]) -> None:
        """What is there now is in the layout."""
        known = {id(each.tensor): each for each in held if each.is_buffer}
        self._early = [(path, each, {key: known.get(id(buffer)) for key, buffer in each._buffers.items()})
                       for path, each in self._module.named_modules() if isinstance(each._buffers, dict)]

    def part(self, name: str) -> Part:
        return Part(name, self._save, self._load)

    def _save(self) -> dict[str, dict[str, Any]]:
        """By module and key: the tensor or None, and whether it belongs into the state_dict."""
        found = {}
        for path, module, early in self._early:
            late = _late(module, early)
            if late:
                found[path] = {key: [module._buffers[key], key not in module._non_persistent_buffers_set]
                               for key in late}
        return found

    def _load(self, saved: dict[str, dict[str, Any]]) -> None:
        for path, module, early in self._early:
            kept = saved.get(path, {})
            for key in _late(module, early):
                if key in kept:
                    continue
                if key in early:
                    there = early[key]
                    module._buffers[key] = there.tensor if there is not None else None
                else:
                    delattr(module, key)
            for key, (buffer, persistent) in kept.items():
                if key not in module._buffers:
                    module.__dict__.pop(key, None)  # a script may have had None there, as a plain attribute
                    module.register_buffer(key, buffer, persistent)
                elif buffer is None or not _put_into(module._buffers[key], buffer, early.get(key)):
                    module._buffers[key] = buffer


def _put_into(there: torch.Tensor | None, kept: torch.Tensor, early: Held | None) -> bool:
    """In place, if it fits: the script may have the same tensor under another name. Never into what the layout has."""
    fits = (there is not None and not there.requires_grad and there.is_contiguous() and
            (early is None or there is not early.tensor) and
            (there.shape, there.dtype, there.device) == (kept.shape, kept.dtype, kept.device))
    if there is not None and fits and there is not kept:
        there.copy_(kept)
    return fits


def _late(module: torch.nn.Module, early: dict[str, Held | None]) -> list[str]:
    return [key for key, buffer in module._buffers.items() if outgrew(early.get(key), buffer)]


def outgrew(held: Held | None, buffer: torch.Tensor | None) -> bool:
    """Whether what is in a buffer's place has none in the layout. `held`: what that has there."""
    if held is None or buffer is None:
        return (held is None) is not (buffer is None)
    return not (sharded.is_dtensor(held.tensor) or sharded.is_dtensor(buffer)) and (
        (buffer.shape, buffer.dtype, buffer.stride()) != (held.tensor.shape, held.tensor.dtype, held.tensor.stride()))

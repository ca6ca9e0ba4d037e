"""Buffers that a module gets after the layout was made: by register_buffer(), or where None was before.

They have no place in the layout, so they are kept with the volatile state, and are put into a module that doesn't have
them, or taken out again.
"""
from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pawl.volatile_state import Part

if TYPE_CHECKING:
    import torch


class LateBuffers:
    """Of one module and those inside of it."""

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._early: list[tuple[str, torch.nn.Module, dict[str, bool]]] = []  # who had which; whether it was a tensor

    def declared(self) -> None:
        """What is there now is in the layout."""
        self._early = [(path, each, {key: buffer is not None for key, buffer in each._buffers.items()})
                       for path, each in self._module.named_modules() if isinstance(each._buffers, dict)]

    def part(self, name: str) -> Part:
        return Part(name, self._save, self._load)

    def _save(self) -> dict[str, dict[str, Any]]:
        """By module and key: the tensor, and whether it belongs into the state_dict."""
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
                    module._buffers[key] = None
                else:
                    delattr(module, key)
            for key, (buffer, persistent) in kept.items():
                if key not in module._buffers:
                    module.__dict__.pop(key, None)  # a script may have had None there, as a plain attribute
                    module.register_buffer(key, buffer, persistent)
                elif not _put_into(module._buffers[key], buffer):
                    module._buffers[key] = buffer


def _put_into(there: torch.Tensor | None, kept: torch.Tensor) -> bool:
    """In place, if it fits: the script may have the same tensor under another name."""
    fits = (there is not None and not there.requires_grad and there.is_contiguous() and
            (there.shape, there.dtype, there.device) == (kept.shape, kept.dtype, kept.device))
    if there is not None and fits and there is not kept:
        there.copy_(kept)
    return fits


def _late(module: torch.nn.Module, early: dict[str, bool]) -> list[str]:
    return [key for key, buffer in module._buffers.items() if buffer is not None and not early.get(key, False)]

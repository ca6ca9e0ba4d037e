"""The DistributedDataParallel modules that the script has made, also those around a module that it protects.

Their reducers matter to a recovery (reducers.py), and nothing leads from a module to the DDP around it.
"""
from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any

_made: weakref.WeakKeyDictionary[Any, list[Any]] = weakref.WeakKeyDictionary()


@functools.cache
def watch() -> None:
    """Before the script makes any. Idempotent."""
    from torch.nn.parallel import DistributedDataParallel

    for name in ("__init__", "__setstate__"):  # a copy is made by the second
        setattr(DistributedDataParallel, name, _numbering(getattr(DistributedDataParallel, name)))


def _numbering(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        numbered(self)
    return make


def made() -> list[Any]:
    """Those that still live, in the order in which they were made."""
    return list(_made)


def numbered(module: Any) -> list[Any]:
    """Its parameters as its reducer numbers them: those that were trained when it was made."""
    found = _made.get(module)
    if found is None:
        found = _made[module] = module._build_params_for_reducer()[0]
    return found


def has_sparse_gradients(module: Any) -> bool:
    """Whether the reducer expects some, as of torch.nn.Embedding(sparse=True)."""
    return any(module._build_params_for_reducer()[1])

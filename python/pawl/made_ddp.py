"""The DistributedDataParallel modules that the script has made, also those around a module that it protects.

Their reducers matter to a recovery (order of gradients, what a broken backward has left), and nothing leads from a
module to the DDP around it.
"""
from __future__ import annotations

import functools
import weakref
from typing import Any

_made: list[weakref.ref[Any]] = []


@functools.cache
def watch() -> None:
    """Before the script makes any. Idempotent."""
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        _made.append(weakref.ref(self, _made.remove))

    DistributedDataParallel.__init__ = init


def made() -> list[Any]:
    """Those that still live, in the order in which they were made."""
    return [each for reference in list(_made) if (each := reference()) is not None]

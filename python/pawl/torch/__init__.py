"""pawl.torch: checkpoints of PyTorch trainings, in any layout, from and to any format.

    import pawl.torch

    pawl.torch.save("run/step1200", model, optimizer, values={"step": 1200})
    report = pawl.torch.load("run/step1200", model, optimizer)

load() takes what any framework wrote, into whatever layout the training has now. Importing this loads nothing; names
are loaded when they are used, and need PyTorch.
"""
from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from pawl._lazy import lazy_names

if TYPE_CHECKING:
    from pawl.torch.layout import layout_of, pieces_of
    from pawl.torch.load import load
    from pawl.torch.report import Report
    from pawl.torch.save import Saved, save

__all__ = ["Report", "Saved", "layout_of", "load", "pieces_of", "save"]

_HOMES = {"Report": "report", "Saved": "save", "layout_of": "layout", "load": "load", "pieces_of": "layout",
          "save": "save"}


class _Package(types.ModuleType):
    """save and load are functions here, and modules too: the latter must not take the names when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _HOMES and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

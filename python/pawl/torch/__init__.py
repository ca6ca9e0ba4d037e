"""pawl.torch: checkpoints of PyTorch trainings, in any layout, from and to any format.

    import pawl.torch

    pawl.torch.save("run/step1200", model, optimizer, values={"step": 1200})
    report = pawl.torch.load("run/step1200", model, optimizer)

load() reads what any framework wrote, into whatever layout the training has now. Importing this loads nothing; names
are loaded when they are used, and need PyTorch.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pawl._lazy import lazy_names

if TYPE_CHECKING:
    from pawl.torch.layout import layout_of, pieces_of
    from pawl.torch.load_options import Hints
    from pawl.torch.loading import load
    from pawl.torch.report import Report
    from pawl.torch.saving import Saved, save

__all__ = ["Hints", "Report", "Saved", "layout_of", "load", "pieces_of", "save"]

_HOMES = {"Hints": "load_options", "Report": "report", "Saved": "saving", "layout_of": "layout", "load": "loading",
          "pieces_of": "layout", "save": "saving"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

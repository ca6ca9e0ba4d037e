"""DeepSpeed's engines through pawl's store: saved under any ZeRO stage on any number of ranks, loaded under any other.

    pawl.deepspeed.save(engine, "run/step1200", client_state={"epoch": 3})
    report = pawl.deepspeed.load(engine, "run/step1200")     # any stage, any number of ranks; or any other checkpoint
    pawl.deepspeed.attach(engine)                            # engine.save_checkpoint and load_checkpoint are these now

What is saved is one folder of tensors by parameter name and role, which pawl.torch.load takes too, as load() here
takes what pawl.torch.save wrote and everything else that pawl opens. There is no CheckpointEngine for DeepSpeed's own
configuration: DeepSpeed hands one what a single rank holds, already flattened and named by ranks, from which nothing
that is free of ranks can be made.

Importing this is cheap: torch is imported by the first call, DeepSpeed never.
"""
from __future__ import annotations

import sys
import types
from typing import TYPE_CHECKING, Any

from pawl._lazy import lazy_names

if TYPE_CHECKING:
    from pawl.deepspeed.attach import attach
    from pawl.deepspeed.load import load
    from pawl.deepspeed.save import save

__all__ = ["attach", "load", "save"]


class _Package(types.ModuleType):
    """Each name is a function here, and a module too: the latter must not take the names when they are imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in __all__ and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
__getattr__, __dir__ = lazy_names(__name__, {name: name for name in __all__})

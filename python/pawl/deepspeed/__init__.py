"""DeepSpeed's engines through pawl's store: saved under any ZeRO stage on any number of ranks, loaded under any other.

    pawl.deepspeed.save(engine, "run/step1200", client_state={"epoch": 3})
    report = pawl.deepspeed.load(engine, "run/step1200")     # any stage, any number of ranks; or any other checkpoint
    pawl.deepspeed.attach(engine)                            # engine.save_checkpoint and load_checkpoint are these now

save() writes one folder of tensors by parameter name and role. pawl.torch.load reads it too, and load() here reads what
pawl.torch.save wrote and everything else that pawl opens. There is no CheckpointEngine for DeepSpeed's own
configuration: DeepSpeed gives one only what a single rank holds, already flattened and named by ranks, and that can't
be made independent of ranks.

Importing this is cheap: torch is imported by the first call, DeepSpeed never.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pawl._lazy import lazy_names

if TYPE_CHECKING:
    from pawl.deepspeed.engine_methods import attach
    from pawl.deepspeed.loading import load
    from pawl.deepspeed.saving import save

__all__ = ["attach", "load", "save"]
__getattr__, __dir__ = lazy_names(__name__, {"attach": "engine_methods", "load": "loading", "save": "saving"})

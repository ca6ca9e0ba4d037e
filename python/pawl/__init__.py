"""pawl: fault tolerance for training large models.

    import pawl

    job = pawl.init()
    job.protect(model, optimizer, scheduler, sampler)
    for step in job.steps(total):
        with step:
            ...
        if step.lost: continue

Importing this loads nothing and has no side effect, but in a trainer of `pawl drill`; names are loaded when they are
used. Only init() needs PyTorch.
"""
from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pawl._lazy import lazy_names

if TYPE_CHECKING:
    from pawl._version import __version__, version
    from pawl.errors import PawlError, Refused, StepLost
    from pawl.job import Job, Step
    from pawl.sampler import ElasticSampler
    from pawl.start import init, resilient

__all__ = ["ElasticSampler", "Job", "PawlError", "Refused", "Step", "StepLost", "__version__", "init", "resilient",
           "version"]

_HOMES = {"ElasticSampler": "sampler", "Job": "job", "PawlError": "errors", "Refused": "errors", "Step": "job",
          "StepLost": "errors", "__version__": "_version", "init": "start", "resilient": "start",
          "version": "_version"}
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

if os.environ.get("PAWL_DRILL_FILES"):
    from pawl import drill_files, drill_stacks
    drill_stacks.begin(os.environ["PAWL_DRILL_FILES"])
    drill_files.begin()

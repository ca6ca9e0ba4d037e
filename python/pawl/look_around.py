"""What the loop carries from step to step and nobody protects, told once: when the third step begins, on rank 0.

Most of it is harmless: a clock's time, a running loss that is only printed. What training depends on (a counter from
which the learning rate is computed, a scheduler, an average of the weights) would be wrong on one rank after a loss,
without a word. pawl can't tell the two apart; `pawl drill` can, by trying.
"""
from __future__ import annotations

from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from pawl.job import Job, Step, observe_steps
from pawl.protect import Protected
from pawl.unprotected_state import FILE, Finder, Known, Unprotected

TOLD_MAX = 8
BYTES_MAX = 16 << 20  # of a tensor that is read


class LookAround:
    """A StepObserver, until it has told. The training thread's."""

    def __init__(self, protected: Protected, say: Callable[[str], None]) -> None:
        self.protected, self._say = protected, say
        self._known = Known(protected)
        self._finder = Finder(self._known, BYTES_MAX)
        self._before: dict[str, Unprotected] | None = None

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        """What job.protect() was called with."""
        self._known.add(things, ordinary)

    def entering(self, job: Job, step: Step, loop: FrameType) -> None:
        if step.rehearsal or int(step) < 2:
            return
        try:
            self._look(loop)
        except Exception as error:  # the script's own objects answer here; training goes on whatever they say
            observe_steps(None)
            self._say(f"could not look for what the loop carries unprotected: {type(error).__name__}: {error}")

    def _look(self, loop: FrameType) -> None:
        self._known.refresh()
        if self._before is None:
            self._before = self._finder.find(loop)
            return
        observe_steps(None)
        carried = [(path, each) for path, each in self._finder.find(loop).items()
                   if each.kind != FILE and path in self._before and self._before[path].digest != each.digest]
        if carried:
            told = ", ".join(f"{path} ({each.shown})" for path, each in carried[:TOLD_MAX])
            more = f" and {len(carried) - TOLD_MAX} more" if len(carried) > TOLD_MAX else ""
            self._say(f"carried from step to step and not protected: {told}{more}. What training depends on belongs "
                      f'into job.protect(...), variables as state={{"name": name}}; `pawl drill` finds out what does')

    def finished(self, job: Job, step: Step) -> None:
        pass

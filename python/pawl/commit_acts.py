"""What the script wants done once a step can't be lost any more: step.on_commit() and job.on_commit().

Seats act at different moments, so no collective may be done there: another seat would take it for one of its step's.
What a step was given runs at most once, since it goes with the process; what the job was given runs at least once for
each step: the last one for which it ran is a part of the state. The training thread's.
"""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from pawl.errors import Refused
from pawl.volatile_state import Part

_COLLECTIVES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "c10d_functional")


class CommitActs:
    def __init__(self, each: list[Callable[[int], Any]]) -> None:
        """`each` is for each step, and may grow."""
        self._each = each
        self._of_steps: list[tuple[int, Callable[[], Any]]] = []
        self._acted = 0  # the last step for which `each` has been called

    def add(self, step: int, act: Callable[[], Any]) -> None:
        self._of_steps.append((step, act))

    def skip_to(self, done: int) -> None:
        """So many steps were done before the job began."""
        self._acted = max(self._acted, done)

    def act(self, committed: int) -> None:
        """All that is due, up to this step. Fails: Refused, if it does a collective."""
        due = [act for step, act in self._of_steps if step <= committed]
        self._of_steps = [(step, act) for step, act in self._of_steps if step > committed]
        with no_collectives() if due or self._each else contextlib.nullcontext():
            for act in due:
                act()
            for step in range(self._acted + 1, committed + 1):
                for each in self._each:
                    each(step)
                self._acted = step

    def drop_after(self, resume: int) -> None:
        """These steps are lost."""
        self._of_steps = [(step, act) for step, act in self._of_steps if step <= resume]

    def part(self) -> Part:
        """The restored step itself is committed, and nobody knows whether the seat's last process has acted on it."""
        return Part("commits", lambda: self._acted, self.skip_to)


@functools.cache
def _refusing() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoCollectives(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            import torch
            if function.namespace in _COLLECTIVES:
                raise Refused(f"{function.overloadpacket.__name__} in on_commit(): seats act at different moments, so "
                              f"another one would take it for a collective of its step. Do collectives in "
                              f"`with job.aside():`, gathers for a checkpoint too, and only write in on_commit()")
            if any(each is not torch.Tensor and each is not torch.nn.Parameter for each in types):
                return NotImplemented  # the subclass does it, and its own collectives come here
            return function(*arguments, **(keywords or {}))

    return NoCollectives


def no_collectives() -> Any:
    """Meanwhile collectives of this thread are refused, by name."""
    return _refusing()()

"""What the script wants done once a step can't be lost any more: step.on_commit() and job.on_commit().

What a step was given runs at most once, since it goes with the process; what the job was given runs at least once for
each step: the last one for which it ran is a part of the state. The training thread's.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pawl.volatile_state import Part


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
        """All that is due, up to this step."""
        due = [act for step, act in self._of_steps if step <= committed]
        self._of_steps = [(step, act) for step, act in self._of_steps if step > committed]
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

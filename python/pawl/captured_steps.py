"""Which steps are captured: the window of each opens when the loop comes for the next step, and closes before stable
state changes.

A step has none before the layout is sealed, while gradients are added up over several steps, and when it was restored.
Nothing here raises for a loss when a window closes: an optimizer's step runs out, and the loss is noted. What happens
inside of a window is windows.py's affair. The training thread's.
"""
from __future__ import annotations

import time
from collections.abc import Callable

from pawl import script_exit
from pawl.declared_state import DeclaredState
from pawl.errors import Recover, Refused, Stop
from pawl.left_gradients import Left
from pawl.losses import Losses
from pawl.protect import STEPS_BEFORE_SEAL, Protected
from pawl.replicas import Replicas
from pawl.windows import Windows

LAG_AGAIN_S = 60.0


class CapturedSteps:
    def __init__(self, protected: Protected, state: DeclaredState, windows: Windows, losses: Losses,
                 replicas: Replicas, done: Callable[[], int]) -> None:
        """`done`: the last step that is done."""
        self._protected, self._state, self._windows, self._losses, self._done = protected, state, windows, losses, done
        self.replicas = replicas
        self.due = False      # the state of the last step has no window yet
        self._fenced = False  # in this block: the window is closed
        self._lag_due = 0.0   # when it is said again that no state is captured
        protected.gradients.on_carried = self._carried_after_all
        protected.gradients.on_guessed = self._perhaps_carried

    def begin(self, number: int, first_done: int) -> None:
        """The loop comes for step `number`; the state of the step before is captured from here on, so that whatever the
        loop does now is done again after a loss."""
        self._protected.reshard()
        if self._state.sealed:
            self.replicas.begin(self._done(), self._state.held)
        else:
            if number - first_done == STEPS_BEFORE_SEAL:
                self.watch()
            self._protected.carried_gradient(self._done())  # the next block shows whether they count
        self.open()

    def begun(self) -> None:
        """libpawl knows of the step: the loop is about to get it."""
        if self._windows.early_writer is not None:  # it may write as soon as the loop has the step
            self._windows.fence(self._done())

    def watch(self) -> None:
        """As if a window was open: before the layout is sealed."""
        self._windows.watch(self._protected.stable())

    def open(self, last: bool = False) -> None:
        """Of the last step that is done, unless it has one or was restored. `last`: no step follows."""
        if not self.due or not self._state.sealed:
            return
        self._state.about_to_open(last)
        self._state.check_unchanged()
        left = None if last else self._protected.carried_gradient(self._done())
        if left is not None:
            if left.carries or left.blocks:
                self._lag(left)
            return
        self.due = False
        self._windows.open(self._done(), self._protected.samples())
        if not last:
            self.replicas.compare(self._done(), self._state.held)

    def enter_block(self) -> None:
        self._fenced = False

    def close(self, rehearsal: bool) -> None:
        """Afterwards stable state may change. Once in a block; never raises for a loss."""
        from pawl import groups
        if self._fenced:
            return
        self._fenced = True
        if rehearsal:
            self.end(quiet=True)
            return
        try:
            self._windows.fence(self._done())
        except (Recover, Stop) as pending:
            groups.fail(str(pending))
            self._losses.note(pending)

    def end(self, quiet: bool) -> None:
        """Where the block or the generation ends without a fence."""
        self._windows.end(self._done() if self._state.sealed else None, quiet=quiet)

    def refuse_torn(self, resume: int) -> None:
        why = self._windows.torn.get(resume)
        if why is not None:
            raise Refused(f"step {resume} can't be restored: {why}, and start the job again")

    def _lag(self, left: Left) -> None:
        """Says once in a while what protection waits for."""
        now = time.monotonic()
        if now < self._lag_due:
            return
        self._lag_due = now + LAG_AGAIN_S
        what = (f"gradients that an optimizer has used are added to by the next step, and not zeroed before (as of "
                f"{left.name})" if left.used else f"gradients are added up over several steps (as of {left.name})")
        script_exit.say(f"step {self._done()} is not captured: {what}: only the state after an optimizer's step is "
                        f"captured, without gradients, and a loss goes back to it. If the next step doesn't need them, "
                        f"drop them at the block's end: optimizer.zero_grad()")

    def _perhaps_carried(self, left: Left) -> None:
        script_exit.say(f"it seems that step {self._done() + 1} adds to gradients that an optimizer has used (as of "
                        f"{left.name}); if they were zeroed before, all is well. If not: gradients are not kept, and "
                        f"after a loss they would be zeros. Zero them at each block's end: optimizer.zero_grad()")

    def _carried_after_all(self, left: Left) -> None:
        """The windows since then were opened because blocks had not added to such gradients before. A process that
        rehearses has opened none."""
        if not self._state.sealed:
            return
        self._windows.tear(left.step, self._done(), f"gradients of {left.name} that it left were added to, which no "
                                                    f"step had done before. Zero them when the block ends")

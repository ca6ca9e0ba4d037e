"""The windows of one seat: what the script writes while one is open, and which steps' snapshots hold such a write.

A window of a step is open from when the loop comes for the next step until its fence: meanwhile that step's stable
state is copied, and nobody may write it. Whoever does is named once; a window that isn't sealed yet becomes void; one
that is can't be taken back: its step is known as torn, here, and by the mark that libpawl leaves on this node (pawl.h,
pawl_window_void). The training thread's.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from pawl import devices
from pawl._library import Lifetime
from pawl.errors import PawlError
from pawl.protect import Held, counts_writes
from pawl.sharded import writes_of

if TYPE_CHECKING:
    import torch

    from pawl._library import Trainer


class Sentinel:
    """Sees whether tensors are written between two moments, by the counts that torch keeps of writes in place.

    What it can't see: writes through `.data`, through memory that others share (numpy), and by collectives (a broadcast
    of weights), which don't count.
    """

    def __init__(self) -> None:
        self._watched: list[tuple[str, torch.Tensor]] = []
        self._versions: list[tuple[int, int]] = []

    def begin(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """Each step: of tensors that count their writes (counts_writes)."""
        self._watched = tensors
        self._versions = [writes_of(tensor) for _, tensor in tensors]

    def end(self) -> str | None:
        """The first that was written since begin(); afterwards nothing is watched."""
        written = next((name for (name, tensor), version in zip(self._watched, self._versions, strict=True)
                        if writes_of(tensor) != version), None)
        self._watched, self._versions = [], []
        return written


class Windows:
    def __init__(self, trainer: Trainer, say: Callable[[str], None]) -> None:
        self._trainer, self._say = trainer, say
        self._sentinel = Sentinel()
        self._held: list[Held] = []
        self._counting: list[Held] = []  # the stable ones that count their writes
        self.early_writer: str | None = None  # a tensor that the script writes while a window is open
        self.torn: dict[int, str] = {}  # steps, and why: to be followed by a comma

    def declare(self, held: list[Held]) -> None:
        """These are in the layout."""
        self._held = held
        self._counting = [each for each in held if each.lifetime is Lifetime.STABLE and counts_writes(each.tensor)]

    def watch(self, tensors: list[tuple[str, torch.Tensor]]) -> None:
        """As if a window was open: before the layout is sealed."""
        self._sentinel.begin(tensors)

    def open(self, step: int, samples: int) -> None:
        self.torn.pop(step, None)  # done again, it has a window of its own
        devices.tell_stream(self._trainer)
        self._trainer.window_open(step, samples)
        self._sentinel.begin([(held.name, held.tensor) for held in self._counting])

    def fence(self, step: int) -> None:
        """The window of `step`, if it is open. Whoever sees a write sees it in time where the window waits for its
        fence to be sealed (include/pawl/pawl.h, PAWL_COMPARED_WINDOWS), and else too late. Raises Recover, Stop."""
        written = self._sentinel.end()
        if written is None:
            report = self._trainer.fence()
            if report.written is not None:
                name = next(held.name for held in self._held if held.index == report.written)
                self._note(name, step if report.captured else None)
            return
        captured = True  # as far as is known, if a loss ends the fence
        try:
            self._trainer.window_void(f"{written} was written")
            captured = self._trainer.fence().captured
        finally:
            self._note(written, step if captured else None)

    def end(self, step: int | None, quiet: bool) -> None:
        """Where the block or the generation ends without a fence. `step`: whose window it is; None: none was open."""
        written = self._sentinel.end()
        if written is None:
            return
        if step is not None:
            with contextlib.suppress(PawlError):  # sealed or not, nobody shall restore it
                self._trainer.window_void(f"{written} was written")
        self._note(written, step, quiet)

    def tear(self, first: int, last: int, why: str) -> None:
        """Nobody shall go on from these steps. The window of the last one becomes void if it is open and not sealed
        yet: then a loss goes back to the step before them."""
        for step in range(first, last + 1):
            self.torn[step] = why
        with contextlib.suppress(PawlError):
            self._trainer.window_void(why)

    def _note(self, written: str, torn: int | None, quiet: bool = False) -> None:
        """The script has written where a window may have been copying: from now on its blocks begin without one."""
        if torn is not None:
            self.torn[torn] = (f"{written} was written while that step was copied, before it was known that the script "
                               f"does this. Call step.fence() right before that write")
        if self.early_writer is not None:
            return
        self.early_writer = written
        if not quiet:
            self._say(f"{written} is written in a step before its optimizer steps, while the state is copied: from now "
                      f"on each step waits for the copy when it begins. Write it after the optimizer's step, or call "
                      f"step.fence() right before it")

"""What has been lost or ended, as far as this process knows, since its seat joined the generation.

A loss is noted where it is seen and acted on at the edges of a step: until then the lost step drains (groups.py). The
training thread's.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

from pawl.errors import Recover, Stop

if TYPE_CHECKING:
    from pawl._library import Trainer


class Losses:
    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self.lost_by: str | None = None     # why a recovery is due
        self.stopped_by: str | None = None  # what pawl said about the end of the job

    def noted(self) -> bool:
        return self.lost_by is not None or self.stopped_by is not None

    def note(self, pending: Recover | Stop) -> None:
        if isinstance(pending, Stop):
            self.stopped_by = str(pending)
        else:
            self.lost_by = str(pending)

    def failure(self) -> str | None:
        """Why what is going on comes to nothing, if it does."""
        from pawl import groups
        known = self.lost_by or self.stopped_by or groups.failed()
        return known or ("a recovery is pending" if self._trainer.interrupted() else None)

    def recovery_due(self) -> bool:
        from pawl import groups
        self.lost_by = self.lost_by or groups.failed()
        return self.lost_by is not None

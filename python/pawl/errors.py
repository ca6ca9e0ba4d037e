"""What pawl raises.

`Refused`: a mistake in the script or in how it was started. The message names the cause and the remedy, and is shown
without a traceback. `StepLost`: not a mistake. A peer died, the step in flight is undone, and it will be done again;
only functions under `@pawl.resilient` see it. `PawlError`: everything else that pawl can't do. `Recover` and `Stop` are
what libpawl answers, and `BuildAnew` ends a process in its seat; they stay inside the package.
"""
from __future__ import annotations


class PawlError(RuntimeError):
    """Something that pawl can't do, or that the system refused."""


class Refused(PawlError):
    """The script or its start is wrong in a way that pawl can name; trying again can't help."""


class StepLost(PawlError):
    """The step in flight is undone and will be done again. Rises at the step's own edges only."""


class Unreachable(PawlError):
    """There is no pawld to talk to."""


class TimedOut(PawlError):
    """A named wait passed its deadline."""


class Recover(Exception):
    """A member was lost or is suspected: drop the step in flight and join again."""


class BuildAnew(Exception):
    """What the restored state needs, this process can't be made to have, and a new one in its seat can."""


class Stop(Exception):
    """The job ends; the text says why."""

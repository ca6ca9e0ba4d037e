"""The variables of the script's own frames: found, read, and given another value.

The loop's frame is the first above the package's that is not the package's. Only while the loop waits for pawl (in the
iterator of job.steps()) may its variables change here. Nothing holds a frame longer than a call.
"""
from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_loop: FrameType | None = None


def above(*packages: str) -> FrameType | None:
    """The caller's first frame that is in none of these packages, nor in this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in (_PACKAGE, *packages):
        frame = frame.f_back
    return frame


@contextlib.contextmanager
def loop_waiting(frame: FrameType | None) -> Iterator[None]:
    """Within, the loop in this frame waits for pawl: loop() gives it."""
    global _loop
    before, _loop = _loop, frame
    try:
        yield
    finally:
        _loop = before


def loop() -> FrameType | None:
    return _loop


def variables(frame: FrameType) -> dict[str, Any]:
    """Those of the frame, and the module's that its code names."""
    found = {name: frame.f_globals[name] for name in frame.f_code.co_names if name in frame.f_globals}
    found.update(frame.f_locals)
    return found


def assign(frame: FrameType, values: dict[str, Any]) -> None:
    """As the frame's own code would."""
    own = {*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars}
    local = frame.f_locals
    for name, value in values.items():
        if name in own:
            local[name] = value
        else:
            frame.f_globals[name] = value
    if own:
        ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(frame), ctypes.c_int(0))

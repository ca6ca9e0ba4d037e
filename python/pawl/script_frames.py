"""The variables of the script's own frames: found, read, and given another value.

The loop's frame is the first above the package's that is not the package's; but something may draw for it: tqdm, or a
generator of the script's. Only while the loop waits for pawl (in the iterator of job.steps()) may its variables change
here. Nothing holds a frame longer than a call.
"""
from __future__ import annotations

import contextlib
import ctypes
import functools
import inspect
import os
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType
from typing import Any

_PACKAGE = __name__.partition(".")[0]
_loop: FrameType | None = None


def above(*packages: str) -> FrameType | None:
    """The caller's first frame that is in none of these packages, nor in this one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _of_package(frame, *packages):
        frame = frame.f_back
    return frame


def loops(frame: FrameType | None) -> list[FrameType]:
    """From this one outwards: what draws for the loop, and the loop, which is the last. What a library has for that
    is left out, if there is more."""
    found: list[FrameType] = []
    each = frame
    while each is not None and _draws(each):
        if _of_script(each):
            found.append(each)
        each = each.f_back
    if each is not None and (_of_script(each) or not found):
        found.append(each)
    return found or ([frame] if frame is not None else [])


def around(frame: FrameType | None) -> list[FrameType]:
    """Those, and all others of the script outwards."""
    found = loops(frame)
    each = found[-1].f_back if found else None
    while each is not None:
        if _of_script(each):
            found.append(each)
        each = each.f_back
    return found


def place_of(frame: FrameType | None) -> tuple[int, CodeType] | None:
    """By which the loop's frame is known again, as long as it runs."""
    loop = loop_of(frame)
    return identity(loop) if loop is not None else None


def loop_of(frame: FrameType | None) -> FrameType | None:
    found = loops(frame)
    return found[-1] if found else None


def identity(frame: FrameType) -> tuple[int, CodeType]:
    return id(frame), frame.f_code


def _draws(frame: FrameType) -> bool:
    """An iterator between the loop and the package."""
    return bool(frame.f_code.co_flags & inspect.CO_GENERATOR) or frame.f_code.co_name == "__next__"


def _of_script(frame: FrameType) -> bool:
    return not of_library(frame.f_code.co_filename) and not _of_package(frame)


def _of_package(frame: FrameType, *packages: str) -> bool:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] in (_PACKAGE, *packages)


@functools.lru_cache(maxsize=1024)
def of_library(path: str) -> bool:
    """Python's own, or installed."""
    return of_python(path) or _installed(path)


def of_python(path: str) -> bool:
    return path.startswith(("<frozen", *_folders("stdlib", "platstdlib"))) and not _installed(path)


def _installed(path: str) -> bool:
    return path.startswith(_folders("purelib", "platlib")) or any(
        f"{os.sep}{each}{os.sep}" in path for each in ("site-packages", "dist-packages"))


@functools.cache
def _folders(*names: str) -> tuple[str, ...]:
    return tuple(sysconfig.get_path(each) + os.sep for each in names)


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

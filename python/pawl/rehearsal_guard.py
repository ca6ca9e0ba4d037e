"""What a rehearsal must not touch: files of the running job.

A spare that rehearses runs the user's script while the job that it belongs to runs, too, perhaps in the same folder.
A log that it truncated, or a checkpoint that it renamed, would be gone. So whatever would open a file for writing,
delete, rename or truncate one is stopped before it happens, by the interpreter's audit hook. Apart from that: the job's
run directory, caches (~/.cache, bytecode, what torch compiles), and files that the rehearsal itself has made in the
system's folder for temporary files.

Not seen: what isn't Python's doing (a child process, a library that opens files in C++; torch.save with a path is, as
it is told here), connections to other services, and a directory that is made.
"""
from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pawl import drill_record

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_TORCHS_OWN = ("torchinductor_", "torch_")  # names that torch makes in the folder for temporary files


class RehearsalStopped(BaseException):
    """The rehearsal would have touched what may be the running job's. No Exception, so that scripts don't catch it."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"it was about to {what} {path}")
        self.path = path


class RehearsalGuard:
    """While it is on, in all threads. Hooks of the interpreter can't be removed: it is one, made once."""

    _on: RehearsalGuard | None = None
    _hooked = False

    def __init__(self) -> None:
        self.stopped: RehearsalStopped | None = None  # the first, also if the script has caught it
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._made: set[str] = set()
        cache = os.path.expanduser("~/.cache")
        roots = [cache, os.path.expanduser("~/.triton"), *(os.environ.get(name, "") for name in _CACHES),
                 os.environ.get("PAWL_RUN_DIR", ""), os.environ.get(drill_record.RECORD, ""), "/dev", "/proc"]
        self._roots = [os.path.realpath(root) for root in roots if root and root != os.sep]

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        if not RehearsalGuard._hooked:
            RehearsalGuard._hooked = True
            sys.addaudithook(RehearsalGuard._audit)
        RehearsalGuard._on = self
        try:
            with _told_of_saves():
                yield
        finally:
            RehearsalGuard._on = None

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        guard = RehearsalGuard._on
        if guard is None:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(flags, int) and flags & _WRITES:
                guard.about_to("write", path, makes=bool(flags & os.O_CREAT))
        elif event in ("os.remove", "os.rmdir", "os.truncate"):
            folder = arguments[1] if event != "os.truncate" else -1
            guard.about_to("truncate" if event == "os.truncate" else "delete", arguments[0], folder)
        elif event == "os.rename":
            guard.about_to("rename", arguments[0], arguments[2])
            guard.about_to("replace", arguments[1], arguments[3], makes=True)
        elif event == "os.mkdir":
            guard.made_folder(arguments[0], arguments[2])

    def made_folder(self, path: Any, folder: int) -> None:
        text = _text(path, folder)
        if text is not None and _inside(text, self._temporary) and not os.path.lexists(text):
            self._made.add(text)

    def about_to(self, what: str, path: Any, folder: int = -1, makes: bool = False) -> None:
        """`folder`: a descriptor from which the path begins. `makes`: it may be there for the first time afterwards."""
        text = _text(path, folder)
        if text is None or self._may(text, makes):
            return
        if what == "write" and os.path.isdir(text):
            return  # nobody writes a folder: tempfile names it before the file in it
        stopped = RehearsalStopped(text, what)
        self.stopped = self.stopped or stopped
        raise stopped

    def _may(self, path: str, makes: bool) -> bool:
        if "__pycache__" in path or any(_inside(path, root) for root in self._roots):
            return True
        if path in self._made or any(_inside(path, folder) for folder in self._made):
            return True
        if not _inside(path, self._temporary):
            return False
        if makes and not os.path.lexists(path) and os.path.dirname(path) == self._temporary:
            self._made.add(path)
            return True
        return os.path.relpath(path, self._temporary).startswith(_TORCHS_OWN)


def _text(path: Any, folder: int = -1) -> str | None:
    """Where it really is; None: a descriptor, which was opened before or is the guard's affair already."""
    if isinstance(path, int):
        return None
    try:
        return os.path.realpath(os.path.join(f"/proc/self/fd/{folder}" if folder >= 0 else "", os.fsdecode(path)))
    except (TypeError, ValueError):
        return None


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


@contextlib.contextmanager
def _told_of_saves() -> Iterator[None]:
    """torch.save opens a path in C++."""
    import torch

    save = torch.save

    def told(thing: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
        guard = RehearsalGuard._on
        if guard is not None and isinstance(f, (str, os.PathLike)):
            guard.about_to("write", f, makes=True)
        return save(thing, f, *args, **kwargs)

    torch.save = told
    try:
        yield
    finally:
        torch.save = save

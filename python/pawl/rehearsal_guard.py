"""What a rehearsal must not touch: files of the running job.

A spare that rehearses runs the user's script while the job that it belongs to runs, too, perhaps in the same folder.
A log that it truncated, or a checkpoint that it renamed, would be gone. So whatever would open a file for writing,
delete, rename or truncate one is stopped before it happens, by the interpreter's audit hook. Apart from that: the job's
run directory, caches (~/.cache, bytecode, what torch compiles), and files that the rehearsal itself has made in the
system's folder for temporary files.

What isn't seen: file_events.py; besides, connections to other services, and a directory that is made.
"""
from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pawl import drill_files, drill_record, file_events
from pawl.file_events import Change, inside


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
        self._roots = file_events.nobodys_files(*(os.environ.get(name, "") for name in (
            "PAWL_RUN_DIR", drill_record.RECORD, drill_files.FOLDER)))

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        if not RehearsalGuard._hooked:
            RehearsalGuard._hooked = True
            sys.addaudithook(RehearsalGuard._audit)
        RehearsalGuard._on = self
        try:
            with file_events.told_of_saves(self.about_to):
                yield
        finally:
            RehearsalGuard._on = None

    @staticmethod
    def _audit(event: str, arguments: tuple[Any, ...]) -> None:
        guard = RehearsalGuard._on
        if guard is None:
            return
        for change in file_events.changes(event, arguments):
            guard.about_to(change)

    def about_to(self, change: Change) -> None:
        path = change.path
        if change.what == file_events.MAKE_FOLDER:
            if inside(path, self._temporary) and not os.path.lexists(path):
                self._made.add(path)
            return
        if self._may(path, change.makes):
            return
        if change.what == file_events.WRITE and os.path.isdir(path):
            return  # nobody writes a folder: tempfile names it before the file in it
        stopped = RehearsalStopped(path, change.what)
        self.stopped = self.stopped or stopped
        raise stopped

    def _may(self, path: str, makes: bool) -> bool:
        if "__pycache__" in path or any(inside(path, root) for root in self._roots):
            return True
        if path in self._made or any(inside(path, folder) for folder in self._made):
            return True
        if not inside(path, self._temporary):
            return False
        if makes and not os.path.lexists(path) and os.path.dirname(path) == self._temporary:
            self._made.add(path)
            return True
        return file_events.is_torchs_own(path, self._temporary)

"""What a rehearsal must not touch: files of the running job.

A spare that rehearses runs the user's script while the job that it belongs to runs, too, perhaps in the same folder.
A log that it truncated, or a checkpoint that it renamed, would be gone. So whatever would open a file for writing,
delete, rename or truncate one is stopped before it happens, by the interpreter's audit hook. Apart from that: the job's
run directory, caches (~/.cache, bytecode, what torch compiles), and files that the rehearsal itself has made in the
system's folder for temporary files.

What a child process does can't be seen, so none is begun: no command, and no process of multiprocessing that is not
forked (a forked one has this guard). Apart from those that torch and Python's own modules begin by themselves (loaders'
workers, compilers, uname), and commands that only read.

What isn't seen: file_events.py; besides, connections to other services, and a directory that is made.
"""
from __future__ import annotations

import contextlib
import multiprocessing.process
import os
import sys
import tempfile
from collections.abc import Iterator
from types import FrameType
from typing import Any, NoReturn

from pawl import drill_files, drill_record, file_events, script_frames
from pawl.file_events import Change, inside

# Commands that write nothing; of git, those of its own.
_READERS = ("cat", "df", "du", "free", "hostname", "id", "ldconfig", "ls", "lscpu", "nproc", "nvidia-smi", "ps", "pwd",
            "uname", "uptime", "wc", "which", "whoami")
_READERS_OF_GIT = ("describe", "diff", "log", "ls-files", "remote", "rev-parse", "show", "status")
_OF_TORCH = ("torch", "triton")


RUN, BEGIN = "run", "begin"
COMMAND_MAX = 100  # characters of a command in a sentence


class RehearsalStopped(BaseException):
    """The rehearsal would have touched what may be the running job's. No Exception, so that scripts don't catch it."""

    def __init__(self, path: str, what: str) -> None:
        may = "may write what is" if what in (RUN, BEGIN) else "may be"
        super().__init__(f"it was about to {what} {path}, which {may} the running job's")
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
            with file_events.told_of_saves(self.about_to), self._told_of_processes():
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
        if event in ("os.fork", "os.forkpty"):
            begins = sys._getframe(1)
            if begins.f_globals.get("__name__") != "multiprocessing.popen_fork" and not _of_torch_or_python(begins):
                guard.stop(BEGIN, "a process (os.fork)")
        command = file_events.program(event, arguments)
        if command is not None and not _only_reads(command) and not _of_torch_or_python(sys._getframe(1)):
            guard.stop(RUN, " ".join(command)[:COMMAND_MAX])

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
        self.stop(change.what, path)

    def stop(self, what: str, thing: str) -> NoReturn:
        stopped = RehearsalStopped(thing, what)
        self.stopped = self.stopped or stopped
        raise stopped

    @contextlib.contextmanager
    def _told_of_processes(self) -> Iterator[None]:
        """Of multiprocessing, which has no event for those that it doesn't fork."""
        begun: Any = multiprocessing.process.BaseProcess
        start = begun.start

        def told(process: Any) -> None:
            method = getattr(process, "_start_method", None) or multiprocessing.get_start_method()
            if method != "fork" and not _of_torch_or_python(sys._getframe(1)):
                self.stop(BEGIN, f"the process {process.name} ({method})")
            start(process)

        begun.start = told
        try:
            yield
        finally:
            begun.start = start

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


def _only_reads(command: list[str]) -> bool:
    name = os.path.basename(command[0]) if command else ""
    if any(mark in word for word in command for mark in (";", "|", ">", "&", "`", "$(")):
        return False
    return name in _READERS or (name == "git" and any(each in _READERS_OF_GIT for each in command[1:4]))


def _of_torch_or_python(frame: FrameType | None) -> bool:
    """What begins a process is torch, or a module of Python's for its own purposes: not one that begins them for
    others, on behalf of the script or a package."""
    while frame is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _BEGIN_FOR_OTHERS:
        frame = frame.f_back
    if frame is None:
        return True
    module = str(frame.f_globals.get("__name__", ""))
    return module.partition(".")[0] in _OF_TORCH or script_frames.of_python(frame.f_code.co_filename)


_BEGIN_FOR_OTHERS = ("pawl", "asyncio", "concurrent", "contextlib", "multiprocessing", "os", "pty", "subprocess",
                     "threading")

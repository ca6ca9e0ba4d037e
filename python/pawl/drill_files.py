"""The files that a drilled script writes: each run finds them as they were before, and so does the user afterwards.

In a trainer (begin(), at `import pawl`, where PAWL_DRILL_FILES names a folder): before Python opens a file for writing,
deletes, renames or truncates it for the first time in this run, a copy of it is kept, or that there was none. In the
drill (restore(), when a run has ended): what the run has made is removed, and what it has changed is put back. All
trainers of a run share one journal, under a lock. What isn't seen: file_events.py. Needs no torch in the drill.
"""
from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from pawl import file_events
from pawl.file_events import Change, inside

FOLDER = "PAWL_DRILL_FILES"
LINES_BYTES_MAX = 64 << 20  # of a file whose lines are counted
PROBE_BYTES = 8192
SPARE_BYTES = 64 << 20      # that stay free beside the copies

_JOURNAL, _LOCK, _COPIES = "journal", "lock", "copies"
_here = threading.local()


class NoRoom(OSError):
    """There is no place for a copy of what would be overwritten, so it isn't."""


# In a trainer -----------------------------------------------------------------------------------------------------

def begin() -> None:
    """From now on. Once in a process."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    journal = Journal(folder)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        if not getattr(_here, "inside", False):
            for change in file_events.changes(event, arguments):
                journal.about_to(change)
            if event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE != os.O_WRONLY:
                journal.about_to_read(file_events.real_path(arguments[0]))
    sys.addaudithook(audit)
    saves = file_events.told_of_saves(journal.about_to)
    with contextlib.suppress(ImportError):
        saves.__enter__()
        _kept.append(saves)


_kept: list[Any] = []  # what would end if it was dropped


class Journal:
    """Of one run; every trainer has it open."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._temporary = os.path.realpath(tempfile.gettempdir())
        self._roots = file_events.nobodys_files(os.environ.get("PAWL_RUN_DIR", ""), os.path.dirname(folder))
        self._known: set[str] = set()
        self._size = 0  # of the journal, when it was read last
        self._read: set[str] = set()

    def about_to(self, change: Change) -> None:
        """Fails: NoRoom."""
        if change.path in self._known or "__pycache__" in change.path or any(
                inside(change.path, root) for root in self._roots) or (
                file_events.is_torchs_own(change.path, self._temporary)):
            return
        if change.what in (file_events.WRITE, file_events.MAKE_FOLDER) and os.path.isdir(change.path):
            return  # it is there, or a file without a name is made in it
        _here.inside = True
        try:
            with self._locked():
                self._keep(change.path)
        finally:
            _here.inside = False

    def about_to_read(self, path: str | None) -> None:
        """What a run reads that it has written is state that nothing takes back."""
        try:
            size = os.path.getsize(os.path.join(self._folder, _JOURNAL))
        except OSError:
            return
        if path is None or path in self._read or (path not in self._known and size == self._size):
            return
        _here.inside = True
        try:
            if size != self._size:
                self._known, self._size = {entry["path"] for entry in entries(self._folder)}, size
            if path in self._known and os.path.isfile(path):
                self._read.add(path)
                self._append({"path": path, "was": "read"})
        finally:
            _here.inside = False

    def _append(self, entry: dict[str, Any]) -> None:
        with open(os.path.join(self._folder, _JOURNAL), "ab", buffering=0) as file:
            file.write(json.dumps(entry).encode() + b"\n")

    def _keep(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            for folder, folders, names in os.walk(path, topdown=False):  # before it is renamed or deleted
                for name in names + [each for each in folders if os.path.islink(os.path.join(folder, each))]:
                    self._keep_one(os.path.join(folder, name))
                self._keep_one(folder)
        else:
            self._keep_one(path)

    def _keep_one(self, path: str) -> None:
        if path in self._known:
            return
        entry: dict[str, Any] = {"path": path, "was": "nothing"}
        if os.path.islink(path):
            entry.update(was="link", to=os.readlink(path))
        elif os.path.isdir(path):
            entry["was"] = "folder"
        elif os.path.isfile(path):
            entry.update(was="file", copy=str(len(self._known)))
            copies = os.path.join(self._folder, _COPIES)
            os.makedirs(copies, exist_ok=True)
            if shutil.disk_usage(copies).free < os.path.getsize(path) + SPARE_BYTES:
                raise NoRoom(f"pawl drill: {path} would be overwritten, and {copies} has no room for a copy of it: "
                             f"let TMPDIR name a larger disk, or move the file away")
            shutil.copy2(path, os.path.join(copies, entry["copy"]))
        elif os.path.lexists(path):
            return  # a device, a socket
        self._append(entry)
        self._known.add(path)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """With what the other trainers have kept."""
        os.makedirs(self._folder, exist_ok=True)
        with open(os.path.join(self._folder, _LOCK), "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._known = {entry["path"] for entry in entries(self._folder)}
            yield


# In the drill -----------------------------------------------------------------------------------------------------

def entries(folder: str) -> list[dict[str, Any]]:
    """In the order in which they were kept; without what a killed trainer did not write to its end."""
    found = []
    with contextlib.suppress(OSError), open(os.path.join(folder, _JOURNAL), "rb") as file:
        for line in file:
            with contextlib.suppress(ValueError):
                found.append(json.loads(line))
    return found


def read_back(folder: str) -> list[str]:
    """Files that the run has read after it had written them."""
    return sorted({entry["path"] for entry in entries(folder) if entry["was"] == "read"})


def lines_written(folder: str) -> dict[str, int]:
    """{path: lines} of each text that the run has written."""
    found = {}
    for entry in entries(folder):
        path = entry["path"]
        with contextlib.suppress(OSError):
            if os.path.isfile(path) and os.path.getsize(path) <= LINES_BYTES_MAX:
                with open(path, "rb") as file:
                    data = file.read()
                if b"\0" not in data[:PROBE_BYTES]:
                    found[path] = data.count(b"\n")
    return found


def restore(folder: str, keep: str = "") -> list[str]:
    """As it was before the run, whose processes have ended. `keep`: a folder for what it has written, by path. What
    could not be put back, each with its reason. Idempotent."""
    found = entries(folder)
    failed: list[str] = []
    if keep:
        _keep_written(found, keep)
    for entry in found:
        if entry["was"] == "folder":
            _try(failed, entry, lambda path: os.makedirs(path, exist_ok=True))
    for entry in reversed(found):
        if entry["was"] == "nothing":
            _try(failed, entry, _remove)
    for entry in found:
        if entry["was"] == "file":
            copy = os.path.join(folder, _COPIES, entry["copy"])
            _try(failed, entry, lambda path, copy=copy: _put_back(copy, path))
        elif entry["was"] == "link":
            _try(failed, entry, lambda path, to=entry["to"]: _link(to, path))
    if found:
        os.replace(os.path.join(folder, _JOURNAL), os.path.join(folder, _JOURNAL + ".done"))
    return failed


def _try(failed: list[str], entry: dict[str, Any], act: Any) -> None:
    try:
        act(entry["path"])
    except OSError as error:
        failed.append(f"{entry['path']}: {error.strerror or error}")


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def _link(to: str, path: str) -> None:
    _remove(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.symlink(to, path)


def _put_back(copy: str, path: str) -> None:
    if os.path.isdir(path):
        shutil.rmtree(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    shutil.copy2(copy, path + ".pawl-drill")
    os.replace(path + ".pawl-drill", path)


def _keep_written(found: list[dict[str, Any]], keep: str) -> None:
    for entry in found:
        with contextlib.suppress(OSError):
            if os.path.isfile(entry["path"]):
                target = os.path.join(keep, entry["path"].lstrip(os.sep))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(entry["path"], target)

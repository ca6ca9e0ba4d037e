"""The files that a drilled script writes: each run finds them as they were before, and so does the user afterwards.

In a trainer (begin(), at `import pawl`, where PAWL_DRILL_FILES names a folder): before Python opens a file for writing,
deletes, renames or truncates it for the first time in this run, a copy of it is kept, or that there was none. In the
drill (restore(), when a run has ended): what the run has made is removed, and what it has changed is put back; a copy
is kept until its file is back. All trainers of a run share one journal, under a lock (where a file system has none, the
first entry of a path counts: it was appended before anybody wrote). What isn't seen: file_events.py. Needs no torch in
the drill.
"""
from __future__ import annotations

import contextlib
import fcntl
import filecmp
import json
import os
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pawl import file_events
from pawl.file_events import Change, inside

FOLDER = "PAWL_DRILL_FILES"
LINES_BYTES_MAX = 64 << 20  # of a file whose lines are counted
PROBE_BYTES = 8192
COPY_BYTES = 1 << 20
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
        self._made: set[str] = set()  # of these: what was not there
        self._size = 0  # of the journal, when it was read last
        self._read: set[str] = set()

    def about_to(self, change: Change) -> None:
        """Fails: NoRoom."""
        moves_all = change.to and os.path.isdir(change.path)
        if (change.path in self._known and not moves_all) or "__pycache__" in change.path or any(
                inside(change.path, root) for root in self._roots) or (
                file_events.is_torchs_own(change.path, self._temporary)):
            return
        if change.what in (file_events.WRITE, file_events.MAKE_FOLDER) and os.path.isdir(change.path):
            return  # it is there, or a file without a name is made in it
        _here.inside = True
        try:
            with self._locked():
                self._keep(change.path, change.to)
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
                self._look()
                self._size = size
            if path in self._known and os.path.isfile(path):
                self._read.add(path)
                self._append({"path": path, "was": "read"})
        finally:
            _here.inside = False

    def _append(self, entry: dict[str, Any]) -> None:
        with open(os.path.join(self._folder, _JOURNAL), "ab", buffering=0) as file:
            line = b"\n" + json.dumps(entry).encode() + b"\n"  # whatever a killed trainer has left before it
            if file.write(line) != len(line):
                raise NoRoom(f"pawl drill: {self._folder} is full: let TMPDIR name a larger disk")

    def _keep(self, path: str, to: str) -> None:
        """`to`: where it is about to go, with all that is in it."""
        if os.path.isdir(path) and not os.path.islink(path):
            for folder, folders, names in os.walk(path, topdown=False):  # before it is renamed or deleted
                for name in names + [each for each in folders if os.path.islink(os.path.join(folder, each))]:
                    self._keep_one(os.path.join(folder, name))
                    if to:
                        self._keep_one(to + os.path.join(folder, name).removeprefix(path))
                self._keep_one(folder)
                if to:
                    self._keep_one(to + folder.removeprefix(path))
        else:
            self._keep_one(path)

    def _keep_one(self, path: str) -> None:
        if path in self._known:
            return
        entry: dict[str, Any] = {"path": path, "was": "nothing"}
        with contextlib.suppress(OSError):
            status = os.lstat(path)
            entry.update(owner=[status.st_uid, status.st_gid], mode=stat.S_IMODE(status.st_mode))
        if self._in_made(path):
            pass  # neither was the folder that it is in
        elif os.path.islink(path):
            entry.update(was="link", to=os.readlink(path))
        elif os.path.isdir(path):
            entry["was"] = "folder"
        elif os.path.isfile(path):
            entry.update(was="file", copy=f"{len(self._known)}-{os.urandom(4).hex()}")
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
        if entry["was"] == "nothing":
            self._made.add(path)

    def _in_made(self, path: str) -> bool:
        above = os.path.dirname(path)
        while above != os.path.dirname(above):
            if above in self._made:
                return True
            above = os.path.dirname(above)
        return False

    def _look(self) -> None:
        found = entries(self._folder)
        self._known = {entry["path"] for entry in found}
        self._made = {entry["path"] for entry in found if entry["was"] == "nothing"}

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """With what the other trainers have kept."""
        os.makedirs(self._folder, exist_ok=True)
        with open(os.path.join(self._folder, _LOCK), "ab") as lock:
            with contextlib.suppress(OSError):  # not every file system has locks
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._look()
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


def copies_left(folder: str) -> list[str]:
    """Files that are not as they were, and whose copies are in `folder`."""
    return [entry["path"] for entry in entries(folder) if "copy" in entry]


def restore(folder: str, keep: str = "") -> list[str]:
    """As it was before the run, whose processes have ended. `keep`: a folder for what it has written, by path. What
    could not be put back, each with its reason: that stays in the journal. Idempotent."""
    found = _first_of_each(entries(folder))
    made = {entry["path"] for entry in found if entry["was"] == "nothing"}
    said: list[str] = []
    left: list[dict[str, Any]] = []
    if keep:
        _keep_written(found, keep)

    def attempt(entry: dict[str, Any], act: Callable[[dict[str, Any]], None]) -> None:
        try:
            act(entry)
        except _NotOurs as error:
            said.append(f"{entry['path']} is left: the script's Python has made it, but not {error}")
        except OSError as error:
            kept = f"; its copy is kept in {_copy_of(folder, entry)}" if "copy" in entry else ""
            said.append(f"{entry['path']}: {error.strerror or error}{kept}")
            left.append(entry)

    for entry in found:
        if entry["was"] == "folder":
            attempt(entry, _make_folder)
    for entry in reversed(found):
        if entry["was"] == "nothing" and not any(above in made for above in _folders_above(entry["path"])):
            attempt(entry, lambda entry: _remove(entry["path"], made))
    for entry in found:
        if entry["was"] == "file":
            attempt(entry, lambda entry: _put_back(entry, _copy_of(folder, entry), made))
        elif entry["was"] == "link":
            attempt(entry, lambda entry: _link(entry, made))
    if found:
        with contextlib.suppress(OSError):  # what is there stays true: it can be done again
            _leave(folder, left)
    return said


class _NotOurs(Exception):
    """In a folder that the run has made lies what it has not."""


def _first_of_each(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first: dict[str, dict[str, Any]] = {}
    for entry in found:
        if entry["was"] != "read":
            first.setdefault(entry["path"], entry)
    return list(first.values())


def _leave(folder: str, left: list[dict[str, Any]]) -> None:
    journal = os.path.join(folder, _JOURNAL)
    with open(journal + ".left", "wb") as file:
        file.writelines(json.dumps(entry).encode() + b"\n" for entry in left)
    os.replace(journal + ".left", journal + ("" if left else ".done"))
    if not left:
        os.unlink(journal)


def _copy_of(folder: str, entry: dict[str, Any]) -> str:
    return os.path.join(folder, _COPIES, entry["copy"])


def _folders_above(path: str) -> Iterator[str]:
    above = os.path.dirname(path)
    while above != path:
        yield above
        path, above = above, os.path.dirname(above)


def _remove(path: str, made: set[str]) -> None:
    """What the run has made; of a folder, bytecode, sockets and what is empty, too. Fails: _NotOurs, when the rest is
    gone."""
    if os.path.islink(path) or not os.path.isdir(path):
        if os.path.lexists(path):
            os.unlink(path)
        return
    others = []
    for folder, folders, names in os.walk(path, topdown=False):
        for name in [*names, *(each for each in folders if os.path.islink(os.path.join(folder, each)))]:
            inner = os.path.join(folder, name)
            if inner in made or "__pycache__" in inner or stat.S_ISSOCK(os.lstat(inner).st_mode):
                os.unlink(inner)
            else:
                others.append(inner)
        if not os.listdir(folder):
            os.rmdir(folder)
    if others:
        raise _NotOurs(f"{others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else ""))


def _make_folder(entry: dict[str, Any]) -> None:
    path = entry["path"]
    if os.path.isdir(path):
        return
    if os.path.lexists(path):
        os.unlink(path)
    os.makedirs(path)
    os.chmod(path, entry.get("mode", 0o755))
    _own(path, entry)


def _link(entry: dict[str, Any], made: set[str]) -> None:
    path, to = entry["path"], entry["to"]
    if os.path.islink(path) and os.readlink(path) == to:
        return
    _make_way(path, made)
    os.symlink(to, path)
    _own(path, entry)


def _make_way(path: str, made: set[str]) -> None:
    try:
        _remove(path, made)
    except _NotOurs as error:
        raise OSError(f"there is a folder now, and the script's Python has not made {error}") from None
    os.makedirs(os.path.dirname(path), exist_ok=True)


def _put_back(entry: dict[str, Any], copy: str, made: set[str]) -> None:
    """In place, where it is a file: its other names, its owner and its mount stay."""
    path = entry["path"]
    if os.path.isfile(path) and not os.path.islink(path):
        with contextlib.suppress(PermissionError):
            if not filecmp.cmp(copy, path, shallow=False):
                _rewrite(copy, path)
            with contextlib.suppress(OSError):  # another's file
                shutil.copystat(copy, path)
            _own(path, entry)
            return
    else:
        _make_way(path, made)
    partial = path + ".pawl-drill"
    try:
        shutil.copy2(copy, partial)
        _own(partial, entry)
        os.replace(partial, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise


def _rewrite(copy: str, path: str) -> None:
    with open(copy, "rb") as source, open(path, "r+b") as target:
        shutil.copyfileobj(source, target, COPY_BYTES)
        target.truncate()


def _own(path: str, entry: dict[str, Any]) -> None:
    """As it was: root only, who else may not."""
    if os.geteuid() == 0 and "owner" in entry:
        status = os.lstat(path)
        if [status.st_uid, status.st_gid] != entry["owner"]:
            os.chown(path, *entry["owner"], follow_symlinks=False)


def _keep_written(found: list[dict[str, Any]], keep: str) -> None:
    for entry in found:
        with contextlib.suppress(OSError):
            if os.path.isfile(entry["path"]):
                target = os.path.join(keep, entry["path"].lstrip(os.sep))
                os.makedirs(os.path.dirname(target), exist_ok=True)
                shutil.copy2(entry["path"], target)

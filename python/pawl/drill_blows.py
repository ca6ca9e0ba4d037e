"""How each kind of fault is brought about, from outside, and undone where it can be.

node, trainer, pawld: SIGKILL. link: the node's network cable is cut, until the job has recovered. communication: the
connections of a trainer to the others are shut down, and nobody dies. timed: the whole node stands still (SIGSTOP) for
some seconds. disk: the disk of the run directory is full while a trainer dies. storage: a node and those that have its
copies are killed at once, so that only a checkpoint is left. What holds a victim holds a pidfd, so that nothing can hit
another process. Linux, standard library only.
"""
from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

DEFAULT_KINDS = ("node", "trainer", "pawld")
KINDS = (*DEFAULT_KINDS, "link", "communication", "timed", "disk", "storage")
NEED_ROOT = ("link", "disk")                   # network namespaces; a small file system of its own
SPARES_NEEDED = {"node": 1, "link": 1, "timed": 1, "storage": 2}  # whose nodes may lose their seats
NEED_ANOTHER_NODE = ("node", "link", "timed", "communication", "storage")
WHOLE_NODE = ("node", "link", "timed", "storage")
DISK_BYTES = 64 << 20                          # of the run directory, where it is to run full
_PIDFD_GETFD = 438                             # the same on every architecture
_CLONE_NEWNS = 0x20000
_ESTABLISHED = "01"                            # in /proc/net/tcp

Process = tuple[int, int | None]               # pid; start time, if known


class BlowError(Exception):
    """The fault could not be brought about; the text names the cause and the remedy."""


class Victims:
    """Processes by pid and, where known, start time, held so that a signal can hit nobody else."""

    def __init__(self, processes: Iterable[Process]) -> None:
        self.fds: list[tuple[int, int]] = []
        for pid, start_time in processes:
            try:
                fd = os.pidfd_open(pid)
            except OSError:
                continue
            if start_time is None or start_time_of(pid) == start_time:
                self.fds.append((pid, fd))
            else:
                os.close(fd)

    def send(self, number: int) -> list[int]:
        """To all, one right after the other; the pids of those that still lived."""
        hit = []
        for pid, fd in self.fds:
            try:
                signal.pidfd_send_signal(fd, number)
                hit.append(pid)
            except ProcessLookupError:
                pass
        return hit

    def kill(self) -> list[int]:
        return self.send(signal.SIGKILL)

    def __enter__(self) -> Victims:
        return self

    def __exit__(self, *_: object) -> None:
        for _pid, fd in self.fds:
            os.close(fd)


class Blow:
    """A fault of one kind on one node. `pawl` runs the command with these arguments; `disk`: the run directory."""

    def __init__(self, kind: str, node: int, processes: Iterable[Process], seconds: float,
                 pawl: Callable[..., dict[str, Any]], disk: str) -> None:
        self._kind, self._node, self._seconds, self._pawl, self._disk = kind, node, seconds, pawl, disk
        self._victims = Victims(processes)
        self._undo: Callable[[], object] | None = None

    def prepare(self) -> None:
        """What takes longer than some steps do: the cable is cut, the disk filled. Comes before strike()."""
        if self._kind == "link":
            self._undo = lambda: self._pawl("drill", "heal", "node", str(self._node))
            self._pawl("drill", "cut", "node", str(self._node))
        elif self._kind == "disk":
            filler = os.path.join(self._disk, "filler")
            self._undo = lambda: os.unlink(filler)
            fill(filler)

    def strike(self) -> list[int]:
        """The pids that it hit; none: they had ended before. Fails: BlowError."""
        if self._kind == "link":
            return [pid for pid, _ in self._victims.fds]
        if self._kind == "communication":
            return [pid for pid, fd in self._victims.fds if shut_connections(pid, fd)]
        if self._kind == "timed":
            self._undo = lambda: self._victims.send(signal.SIGCONT)
            hit = self._victims.send(signal.SIGSTOP)
            time.sleep(self._seconds)
            self.mend()
            return hit
        return self._victims.kill()

    def mend(self) -> None:
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()

    def __enter__(self) -> Blow:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(Exception):  # the job may be gone, and what went wrong is on its way up
            self.mend()
        self._victims.__exit__()


def shut_connections(pid: int, pidfd: int) -> int:
    """Shuts down every TCP connection of that process, as a network that loses them; how many. Fails: BlowError."""
    open_ones = _established(pid)
    count = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/{pid}/fd/{number}")
            if not target.startswith("socket:[") or target[8:-1] not in open_ones:
                continue
            with socket.socket(fileno=_fetch_fd(pidfd, int(number))) as connection:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
    return count


def _established(pid: int) -> set[str]:
    """The inodes of the TCP connections in that process's network."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{pid}/net/{table}", encoding="ascii") as file:
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] == _ESTABLISHED:
                    found.add(fields[9])
    return found


def _fetch_fd(pidfd: int, number: int) -> int:
    library = ctypes.CDLL(None, use_errno=True)
    fd: int = library.syscall(_PIDFD_GETFD, pidfd, number, 0)
    if fd < 0 and ctypes.get_errno() == errno.EBADF:
        raise FileNotFoundError
    if fd < 0:
        raise BlowError(f"the connections of a trainer can't be shut from outside: {os.strerror(ctypes.get_errno())}; "
                        f"run the drill as root, or with sysctl kernel.yama.ptrace_scope=0")
    return fd


def fill(path: str) -> None:
    """Until nothing more fits on its disk."""
    size = 1 << 20
    with open(path, "wb", buffering=0) as file:
        while size:
            try:
                file.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                size //= 2


def mount_disk(folder: str) -> None:
    """A file system of DISK_BYTES over that folder, for this process and its children alone: it goes with them, however
    they end. Fails: BlowError."""
    why = "" if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNS) == 0 else os.strerror(ctypes.get_errno())
    for command in (["mount", "--make-rprivate", "/"],
                    ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "pawl-drill", folder]):
        if not why:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            why = done.stderr.strip() if done.returncode != 0 else ""
    if why:
        raise BlowError(f"--kinds disk: a small disk of its own can't be mounted: {why}")


def unmount_disk(folder: str) -> None:
    """Lazily: somebody may still look at it."""
    done = subprocess.run(["umount", "-l", folder], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"pawl drill: {done.stderr.strip()}", file=sys.stderr)


def start_time_of(pid: int) -> int | None:
    """Clock ticks since boot."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def processor_s(pid: int) -> float:
    """That it has used, in all of its threads; 0 if it isn't there."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(pid: int) -> list[str]:
    """Behind the name."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2:].split()

"""Processes as /proc shows them, and signals that never hit another than the one meant.

A pid alone may have passed to a stranger: every process here is (pid, start time), and a signal goes through a pidfd
that was opened before the start time was checked once more. Linux only, standard library only.
"""
import os
import select
import signal
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Identity:
    pid: int
    start_time: int  # clock ticks since boot, field 22 of /proc/<pid>/stat


def stat_fields(pid):
    """Fields of /proc/<pid>/stat from the state on (index 0), or None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2:].split()


def identity(pid):
    fields = stat_fields(pid)
    return Identity(pid, int(fields[19])) if fields and fields[0] not in "ZX" else None


def lives(who):
    return identity(who.pid) == who


def parent(pid):
    fields = stat_fields(pid)
    return int(fields[1]) if fields else 0


def pids():
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def descendants(root):
    """Pids of all that descend from `root`, itself not among them."""
    children = {}
    for pid in pids():
        children.setdefault(parent(pid), []).append(pid)
    found, todo = [], [root]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child)
    return found


def command_line(pid):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return [part.decode(errors="replace") for part in file.read().split(b"\0")[:-1]]
    except OSError:
        return []


def environment_has(pid, entry):
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry.encode() in file.read().split(b"\0")
    except OSError:
        return False


def maps(pid):
    """[(address range, device, inode, path)] of everything with an inode that the process has mapped."""
    found = []
    try:
        with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
            for line in file:
                parts = line.split(maxsplit=5)
                if parts[4] != "0":
                    found.append((parts[0], parts[3], int(parts[4]), parts[5].strip() if len(parts) > 5 else ""))
    except OSError:
        pass
    return found


def resident_bytes(pid):
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def namespace(pid, kind):
    try:
        return os.readlink(f"/proc/{pid}/ns/{kind}")
    except OSError:
        return ""


class Victims:
    """Some processes, held by pidfd: those that are still who they were when they were named."""

    def __init__(self, identities):
        self.fds = {}
        for who in identities:
            try:
                fd = os.pidfd_open(who.pid)
            except OSError:
                continue
            if lives(who):
                self.fds[who] = fd
            else:
                os.close(fd)

    def send(self, number=signal.SIGKILL):
        """To all of them, as close together as this process can; answers the monotonic time before the first."""
        began_ns = time.monotonic_ns()
        for fd in self.fds.values():
            try:
                signal.pidfd_send_signal(fd, number)
            except ProcessLookupError:
                pass
        return began_ns

    def wait_ended(self, timeout_s=10.0):
        """True once every one has ended."""
        deadline = time.monotonic() + timeout_s
        for fd in self.fds.values():
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            if not poller.poll(max(0, int((deadline - time.monotonic()) * 1000))):
                return False
        return True

    def close(self):
        for fd in self.fds.values():
            os.close(fd)
        self.fds = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

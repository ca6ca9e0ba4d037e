"""Disks that are full or fail, really: file systems mounted where only one process and its children see them.

`run(pages, function, ...)` calls `function(directory, ...)` on a file system of so many pages in memory, in a child
that has a mount namespace of its own; what it returns comes back pickled. `run_on_device` does so on an ext4 of a
device that can lose its end. Nothing is left, however it ends: the mount goes with the last process that sees it.
Where namespaces or devices are forbidden the test is skipped, with a reason that begins "privilege:".
"""
import contextlib
import ctypes
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import traceback
import unittest

PAGE = 4096
_NEW_NAMESPACE, _NEW_USERS = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER
_PRIVATE, _RECURSIVE = 1 << 18, 1 << 14              # MS_PRIVATE, MS_REC


def run(pages, function, *arguments):
    directory = tempfile.mkdtemp(prefix="pawl-disk-")
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            refused = _mount(directory, pages)
            answer = ("skip", refused) if refused else ("done", function(directory, *arguments))
        except unittest.SkipTest as refused:
            answer = ("skip", str(refused))
        except BaseException:
            answer = ("failed", traceback.format_exc())
        with contextlib.suppress(BaseException), os.fdopen(writing, "wb") as file:
            pickle.dump(answer, file)
        os._exit(0)
    os.close(writing)
    try:
        with os.fdopen(reading, "rb") as file:
            content = file.read()
    finally:
        os.waitpid(child, 0)
        shutil.rmtree(directory)
    kind, answer = pickle.loads(content) if content else ("failed", "it ended without a word")
    if kind == "skip":
        raise unittest.SkipTest(f"privilege: {answer}")
    if kind == "failed":
        raise AssertionError(answer)
    return answer


def run_on_device(size_bytes, function, *arguments):
    """`function(directory, device, ...)`, as run() does it: the directory is an ext4 on a device of that size."""
    return run(size_bytes // PAGE + 256, _on_device, size_bytes, function, *arguments)


class Device:
    """A loop device."""

    def __init__(self, content):
        self._content = content
        self._path = _tool("losetup", "--find", "--show", content)

    def mount(self, directory):
        try:
            _tool("mkfs.ext4", "-q", "-F", "-b", str(PAGE), "-m", "0", "-E", "nodiscard", self._path)  # one block group
            os.mkdir(directory)
            _tool("mount", "-t", "ext4", self._path, directory)
        finally:
            _tool("losetup", "--detach", self._path)  # goes when nobody has it mounted

    def cut(self, size_bytes):
        """From now on nothing can be written or read from there on: an input/output error."""
        os.truncate(self._content, size_bytes)
        _tool("losetup", "--set-capacity", self._path)


def _on_device(directory, size_bytes, function, *arguments):
    content, mounted = os.path.join(directory, "content"), os.path.join(directory, "mounted")
    with open(content, "wb") as file:
        file.truncate(size_bytes)
    try:
        device = Device(content)
        device.mount(mounted)
    except ToolError as refused:
        raise unittest.SkipTest(str(refused)) from refused
    try:
        return function(mounted, device, *arguments)
    finally:
        _tool("umount", mounted)


class ToolError(Exception):
    pass


def _tool(*command):
    """What it says."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PATH": path})
    if done.returncode != 0:
        raise ToolError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout.strip()


def fill(directory, free_pages):
    """Leaves so many pages, by a file "ballast"."""
    empty(directory)
    disk = os.statvfs(directory)
    size = disk.f_bavail * disk.f_frsize - free_pages * PAGE
    with open(os.path.join(directory, "ballast"), "wb") as file:
        if size > 0:
            os.posix_fallocate(file.fileno(), 0, size)


def empty(directory):
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(directory, "ballast"))


def _mount(directory, pages):
    """Why it can't be, or None."""
    libc = ctypes.CDLL(None, use_errno=True)
    users, groups = os.geteuid(), os.getegid()
    if users != 0 or libc.unshare(_NEW_NAMESPACE) != 0:
        if libc.unshare(_NEW_NAMESPACE | _NEW_USERS) != 0:
            return f"a mount namespace: {os.strerror(ctypes.get_errno())}"
        for name, line in (("setgroups", "deny"), ("uid_map", f"0 {users} 1"), ("gid_map", f"0 {groups} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)
    if libc.mount(b"none", b"/", None, _PRIVATE | _RECURSIVE, None) != 0:
        return f"mounts of its own: {os.strerror(ctypes.get_errno())}"
    if libc.mount(b"pawl", os.fsencode(directory), b"tmpfs", 0, f"size={pages * PAGE}".encode()) != 0:
        return f"a tmpfs: {os.strerror(ctypes.get_errno())}"
    return None

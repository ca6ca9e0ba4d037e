"""A really full disk: a file system of few pages, mounted where only one process and its children see it.

`run(pages, function, ...)` calls `function(directory, ...)` in a child that has a mount namespace of its own; what it
returns comes back pickled. Nothing is left, however it ends: the mount goes with the last process that sees it. Where
namespaces are forbidden the test is skipped, with a reason that begins "privilege:".
"""
import contextlib
import ctypes
import os
import pickle
import shutil
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

"""What this process is about to do to files, from the interpreter's audit events: before it happens.

Not seen: what isn't Python's doing (what a child process does once it runs; a library that opens files in C++ or Rust;
torch.save and torch.jit.save with a path are, within told_of_saves()). A forked child of Python's own has its parent's
hooks. Hooks of the interpreter can't be removed.
"""
from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

WRITE, MAKE_FOLDER = "write", "make"
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CACHES = ("HF_HOME", "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
_CHILDREN = ("huggingface", "matplotlib", "pawl", "pip", "torch", "triton")  # in a folder of caches
# What torch makes in the folder for temporary files: its compiler's cache, and memory that processes share.
_TORCHS_OWN = re.compile(r"torchinductor_[^/]+(/.*)?|torch_\d+_\d+(_\d+)?")


@dataclass(frozen=True)
class Change:
    """`what`: write, delete, truncate, rename, replace, link, make (a folder). `path`: where it really is; of what is
    deleted, renamed or linked, a link counts itself. `makes`: it may be there for the first time afterwards. `to`:
    where what is renamed goes."""

    what: str
    path: str
    makes: bool = False
    to: str = ""


def changes(event: str, arguments: tuple[Any, ...]) -> list[Change]:
    """Of one audit event; of most there are none."""
    if event == "open":
        path, _, flags = arguments
        if not isinstance(flags, int) or not flags & _WRITES:
            return []
        return _changes((WRITE, path, -1, bool(flags & os.O_CREAT)))
    if event == "os.truncate":
        return _changes(("truncate", arguments[0], -1, False))
    if event in ("os.remove", "os.rmdir"):
        return _changes(("delete", arguments[0], arguments[1], False))
    if event == "os.rename":
        found = _changes(("rename", arguments[0], arguments[2], False), ("replace", arguments[1], arguments[3], True))
        return [replace(found[0], to=found[1].path), found[1]] if len(found) > 1 else found
    if event == "os.symlink":
        return _changes(("link", arguments[1], arguments[2], True))
    if event == "os.link":
        return _changes(("link", arguments[1], arguments[3], True))
    if event == "os.mkdir":
        return _changes((MAKE_FOLDER, arguments[0], arguments[2], True))
    return []


def _changes(*found: tuple[str, Any, int, bool]) -> list[Change]:
    return [Change(what, text, makes) for what, path, folder, makes in found
            if (text := real_path(path, folder, what in _OF_LINKS)) is not None]


def program(event: str, arguments: tuple[Any, ...]) -> list[str] | None:
    """The command of a child process, or of what this process becomes, that an audit event tells of."""
    if event == "os.system":
        return _words(arguments[0])
    if event in ("subprocess.Popen", "os.exec", "os.posix_spawn"):
        return _words(arguments[1]) or _words(arguments[0])
    return None


def _words(command: Any) -> list[str]:
    if isinstance(command, (str, bytes, os.PathLike)):
        return os.fsdecode(command).split()
    return [os.fsdecode(each) for each in command or ()]


_OF_LINKS = ("delete", "rename", "replace", "link")


def real_path(path: Any, folder: int = -1, of_link: bool = False) -> str | None:
    """`folder`: a descriptor from which it begins. `of_link`: a link at its end is not followed. None: a descriptor,
    which was opened before."""
    if isinstance(path, int):
        return None
    try:
        text = os.path.join(f"/proc/self/fd/{folder}" if folder >= 0 else "", os.fsdecode(path))
        if of_link and os.path.islink(text):
            above, name = os.path.split(text.rstrip(os.sep))
            return os.path.join(os.path.realpath(above), name)
        return os.path.realpath(text)
    except (TypeError, ValueError):
        return None


def inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


def nobodys_files(*more: str) -> list[str]:
    """Folders whose files are no script's: caches, devices, and `more`, without the empty ones. One that the current
    folder or the script's lies in is none: what the script writes would be no script's."""
    caches = [os.path.expanduser("~/.cache"), os.environ.get("XDG_CACHE_HOME", "")]
    roots = [os.path.expanduser("~/.triton"), *(os.environ.get(name, "") for name in _CACHES), *more]
    for cache in caches:
        roots += [cache, *(os.path.join(cache, child) for child in _CHILDREN if cache)]
    with contextlib.suppress(OSError):
        roots += ["/proc", "/dev", *(each.path for each in os.scandir("/dev") if not each.is_symlink())]
    homes = _homes()
    found = dict.fromkeys(os.path.realpath(root) for root in roots if root)
    return [root for root in found if root != os.sep and not any(inside(home, root) for home in homes)]


def _homes() -> list[str]:
    """Of the experiment: the current folder, and the script's."""
    found = []
    with contextlib.suppress(OSError):
        found.append(os.path.realpath(os.getcwd()))
    script = getattr(sys.modules.get("__main__"), "__file__", None) or (sys.argv[0] if sys.argv else "")
    if script and os.path.isfile(script):
        found.append(os.path.dirname(os.path.realpath(script)))
    return found


def is_torchs_own(path: str, temporary: str) -> bool:
    """In the system's folder for temporary files."""
    if not inside(path, temporary):
        return False
    name = os.path.relpath(path, temporary)
    if not _TORCHS_OWN.fullmatch(name):
        return False
    return not any(inside(home, os.path.join(temporary, name.partition(os.sep)[0])) for home in _homes())


@contextlib.contextmanager
def told_of_saves(about_to: Callable[[Change], None]) -> Iterator[None]:
    """torch.save and torch.jit.save open a path in C++."""
    import torch

    def telling(save: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(save)
        def told(*args: Any, **kwargs: Any) -> Any:  # (what, f, ...), each also by name
            f = kwargs.get("f", args[1] if len(args) > 1 else None)
            path = real_path(f) if isinstance(f, (str, os.PathLike)) else None
            if path is not None:
                about_to(Change(WRITE, path, makes=True))
            return save(*args, **kwargs)
        return told

    places: list[tuple[Any, Callable[..., Any]]] = [
        (place, place.save) for place in (torch, torch.jit, torch.jit.RecursiveScriptModule)]
    for place, save in places:
        place.save = telling(save)
    try:
        yield
    finally:
        for place, save in places:
            place.save = save

"""Builds pawl_c10d, the extension that holds the managed group, for the torch and the Python that run here.

    python -m pawl.build_extension           # now; else the first pawl.init() does it
    python -m pawl.build_extension --place   # only says where it is kept

One file for each torch, C++ ABI, Python, kind of machine, C library and version of the sources, below ~/.cache/pawl
($XDG_CACHE_HOME). One process of a machine builds it and the others wait for it. Machines that share the folder may
build beside each other, where its locks don't reach that far: the first one's stays. It appears there whole or not at
all; a process that dies while it builds leaves nothing that another one would take. A compiler is called directly:
torch.utils.cpp_extension takes longer to import than a start may take. CMakeLists.txt builds the same sources in a
checkout, with the facts of torch_facts().
"""
from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO

from pawl._version import version as pawl_version
from pawl.errors import Refused

NAME = "pawl_c10d"
COMPILERS = ("g++", "c++", "clang++")  # $CXX comes before them
TORCH_MIN = (2, 6)
OPTIONS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-w")
LIBRARIES = ("c10", "torch_cpu", "torch_python")
SAY_EVERY_S = 15.0
LEFT_AFTER_S = 3600.0  # a folder of another machine's build that nobody has touched for so long is nobody's
ERROR_LINES = 6
# Torch's headers cost more than all of our code: what needs them is compiled as one file.
_WITHOUT_TORCH = ("forked.cc", "generation.cc", "interrupt.cc", "library.cc", "sockets.cc")


@dataclass(frozen=True)
class Facts:
    """What a build against a torch needs to know of it."""

    version: str
    abi: bool  # _GLIBCXX_USE_CXX11_ABI
    python: str
    includes: tuple[str, ...]
    libraries: str
    definitions: tuple[str, ...]  # NAME or NAME=VALUE


def usable_torch() -> ModuleType:
    """torch, imported; Refused with cause and remedy where it is none that pawl can use."""
    try:
        import torch
        import torch.distributed
    except (ImportError, OSError) as error:  # OSError: a library of torch's that can't be loaded
        raise Refused(f"torch can't be imported ({error}): install it, or run with the Python of the set-up "
                      f"(.venv/bin/python)") from None
    if release(str(torch.__version__)) < TORCH_MIN:
        raise Refused(f"torch {torch.__version__} is too old: pawl needs 2.6 or later "
                      f"(python -m pip install -U 'torch>=2.6')")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise Refused(f"torch {torch.__version__} was built without torch.distributed and gloo, which pawl's groups "
                      f"need; install a wheel of pytorch.org")
    return torch


def release(version: str) -> tuple[int, ...]:
    """The numbers that a version begins with."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()


def torch_facts(torch: ModuleType) -> Facts:
    """Of an imported torch."""
    folder = os.path.dirname(os.path.abspath(str(torch.__file__)))
    headers = os.path.join(folder, "include")
    torch_version, abi, python = str(torch.__version__), bool(torch._C._GLIBCXX_USE_CXX11_ABI), _python()
    definitions = ["USE_C10D_GLOO", f"_GLIBCXX_USE_CXX11_ABI={int(abi)}", f'PAWL_TORCH_VERSION="{torch_version}"',
                   f'PAWL_TORCH_ABI="{int(abi)}"', f'PAWL_PYTHON_ABI="{python}"']
    # Until 2.8 pybind shares types only between modules that name the same compiler: the one that torch was built with.
    for name in ("COMPILER_TYPE", "STDLIB", "BUILD_ABI"):
        value = getattr(torch._C, f"_PYBIND11_{name}", None)
        if value is not None:
            definitions.append(f'PYBIND11_{name}="{value}"')
    return Facts(torch_version, abi, python,
                 (headers, os.path.join(headers, "torch", "csrc", "api", "include"), sysconfig.get_paths()["include"]),
                 os.path.join(folder, "lib"), tuple(definitions))


def _python() -> str:
    return sys.implementation.cache_tag or "unknown"


def sources() -> Path | None:
    """Where the sources lie: beside this package, or in the checkout that it is part of."""
    package = Path(__file__).resolve().parent
    for folder in (package / "_c10d", package.parent / "c10d"):
        if (folder / "module.cc").is_file():
            return folder
    return None


def cache() -> Path:
    """The folder for all that is built here."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(named) if os.path.isabs(named) else Path.home() / ".cache") / "pawl" / "c10d"
    except RuntimeError:  # no HOME, and a user without an entry
        raise Refused("there is no home folder to keep pawl's extension for torch in: set XDG_CACHE_HOME") from None


def place(facts: Facts, folder: Path) -> Path:
    """Where the extension that is built from these sources is kept."""
    digest = hashlib.sha256(" ".join((*OPTIONS, *facts.definitions)).encode())
    for file in sorted(folder.iterdir()):
        if file.suffix in (".cc", ".h"):
            digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    key = (f"pawl{pawl_version}-torch{facts.version}-abi{int(facts.abi)}-{facts.python}-{os.uname().machine}-"
           f"{_c_library()}-{digest.hexdigest()[:16]}")
    return cache() / key / f"{NAME}.so"


def _c_library() -> str:
    """What is linked on a newer system can't be loaded on an older one, and homes are shared by both."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "unknown").replace(" ", "")
    except (ValueError, OSError):  # another C library
        return "unknown"


def compiler() -> list[str]:
    """The command; empty: there is none."""
    named = shlex.split(os.environ.get("CXX", ""))
    if named:
        return named if shutil.which(named[0]) else []
    return next(([name] for name in COMPILERS if shutil.which(name)), [])


def check(facts: Facts) -> None:
    """Refused, with what to install, where a build can't succeed."""
    if not compiler():
        named = os.environ.get("CXX")
        raise Refused("pawl's extension for torch has to be built, and there is no C++ compiler: "
                      + (f"CXX names {named}, which isn't there" if named else
                         "install g++ 12 or later (Debian, Ubuntu: apt install g++), or name one with CXX"))
    if not os.path.exists(os.path.join(facts.includes[0], "torch", "csrc", "distributed", "c10d", "Backend.hpp")):
        raise Refused(f"pawl's extension for torch has to be built, and this torch has no headers "
                      f"({facts.includes[0]}): install a wheel of pytorch.org")
    if not os.path.exists(os.path.join(facts.includes[-1], "Python.h")):
        raise Refused(f"pawl's extension for torch has to be built, and the headers of this Python are missing "
                      f"({facts.includes[-1]}/Python.h): install them (Debian, Ubuntu: apt install python3-dev)")


def ensure(facts: Facts, folder: Path) -> Path:
    """The extension built from the sources in `folder`, by this process if need be. Refused where it can't be built."""
    wanted = place(facts, folder)
    if os.path.isfile(wanted):  # Path.is_file() raises where the folder can't be searched
        return wanted
    check(facts)
    asked = time.time()
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        with _alone(wanted.parent / "lock"):
            if not os.path.isfile(wanted):
                _share_failure(wanted.parent / "failed", asked)
                _build(facts, folder, wanted)
    except (OSError, Refused) as error:
        if os.path.isfile(wanted):  # another machine's
            return wanted
        if isinstance(error, Refused):
            raise
        remedy = "make room there" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "see that it can be written"
        raise Refused(f"pawl's extension for torch can't be kept in {wanted.parent} ({error.strerror or error}): "
                      f"{remedy}, or name another folder with XDG_CACHE_HOME") from None
    return wanted


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """One process of this machine at a time, of all machines if the file system can; the lock goes with its process."""
    with open(path, "a", encoding="utf-8") as lock:
        if _wait_for(lock.fileno()):
            yield
            return
    with _alone_here(path):
        yield


@contextlib.contextmanager
def _alone_here(path: Path) -> Iterator[None]:
    """For a file system without locks. Where that of temporary files has none either, each process builds its own."""
    name = hashlib.sha256(f"{_machine()} {path}".encode()).hexdigest()[:16]
    local = os.path.join(tempfile.gettempdir(), f"pawl-{os.getuid()}-{name}.lock")
    try:
        lock = os.open(local, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError:
        yield
        return
    try:
        if os.fstat(lock).st_uid == os.getuid():
            _wait_for(lock)
        yield
    finally:
        with contextlib.suppress(OSError):  # those who wait for it find what was built, or why it could not be
            os.unlink(local)
        os.close(lock)


def _wait_for(lock: int) -> bool:
    """False: there are no locks."""
    began = said = time.monotonic()
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            now = time.monotonic()
            if now - said >= SAY_EVERY_S:
                said = now
                _say(f"another process builds the extension for torch; waiting for it ({now - began:.0f} s)")
            time.sleep(0.1)
        except OSError:
            return False


@functools.cache
def _machine() -> str:
    """Where a process's number means it and no other one: this boot of this machine, and its namespace of processes."""
    parts = [os.uname().nodename]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"))
        parts.append(os.readlink("/proc/self/ns/pid"))
    return f"{parts[0]}.{hashlib.sha256(''.join(parts).encode()).hexdigest()[:8]}"


def _share_failure(path: Path, asked: float) -> None:
    """What failed for another process while this one waited would fail here, too."""
    with contextlib.suppress(OSError):
        if path.stat().st_mtime >= asked:
            raise Refused(path.read_text(encoding="utf-8"))


def _build(facts: Facts, folder: Path, wanted: Path) -> None:
    _say(f"building the extension for torch {facts.version}: once, a minute or two; it is kept in {wanted.parent}")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f"building-{_machine()}-{os.getpid()}-", dir=wanted.parent,
                                     ignore_cleanup_errors=True) as scratch:
        _remove_left(wanted.parent, Path(scratch))
        built = _compile(facts, folder, Path(scratch), wanted.parent, began)
        _publish(built, wanted)
    _say(f"built the extension for torch {facts.version} in {time.monotonic() - began:.0f} s")


def _remove_left(kept: Path, scratch: Path) -> None:
    """What processes that were killed have left: building-MACHINE-PROCESS-RANDOM."""
    now = scratch.stat().st_mtime  # by the clock that the others' times come from
    for left in kept.glob("building-*"):
        machine, process = (left.name.removeprefix("building-").rsplit("-", 2) + ["", ""])[:2]
        with contextlib.suppress(OSError):
            if left.stat().st_mtime < now - LEFT_AFTER_S or (
                    machine == _machine() and process.isdecimal() and not _runs(int(process))):
                shutil.rmtree(left, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _publish(built: Path, wanted: Path) -> None:
    """Whole, or not at all. Where another machine was first, its file stays: processes may run it already."""
    try:
        os.link(built, wanted)
    except FileExistsError:
        pass
    except OSError:  # a file system without links
        if not os.path.isfile(wanted):
            os.replace(built, wanted)


def _compile(facts: Facts, folder: Path, scratch: Path, kept: Path, began: float) -> Path:
    command = [*compiler(), *OPTIONS, *(f"-D{each}" for each in facts.definitions),
               *(f"-isystem{each}" for each in facts.includes)]
    with_torch = scratch / "with_torch.cc"
    files = sorted(file.name for file in folder.glob("*.cc") if file.name not in _WITHOUT_TORCH)
    with_torch.write_text("".join(f'#include "{folder / name}"\n' for name in files), encoding="utf-8")
    parts = [with_torch, *(folder / name for name in _WITHOUT_TORCH)]
    log = scratch / "log"
    _run_all([[*command, "-c", str(part), "-o", str(scratch / f"{part.stem}.o")] for part in parts], log, kept, began)
    library = scratch / f"{NAME}.so"
    _run_all([[*compiler(), "-shared", "-pthread", "-Wl,--as-needed", "-o", str(library),
               *(str(scratch / f"{part.stem}.o") for part in parts), f"-L{facts.libraries}",
               *(f"-l{name}" for name in LIBRARIES)]], log, kept, began)
    return library


def _run_all(commands: list[list[str]], log: Path, kept: Path, began: float) -> None:
    """All at once; says now and then that they still run."""
    with open(log, "ab") as output:
        running: list[subprocess.Popen[bytes]] = []
        said = time.monotonic()
        try:
            for command in commands:
                running.append(_start(command, output))
            while any(process.poll() is None for process in running):
                time.sleep(0.05)
                if time.monotonic() - said >= SAY_EVERY_S:
                    said = time.monotonic()
                    os.utime(log.parent)  # this folder isn't left
                    _say(f"still building the extension for torch ({said - began:.0f} s)")
        finally:
            for process in running:
                if process.poll() is None:
                    process.terminate()
                process.wait()
    if any(process.returncode for process in running):
        _refuse_failed(log, kept)


def _start(command: list[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                env={**os.environ, "LC_ALL": "C"})
    except OSError as error:
        raise Refused(f"pawl's extension for torch has to be built, and its compiler can't be started ({command[0]}: "
                      f"{error.strerror or error}): install g++ 12 or later, or name one with CXX") from None


def _refuse_failed(log: Path, kept: Path) -> None:
    shutil.copyfile(log, kept / "log")
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    errors = [line.strip() for line in lines if "error" in line.lower()] or lines[-ERROR_LINES:]
    sentence = (f"pawl's extension for torch can't be built ({compiler()[0]}; all of its output: {kept / 'log'}): "
                + "; ".join(errors[:ERROR_LINES]))
    (kept / "failed").write_text(sentence, encoding="utf-8")
    raise Refused(sentence)


def _say(sentence: str) -> None:
    print(f"pawl: {sentence}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    if arguments not in ([], ["--place"]):
        print("usage: python -m pawl.build_extension [--place]", file=sys.stderr)
        return 2
    try:
        torch = usable_torch()
        folder = sources()
        if folder is None:
            raise Refused("the sources of pawl's extension are missing: install pawl's wheel again (python -m pip "
                          "install --force-reinstall --no-deps pawl-*.whl)")
        facts = torch_facts(torch)
        print(place(facts, folder) if arguments else ensure(facts, folder))
    except Refused as error:
        _say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

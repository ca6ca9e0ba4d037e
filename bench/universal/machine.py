"""What bench/universal has of this machine: its floors, cold files, processes whose memory and bytes are counted."""
from __future__ import annotations

import os
import pathlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAWL = os.environ.get("PAWL", str(ROOT / "build" / "bin" / "pawl"))
FLOORS = os.environ.get("UNIVERSAL_FLOORS", str(ROOT / "build" / "main" / "bench" / "universal" / "universal_floors"))
_POLL_S = 0.02


class Failed(Exception):
    """A measurement can't be made; the text says why."""


def files_below(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def size_of(paths: Sequence[pathlib.Path]) -> int:
    return sum(path.stat().st_size for path in paths)


def floor(*arguments: object) -> float:
    """Seconds of one raw operation."""
    done = subprocess.run([FLOORS, *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Failed(f"universal_floors {arguments[0]}: {done.stderr.strip() or done.returncode}")
    return float(done.stdout or 0)


def evict(paths: Sequence[pathlib.Path]) -> None:
    """Out of the page cache, and proven to be."""
    full = [path for path in paths if path.stat().st_size]
    if full:
        floor("evict", *full)


@dataclass
class Process:
    """How a process went."""

    seconds: float
    peak_bytes: int     # of resident memory, of the process itself
    written_bytes: int  # to disks, with its children's
    output: str


def measured(command: Sequence[str], after: Callable[[], None] = lambda: None, **environment: str) -> Process:
    """From exec until it has ended and `after`, e.g. a sync, is done. Fails with the end of what it said."""
    began = time.monotonic()
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                             env={**os.environ, **environment})
    peak, said = [0], []
    reader = threading.Thread(target=lambda: said.append(child.stdout.read()), daemon=True)
    reader.start()
    try:
        while True:
            peak[0] = max(peak[0], _peak_of(child.pid))
            done, status, usage = os.wait4(child.pid, os.WNOHANG)
            if done:
                break
            time.sleep(_POLL_S)
    except BaseException:
        child.kill()
        child.wait()
        raise
    child.returncode = os.waitstatus_to_exitcode(status)
    after()
    seconds = time.monotonic() - began
    reader.join()
    child.stdout.close()
    if child.returncode != 0:
        raise Failed(f"{' '.join(map(str, command[:4]))}: {child.returncode}: {said[0].strip()[-1500:]}")
    return Process(seconds, peak[0], usage.ru_oublock * 512, said[0])


def _peak_of(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")), 0)
    except OSError:
        return 0


def shuffled(tasks: dict[str, Callable[[], float]]) -> list[tuple[str, Callable[[], float]]]:
    order = list(tasks.items())
    random.shuffle(order)
    return order


def run_round(title: str, number: int, tasks: dict[str, Callable[[], float | None]]) -> dict[str, float]:
    """Every task once, in an order of its own; the answer is their seconds. None: left out this time."""
    found = {}
    for name, task in shuffled(tasks):
        seconds = task()
        if seconds is not None:
            found[name] = seconds
            print(f"  {title}, round {number + 1}: {name:34} {seconds:8.3f} s", file=sys.stderr, flush=True)
    return found

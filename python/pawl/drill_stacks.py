"""Where the trainers of a job stand that stands still: which line of the script, and what it waits for.

Each trainer of a drill leaves its main thread's frames in a file when it gets a signal (faulthandler: also where the
thread waits in C++). The drill reads them (where_is()) and says who waits for whom. Linux, no torch.
"""
from __future__ import annotations

import faulthandler
import os
import re
import signal
from dataclasses import dataclass

from pawl import script_frames

SIGNAL = signal.SIGRTMIN + 9
_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+) in (?P<name>.*)$')
_COLLECTIVES = "torch/distributed/distributed_c10d.py"
_kept: list[object] = []  # the file must stay open


def begin(folder: str) -> None:
    """In a trainer, once."""
    os.makedirs(folder, exist_ok=True)
    file = open(path_of(folder, os.getpid()), "wb", buffering=0)  # noqa: SIM115
    _kept.append(file)
    faulthandler.register(SIGNAL, file=file, all_threads=False)


def path_of(folder: str, pid: int) -> str:
    return os.path.join(folder, f"stack.{pid}")


@dataclass(frozen=True)
class Place:
    """`doing`: "in all_reduce", "in backward", "at". `where`: line of the script. `collective`: it waits for others."""

    doing: str
    where: str
    collective: bool

    def shown(self) -> str:
        return f"{self.doing} ({self.where})" if self.where else self.doing


def where_is(text: str) -> Place | None:
    """`text`: what the handler has written, the innermost frame first; of several times the last."""
    frames = [(each["file"], int(each["line"]), each["name"]) for each in
              (_FRAME.match(line) for line in text.rpartition("most recent call first")[2].splitlines()) if each]
    if not frames:
        return None
    own = next((place for place, (file, _, _) in enumerate(frames) if _of_script(file)), len(frames))
    where = f"{os.path.basename(frames[own][0])}:{frames[own][1]}" if own < len(frames) else ""
    inner = frames[:own]
    collectives = [name for file, _, name in inner if file.endswith(_COLLECTIVES) and not name.startswith("_")
                   and name != "wrapper"]
    if collectives:
        return Place(f"waits in {collectives[-1]}", where, True)
    if any("torch/autograd" in file for file, _, _ in inner):
        return Place("waits in backward, where DDP adds up gradients over all ranks", where, True)
    if any(f"{os.sep}pawl{os.sep}" in file for file, _, _ in inner):
        name = next(name for file, _, name in inner if f"{os.sep}pawl{os.sep}" in file)
        return Place(f"waits for the others between two steps ({name})", where, True)
    if inner:
        return Place(f"is in {inner[-1][2]}", where, False)
    return Place("is there", where, False)


def _of_script(file: str) -> bool:
    return not script_frames.of_library(file) and f"{os.sep}pawl{os.sep}" not in file


def sentences(places: dict[int, Place | None]) -> list[str]:
    """Of each seat, and who has not come to what the others wait in."""
    lines = [f"seat {seat} {place.shown() if place else 'did not answer: its process is stopped, or has ended'}"
             for seat, place in sorted(places.items())]
    waiting = {seat: place for seat, place in places.items() if place is not None and place.collective}
    kinds = {place.shown() for place in waiting.values()}
    absent = sorted(set(places) - set(waiting))
    if waiting and absent:
        lines.append(f"seat {', '.join(map(str, absent))} has not come to what the others wait in")
    elif len(kinds) > 1:
        lines.append("they wait in different collectives, each for the other: what decides which of them comes next is "
                     "not the same on all ranks")
    return lines

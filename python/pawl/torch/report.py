"""What a load came to, and how far a long save or load is."""
from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import Any

from pawl.job import current_job

_BAR_EVERY_S, _LINE_EVERY_S = 0.2, 5.0


@dataclass
class Report:
    """Tensors are named "<name> (<role>)". `matched`, `missing`, `created` and `cast` are of this rank; `unused` is
    what no rank took."""

    path: str
    format: str                                        # of the checkpoint, in words
    matched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)   # wanted and not in the checkpoint: they are as they were
    unused: list[str] = field(default_factory=list)    # in the checkpoint and wanted by no rank
    cast: list[str] = field(default_factory=list)      # of another type in the checkpoint than here
    created: int = 0                                   # parameters that had no optimizer state, and have it now
    kept: list[str] = field(default_factory=list)      # sentences: hyperparameters that stayed the training's own
    values: Any = None                                 # what was given to save() as values=
    engine: Any = None                                 # what pawl.deepspeed.save() stored of the engine's own
    notes: list[str] = field(default_factory=list)     # sentences
    bytes_loaded: int = 0                              # of this rank's tensors
    bytes_read: int = 0                                # by this rank, from files
    bytes_received: int = 0                            # by this rank, from others that hold the same

    def __str__(self) -> str:
        parts = [f"{len(self.matched)} tensors from {self.path} ({self.format})"]
        parts += [f"{len(of)} {what}" for of, what in ((self.missing, "missing"), (self.unused, "unused"),
                                                       (self.cast, "cast")) if of]
        if self.kept:
            parts[-1] += ", but not all hyperparameters"
        return "loaded " + ", ".join(parts) + "".join(f"\nnote: {note}" for note in self.notes)


def first_of(sentences: list[str], count: int = 5) -> str:
    """The first few, and how many more there are."""
    more = f"; and {len(sentences) - count} more" if len(sentences) > count else ""
    return "; ".join(sentences[:count]) + more


class Progress:
    """How far calls of the library are that move so many bytes in all: a `Watcher` for them. On standard error, one
    rank's share: a bar on a terminal, else a line every few seconds; nothing of what is done before the first. Of a
    job's rank it is a sign of life, too: however long a disk takes, that is no hang."""

    def __init__(self, verb: str, path: str, size_bytes: int, shown: bool = True) -> None:
        self._about = f"{verb} {path}"
        self._size_bytes = size_bytes
        self._shown = shown
        self._is_terminal = sys.stderr.isatty()
        self._has_bar = False
        self._done = 0  # by calls that have ended
        self._began = self._said = time.monotonic()

    def __call__(self, done: int, of: int, ended: bool) -> None:
        job = current_job()
        if job is not None:
            job.alive()
        if ended:
            self._done, done = self._done + of, 0
        now = time.monotonic()
        if not self._shown or now - self._said < (_BAR_EVERY_S if self._is_terminal else _LINE_EVERY_S):
            return
        self._said = now
        text = progress_text(self._about, self._done + done, self._size_bytes, now - self._began)
        if self._is_terminal:
            self._has_bar = True
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
        else:
            print(f"pawl: {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_bar:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def progress_text(about: str, done: int, size_bytes: int, seconds: float) -> str:
    """As the command says it: "load run/step1200  45 %  2.3 GiB of 5.0 GiB  1.2 GiB/s  2 s left"."""
    done = min(done, size_bytes)
    text = f"{about}  {100 * done // max(1, size_bytes)} %  {_bytes_text(done)} of {_bytes_text(size_bytes)}"
    if not done or seconds <= 0:
        return text
    return f"{text}  {_bytes_text(int(done / seconds))}/s  {round((size_bytes - done) * seconds / done)} s left"


def _bytes_text(size_bytes: int) -> str:
    value, units = float(size_bytes), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1023.95 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{size_bytes} B" if units[0] == "B" else f"{value:.1f} {units[0]}"

"""Starts the ranks of one test of the managed groups, talks to them line by line, and leaves nothing behind.

A rank is `group_rank.py SCENARIO` in a process of its own; it says JSON objects on its standard output and hears some
on its standard input. The ranks rendezvous over files in one directory, which is removed at the end.
"""
from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PATIENCE_S = 120  # for one message on a slow machine; nothing is judged by it


class RankError(AssertionError):
    """A rank said something else than expected, or ended."""


class Rank:
    """One process; `said` are its messages so far."""

    def __init__(self, scenario: str, rank: int, world: int, directory: str, options: dict):
        environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONUNBUFFERED="1",
                           PYTHONPATH=os.pathsep.join([os.path.join(ROOT, "python"), HERE,
                                                       os.path.join(HERE, "lean")]))
        environment.pop("TORCH_DISTRIBUTED_DEBUG", None)
        about = json.dumps({"rank": rank, "world": world, "directory": directory, **options})
        self.rank = rank
        self.errors = open(os.path.join(directory, f"rank{rank}.{time.monotonic_ns()}.err"), "w+b")
        self.process = subprocess.Popen(
            [sys.executable, "-B", os.path.join(HERE, "group_rank.py"), scenario, about], env=environment,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        self.said: list[dict] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def hear(self, what: str, patience_s: float = PATIENCE_S) -> dict:
        """The next message that has the key `what`; others before it are kept in `said`."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise RankError(f"rank {self.rank} never said {what!r}; it said {self.said}{self.trouble()}") from None
            if line is None:
                raise RankError(f"rank {self.rank} ended before it said {what!r}; it said {self.said}{self.trouble()}")
            try:
                message = json.loads(line)
            except ValueError:
                continue  # something that a library printed
            self.said.append(message)
            if what in message:
                return message

    def tell(self, **command: object) -> None:
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and the end of it seen."""
        self.process.kill()
        self.process.wait()

    def trouble(self) -> str:
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace")[-4000:]
        return f"; its standard error ends with:\n{text}" if text else ""

    def end(self) -> int:
        """Waits for the process's own end."""
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise RankError(f"rank {self.rank} does not end; it said {self.said}{self.trouble()}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.kill()
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.errors.close()


class Ranks:
    """All ranks of a scenario; as a context manager it ends them."""

    def __init__(self, scenario: str, world: int, **options: object):
        self.scenario, self.world, self.options = scenario, world, options
        self.directory = tempfile.mkdtemp(prefix="pawl-groups-")
        self.all: list[Rank] = []

    def __enter__(self) -> Ranks:
        self.all = [self._start(rank) for rank in range(self.world)]
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.all:
            rank.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __getitem__(self, rank: int) -> Rank:
        return self.all[rank]

    def _start(self, rank: int, **options: object) -> Rank:
        return Rank(self.scenario, rank, self.world, self.directory, {**self.options, **options})

    def replace(self, rank: int, **options: object) -> Rank:
        """A fresh process in the place of one that is dead."""
        self.all[rank].close()
        self.all[rank] = self._start(rank, **options)
        return self.all[rank]

    def others(self, rank: int) -> list[Rank]:
        return [one for one in self.all if one.rank != rank]

    def hear(self, what: str) -> list[dict]:
        return [rank.hear(what) for rank in self.all]

    def tell(self, **command: object) -> None:
        for rank in self.all:
            rank.tell(**command)

    def end(self) -> list[int]:
        return [rank.end() for rank in self.all]


def run(scenario: str, world: int, what: str, **options: object) -> list[dict]:
    """Runs a scenario to its end; each rank's message with the key `what`."""
    with Ranks(scenario, world, **options) as ranks:
        said = ranks.hear(what)
        codes = ranks.end()
        if any(codes):
            raise RankError(f"exit codes {codes}{''.join(rank.trouble() for rank in ranks.all)}")
        return said

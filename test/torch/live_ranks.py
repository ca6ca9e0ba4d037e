"""Runs a function on some ranks of a gloo group in forked processes, and leaves nothing behind.

Forked, since importing torch is what takes long; so nothing here may start threads before. What a rank returns comes
back pickled; what it raises fails the test with its traceback, unless a test expects that.
"""
from __future__ import annotations

import contextlib
import os
import pickle
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

PATIENCE_S = 120


@dataclass
class Ended:
    """How a rank ended: what it returned, or what it said when it failed, or the signal that killed it."""

    value: Any = None
    trouble: str | None = None
    signal: int = 0


def _rank(directory: str, rank: int, world: int, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    try:
        dist.init_process_group("gloo", store=dist.FileStore(os.path.join(directory, "rendezvous"), world), rank=rank,
                                world_size=world, timeout=timedelta(seconds=60))
        ended = Ended(function(rank, world, *arguments))
    except BaseException as error:
        ended = Ended(trouble=f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    with open(os.path.join(directory, f"making{rank}"), "wb") as file:
        pickle.dump(ended, file)
    os.rename(file.name, os.path.join(directory, f"ended{rank}"))
    with contextlib.suppress(Exception):
        dist.destroy_process_group()


def ends_of(world: int, function: Callable[..., Any], *arguments: Any) -> list[Ended]:
    """`function(rank, world, *arguments)` on every rank at once; how each ended."""
    directory = tempfile.mkdtemp(prefix="pawl-ranks-")
    processes: dict[int, int] = {}
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(world):
            process = os.fork()
            if process == 0:
                try:
                    _rank(directory, rank, world, function, arguments)
                finally:
                    os._exit(0)
            processes[rank] = process
        return _waited(directory, processes)
    finally:
        for process in processes.values():
            with contextlib.suppress(OSError):
                os.kill(process, signal.SIGKILL)
                os.waitpid(process, 0)
        shutil.rmtree(directory, ignore_errors=True)


def _waited(directory: str, processes: dict[int, int]) -> list[Ended]:
    ended: dict[int, Ended] = {}
    deadline = time.monotonic() + PATIENCE_S
    world = len(processes)
    while processes:
        for rank, process in list(processes.items()):
            done, status = os.waitpid(process, os.WNOHANG)
            if done == 0:
                continue
            del processes[rank]
            path = os.path.join(directory, f"ended{rank}")
            if os.WIFSIGNALED(status) or not os.path.exists(path):
                ended[rank] = Ended(trouble="ended without a word", signal=os.WTERMSIG(status))
                continue
            with open(path, "rb") as file:
                ended[rank] = pickle.load(file)
        if time.monotonic() > deadline:
            raise AssertionError(f"ranks {sorted(processes)} don't end; of the others: {ended}")
        time.sleep(0.01)
    return [ended[rank] for rank in range(world)]


def run(world: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What every rank returned. Fails: AssertionError with the first rank's trouble."""
    ends = ends_of(world, function, *arguments)
    for rank, ended in enumerate(ends):
        if ended.trouble is not None:
            raise AssertionError(f"rank {rank}: {ended.trouble}")
    return [ended.value for ended in ends]

"""To DeepSpeed's universal folder: `pawl convert` against plain copies of the same bytes, and DeepSpeed's converter."""
from __future__ import annotations

import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any

import deepspeed_source
from machine import PAWL, Failed, evict, files_below, floor, measured, run_round, size_of
from telling import against_floor, against_peers, goal_line, rates, table

WORKERS = (1, 2, 4)
GOAL_PEAK = 256 << 20  # and two tensors
_COPIES = {"copy, O_DIRECT": "direct", "copy, buffered + sync": "buffered", "copy_file_range + sync": "kernel"}
_HOPELESS = 1.5  # a copy that took so many times the best one's time in the first round isn't run again
_OURS = "pawl convert"


def peer_python() -> str | None:
    """The interpreter that has DeepSpeed."""
    root = pathlib.Path(__file__).resolve().parents[2]
    found = subprocess.run([root / "tools" / "setup-peers", "--python"], capture_output=True, text=True, check=False)
    python = found.stdout.strip()
    if found.returncode != 0 or not python:
        return None
    look = "import importlib.util, sys; sys.exit(not importlib.util.find_spec('deepspeed'))"
    has = subprocess.run([python, "-c", look], capture_output=True, check=False)
    return python if has.returncode == 0 else None


class Conversion:
    def __init__(self, folder: pathlib.Path, size_bytes: int, memory: str) -> None:
        self._folder, self._memory = folder, memory
        self._made = deepspeed_source.make(folder / "source", size_bytes)
        self._source = files_below(self._made.folder)
        self._python = peer_python()
        self._peaks: list[int] = []
        self._written: list[float] = []  # over the result's bytes
        self._seconds_of: dict[int, float] = {}
        for name in ("pawl", "deepspeed"):
            (folder / name).mkdir()

    def run(self, rounds: int, peer_rounds: int) -> dict[str, Any]:
        found = []
        for number in range(rounds):
            tasks = {name: lambda how=how: self._copy(how) for name, how in self._copies(found).items()}
            tasks[_OURS] = self._convert
            if self._python and number < peer_rounds:
                for workers in WORKERS if number == 0 else (self._best(),):
                    tasks[self._name(workers)] = lambda workers=workers: self._deepspeed(workers)
            found.append(run_round("universal", number, tasks))
        return self._told(found)

    @staticmethod
    def _copies(rounds: list[dict[str, float]]) -> dict[str, str]:
        if not rounds:
            return _COPIES
        best = min(rounds[0][name] for name in _COPIES)
        return {name: how for name, how in _COPIES.items() if rounds[0][name] <= _HOPELESS * best}

    @staticmethod
    def _name(workers: int) -> str:
        return f"DeepSpeed's converter, {workers} worker{'s' if workers > 1 else ''} + sync"

    def _best(self) -> int:
        return min(self._seconds_of, key=lambda workers: self._seconds_of[workers])

    def _prepare(self, remove: pathlib.Path) -> None:
        shutil.rmtree(remove, ignore_errors=True)
        os.sync()
        evict(self._source)

    def _copy(self, how: str) -> float:
        target = self._folder / "copy"
        self._prepare(target)
        try:
            return floor("copy", how, target, *self._made.optimizer_files)
        finally:
            target.unlink(missing_ok=True)

    def _convert(self) -> float:
        target = self._folder / "pawl" / "step"
        self._prepare(target)
        memory = ["--memory", self._memory] if self._memory else []
        done = measured([PAWL, "convert", str(self._folder / "source"), str(target), "--to", "universal", *memory])
        self._peaks.append(done.peak_bytes)
        self._written.append(done.written_bytes / sum(path.stat().st_blocks * 512 for path in files_below(target)))
        beside = {path.name for path in (self._folder / "pawl").iterdir()} - {"step", "latest_universal"}
        if beside:
            raise Failed(f"pawl convert left {sorted(beside)} behind")
        return done.seconds

    def _deepspeed(self, workers: int) -> float:
        target = self._folder / "deepspeed" / "step"
        self._prepare(target)
        done = measured([str(self._python), "-m", "deepspeed.checkpoint.ds_to_universal", "--input_folder",
                         str(self._made.folder), "--output_folder", str(target), "--num_extract_workers", str(workers),
                         "--num_merge_workers", str(workers)], os.sync, DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1",
                        CUDA_VISIBLE_DEVICES="")
        self._seconds_of[workers] = min(done.seconds, self._seconds_of.get(workers, done.seconds))
        return done.seconds

    def _equal(self, a: pathlib.Path, b: pathlib.Path, *more: str) -> bool:
        done = subprocess.run([PAWL, "diff", str(a), str(b), *more], capture_output=True, text=True, check=False)
        if done.returncode not in (0, 1):
            raise Failed(f"pawl diff: {done.stderr.strip() or done.stdout.strip()}")
        if done.returncode == 1:
            print(done.stdout, file=sys.stderr)
        return done.returncode == 0

    def _told(self, rounds: list[dict[str, float]]) -> dict[str, Any]:
        ours = self._folder / "pawl" / "step"
        theirs = self._folder / "deepspeed" / "step"
        size = size_of(self._made.optimizer_files)
        found = rates(rounds, lambda _: size)
        peers = [name for name in found if name.startswith("DeepSpeed")]
        return {
            "source_bytes": size_of(self._source), "copied_bytes": size,
            "universal_bytes": size_of(files_below(ours)), "parameters": self._made.parameters, "tasks": found,
            "time_over_copy": against_floor(rounds, _OURS, list(_COPIES)),
            "deepspeed_over_pawl": against_peers(rounds, _OURS, peers),
            "deepspeed_left_out": "" if self._python else "DeepSpeed is not there (tools/setup-peers)",
            "peak_bytes": max(self._peaks), "goal_peak_bytes": GOAL_PEAK + 2 * self._made.tensor_bytes_max,
            "written_over_result": max(self._written),
            "equal_to_source": self._equal(self._folder / "source", ours, "--roles", "master,exp_avg,exp_avg_sq,step"),
            "equal_to_deepspeed": self._equal(ours, theirs) if theirs.exists() else None,
        }


def text_of(told: dict[str, Any]) -> list[str]:
    equal = {True: "equal", False: "**DIFFERENT**", None: "not compared"}
    return [
        f"### To DeepSpeed's universal folder: {told['copied_bytes'] / 1e9:.2f} GB of optimizer state, TP 2 x PP 2 x "
        f"ZeRO-1 over 2, cold", "", *table(told["tasks"]),
        goal_line("pawl's time over the best copy's", told["time_over_copy"], "<= 1.25"),
        goal_line("DeepSpeed's time, at its best number of workers, over pawl's", told["deepspeed_over_pawl"],
                  ">= 4", told["deepspeed_left_out"]),
        f"* peak of pawl's memory: **{told['peak_bytes'] / (1 << 20):.0f} MiB** (goal <= "
        f"{told['goal_peak_bytes'] / (1 << 20):.0f}: 256 and two tensors)",
        f"* written in all over what the result takes: **{told['written_over_result']:.3f}** (goal 1: no copy beside; "
        f"a page that a header and data share counts twice); left beside it: nothing",
        f"* pawl's result and the source by `pawl diff`: {equal[told['equal_to_source']]}; pawl's and DeepSpeed's: "
        f"{equal[told['equal_to_deepspeed']]}", ""]

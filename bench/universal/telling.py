"""From seconds, round by round, to rates and ratios: as numbers and as tables."""
from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

MOVED = 1.15  # past it the floor moved within the run, and its ratios mean little


def spread(values: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "count": len(values)}


def text(found: dict[str, float], digits: int = 2) -> str:
    return f"{found['median']:.{digits}f} [{found['min']:.{digits}f} .. {found['max']:.{digits}f}]"


def rates(rounds: Sequence[dict[str, float]], bytes_of: Callable[[str], int]) -> dict[str, Any]:
    """GB/s of each task, and its seconds."""
    names = sorted({name for each in rounds for name in each})
    found = {}
    for name in names:
        seconds = [each[name] for each in rounds if name in each]
        found[name] = {"seconds": spread(seconds), "gb_per_s": spread([bytes_of(name) / 1e9 / s for s in seconds])}
    return found


def floor_of(rounds: Sequence[dict[str, float]], names: Sequence[str]) -> list[float]:
    """The best of these in each round."""
    return [min(each[name] for name in names if name in each) for each in rounds]


def against_floor(rounds: Sequence[dict[str, float]], ours: str, floors: Sequence[str]) -> dict[str, Any]:
    """Our time over the best floor's of the round."""
    best = floor_of(rounds, floors)
    values = [each[ours] / floor for each, floor in zip(rounds, best, strict=True)]
    return {**spread(values), "floor_moved": max(best) / min(best)}


def against_peers(rounds: Sequence[dict[str, float]], ours: str, peers: Sequence[str]) -> dict[str, Any] | None:
    """How many times as long the best peer takes, in the rounds that have one."""
    values = []
    for each in rounds:
        found = [each[name] for name in peers if name in each]
        if found:
            values.append(min(found) / each[ours])
    return spread(values) if values else None


def table(found: dict[str, Any]) -> list[str]:
    return ["| | GB/s, median [min .. max] | seconds |", "|---|---|---|",
            *(f"| {name} | {text(each['gb_per_s'])} | {text(each['seconds'])} |" for name, each in found.items()), ""]


def goal_line(what: str, found: dict[str, Any] | None, goal: str, left_out: str = "") -> str:
    if found is None:
        return f"* {what}: not measured{': ' + left_out if left_out else ''} (goal {goal})"
    moved = found.get("floor_moved", 1.0)
    void = f"; the floor moved by {100 * (moved - 1):.0f} %: doubtful" if moved > MOVED else ""
    return f"* {what}: **{text(found, 3)}** (goal {goal}){void}"

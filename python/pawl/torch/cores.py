"""The cores that are this rank's, where several ranks of a machine run on the same ones.

Whoever moves bytes keeps all cores busy that it may use, and as many requests with the disk as that takes. Ranks that
each do so with the same cores have more requests on their way than the disk takes, and threads that wait for each
other: each has its share of them instead.
"""
from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction


def boot() -> str:
    """The same in all processes of a machine, whatever containers they are in; "" where the system doesn't tell."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


@dataclass(frozen=True)
class Seat:
    """Where a rank runs."""

    boot: str
    cores: int  # those it may run on: bit n is core n

    @classmethod
    def mine(cls) -> Seat:
        return cls(boot(), sum(1 << core for core in os.sched_getaffinity(0)))


def threads_for(seats: Sequence[Seat], rank: int) -> int:
    """How many of the cores are this rank's, at least one; `seats`: of all ranks. A core that n ranks may run on is
    the n-th part of one to each."""
    mine = seats[rank]
    near = [seat for seat in seats if seat.boot == mine.boot] if mine.boot else [mine]
    share = sum((Fraction(1, sum(seat.cores >> core & 1 for seat in near))
                 for core in range(mine.cores.bit_length()) if mine.cores >> core & 1), Fraction(0))
    return max(1, round(share))

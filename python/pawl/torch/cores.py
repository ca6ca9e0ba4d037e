"""How many threads a rank may use, where several ranks of a machine run on the same cores.

A rank that moves bytes would use all cores that it may run on, with as many disk requests as they can serve. If several
ranks did so on the same cores, the disk would get too many requests, and threads would wait for each other. So each
rank gets its share of the cores.
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
class RankCores:
    """Where a rank runs."""

    boot: str
    cores: int  # those it may run on: bit n is core n

    @classmethod
    def mine(cls) -> RankCores:
        return cls(boot(), sum(1 << core for core in os.sched_getaffinity(0)))


def threads_for(of_ranks: Sequence[RankCores], rank: int) -> int:
    """How many of the cores are this rank's, at least one. A core that n ranks may run on counts for each of them as
    the n-th part of one."""
    mine = of_ranks[rank]
    neighbours = [each for each in of_ranks if each.boot == mine.boot] if mine.boot else [mine]
    share = sum((Fraction(1, sum(each.cores >> core & 1 for each in neighbours))
                 for core in range(mine.cores.bit_length()) if mine.cores >> core & 1), Fraction(0))
    return max(1, round(share))

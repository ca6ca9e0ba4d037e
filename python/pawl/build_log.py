"""What collectives gave before the first step, for seats that are built again later (python/c10d/build_log.h).

The process that runs the script from the job's beginning records; one that comes in anew replays. It finds the log of a
group in the rendezvous of the generation that it joins, where a surviving member of the group has put it. If no member
has any, since all were built anew together, loopback's answers must be the old ones: digests of those are in each
captured state (part()).
Everything here runs in the training thread.
"""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from pawl import groups, script_exit, volatile_state
from pawl._library import Phase, Seat, Trainer
from pawl.errors import Recover, Refused, TimedOut

if TYPE_CHECKING:
    from pawl.protect import Held

WAIT_S = 0.5  # for a log, before it is asked again whether a recovery is pending
COMPARED_MAX = 256  # collectives of a group
NOBODY = b"-"  # a log that no member of the group has; a log is never one byte long


class BuildLog:
    """Of one process. What always holds: in each generation that it joins, each seat says of each group that it knows
    the log of, or lacks the log of, which of the two it is; so nobody waits in vain."""

    def __init__(self, trainer: Trainer, seat: Seat, rejoin: Callable[[], Seat]) -> None:
        """`rejoin`: to the next generation, when a recovery is pending."""
        self._trainer, self._rejoin = trainer, rejoin
        self._late = seat.resume_step > 0
        self._shared_in = 0  # the generation in which the logs were shared last
        self._ended = False
        self._missing: set[tuple[int, str]] = set()  # (generation, group) of which it was said that we lack it
        self._generation = seat.generation
        if self._late:
            groups.replay_build(self._fetch)
        else:
            groups.record_build()

    def end(self) -> None:
        """At the first block. Refuses what can't be given again to a seat that is built later."""
        if self._ended:
            return
        self._ended = True
        groups.end_build()
        own = groups.own_in_build()
        if own:
            raise Refused(f"{own[0]} gives each rank a result of its own, which pawl can't give again to a seat that "
                          f"is built anew after a loss: use a collective whose result all ranks share (all_gather, "
                          f"all_reduce, broadcast), do it inside of a step, or, if nothing depends on it, in "
                          f"job.aside()")

    def settle(self) -> None:
        """Of a seat that is built late, after its rehearsal, so that those who share the logs come to it meanwhile."""
        groups.settle_build()
        left_out = groups.left_out_of_build()
        if left_out:
            raise Refused(f"this seat, which is built anew, did {left_out[0]} that the script did before its first "
                          f"step when the job began: it must do the same each time that it is started, also while "
                          f"job.rehearsal is true. What may be left out belongs into job.aside()")

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """For what nothing depends on."""
        groups.pause_build(True)
        try:
            yield
        finally:
            groups.pause_build(False)

    def share(self, seat: Seat) -> None:
        """Once in each generation that this seat joins after a loss: for those who are built anew in it. If it is lost
        meanwhile, the next one has its own turn."""
        self._generation = seat.generation
        if self._shared_in == seat.generation:
            return
        self._shared_in = seat.generation
        with contextlib.suppress(Recover):
            self._share()

    def _share(self) -> None:
        for group, log in groups.build_log().items():
            if self._trainer.rendezvous_add(f"{_key(group)}/known", 1) == 1:
                self._trainer.rendezvous_set(_key(group), log)
        for group in groups.unknown_in_build():
            self._say_missing(group)

    def part(self) -> volatile_state.Part:
        """Of the volatile state: digests of what this seat was given, compared where it had no log to replay. Those of
        a job of more or fewer ranks say nothing here (other_world.py)."""
        saved = {group: [f"{digest:x}" for _, digest in each[:COMPARED_MAX]]
                 for group, each in groups.digests_in_build().items()}
        return volatile_state.Part("build", lambda: saved, _compare, load_elsewhere=lambda _: groups.trust_build())

    def check(self, held: list[Held]) -> None:
        """Once all that is protected is known: results too big to be kept, which came out differently here, must lie
        in what a restore sets right."""
        for what, address in groups.differing_in_build():
            if not _lies_in(address, held):
                raise Refused(f"the {what} gave this seat, which was built anew, something else than when the job "
                              f"began, and pawl keeps results of up to 64 KiB only: protect the tensor, or make it "
                              f"alike on each rank without a collective")

    def tell_big(self, held: list[Held]) -> None:
        """Before anything is lost, where a loss may end the job: results that are neither kept nor protected."""
        for what, address in groups.big_in_build():
            if not _lies_in(address, held):
                script_exit.say(f"the {what} is too big to be kept (64 KiB), and what it gave is not protected: a seat "
                                f"that is built anew must come to the same, or the job ends then. Protect it, make it "
                                f"alike on each rank without a collective, or, if nothing depends on it, do it in "
                                f"job.aside()")

    def _fetch(self, group: str) -> bytes | None:
        while True:
            try:
                self._say_missing(group)
                self._trainer.progress(Phase.ASIDE)
                found = self._trainer.rendezvous_get(_key(group), WAIT_S)
                return None if found == NOBODY else found
            except TimedOut:
                continue
            except Recover:
                self.share(self._rejoin())

    def _say_missing(self, group: str) -> None:
        """The last member of a group that lacks its log frees those who wait for it."""
        if (self._generation, group) in self._missing:
            return
        self._missing.add((self._generation, group))
        if self._trainer.rendezvous_add(f"{_key(group)}/missing", 1) == _size(group):
            self._trainer.rendezvous_set(_key(group), NOBODY)


def _lies_in(address: int, held: list[Held]) -> bool:
    return any(each.address <= address < each.address + each.memory.nbytes for each in held)


def _compare(saved: dict[str, list[str]]) -> None:
    """Nobody had the log of some groups, so loopback answered for them: as the others did when the job began?"""
    for group in groups.unknown_in_build():
        now, before = groups.digests_in_build()[group], saved.get(group, [])
        for place, (what, digest) in enumerate(now[:COMPARED_MAX]):
            if place >= len(before) or f"{digest:x}" != before[place]:
                raise Refused(f"the {what} gave other values when the job began, and no seat of its group is left that "
                              f"knows them, since all were built anew together: start the job again, or make what it "
                              f"gives alike on each rank without a collective")
    groups.trust_build()


def _key(group: str) -> str:
    return f"pawl/build/{group}"


def _size(group: str) -> int:
    """Of a group by its key: runs of ranks, as in 0-3,6/0."""
    runs = [run.partition("-") for run in group.partition("/")[0].split(",")]
    return sum(int(last or first) - int(first) + 1 for first, _, last in runs)

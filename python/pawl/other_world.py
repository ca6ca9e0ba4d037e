"""A restored state that a job of more or fewer ranks has written: what this job makes of it.

Tensors are cut anew by pawld. What was a rank's own comes from one rank of the other job (rank r mod W for rank r, W
its ranks), so that ranks from W on would draw the random numbers of others. What always holds: of each kind of
generator, what was alike on all ranks stays so; otherwise ranks from W on get their own, by that state, their rank and
the step, the same ones in each try. And what collectives gave while the scripts were built is the same on all ranks,
since nobody is left who knows what it was in the other job. The training thread's.
"""
from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from pawl import volatile_state
from pawl.errors import Refused

if TYPE_CHECKING:
    from pawl._library import Seat, Trainer

MEET_S = 30 * 86400.0  # for the other seats; pawld ends the wait when one can't come
COMPARED_MAX = 256  # collectives of a group, one by one; the others together
ADDS = "all-reduce that adds"  # as python/c10d/managed_group.cc names it in the log
KINDS = ("cuda", "numpy", "python", "torch")  # of volatile_state.save_random(); a rank may lack some


def settle(trainer: Trainer, seat: Seat, origin: volatile_state.Origin, begun_with: dict[str, str],
           say: Callable[[str], None]) -> None:
    """Once in each generation in which such a state was restored, before the ranks connect. `begun_with`: how this
    process's script has made its generators, by kind. Fails: Refused; Recover, Stop."""
    _compare_build(trainer)
    anew = _draw_anew(trainer, seat, origin, begun_with) if seat.world > origin.world else []
    if seat.rank == 0:
        drawn = (f"; ranks from {origin.world} on draw new random numbers ({', '.join(anew)}), by the state of that "
                 f"rank, their own rank and the step" if anew else "")
        say(f"step {seat.resume_step} is of a job of {origin.world} ranks, and this one has {seat.world}: rank r goes "
            f"on from what was rank r mod {origin.world}'s own{drawn}")


def _compare_build(trainer: Trainer) -> None:
    """Where all ranks of a group give the same to a collective, what loopback has answered to each is its result; but
    not where it adds."""
    from pawl import groups
    for group, each in groups.digests_in_build().items():
        adds = [what for what, _ in each if what.startswith(ADDS)]
        if adds:
            raise Refused(f"the {adds[0]} before the first step depends on how many ranks there are, and while they "
                          f"are built nobody can say what it gives in a job of another size: compute it without a "
                          f"collective (pawl.init() says the number of ranks), or resume with as many ranks as wrote "
                          f"the checkpoint")
        mine = [[what, f"{digest:x}"] for what, digest in each[:COMPARED_MAX]]
        rest = hashlib.sha256(repr([(what, digest) for what, digest in each[COMPARED_MAX:]]).encode()).hexdigest()
        mine.append([f"{len(each)} collectives", rest])
        first = trainer.rendezvous_compare_set(f"pawl/world/build/{group}", b"", json.dumps(mine).encode())
        found = json.loads(first)
        if found != mine:
            differ = [one[0] for one, other in zip(mine, found, strict=False) if one != other]
            raise Refused(f"the {differ[0] if differ else 'number of collectives'} may give other values in a job of "
                          f"another size, and ranks, which were built anew together, differ in them: make what it "
                          f"gives alike on each rank without a collective, or resume with as many ranks as wrote the "
                          f"checkpoint")


def _draw_anew(trainer: Trainer, seat: Seat, origin: volatile_state.Origin, begun_with: dict[str, str]) -> list[str]:
    """The kinds of generators of which ranks that are new get their own. Where there was one rank, its state says
    nothing of others; how the scripts begin here does."""
    now = volatile_state.digests_of(volatile_state.save_random())
    anew = [kind for kind in KINDS
            if not _are_alike(trainer, seat, kind, now.get(kind, "none") + (
                begun_with.get(kind, "") if origin.world == 1 else ""))]
    if seat.rank >= origin.world:
        for kind in set(anew) & set(now):
            _seed(kind, f"{now[kind]} {seat.rank} {seat.resume_step}")
    return anew


def _are_alike(trainer: Trainer, seat: Seat, kind: str, mine: str) -> bool:
    """On all ranks. Each comes here."""
    key = f"pawl/world/{kind}"
    if trainer.rendezvous_compare_set(f"{key}/first", b"", mine.encode()) == mine.encode():
        trainer.rendezvous_add(f"{key}/alike", 1)
    if trainer.rendezvous_add(f"{key}/here", 1) == seat.world:
        alike = trainer.rendezvous_add(f"{key}/alike", 0) == seat.world
        trainer.rendezvous_set(f"{key}/all", b"alike" if alike else b"own")
    return trainer.rendezvous_get(f"{key}/all", MEET_S) == b"alike"


def _seed(kind: str, words: str) -> None:
    number = int.from_bytes(hashlib.sha256(f"{kind} {words}".encode()).digest()[:7], "big")
    if kind == "python":
        import random
        random.seed(number)
    elif kind == "numpy":
        import numpy
        numpy.random.seed(number & 0xFFFFFFFF)
    else:
        import torch
        if kind == "cuda":
            torch.cuda.manual_seed(number)
        else:
            torch.default_generator.manual_seed(number)

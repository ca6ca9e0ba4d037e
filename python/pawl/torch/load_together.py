"""A load that all ranks do together: each has planned its part; all is checked, read, and passed on.

Everything is checked on all ranks before any rank writes. After that, no rank returns before all have loaded all of it;
what goes wrong on one raises on all, and the error says that the training holds only a part.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pawl._checkpoint import Read
from pawl.errors import PawlError, Refused
from pawl.torch.cores import RankCores, threads_for
from pawl.torch.load_options import LoadOptions
from pawl.torch.load_plan import LoadPlan, access_of, unused_tensors
from pawl.torch.load_values import set_group
from pawl.torch.ranks import Ranks
from pawl.torch.reading import Sorted, can_pass_on, key_of, pass_on, read_parts, shares_of, sort_parts
from pawl.torch.report import Progress, Report, first_of
from pawl.torch.same_machine_reads import Neighbours

HALF_LOADED = "the training holds neither its old state nor the new, load again before it goes on"


@dataclass
class _Said:
    """What a rank tells the others before anything is read."""

    path: str
    used: set[int]
    tensors: int
    keys: list[bytes]
    devices: set[str]
    ticket: str  # of Neighbours
    names: str | None
    cores: RankCores


def load_planned(options: LoadOptions, ranks: Ranks, look: Callable[[], LoadPlan], plans: list[LoadPlan]) -> Report:
    """All ranks do what `look` plans on each. The plan is left in `plans`, also after a failure: the caller closes its
    checkpoint, and `began` says whether something may have been written."""
    neighbours = Neighbours()
    try:
        said: list[_Said] = ranks.gather(lambda: _say(look, plans, neighbours if ranks.world > 1 else None))
        plan = plans[0]
        plan.threads = threads_for([each.cores for each in said], ranks.rank)
        _check_same(said)
        used = sorted(set().union(*(each.used for each in said)))
        unused = unused_tensors(plan, used, bool(plan.layout.optimizers))
        shared = ranks.world > 1 and can_pass_on(ranks.group, {device for each in said for device in each.devices})
        tickets = [each.ticket if shared and each.names == said[0].names and each.devices <= {"cpu"} else ""
                   for each in said]

        def check() -> bool:
            _check_whole(options, plan, unused, used, ranks)
            return neighbours.join(ranks.rank, tickets)
        neighbours.agree(ranks.gather(check))
        shares = shares_of(plan.bulk, [each.keys for each in said] if shared else [[]], ranks.rank, neighbours.members)
        ranks.left = HALF_LOADED
        mine = [part for holders, parts in shares.items() for part in parts
                if holders[part.reader] == ranks.rank or len(holders) == 1]
        parts = sort_parts(mine, bool(neighbours.members))
        offers = ranks.gather(lambda: neighbours.offer(parts.offered))
        reads = ranks.gather(lambda: _read(options, plan, parts, neighbours, offers, Progress(
            "load", options.path, sum(part.size_bytes for part in mine), shown=ranks.rank == 0)))
    finally:
        neighbours.close()
    if options.verify == "reading":
        seen = " ".join(text for _, text in reads if text)
        ranks.gather(lambda: _whole(lambda: plan.checkpoint.prove(used, ranks.rank, ranks.world, seen=seen or None,
                                                          **access_of(options, plan))))
    try:
        received = pass_on(shares, ranks.rank, ranks.world, ranks.group) if shared else 0
    except RuntimeError as error:  # torch's
        raise PawlError(f"the ranks lost each other while they passed on what they had read ({error}): {HALF_LOADED}"
                        ) from error
    ranks.gather(lambda: _whole(lambda: _finish(plan)))
    return _report(options, plan, unused, [read for read, _ in reads], ranks.rank, received + neighbours.received)


def _say(look: Callable[[], LoadPlan], plans: list[LoadPlan], neighbours: Neighbours | None) -> _Said:
    plan = look()
    plans.append(plan)
    bulk = [each for each in plan.bulk if each.piece.box.count]
    return _Said(plan.checkpoint.path, plan.found.used, len(plan.checkpoint.tensors),
                 [key_of(each.piece) for each in bulk], {each.piece.tensor.device.type for each in bulk},
                 neighbours.ticket() if neighbours is not None else "", plan.checkpoint.names, RankCores.mine())


def _check_same(said: Sequence[_Said]) -> None:
    for rank, each in enumerate(said):
        if (os.path.basename(each.path), each.tensors) != (os.path.basename(said[0].path), said[0].tensors):
            raise Refused(f"ranks load different checkpoints: {said[0].path} with {said[0].tensors} tensors on rank 0, "
                          f"{each.path} with {each.tensors} on rank {rank}")


def _check_whole(options: LoadOptions, plan: LoadPlan, unused: list[str], used: list[int], ranks: Ranks) -> None:
    """The checks that need all ranks' answers; and the stored bytes of what any rank uses, a part of them on each."""
    if unused and options.strict:
        raise Refused(f"{options.path} has tensors that the training lacks: {first_of(unused)} (strict=False leaves "
                      f"them unread)")
    if options.check_replicas:
        tensors = [index for index in used if plan.checkpoint.tensors[index].copies > 1]
        try:
            plan.checkpoint.compare(tensors[ranks.rank::ranks.world], **access_of(options, plan))
        except PawlError as error:
            raise PawlError(f"{error}. Pass trusted_copy=N to take copy N of them") from None
    if options.verify is True:
        stored = sum(plan.checkpoint.tensors[index].bytes for index in used) // ranks.world
        with Progress("check", options.path, stored, shown=ranks.rank == 0) as progress:
            plan.checkpoint.prove(used, ranks.rank, ranks.world, progress, **access_of(options, plan))


def _read(options: LoadOptions, plan: LoadPlan, parts: Sorted, neighbours: Neighbours,
          offers: Sequence[tuple[int, int]], progress: Progress) -> tuple[Read, str]:
    """And what was seen of checksums. What neighbours read for this rank is there when all ranks have returned."""
    plan.began = True

    def read() -> tuple[Read, str]:
        done = read_parts(plan.checkpoint, parts.requests + neighbours.requests(offers), parts.staged, watcher=progress,
                          prove=options.verify == "reading" or None, **access_of(options, plan))
        return done, plan.checkpoint.seen() if options.verify == "reading" else ""
    with progress:
        return _whole(read)


def _whole(work: Callable[[], Any]) -> Any:
    """What `work` returns, which writes into the training. Its errors say what state the training is in."""
    try:
        return work()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: {HALF_LOADED}") from None
    except PawlError as error:
        raise PawlError(f"{error}. Part of it has been read: {HALF_LOADED}") from error
    except Exception as error:
        raise PawlError(f"{type(error).__name__}: {error}: {HALF_LOADED}") from error


def _finish(plan: LoadPlan) -> None:
    with torch.no_grad():
        for each, value in plan.converted:
            each.piece.tensor.copy_(value.view(each.piece.tensor.shape))
    loaded = {id(each.piece) for each in plan.found.matches}
    for piece, number in plan.numbers:
        if id(piece) in loaded:
            number.state[number.key] = type(number.value)(piece.tensor.item())
    for live, saved in plan.groups:
        set_group(live.live, saved)
    if plan.extra_state:
        plan.give_back(plan.extra_state)


def _report(options: LoadOptions, plan: LoadPlan, unused: list[str], reads: Sequence[Read], rank: int, received: int
            ) -> Report:
    checkpoint, found = plan.checkpoint, plan.found
    values = checkpoint.values.get("user") if isinstance(checkpoint.values, dict) else None
    report = Report(options.path, checkpoint.format, matched=[str(each.piece) for each in found.matches],
                    missing=[str(piece) for piece in found.missing], unused=unused,
                    cast=[f"{each.piece}: {each.source.dtype} to {each.piece.dtype}" for each in found.matches
                          if each.is_cast], values=values, kept=plan.kept,
                    notes=[*plan.kept, *checkpoint.notes, *plan.notes])
    report.engine = checkpoint.values.get("deepspeed") if isinstance(checkpoint.values, dict) else None
    report.bytes_loaded = sum(each.piece.size_bytes for each in found.matches)
    report.bytes_read, report.bytes_received = reads[rank].bytes_read, received
    overflowed = sum(read.overflowed for read in reads)  # of all ranks: each may hold what another has read
    if overflowed:
        report.notes.append(f"{overflowed} numbers were beyond the narrower type and became infinite")
    return report

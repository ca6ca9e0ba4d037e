"""Loading any checkpoint into an engine of DeepSpeed, whatever ZeRO stage and number of ranks either has.

    report = pawl.deepspeed.load(engine, "run/step1200")
    epoch = report.values["epoch"]  # the client's state

The promises of pawl.torch.load hold here too: everything is checked on all ranks before anything is written, and after
an error of that check nothing has changed. What the optimizer updates is read, each rank's part on that rank; the
model's weights follow from it by DeepSpeed's own functions.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from pawl._checkpoint import Checkpoint
from pawl.deepspeed.first_state import first_state_of
from pawl.deepspeed.layout import Held, held_by
from pawl.deepspeed.partitions import Partition
from pawl.deepspeed.values import KEY, from_json, plan_values
from pawl.errors import PawlError, Refused
from pawl.torch.boxes import Box, whole
from pawl.torch.load_options import Hints, LoadOptions, NamesFile
from pawl.torch.load_plan import LoadPlan, check_plan, open_for
from pawl.torch.load_together import load_planned
from pawl.torch.load_values import set_extra_state
from pawl.torch.matching import MASTER, OF_THE_MODEL, Match, Sources, is_number, match
from pawl.torch.optimizer_state import CreatedState
from pawl.torch.pieces import Layout, Piece
from pawl.torch.ranks import Ranks
from pawl.torch.reading import request_of
from pawl.torch.report import Report, first_of


@dataclass
class _Wanted:
    """What of a checkpoint goes into the engine, beside the model's weights."""

    optimizer: bool
    scheduler: bool
    counters: bool


@dataclass
class _Numbers:
    """What a partition counts, as it is to be."""

    partition: Partition
    values: dict[str, float]  # by the optimizer's words


@dataclass(eq=False)
class _OfEngine:
    """What is done when everything is read."""

    held: Held
    numbers: list[_Numbers]
    put_values: Callable[[], None]
    client_state: Any


def load(engine: Any, path: str | os.PathLike[str], *, strict: bool = True, optimizer_state: bool = True,
         scheduler: bool = True, counters: bool = True, rename: Callable[[str], str] | None = None,
         hints: Hints | None = None, trusted_copy: int | None = None, check_replicas: bool = True,
         verify: bool = True) -> Report:
    """Fills the engine's training. All ranks call it, between steps, with the same arguments.

    optimizer_state    False: weights alone; the optimizer keeps its state and its hyperparameters
    scheduler          False: the lr scheduler stays as it is
    counters           False: global_steps and the like, and the loss scale, stay as they are
    the others         as for pawl.torch.load

    The report's `values` are the client's state, its `engine` what was saved of DeepSpeed's own. A checkpoint that
    pawl.deepspeed.save didn't write has neither counters nor a scheduler for the engine; then they stay, and the
    report says so. Fails as pawl.torch.load.
    """
    hints = hints or Hints()
    options = LoadOptions(os.fspath(path), strict, hints, trusted_copy, check_replicas, verify)
    ranks = Ranks(None, "nothing was loaded, the engine is as it was")
    wanted, created = _Wanted(optimizer_state, scheduler, counters), CreatedState()
    plans: list[LoadPlan] = []
    of_engine: list[_OfEngine] = []
    done = False
    try:
        with NamesFile(hints.parameter_names) as options.names_file:
            report = load_planned(options, ranks,
                                  lambda: _plan(options, engine, rename, wanted, created, of_engine), plans)
        ranks.gather(lambda: _finish(of_engine[0]))
        done = True
    finally:
        for plan in plans:
            plan.checkpoint.close()
        if not done and not any(plan.began for plan in plans):
            created.take_back()
    report.created, report.values = len(created), of_engine[0].client_state
    return report


# Looking ----------------------------------------------------------------------------------------------------------

def _plan(options: LoadOptions, engine: Any, rename: Callable[[str], str] | None, wanted: _Wanted,
          created: CreatedState, of_engine: list[_OfEngine]) -> LoadPlan:
    held = held_by(engine, rename)
    layout = held.to_load(optimizer=wanted.optimizer)
    checkpoint = open_for(options, layout)
    try:
        sources, notes = Sources(checkpoint, layout.aliases), list[str]()
        numbers, used, missing = list[_Numbers](), set[int](), list[Piece]()
        if layout.optimizers:
            _check_any_state(options, checkpoint)
            _add_state(held, layout, sources, created, notes)
            numbers, used, missing = _numbers(held, checkpoint, sources, options)
        found = match(layout.pieces, sources)
        found.used |= used
        found.missing += missing
        plan = LoadPlan(checkpoint, layout, found, notes=notes)
        plan.give_back = lambda extra: set_extra_state(engine.module, extra, rename or (lambda name: name))
        values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
        put = plan_values(engine, values.get(KEY), scheduler=wanted.scheduler, counters=wanted.counters,
                          strict=options.strict, notes=plan.notes)
        client = from_json(values.get("user"))
        check_plan(options, plan)
        of_engine.append(_OfEngine(held, numbers, put, client))
        return plan
    except BaseException:
        checkpoint.close()
        raise


def _check_any_state(options: LoadOptions, checkpoint: Checkpoint) -> None:
    """An optimizer is not to begin anew in silence. What pawl saved without state had none."""
    values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
    if options.strict and not values.get("param_groups") and all(
            tensor.role in OF_THE_MODEL or tensor.role == MASTER for tensor in checkpoint.tensors):
        raise Refused(f"{options.path} ({checkpoint.format}) has no optimizer state: load it without "
                      f"(optimizer_state=False), or with strict=False")


def _add_state(held: Held, layout: Layout, sources: Sources, created: CreatedState, notes: list[str]) -> None:
    """The state's pieces; where a partition has none yet, and the checkpoint has some for it, it is made first."""
    assert held.partitions is not None
    stateless: list[str] = []
    optimizer = held.partitions.optimizer
    for partition in held.partitions.partitions:
        if not optimizer.state.get(partition.tensor):
            if any(sources.has_state(name) for name in partition.parameters):
                created.put(optimizer, partition.tensor, first_state_of(optimizer, partition))
            else:
                stateless += partition.parameters
        layout.pieces += held.state_pieces(partition)
    if stateless:
        notes.append(f"no optimizer state in the checkpoint, and none here, for {first_of(stateless)}")


def _numbers(held: Held, checkpoint: Checkpoint, sources: Sources, options: LoadOptions
             ) -> tuple[list[_Numbers], set[int], list[Piece]]:
    """What partitions count; which tensors of the checkpoint say it; what it doesn't say. Fails: Refused where one
    partition would have to count two ways."""
    assert held.partitions is not None
    matches: list[tuple[Match, torch.Tensor]] = []
    where: dict[tuple[str, str], torch.Tensor] = {}
    used, missing, numbers = set[int](), list[Piece](), list[_Numbers]()
    for partition in held.partitions.partitions:
        for role, _ in held.numbers(partition):
            for name in partition.parameters:
                memory = torch.zeros((), dtype=torch.float64)
                piece = Piece(name, role, (), whole(()), memory, name)
                source = sources.find(piece)
                if source is None:
                    missing.append(piece)
                    continue
                each = Match(piece, source)
                if not each.is_number or not is_number(piece) or not hasattr(torch, source.dtype):
                    raise Refused(f"{piece}: {source.dtype} {list(source.shape)} in the checkpoint, one number here")
                memory = torch.zeros(tuple(source.shape), dtype=getattr(torch, source.dtype))
                matches.append((each, memory))
                where[name, role] = memory
                used.update(tensor.index for tensor in sources.same_as(piece))
                used.add(source.index)
    _read_numbers(checkpoint, matches, options)
    for partition in held.partitions.partitions:
        values = {role: _agreed(partition, role, where) for role, _ in held.numbers(partition)}
        numbers.append(_Numbers(partition, {role: value for role, value in values.items() if value is not None}))
    return numbers, used, missing


def _read_numbers(checkpoint: Checkpoint, matches: list[tuple[Match, torch.Tensor]], options: LoadOptions) -> None:
    requests = [request_of(Match(Piece(each.piece.name, each.piece.role, each.source.shape,
                                       Box((0,) * memory.dim(), tuple(memory.shape)), memory), each.source),
                           Box((0,) * memory.dim(), tuple(memory.shape)), memory) for each, memory in matches]
    if requests:
        checkpoint.read(requests, trusted_copy=options.trusted_copy)


def _agreed(partition: Partition, role: str, where: dict[tuple[str, str], torch.Tensor]) -> float | None:
    """The one number of all of a partition's parameters. None: none of them has one."""
    found: dict[float, str] = {}
    for name in partition.parameters:
        if (name, role) in where:
            found.setdefault(where[name, role].item(), name)
    if len(found) > 1:
        (one, first), (other, second) = list(found.items())[:2]
        raise Refused(f"{first} was saved with {role} {one:g} and {second} with {role} {other:g}, and DeepSpeed keeps "
                      f"one {role} for both: they are in one flat tensor. Put them into param groups of their own")
    return next(iter(found), None)


# Doing ------------------------------------------------------------------------------------------------------------

def _finish(of_engine: _OfEngine) -> None:
    held = of_engine.held
    try:
        for each in of_engine.numbers:
            assert held.partitions is not None
            _set_numbers(held.partitions.optimizer.state[each.partition.tensor], each.values)
        if held.partitions is not None:
            with torch.no_grad():
                held.partitions.refresh()
        of_engine.put_values()
    except Exception as error:  # DeepSpeed's own means
        raise PawlError(f"everything was read, and then DeepSpeed failed ({type(error).__name__}: {error}): the engine "
                        f"holds neither its old state nor the new, load again before it goes on") from error


def _set_numbers(state: dict[Any, Any], values: dict[str, float]) -> None:
    for key, old in state.items():
        value = values.get(str(key))
        if value is None:
            continue
        if isinstance(old, torch.Tensor):
            state[key] = torch.full_like(old, value)
        else:
            state[key] = type(old)(value)

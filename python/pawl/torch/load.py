"""Loading any checkpoint into a live training, whatever layout either has: straight into the tensors' own memory.

    report = pawl.torch.load("run/global_step1200", model, optimizer)

The source is anything that pawl opens: torch.save, PyTorch DCP, DeepSpeed, Megatron-Core, Hugging Face, safetensors,
pawl's own store; the training is anything that pawl.torch.layout reads. What always holds:
 * everything is looked at before anything is written: names, shapes, types, holes, the checkpoint's own problems and
   checksums, on all ranks. What is refused is refused on all, and nothing has changed: no weight, no state, no
   hyperparameter. Only what goes wrong after that (files that can't be read, a rank that dies, Ctrl-C) leaves a model
   that holds a part: every rank raises then, and says so; no rank returns before all have loaded all of it;
 * strict is the default: a tensor that is missing, and one that nobody wants, are refused by name;
 * what several ranks hold is read once and passed on, and so is what ranks of one machine would pick out of the same
   files in short runs; where layouts agree, reading is all that happens.
Collectives: all ranks of `group` call load() with the same arguments, between steps.
"""
from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from pawl._checkpoint import Checkpoint, Read
from pawl.errors import PawlError, Refused
from pawl.torch.cores import Seat, threads_for
from pawl.torch.layout import Group, Layout, Piece, layout_of, listed, module_prefixes, piece_of_number
from pawl.torch.matching import MASTER, OF_THE_MODEL, WEIGHT, Match, Matching, Sources, match
from pawl.torch.near import Near
from pawl.torch.optimizer_state import CreatedState, inner
from pawl.torch.ranks import Ranks
from pawl.torch.reading import (Sorted, can_pass_on, check_all, is_direct, key_of, pass_on, read_parts, request_of,
                                shares_of, sort_parts, staging_type)
from pawl.torch.report import Progress, Report, first_of

_OF_OPTIMIZER = "optimizer state"  # problems that begin so leave the weights whole
_AS_IT_WAS = "nothing was loaded, the training is as it was"
_HALF = "the training holds neither its old state nor the new, load again before it goes on"


@dataclass
class LoadOptions:
    """What load() was asked for, beside the training."""

    path: str
    strict: bool
    names: str
    open: dict[str, Any]
    trusted_copy: int | None
    check_replicas: bool
    verify: bool | str

    def __post_init__(self) -> None:
        if not isinstance(self.verify, bool) and self.verify != "reading":
            raise Refused(f"verify={self.verify!r}: True, False and 'reading' are possible")


@dataclass
class _Said:
    """What a rank says before anything is read."""

    path: str
    used: set[int]
    tensors: int
    keys: list[bytes]
    devices: set[str]
    ticket: str  # of Near
    names: str | None
    seat: Seat


@dataclass
class LoadPlan:
    """What a rank is going to load."""

    checkpoint: Checkpoint
    layout: Layout
    found: Matching
    converted: list[tuple[Match, torch.Tensor]] = field(default_factory=list)  # numbers that only torch can cast
    numbers: list[tuple[Piece, Any]] = field(default_factory=list)
    groups: list[tuple[Group, dict[str, Any]]] = field(default_factory=list)
    extra_state: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    give_back: Callable[[dict[str, Any]], None] = lambda extra: None  # extra state to the modules
    threads: int | None = None  # of this rank; None: one per core that it may run on
    began: bool = False         # something may have been written

    @property
    def bulk(self) -> list[Match]:
        """All but the numbers that are known already."""
        known = {id(each) for each, _ in self.converted}
        return [each for each in self.found.matches if id(each) not in known]


def load(path: str | os.PathLike[str], model: Any, optimizer: Any = None, *, strict: bool = True,
         group: dist.ProcessGroup | None = None, rename: Callable[[str], str] | None = None, tag: str | None = None,
         parameter_names: str | os.PathLike[str] | Sequence[str] | None = None, names: str = "auto",
         family: str | None = None, attention_heads: int | None = None, query_groups: int | None = None,
         head_size: int | None = None, vocabulary: int | None = None, trusted_copy: int | None = None,
         check_replicas: bool = True, verify: bool | str = True) -> Report:
    """Fills the training that all ranks of `group` (None: the default one; no group: this process alone) hold.

    model, optimizer, rename   as for pawl.torch.save; rename may also lead to the checkpoint's names. An optimizer
                               without state gets it. Its hyperparameters are set, by the parameters' names, where the
                               checkpoint tells them (pawl's store, torch.save, DCP, DeepSpeed; numbers, texts and short
                               lists of them); else they stay, and the report's notes say so.
    strict                     False: what is missing stays as it is, what isn't wanted stays unread; both are reported.
                               Shapes and types that don't go together are refused all the same.
    tag                        which of several checkpoints in a folder
    parameter_names            names in the model's order, or a file of them: for optimizer state keyed by number
    names                      "stored"; "huggingface" or "megatron": rename to these; "auto": rename where the stored
                               names aren't the training's and the others are
    family, attention_heads, query_groups, head_size, vocabulary   what a renaming can't tell from the checkpoint
    trusted_copy               where stored replicas differ, which to take
    check_replicas             False: stored replicas aren't compared before one of each is read
    verify                     when the checksums of pawl's store are looked at. True: first, in a pass of its own, so
                               that nothing has changed where a byte is damaged. "reading": of what is read, with no
                               second pass; a damaged byte is found when the training has it already, and the error
                               says so. False: never

    Fails, with one error on all ranks: Refused for what can be put right in the call; PawlError for the rest.
    """
    options = LoadOptions(os.fspath(path), strict, names, {
        "tag": tag, "family": family, "attention_heads": attention_heads, "query_groups": query_groups,
        "head_size": head_size, "vocabulary": vocabulary}, trusted_copy, check_replicas, verify)
    if names not in ("auto", "stored", "huggingface", "megatron"):
        raise Refused(f"names={names!r}: auto, stored, huggingface and megatron are possible")
    ranks, created = Ranks(group, _AS_IT_WAS), CreatedState()
    plans: list[LoadPlan] = []
    done = False
    try:
        with NamesFile(parameter_names) as names_file:
            options.open["parameter_names_file"] = names_file
            report = load_planned(options, ranks, lambda: _plan(options, model, optimizer, rename, created), plans)
        done = True
        report.created = len(created)
        return report
    finally:
        for plan in plans:
            plan.checkpoint.close()
        if not done and not any(plan.began for plan in plans):
            created.take_back()


def load_planned(options: LoadOptions, ranks: Ranks, look: Callable[[], LoadPlan], plans: list[LoadPlan]) -> Report:
    """What `look` plans on each rank, done by all. The plan is left in `plans`, for the caller to close its checkpoint,
    also where this fails: `began` says then whether something may have been written."""
    near = Near()
    try:
        said: list[_Said] = ranks.gather(lambda: _say(look, plans, near if ranks.world > 1 else None))
        plan = plans[0]
        plan.threads = threads_for([each.seat for each in said], ranks.rank)
        _check_same(said)
        used = sorted(set().union(*(each.used for each in said)))
        unused = _unused(plan, used, bool(plan.layout.optimizers))
        shared = ranks.world > 1 and can_pass_on(ranks.group, {device for each in said for device in each.devices})
        tickets = [each.ticket if shared and each.names == said[0].names and each.devices <= {"cpu"} else ""
                   for each in said]

        def check() -> bool:
            _check_whole(options, plan, unused, used, ranks)
            return near.join(ranks.rank, tickets)
        near.agree(ranks.gather(check))
        shares = shares_of(plan.bulk, [each.keys for each in said] if shared else [[]], ranks.rank, near.members)
        ranks.left = _HALF
        mine = [part for holders, parts in shares.items() for part in parts
                if holders[part.reader] == ranks.rank or len(holders) == 1]
        parts = sort_parts(mine, bool(near.members))
        offers = ranks.gather(lambda: near.offer(parts.offered))
        reads = ranks.gather(lambda: _read(options, plan, parts, near, offers, Progress(
            "load", options.path, sum(part.size_bytes for part in mine), shown=ranks.rank == 0)))
    finally:
        near.close()
    if options.verify == "reading":
        seen = " ".join(text for _, text in reads if text)
        ranks.gather(lambda: _whole(lambda: plan.checkpoint.prove(used, ranks.rank, ranks.world, seen=seen or None,
                                                          threads=plan.threads)))
    try:
        received = pass_on(shares, ranks.rank, ranks.world, ranks.group) if shared else 0
    except RuntimeError as error:  # torch's
        raise PawlError(f"the ranks lost each other while they passed on what they had read ({error}): {_HALF}"
                        ) from error
    ranks.gather(lambda: _whole(lambda: _finish(plan)))
    return _report(options, plan, unused, [read for read, _ in reads], ranks.rank, received + near.received)


# Looking ----------------------------------------------------------------------------------------------------------

def _say(look: Callable[[], LoadPlan], plans: list[LoadPlan], near: Near | None) -> _Said:
    plan = look()
    plans.append(plan)
    bulk = [each for each in plan.bulk if each.piece.box.count]
    return _Said(plan.checkpoint.path, plan.found.used, len(plan.checkpoint.tensors),
                 [key_of(each.piece) for each in bulk], {each.piece.tensor.device.type for each in bulk},
                 near.ticket() if near is not None else "", plan.checkpoint.names, Seat.mine())


def _plan(options: LoadOptions, model: Any, optimizer: Any, rename: Callable[[str], str] | None,
          created: CreatedState) -> LoadPlan:
    layout = layout_of(model, optimizer, rename=rename)
    checkpoint = open_for(options, layout)
    try:
        notes: list[str] = []
        if layout.optimizers:
            layout = _with_state(layout, Sources(checkpoint, layout.aliases), created, notes,
                                 lambda: layout_of(model, optimizer, rename=rename))
            _check_any_state(options, checkpoint, layout)
        numbers = [(piece_of_number(number), number) for number in layout.numbers]
        found = match(layout.pieces + [piece for piece, _ in numbers], Sources(checkpoint, layout.aliases))
        plan = LoadPlan(checkpoint, layout, found, numbers=numbers, notes=notes)
        plan.give_back = lambda extra: set_extra_state(model, extra, rename or (lambda name: name))
        check_plan(options, plan)
        return plan
    except BaseException:
        checkpoint.close()
        raise


def open_for(options: LoadOptions, layout: Layout) -> Checkpoint:
    """The checkpoint, under the names, of those that it can be given, that the training has the most of."""
    first = Checkpoint(options.path, names=None if options.names in ("auto", "stored") else options.names,
                       **options.open)
    if options.names != "auto" or first.names is None:
        return first
    others = "huggingface" if first.names == "megatron" else "megatron"
    weights = [piece for piece in layout.pieces if piece.role == WEIGHT]
    missing = len(match(weights, Sources(first, layout.aliases)).missing)
    if missing == 0:
        return first
    try:
        second = Checkpoint(options.path, names=others, **options.open)
    except Refused:
        return first
    if len(match(weights, Sources(second, layout.aliases)).missing) < missing:
        first.close()
        return second
    second.close()
    return first


def _with_state(layout: Layout, sources: Sources, created: CreatedState, notes: list[str],
                look: Callable[[], Layout]) -> Layout:
    """State for each parameter of the optimizers that has none here and has some in the checkpoint."""
    names_of: dict[int, list[str]] = {}
    for name, parameter in layout.parameters.items():
        names_of.setdefault(id(parameter), []).append(name)
    stateless: list[str] = []
    for optimizer in layout.optimizers:
        keeper = inner(optimizer)
        lacking = [parameter for each in keeper.param_groups for parameter in each["params"]
                   if not keeper.state.get(parameter)]
        stored = [parameter for parameter in lacking
                  if any(sources.has_state(name) for name in names_of.get(id(parameter), ()))]
        stateless += [name for parameter in lacking for name in names_of.get(id(parameter), ())
                      if not sources.has_state(name)]
        created.create(keeper, stored)
    if stateless:
        notes.append(f"no optimizer state in the checkpoint, and none here, for {first_of(stateless)}")
    return look() if len(created) else layout


def _check_any_state(options: LoadOptions, checkpoint: Checkpoint, layout: Layout) -> None:
    """An optimizer that keeps state is not to begin anew in silence. What pawl saved without state had none."""
    values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
    if not options.strict or values.get("param_groups"):
        return
    if any(tensor.role not in OF_THE_MODEL and tensor.role != MASTER for tensor in checkpoint.tensors):
        return
    for optimizer in layout.optimizers:
        if CreatedState.keeps_state(inner(optimizer)):
            raise Refused(f"{options.path} ({checkpoint.format}) has no optimizer state for the "
                          f"{type(optimizer).__name__}: load it without one (optimizer=None), or with strict=False")


# Checking ---------------------------------------------------------------------------------------------------------

def check_plan(options: LoadOptions, plan: LoadPlan) -> None:
    """Everything that can be said without the other ranks. Writes nothing."""
    checkpoint, found = plan.checkpoint, plan.found
    problems = [problem for problem in checkpoint.problems
                if plan.layout.optimizers or not problem.startswith(_OF_OPTIMIZER)]
    if problems and options.strict:
        raise Refused(f"{options.path} is not whole: {first_of(problems)} (strict=False loads what is)")
    plan.notes += [*problems, *found.notes]
    if found.faults:
        raise Refused(f"{options.path} does not fit the training: {first_of(found.faults)}")
    if found.missing and options.strict:
        raise Refused(_missing(options, plan))
    if not found.matches:
        raise Refused(f"{options.path} has none of the training's tensors: {_missing(options, plan)}")
    access = _access(options, plan)
    check_all(checkpoint, found.matches, **access)
    plan.converted = _converted(checkpoint, [each for each in found.matches if each.is_number and not is_direct(each)],
                                access)
    _check_values(options, plan)


def _access(options: LoadOptions, plan: LoadPlan) -> dict[str, Any]:
    return {"trusted_copy": options.trusted_copy, "threads": plan.threads}


def _missing(options: LoadOptions, plan: LoadPlan) -> str:
    missing = [f"{piece} {list(piece.shape)}" for piece in plan.found.missing]
    text = f"{options.path} ({plan.checkpoint.format}) lacks {first_of(missing)}"
    hint = _prefix_hint(plan)
    if hint:
        return f"{text}. {hint}"
    stored = {tensor.role for tensor in plan.checkpoint.tensors}
    words = sorted(stored - {*OF_THE_MODEL, "master"})
    if {piece.role for piece in plan.found.missing}.isdisjoint(OF_THE_MODEL):
        has = f"has {', '.join(words)}" if words else "has no optimizer state"
        return f"{text}. The checkpoint {has}: load it with an optimizer of that class, or without one (optimizer=None)"
    return f"{text} (strict=False leaves what is missing as it is)"


def _prefix_hint(plan: LoadPlan) -> str:
    """Whether all names differ by the same first part."""
    names = [piece.name for piece in plan.found.missing if piece.role in OF_THE_MODEL]
    stored = [tensor.name for tensor in plan.checkpoint.tensors if tensor.role in OF_THE_MODEL]
    if not names:
        return ""
    for name in stored:
        if name.endswith("." + names[0]):
            prefix = name.removesuffix(names[0])
            if all(prefix + each in stored for each in names):
                return f"The checkpoint's names begin with {prefix!r}: say rename=lambda name: {prefix!r} + name"
        elif names[0].endswith("." + name):
            prefix = names[0].removesuffix(name)
            if all(each.startswith(prefix) and each.removeprefix(prefix) in stored for each in names):
                return (f"The checkpoint's names lack the first part {prefix!r}: say rename=lambda name: "
                        f"name.removeprefix({prefix!r})")
    return ""


def _converted(checkpoint: Checkpoint, numbers: Sequence[Match], access: dict[str, Any]
               ) -> list[tuple[Match, torch.Tensor]]:
    """Numbers as the training has them; they have to be the same numbers."""
    if not numbers:
        return []
    stored = [torch.empty(each.piece.box.size, dtype=staging_type(each)) for each in numbers]
    checkpoint.read([request_of(each, each.piece.box, memory) for each, memory in zip(numbers, stored, strict=True)],
                    **access)
    wanted = [memory.to(each.piece.tensor.dtype) for each, memory in zip(numbers, stored, strict=True)]
    faults = [f"{each.piece}: {memory.item()} can't be said as {each.piece.dtype}"
              for each, memory, value in zip(numbers, stored, wanted, strict=True)
              if not torch.equal(value.to(torch.float64), memory.to(torch.float64))]
    if faults:
        raise Refused(first_of(faults))
    return list(zip(numbers, wanted, strict=True))


def _check_same(said: Sequence[_Said]) -> None:
    for rank, each in enumerate(said):
        if (os.path.basename(each.path), each.tensors) != (os.path.basename(said[0].path), said[0].tensors):
            raise Refused(f"ranks load different checkpoints: {said[0].path} with {said[0].tensors} tensors on rank 0, "
                          f"{each.path} with {each.tensors} on rank {rank}")


def _unused(plan: LoadPlan, used: Sequence[int], with_optimizer: bool) -> list[str]:
    taken = set(used)
    names = {plan.checkpoint.tensors[index].name for index in used}
    unused = []
    for tensor in plan.checkpoint.tensors:
        if tensor.index in taken or (tensor.role not in OF_THE_MODEL and not with_optimizer):
            continue
        if tensor.role == "master" and tensor.name in names:
            continue  # its weight was taken
        unused.append(f"{tensor.name} ({tensor.role}) {list(tensor.shape)}")
    return unused


def _check_whole(options: LoadOptions, plan: LoadPlan, unused: list[str], used: list[int], ranks: Ranks) -> None:
    """What needed the other ranks' words; and the stored bytes of what any rank uses, a part of them on each."""
    if unused and options.strict:
        raise Refused(f"{options.path} has tensors that the training lacks: {first_of(unused)} (strict=False leaves "
                      f"them unread)")
    if options.check_replicas:
        tensors = [index for index in used if plan.checkpoint.tensors[index].copies > 1]
        try:
            plan.checkpoint.compare(tensors[ranks.rank::ranks.world], **_access(options, plan))
        except PawlError as error:
            raise PawlError(f"{error}. Say trusted_copy=N to take copy N of them") from None
    if options.verify is True:
        stored = sum(plan.checkpoint.tensors[index].bytes for index in used) // ranks.world
        with Progress("check", options.path, stored, shown=ranks.rank == 0) as progress:
            plan.checkpoint.prove(used, ranks.rank, ranks.world, progress, threads=plan.threads)


# What is no tensor ------------------------------------------------------------------------------------------------

def _check_values(options: LoadOptions, plan: LoadPlan) -> None:
    """What of the checkpoint's values goes where. Fails: Refused where saved groups disagree about one live group."""
    values = plan.checkpoint.values if isinstance(plan.checkpoint.values, dict) else {}
    saved = values.get("param_groups") or []
    if plan.layout.groups and not saved:
        plan.notes.append("the optimizer keeps its own hyperparameters: this checkpoint's can't be told")
    group_of = {name: number for number, each in enumerate(saved) for name in each.get("params", ())}
    for number, live in enumerate(plan.layout.groups):
        found = {group_of[name]: saved[group_of[name]] for name in live.parameters if name in group_of}
        if saved and live.parameters and not found:
            plan.notes.append(f"param group {number} keeps its own hyperparameters: the checkpoint tells none of them")
        plan.groups.append((live, _agreed(number, list(found.values()), plan)))
    extra = values.get("extra_state") or {}
    for name in plan.layout.extra_state:
        if name in extra:
            plan.extra_state[name] = extra[name]
        elif options.strict:
            raise Refused(f"{options.path} lacks {name}, which the model wants to be given back by set_extra_state() "
                          f"(strict=False goes on without)")


def _agreed(number: int, found: list[dict[str, Any]], plan: LoadPlan) -> dict[str, Any]:
    """What pawl saved has to fit; others' trainings are often gone on with in other groups, and by their own rates."""
    try:
        return _one_of(number, found)
    except Refused as error:
        if plan.checkpoint.format.startswith("pawl") and "framework" in plan.checkpoint.values:
            raise  # a converted store names no framework: it is others' all the same
        plan.notes.append(f"param group {number} keeps its own hyperparameters: {error}")
        return {}


def _one_of(number: int, found: list[dict[str, Any]]) -> dict[str, Any]:
    agreed: dict[str, Any] = {}
    for each in found:
        for key, value in each.items():
            if key in ("params", "param_names"):
                continue
            if agreed.setdefault(key, value) != value:
                raise Refused(f"param group {number}: its parameters were saved with {key} {agreed[key]!r} and "
                              f"{value!r}: make the optimizer with the groups that were saved")
    return {key: value for key, value in agreed.items() if all(key in each for each in found)}  # told of all of them


def _set_group(live: dict[str, Any], saved: dict[str, Any]) -> None:
    for key, value in saved.items():
        if key not in live and key != "initial_lr":  # of another version of the optimizer
            continue
        old = live.get(key)
        if isinstance(old, torch.Tensor):
            with torch.no_grad():
                old.fill_(value)
        else:
            live[key] = tuple(value) if isinstance(old, tuple) and isinstance(value, list) else value


def set_extra_state(model: Any, extra: dict[str, Any], rename: Callable[[str], str]) -> None:
    """Gives modules what their get_extra_state() gave, by the checkpoint's names."""
    for module in listed(model):
        for prefix, each in module_prefixes(module):
            name = rename(prefix + "_extra_state")
            if name in extra:
                each.set_extra_state(extra[name])


# Doing ------------------------------------------------------------------------------------------------------------

def _read(options: LoadOptions, plan: LoadPlan, parts: Sorted, near: Near, offers: Sequence[tuple[int, int]],
          progress: Progress) -> tuple[Read, str]:
    """And what was seen of checksums. What ranks near by read for this one is there when all have come back from this.
    """
    plan.began = True

    def read() -> tuple[Read, str]:
        done = read_parts(plan.checkpoint, parts.requests + near.requests(offers), parts.staged, watcher=progress,
                          prove=options.verify == "reading" or None, **_access(options, plan))
        return done, plan.checkpoint.seen() if options.verify == "reading" else ""
    with progress:
        return _whole(read)


def _whole(work: Callable[[], Any]) -> Any:
    """What `work` gives, which writes into the training. What it fails with says what is left."""
    try:
        return work()
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted: {_HALF}") from None
    except PawlError as error:
        raise PawlError(f"{error}. Part of it has been read: {_HALF}") from error
    except Exception as error:
        raise PawlError(f"{type(error).__name__}: {error}: {_HALF}") from error


def _finish(plan: LoadPlan) -> None:
    with torch.no_grad():
        for each, value in plan.converted:
            each.piece.tensor.copy_(value.view(each.piece.tensor.shape))
    loaded = {id(each.piece) for each in plan.found.matches}
    for piece, number in plan.numbers:
        if id(piece) in loaded:
            number.state[number.key] = type(number.value)(piece.tensor.item())
    for live, saved in plan.groups:
        _set_group(live.live, saved)
    if plan.extra_state:
        plan.give_back(plan.extra_state)


def _report(options: LoadOptions, plan: LoadPlan, unused: list[str], reads: Sequence[Read], rank: int, received: int
            ) -> Report:
    checkpoint, found = plan.checkpoint, plan.found
    values = checkpoint.values.get("user") if isinstance(checkpoint.values, dict) else None
    report = Report(options.path, checkpoint.format, matched=[str(each.piece) for each in found.matches],
                    missing=[str(piece) for piece in found.missing], unused=unused,
                    cast=[f"{each.piece}: {each.source.dtype} to {each.piece.dtype}" for each in found.matches
                          if each.is_cast], values=values, notes=[*checkpoint.notes, *plan.notes])
    report.engine = checkpoint.values.get("deepspeed") if isinstance(checkpoint.values, dict) else None
    report.bytes_loaded = sum(each.piece.size_bytes for each in found.matches)
    report.bytes_read, report.bytes_received = reads[rank].bytes_read, received
    overflowed = sum(read.overflowed for read in reads)  # of all ranks: each may hold what another has read
    if overflowed:
        report.notes.append(f"{overflowed} numbers were beyond the narrower type and became infinite")
    return report


class NamesFile:
    """The path of a file of names: the one that was given, or one of the given names for the time being."""

    def __init__(self, given: str | os.PathLike[str] | Sequence[str] | None) -> None:
        self._given = given
        self._made: str | None = None

    def __enter__(self) -> str | None:
        if self._given is None or isinstance(self._given, (str, os.PathLike)):
            return None if self._given is None else os.fspath(self._given)
        handle, self._made = tempfile.mkstemp(prefix="pawl-names-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump(list(self._given), file)
        return self._made

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            os.unlink(self._made)

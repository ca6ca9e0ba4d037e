"""What one rank is going to load, and whether that is possible: decided before anything is written."""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pawl._checkpoint import Checkpoint
from pawl.errors import PawlError, Refused
from pawl.torch.load_options import LoadOptions, NamesFile
from pawl.torch.load_values import plan_values
from pawl.torch.matching import OF_THE_MODEL, Match, Matching, Sources, match
from pawl.torch.pieces import WEIGHT, Group, Layout, Piece
from pawl.torch.reading import check_all, is_direct, request_of, staging_type
from pawl.torch.report import first_of

_OF_OPTIMIZER = "optimizer state"
_UNTOLD_GROUPS = "hyperparameters are left out: "  # in a note: of numbers that nothing names


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
    kept: list[str] = field(default_factory=list)  # sentences: hyperparameters that stay as they are
    notes: list[str] = field(default_factory=list)
    give_back: Callable[[dict[str, Any]], None] = lambda extra: None  # extra state to the modules
    threads: int | None = None  # of this rank; None: one per core that it may run on
    began: bool = False         # something may have been written

    @property
    def bulk(self) -> list[Match]:
        """All but the numbers that are known already."""
        known = {id(each) for each, _ in self.converted}
        return [each for each in self.found.matches if id(each) not in known]


def open_for(options: LoadOptions, layout: Layout) -> Checkpoint:
    """The checkpoint, renamed (if it can be) to the names that most of the training's weights have."""
    first = _open_named(options, layout)
    if options.hints.names != "auto" or first.names is None:
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


def _open_named(options: LoadOptions, layout: Layout) -> Checkpoint:
    """State that is keyed by number, and that nothing in the checkpoint names, gets the names that the numbers have in
    the live optimizer: as torch's own load_state_dict, which goes by number, too."""
    names = None if options.hints.names in ("auto", "stored") else options.hints.names
    first = Checkpoint(options.path, names=names, **options.open)
    is_named = not first.unnamed and not any(is_of_optimizer(problem) for problem in first.problems)
    is_told = is_named and not any(_UNTOLD_GROUPS in note for note in first.notes)
    if is_told or not layout.optimizers or options.names_file is not None:
        return first
    with NamesFile(_live_names(options, layout)) as live:
        try:
            second = Checkpoint(options.path, names=names, **{**options.open, "parameter_names_file": live})
        except PawlError as error:
            if not is_named:
                first.unnamed.append(f"nor are they the live optimizer's: {_without_flags(str(error))}")
            return first
    first.close()
    second.notes = [note.replace("the names that were given", "the live optimizer's names") for note in second.notes]
    return second


def is_of_optimizer(problem: str) -> bool:
    """One that leaves the weights whole."""
    return problem.startswith(_OF_OPTIMIZER)


def _live_names(options: LoadOptions, layout: Layout) -> Any:
    """A list of names for each group; of several optimizers a list of such lists, or a dict of them."""
    order = options.hints.group_order
    names = [group.parameters for group in layout.groups]
    of_each = [names]
    if len(layout.optimizers) > 1:
        counts = [len(optimizer.param_groups) for optimizer in layout.optimizers]
        of_each = [names[sum(counts[:number]):sum(counts[:number + 1])] for number in range(len(counts))]
    if order is not None:
        if [len(order)] != [len(each) for each in of_each]:
            raise Refused(f"group_order names {len(order)} groups, and the live optimizers have "
                          f"{', '.join(str(len(each)) for each in of_each)}")
        of_each = [[of_each[0][number] for number in order]]
    if layout.optimizer_keys:
        return dict(zip(layout.optimizer_keys, of_each, strict=True))
    return of_each[0] if len(of_each) == 1 else of_each


def _without_flags(error: str) -> str:
    """What is wrong with live names, in words of load() instead of the command's."""
    what = error.split("; say it with")[0].split(": say whose they are")[0]
    if what != error and "whose they are" in error:
        return f"{what}: pass optimizer= as a dict, by what leads to each in the checkpoint"
    fitting = re.search(r"in the order ([0-9, ]+) they fit", what)
    if fitting is None:
        return what
    return (f"{what}. If each group's parameters are in the checkpoint's order, pass "
            f"hints=pawl.torch.Hints(group_order=[{fitting[1]}])")


# Checking ---------------------------------------------------------------------------------------------------------

def check_plan(options: LoadOptions, plan: LoadPlan) -> None:
    """All checks that need no other rank. Writes nothing."""
    checkpoint, found = plan.checkpoint, plan.found
    problems = [problem for problem in checkpoint.problems
                if plan.layout.optimizers or not is_of_optimizer(problem)]
    if problems and options.strict:
        raise Refused(f"{options.path} is incomplete: {first_of(problems)} (strict=False loads what is there)")
    unnamed = "; ".join(checkpoint.unnamed if plan.layout.optimizers else [])
    if unnamed and options.strict and _names_hint(plan):  # names of weights come first: numbers get theirs
        raise Refused(_missing(options, plan))
    if unnamed and options.strict:
        raise Refused(f"{options.path}: {unnamed} (optimizer=None loads the weights alone)")
    if checkpoint.unsupported and options.strict:
        raise Refused(f"{options.path} has tensors that are not read: {first_of(checkpoint.unsupported)} (strict=False "
                      f"loads the others)")
    plan.notes += [*problems, *([unnamed] if unnamed else []), *checkpoint.unsupported, *found.notes]
    if found.faults:
        raise Refused(f"{options.path} does not fit the training: {first_of(found.faults)}")
    if found.missing and options.strict:
        raise Refused(_missing(options, plan))
    if not found.matches:
        raise Refused(f"{options.path} has none of the training's tensors: {_missing(options, plan)}")
    access = access_of(options, plan)
    check_all(checkpoint, found.matches, **access)
    plan.converted = _converted(checkpoint, [each for each in found.matches if each.is_number and not is_direct(each)],
                                access)
    plan.groups, plan.extra_state = plan_values(checkpoint, plan.layout, strict=options.strict, kept=plan.kept)


def access_of(options: LoadOptions, plan: LoadPlan) -> dict[str, Any]:
    return {"trusted_copy": options.trusted_copy, "threads": plan.threads}


def _missing(options: LoadOptions, plan: LoadPlan) -> str:
    missing = [f"{piece} {list(piece.shape)}" for piece in plan.found.missing]
    text = f"{options.path} ({plan.checkpoint.format}) lacks {first_of(missing)}"
    hint = _names_hint(plan)
    if hint:
        return f"{text}. {hint}"
    stored = {tensor.role for tensor in plan.checkpoint.tensors}
    words = sorted(stored - {*OF_THE_MODEL, "master"})
    if {piece.role for piece in plan.found.missing}.isdisjoint(OF_THE_MODEL):
        has = f"has {', '.join(words)}" if words else "has no optimizer state"
        return f"{text}. The checkpoint {has}: load it with an optimizer of that class, or without one (optimizer=None)"
    return f"{text} (strict=False leaves what is missing as it is)"


def _names_hint(plan: LoadPlan) -> str:
    """Whether all names differ by the same first part, or by one more part after that."""
    shapes = {piece.name: tuple(piece.shape) for piece in plan.found.missing if piece.role in OF_THE_MODEL}
    names = list(shapes)
    stored = {tensor.name: tuple(tensor.shape) for tensor in plan.checkpoint.tensors if tensor.role in OF_THE_MODEL}
    if not names:
        return ""
    longer = [name.removesuffix(names[0]) for name in stored if name.endswith("." + names[0])]
    longer = [prefix for prefix in longer if all(prefix + each in stored for each in names)]
    fitting = [prefix for prefix in longer if all(stored[prefix + each] == shape for each, shape in shapes.items())]
    longer = fitting or longer
    if len(longer) > 1:
        return (f"The checkpoint has several models of these names, below {', '.join(map(repr, longer))}: pass "
                f"rename=lambda name: {longer[0]!r} + name for the first, and its optimizer as a dict, by what leads "
                f"to it in the checkpoint")
    if longer:
        return f"The checkpoint's names begin with {longer[0]!r}: pass rename=lambda name: {longer[0]!r} + name"
    for name in stored:
        if names[0].endswith("." + name):
            prefix = names[0].removesuffix(name)
            if all(each.startswith(prefix) and each.removeprefix(prefix) in stored for each in names):
                return (f"The checkpoint's names lack the first part {prefix!r}: pass rename=lambda name: "
                        f"name.removeprefix({prefix!r})")
    return _inner_hint(names, stored)


def _inner_hint(names: list[str], stored: Iterable[str]) -> str:
    """Whether the checkpoint has one more part after each first one: "G.model.0.weight" for "G.0.weight"."""
    inner: dict[str, set[str]] = {}  # by the first part
    for name in stored:
        first, _, rest = name.partition(".")
        for at, letter in enumerate(rest):
            if letter == ".":
                inner.setdefault(f"{first}.{rest[at + 1:]}", set()).add(f"{first}.{rest[:at]}")
    found = {name.partition(".")[0]: inner.get(name, set()) for name in names}
    if any(len(inner.get(name, ())) != 1 or inner[name] != found[name.partition(".")[0]] for name in names):
        return ""
    told = ", ".join(f"{first!r} here is {''.join(longer)!r} in the checkpoint" for first, longer in found.items())
    return f"{told}: name the models so in a torch.nn.ModuleDict of torch.nn.ModuleDict, or pass rename="


def _converted(checkpoint: Checkpoint, numbers: Sequence[Match], access: dict[str, Any]
               ) -> list[tuple[Match, torch.Tensor]]:
    """Numbers as the training has them; they have to be the same numbers, but for a step that float32 doesn't have."""
    if not numbers:
        return []
    stored = [torch.empty(each.piece.box.size, dtype=staging_type(each)) for each in numbers]
    checkpoint.read([request_of(each, each.piece.box, memory) for each, memory in zip(numbers, stored, strict=True)],
                    **access)
    wanted = [memory.to(each.piece.tensor.dtype) for each, memory in zip(numbers, stored, strict=True)]
    faults = [f"{each.piece}: {memory.item()} can't be represented as {each.piece.dtype}"
              for each, memory, value in zip(numbers, stored, wanted, strict=True)
              if not _is_rounded(each) and not torch.equal(value.to(torch.float64), memory.to(torch.float64))]
    if faults:
        raise Refused(first_of(faults))
    return list(zip(numbers, wanted, strict=True))


def _is_rounded(match: Match) -> bool:
    """Optimizers count in float32: torch's own load rounds an integer step beyond 2^24 to it."""
    return match.piece.role == "step" and match.piece.dtype == "float32" and match.source.dtype == "int64"


def unused_tensors(plan: LoadPlan, used: Sequence[int], with_optimizer: bool) -> list[str]:
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

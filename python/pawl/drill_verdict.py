"""The verdict of a drill: what differs first between two runs, why that is likely, and what to do about it. Pure.

A run is what its trainers wrote down (drill_record.py). Every execution of a step, also one that a recovery undid, must
have the same bits as in the undisturbed run. At the end, unprotected state must be equal too: averaged weights, for
example, may never show in a loss. Whatever differs between two undisturbed runs is not the recovery's fault and is left
out. Causes are likely, not proven: they rest on what differed when the first differing step began. No torch, no
processes.
"""
from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

DIGEST_CHARACTERS = 16
STATE_KINDS = ("tensor", "module", "optimizer", "stateful", "generator")  # training state; other kinds are for people
FEEDING = re.compile(r"sampl|load|batch|data|shuffl|order|index|indic|epoch|position|cursor|stream|feed|perm", re.I)
NAMED_MAX = 3

Unprotected = tuple[str, str, str, str]  # kind, digest, shown, owner (unprotected_state.py)


@dataclass(frozen=True)
class Execution:
    """A step as one process finished it."""

    step: int
    seat: int
    pid: int
    generation: int
    t_ns: int
    losses: list[dict[str, Any]]
    inputs: list[str]
    samples: list[dict[str, Any]]
    tensors: dict[str, str]
    volatile: dict[str, str]
    unprotected: dict[str, Unprotected]  # when the step began


@dataclass
class Run:
    """{(step, seat): executions in the order of time}."""

    done: dict[tuple[int, int], list[Execution]] = field(default_factory=dict)

    def steps(self) -> int:
        """The last step that every seat has finished."""
        last: dict[int, int] = {}
        for step, seat in self.done:
            last[seat] = max(step, last.get(seat, 0))
        return min(last.values(), default=0)

    def seats(self) -> set[int]:
        return {seat for _, seat in self.done}

    def redone(self) -> int:
        """Steps that some seat has finished more than once."""
        return len({step for (step, _), executions in self.done.items() if len(executions) > 1})

    def step_s(self) -> float:
        """The median time between two steps."""
        seat = min(self.seats(), default=0)
        times = sorted(each[0].t_ns for (_, at), each in self.done.items() if at == seat)
        between = sorted(later - earlier for earlier, later in zip(times, times[1:], strict=False))
        return between[len(between) // 2] / 1e9 if between else 0.0


def read_run(folder: str) -> Run:
    """What the trainers wrote to `folder`; a torn last line (they were killed) is left out."""
    run = Run()
    for path in sorted(glob.glob(os.path.join(folder, "seat*.jsonl"))):
        names: list[str] = []
        unprotected: dict[str, Unprotected] = {}
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    entry = json.loads(line)
                except ValueError:
                    continue
                names = entry.get("names", names)
                unprotected = _changed(unprotected, entry["unprotected"])
                execution = _execution(entry, names, unprotected)
                run.done.setdefault((execution.step, execution.seat), []).append(execution)
    for executions in run.done.values():
        executions.sort(key=lambda each: each.t_ns)
    return run


def _changed(unprotected: dict[str, Unprotected], changes: dict[str, Any]) -> dict[str, Unprotected]:
    after = {path: each for path, each in unprotected.items() if changes.get(path, each) is not None}
    after.update({path: (each[0], each[1], each[2], each[3]) for path, each in changes.items() if each is not None})
    return after


def _execution(entry: dict[str, Any], names: list[str], unprotected: dict[str, Unprotected]) -> Execution:
    digests = [entry["tensors"][begin:begin + DIGEST_CHARACTERS]
               for begin in range(0, len(entry["tensors"]), DIGEST_CHARACTERS)]
    return Execution(entry["step"], entry["seat"], entry["pid"], entry["generation"], entry["t_ns"], entry["losses"],
                     entry["inputs"], entry["samples"], dict(zip(names, digests, strict=False)), entry["volatile"],
                     unprotected)


# What differs first -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Difference:
    """`what`: inputs, samples, loss, tensor, volatile, or missing. `again`: the step was done before in the same
    run."""

    step: int
    seat: int
    what: str
    detail: str
    again: bool = False
    moved: bool = False  # by another process than the first one of that seat

    def shown(self) -> str:
        by = ", done again after a recovery" if self.again else ", by the process that took over" if self.moved else ""
        return f"step {self.step}, seat {self.seat}{by}: {self.detail}"


def first_difference(reference: Run, other: Run) -> Difference | None:
    """None: every execution of every step has the bits of the reference."""
    places = sorted(set(reference.done) | set(other.done))
    for place in places:
        theirs = reference.done.get(place)
        if not theirs:
            return Difference(*place, "missing", "the undisturbed run never came to this step")
        for number, execution in enumerate(other.done.get(place, [])):
            found = _compare(theirs[0], execution)
            if found is not None:
                pids = {each.pid for at, executions in other.done.items() if at[1] == place[1] and at[0] < place[0]
                        for each in executions}
                return Difference(*place, *found, again=number > 0, moved=bool(pids) and execution.pid not in pids)
    return _missing(reference, other)


def _missing(reference: Run, other: Run) -> Difference | None:
    for place in sorted(reference.done):
        if place not in other.done:
            return Difference(*place, "missing", "it was never finished, where the undisturbed run did finish it")
    return None


def _compare(reference: Execution, other: Execution) -> tuple[str, str] | None:
    """What comes first within a step comes first: what it was given, its loss, what it left behind."""
    if reference.samples != other.samples:
        return "samples", f"the sampler gave other samples: {_samples(other)}, undisturbed {_samples(reference)}"
    if reference.inputs != other.inputs:
        return "inputs", "the model was given other inputs"
    if [each["bits"] for each in reference.losses] != [each["bits"] for each in other.losses]:
        return "loss", f"the loss is {_losses(other)}, undisturbed {_losses(reference)}"
    for what, ours, theirs in (("tensor", other.tensors, reference.tensors),
                               ("volatile", other.volatile, reference.volatile)):
        names = [name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name)]
        if names:
            return what, f"{_named(names)} {'differs' if len(names) == 1 else 'differ'} after the step"
    return None


def _samples(execution: Execution) -> str:
    return "; ".join(f"{each['ids'][:4]} ... at sample {each['position']}" for each in execution.samples)


def _losses(execution: Execution) -> str:
    return ", ".join(str(each["value"]) if each["value"] is not None else f"of bits {each['bits']}"
                     for each in execution.losses) or "not there"


def _named(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED_MAX])
    return shown if len(names) <= NAMED_MAX else f"{shown} and {len(names) - NAMED_MAX} more"


# What was not protected ------------------------------------------------------------------------------

@dataclass(frozen=True)
class Suspect:
    """Something unprotected that is not what it is in the undisturbed run."""

    path: str
    kind: str
    shown: str
    owner: str
    step: int
    seat: int

    def feeds(self) -> bool:
        """Whether it probably decides which samples come next."""
        return self.kind == "iterator" or bool(FEEDING.search(f"{self.path} {self.owner} {self.shown}"))

    def named(self) -> str:
        owner = f" of {self.owner}" if self.owner and "." in self.path else ""
        return f"`{self.path}`{owner} ({self.shown})"


def unprotected_at(reference: Run, other: Run, step: int, seats: Iterable[int], besides: set[str]) -> list[Suspect]:
    """What differs when `step` begins, on any of `seats`; without the paths in `besides`."""
    found: dict[str, Suspect] = {}
    for seat in seats:
        theirs = reference.done.get((step, seat))
        for execution in other.done.get((step, seat), []) if theirs else []:
            ours, undisturbed = execution.unprotected, theirs[0].unprotected if theirs else {}
            for path in {**ours, **undisturbed}:
                if path not in besides and path not in found and ours.get(path) != undisturbed.get(path):
                    kind, _, shown, owner = ours.get(path) or undisturbed[path]
                    found[path] = Suspect(path, kind, shown, owner, step, seat)
    return sorted(found.values(), key=lambda each: (STATE_KINDS + ("iterator", "value", "file")).index(each.kind))


def unprotected_to_the_end(reference: Run, other: Run, besides: set[str]) -> list[Suspect]:
    """What still differs when the last step begins: what comes right by itself meanwhile is no state."""
    last = min(reference.steps(), other.steps())
    return unprotected_at(reference, other, last, sorted(reference.seats()), besides) if last else []


def unsteady_paths(first: Run, second: Run) -> set[str]:
    """What differs between two undisturbed runs: times, process ids, and whatever depends on them."""
    return {suspect.path for step in range(1, min(first.steps(), second.steps()) + 1)
            for suspect in unprotected_at(first, second, step, sorted(first.seats()), set())}


# Why --------------------------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Verdict:
    """`kind`: equal, differs, state (what was trained is equal, something unprotected is not), itself (two undisturbed
    runs differ). `notes`: what nobody trains on, but people may look at."""

    kind: str
    first: str = ""
    cause: str = ""
    remedy: str = ""
    notes: tuple[str, ...] = ()

    def sound(self) -> bool:
        return self.kind == "equal"


def judge(reference: Run, disturbed: Run, again: Run | None, rehearsed: list[str] | None = None) -> Verdict:
    """`again`: a second undisturbed run, where there is one. `rehearsed`: files before which rehearsing spares were
    stopped."""
    rehearsed = rehearsed or []
    besides = unsteady_paths(reference, again) if again is not None else set()
    if again is not None:
        itself = first_difference(reference, again)
        if itself is not None:
            return _differs_from_itself(itself, besides, reference, again)
    difference = first_difference(reference, disturbed)
    ending = unprotected_to_the_end(reference, disturbed, besides)
    if difference is not None:
        return _differs(difference, reference, disturbed, besides, rehearsed)
    notes = tuple(_note(suspect) for suspect in ending if suspect.kind not in STATE_KINDS) + _rehearsal_notes(rehearsed)
    states = [suspect for suspect in ending if suspect.kind in STATE_KINDS]
    if not states:
        return Verdict("equal", notes=notes)
    first = _earliest(states, reference, disturbed, besides)
    return Verdict("state", f"step {first.step}, seat {first.seat}: {_named([each.named() for each in states])} "
                            f"{'is not what it is' if len(states) == 1 else 'are not what they are'} in the "
                            f"undisturbed run",
                   "state that isn't protected: losses and protected state are equal, but "
                   f"{'this was' if len(states) == 1 else 'these were'} not taken back when steps were undone",
                   _remedy(states[0]), notes)


def needs_another_run(reference: Run, disturbed: Run) -> bool:
    """Whether something differs, so that an undisturbed run must show whether it does so by itself."""
    if first_difference(reference, disturbed) is not None:
        return True
    return bool(unprotected_to_the_end(reference, disturbed, set()))


def _earliest(states: list[Suspect], reference: Run, disturbed: Run, besides: set[str]) -> Suspect:
    """The first of them again, where it began to differ."""
    for step in range(1, reference.steps() + 1):
        for suspect in unprotected_at(reference, disturbed, step, sorted(reference.seats()), besides):
            if suspect.path == states[0].path:
                return suspect
    return states[0]


def _differs(difference: Difference, reference: Run, disturbed: Run, besides: set[str],
             rehearsed: list[str]) -> Verdict:
    suspects = unprotected_at(reference, disturbed, difference.step, sorted(reference.seats()), besides)
    feeding = [suspect for suspect in suspects if suspect.feeds()]
    notes = _rehearsal_notes(rehearsed)
    if difference.what in ("inputs", "samples"):
        if feeding:
            return Verdict("differs", difference.shown(),
                           f"a sampler that isn't restored: {_named([each.named() for each in feeding])} "
                           f"{'was' if len(feeding) == 1 else 'were'} not taken back to the step from which the job "
                           f"went on, so other samples came",
                           _sampler_remedy(feeding[0]), notes)
        if not suspects:
            return Verdict("differs", difference.shown(),
                           "samples come from something that can't be taken back: an iterator, a file or a stream that "
                           "the drill can't look into", _SAMPLER, notes)
    if suspects:
        return Verdict("differs", difference.shown(),
                       f"state that isn't protected: {_named([each.named() for each in suspects])} "
                       f"{'was' if len(suspects) == 1 else 'were'} not taken back when the step was undone",
                       _remedy(suspects[0]), notes)
    return Verdict("differs", difference.shown(),
                   "unknown: nothing that the loop carries differed when the step began; it may be state out of sight "
                   "(a C extension, another process, a file), or a fault of pawl",
                   "look at the records of both runs (--keep DIR), and tell us", notes)


def _differs_from_itself(difference: Difference, besides: set[str], reference: Run, again: Run) -> Verdict:
    suspects = unprotected_at(reference, again, difference.step, sorted(reference.seats()), set())
    at_begin = f" When that step began, {_named([each.named() for each in suspects])} differed." if suspects else ""
    return Verdict("itself", difference.shown(),
                   f"the script differs from itself without faults: two undisturbed runs are not equal, so no recovery "
                   f"can be shown to be exact.{at_begin}",
                   "seed every generator (torch.manual_seed, random.seed, torch.Generator), take nothing from the "
                   "clock, and let each rank compute with one thread (OMP_NUM_THREADS=1, "
                   "torch.use_deterministic_algorithms(True))")


def _note(suspect: Suspect) -> str:
    if suspect.kind == "file":
        return f"{suspect.named()} holds lines of steps that were done twice: write in step.on_commit(...)"
    return (f"{suspect.named()} counts steps that were undone, too; nothing that was trained depends on it; remedy: "
            f"{_remedy(suspect)}")


def _rehearsal_notes(rehearsed: list[str]) -> tuple[str, ...]:
    if not rehearsed:
        return ()
    return (f"the rehearsal of a spare was stopped before it touched {_named(rehearsed)}, so that spare starts cold: "
            f"write in step.on_commit(...), or not while job.rehearsal is true",)


_SAMPLER = "draw samples with pawl.ElasticSampler and hand it to job.protect()"


def _sampler_remedy(suspect: Suspect) -> str:
    owner, how = _owner(suspect.path)
    if suspect.kind == "iterator" or how == "variable":
        return f"{_SAMPLER}, instead of `{suspect.path}`"
    return f"hand it to job.protect(..., {owner}), or {_SAMPLER}"


def _remedy(suspect: Suspect) -> str:
    """What is handed over is taken back in place: an object by its attributes, a container by what is in it."""
    owner, how = _owner(suspect.path)
    if suspect.kind in ("module", "optimizer", "stateful", "generator"):
        return f"hand it to job.protect(..., {suspect.path})"
    if suspect.kind == "iterator":
        return "compute it from the step's number: an iterator can't be taken back"
    if suspect.kind == "tensor":
        kept = owner if how == "item" else suspect.path
        return f"job.protect(state={{{_key(kept)}: {kept}}}), and change it in place only"
    if how == "attribute":
        return f"hand it to job.protect(..., {owner}), or act in step.on_commit(...)"
    if how == "item":
        return f"job.protect(state={{{_key(owner)}: {owner}}})"
    if " of " in suspect.shown:
        return f"job.protect(state={{{_key(owner)}: {owner}}}), or act in step.on_commit(...)"
    return f"keep it in a dict that is protected: kept = {{{_key(owner)}: ...}}; job.protect(state=kept)"


def _owner(path: str) -> tuple[str, str]:
    """Who has it, and how: an attribute of an object, an item of a container, or a variable by itself."""
    item = re.fullmatch(r"(.+?)\[(?:'[^']*'|\"[^\"]*\"|[^\[\]]*)\]", path)
    if item is not None:
        return item[1], "item"
    owner, dot, _ = path.rpartition(".")
    return (owner, "attribute") if dot else (path, "variable")


def _key(path: str) -> str:
    return '"' + re.sub(r"\W+", "_", path).strip("_") + '"'

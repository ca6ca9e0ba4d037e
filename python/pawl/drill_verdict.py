"""The verdict of a drill: what differs first between two runs, why that is likely, and what to do about it. Pure.

A run is what its trainers wrote down (drill_record.py). Every execution of a step, also one that a recovery undid, must
have the same bits as in the undisturbed run, and so must what a process begins with after a recovery. At the end,
unprotected state must be equal too: averaged weights, for example, may never show in a loss. Whatever differs between
two undisturbed runs is not the recovery's fault and is left out. Causes are likely, not proven: they rest on what
differed when the first differing step began. No torch, no processes.
"""
from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

DIGEST_CHARACTERS = 16
STATE_KINDS = ("tensor", "module", "optimizer", "stateful", "generator")  # training state; other kinds are for people
FEEDING = re.compile(r"sampl|load|batch|data|shuffl|order|index|indic|epoch|position|cursor|stream|feed|perm", re.I)
NAMED_MAX = 3
EARLY_STEPS = 2  # in which an optimizer's state appears as a rule
RANDOM = "random numbers of "

Unprotected = tuple[str, str, str, str]  # kind, digest, shown, owner (unprotected_state.py)
Found = tuple[str, str, tuple[str, ...]]  # of a Difference: what, detail, names
_SETTING = re.compile(r"(?P<optimizer>.+)\['groups'\]\[\d+\]\[\d+\]\['(?P<key>\w+)'\].*")
_OF_TENSOR = re.compile(r"(?P<name>.+) \((?P<role>\w+)\)")
_OPTIMIZER_STATE = re.compile(r".+ \((?!weight\)|buffer\)|nonpersistent_buffer\))\w+\)")
_STATE = re.compile(r"state\d+(\['(?:whole|variables)'\])?")  # what job.protect(state=) was given
_KINDS_INSIDE = re.compile(r"\['(?:dict|OrderedDict|Counter|list|plain list|value|object|set|tensor|array|same)'\]"
                           r"|\['(?:attributes|deque)'\]\[1\]")


@dataclass(frozen=True)
class Execution:
    """A step as one process finished it."""

    step: int
    seat: int
    pid: int
    generation: int
    t_ns: int
    losses: list[dict[str, Any]]
    inputs: list[list[str]]  # digest and name
    samples: list[dict[str, Any]]
    tensors: dict[str, str]
    volatile: dict[str, str]
    unprotected: dict[str, Unprotected]  # when the step began


@dataclass(frozen=True)
class Begin:
    """Of a step's block, in one process; whether it ended or not."""

    step: int
    seat: int
    pid: int
    generation: int
    t_ns: int
    unprotected: dict[str, Unprotected]
    tensors: dict[str, str] | None = None   # protected state, where it was written down
    volatile: dict[str, str] | None = None


@dataclass
class Run:
    """{(step, seat): executions in the order of time}, and what each began with."""

    done: dict[tuple[int, int], list[Execution]] = field(default_factory=dict)
    begun: dict[tuple[int, int], list[Begin]] = field(default_factory=dict)
    clocks: list[str] = field(default_factory=list)  # places of the script that take times or seeds

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
                if "begin" in entry:
                    unprotected = _changed(unprotected, entry["unprotected"])
                    begin = _begin(entry, names, unprotected)
                    run.begun.setdefault((begin.step, begin.seat), []).append(begin)
                    run.clocks += [each for each in entry.get("clocks", []) if each not in run.clocks]
                    continue
                execution = _execution(entry, names, unprotected)
                run.done.setdefault((execution.step, execution.seat), []).append(execution)
    for executions in run.done.values():
        executions.sort(key=lambda each: each.t_ns)
    for begins in run.begun.values():
        begins.sort(key=lambda each: each.t_ns)
    return run


def _changed(unprotected: dict[str, Unprotected], changes: dict[str, Any]) -> dict[str, Unprotected]:
    after = {path: each for path, each in unprotected.items() if changes.get(path, each) is not None}
    after.update({path: (each[0], each[1], each[2], each[3]) for path, each in changes.items() if each is not None})
    return after


def _begin(entry: dict[str, Any], names: list[str], unprotected: dict[str, Unprotected]) -> Begin:
    return Begin(entry["begin"], entry["seat"], entry["pid"], entry["generation"], entry["t_ns"], unprotected,
                 _tensors(entry, names) if "tensors" in entry else None, entry.get("volatile"))


def _execution(entry: dict[str, Any], names: list[str], unprotected: dict[str, Unprotected]) -> Execution:
    return Execution(entry["step"], entry["seat"], entry["pid"], entry["generation"], entry["t_ns"], entry["losses"],
                     entry["inputs"], entry["samples"], _tensors(entry, names), entry["volatile"], unprotected)


def _tensors(entry: dict[str, Any], names: list[str]) -> dict[str, str]:
    digests = [entry["tensors"][begin:begin + DIGEST_CHARACTERS]
               for begin in range(0, len(entry["tensors"]), DIGEST_CHARACTERS)]
    return dict(zip(names, digests, strict=False))


# What differs first -----------------------------------------------------------------------------------------------

@dataclass(frozen=True)
class Difference:
    """`what`: restored (what a process began with after a recovery), samples, inputs, loss, settings (of an optimizer),
    tensor, volatile, random, or missing. `names`: of what differs. `again`: the step was done before in the same
    run."""

    step: int
    seat: int
    what: str
    detail: str
    again: bool = False
    moved: bool = False  # by another process than the first one of that seat
    names: tuple[str, ...] = ()

    def shown(self) -> str:
        by = ", done again after a recovery" if self.again else ", by the process that took over" if self.moved else ""
        return f"step {self.step}, seat {self.seat}{by}: {self.detail}"


def first_difference(reference: Run, other: Run) -> Difference | None:
    """None: every execution of every step has the bits of the reference."""
    for place in sorted({*reference.done, *other.done, *other.begun}):
        for begin in other.begun.get(place, []):
            found = _compare_begins(reference, begin)
            if found is not None:
                what, detail, names = found
                return Difference(*place, what, detail, moved=_moved(other, place, begin.pid), names=names)
        theirs = reference.done.get(place)
        if not theirs and place in other.done:
            return Difference(*place, "missing", "the undisturbed run never came to this step")
        for number, execution in enumerate(other.done.get(place, [])):
            found = _compare(theirs[0], execution) if theirs else None
            if found is not None:
                what, detail, names = found
                return Difference(*place, what, detail + _since(reference, place, names), again=number > 0,
                                  moved=_moved(other, place, execution.pid), names=names)
    return _missing(reference, other)


def _moved(run: Run, place: tuple[int, int], pid: int) -> bool:
    pids = {each.pid for at, executions in run.done.items() if at[1] == place[1] and at[0] < place[0]
            for each in executions}
    return bool(pids) and pid not in pids


def _compare_begins(reference: Run, begin: Begin) -> Found | None:
    theirs = next((each for each in reference.begun.get((begin.step, begin.seat), []) if each.tensors is not None),
                  None)
    if begin.tensors is None or theirs is None:
        return None
    for ours, known in ((begin.tensors, theirs.tensors or {}), (begin.volatile or {}, theirs.volatile or {})):
        names = _differing(ours, known)
        if names:
            return "restored", (f"{_described(names)} {_is(names)} not what the undisturbed run had when the step began"
                                + _since(reference, (begin.step, begin.seat), names)), names
    return None


def _since(reference: Run, place: tuple[int, int], names: tuple[str, ...]) -> str:
    """When state appeared that was not there, or was nothing, from the first steps on."""
    steps = sorted(step for step, seat in reference.done if seat == place[1])
    for name in names[:1]:
        if _OPTIMIZER_STATE.fullmatch(name):
            values = [(step, reference.done[step, place[1]][0].tensors.get(name)) for step in steps]
            later = [step for step, value in values if value != values[0][1]]
            if later and later[0] > EARLY_STEPS:
                return f"; it appeared at step {later[0]}"
    return ""


def _missing(reference: Run, other: Run) -> Difference | None:
    for place in sorted(reference.done):
        if place not in other.done:
            return Difference(*place, "missing", "it was never finished, where the undisturbed run did finish it")
    return None


def _compare(reference: Execution, other: Execution) -> Found | None:
    """What comes first within a step comes first: what it was given, its loss, what it left behind."""
    if reference.samples != other.samples:
        return "samples", f"the sampler gave other samples: {_samples(other)}, undisturbed {_samples(reference)}", ()
    if reference.inputs != other.inputs:
        given = tuple(ours[1] for ours, theirs in zip(other.inputs, reference.inputs, strict=False) if ours != theirs)
        if given:
            return "inputs", f"the model was given other inputs: {given[0]}", given
        return "inputs", f"the model was given {len(other.inputs)} inputs, undisturbed {len(reference.inputs)}", ()
    if [each["bits"] for each in reference.losses] != [each["bits"] for each in other.losses]:
        return "loss", f"the loss is {_losses(other)}, undisturbed {_losses(reference)}", ()
    volatile = _differing(other.volatile, reference.volatile)
    settings = tuple(name for name in volatile if _SETTING.fullmatch(name))
    random = tuple(name for name in volatile if name.startswith(RANDOM))
    others = tuple(name for name in volatile if name not in settings + random)
    for what, names in (("settings", settings), ("tensor", _differing(other.tensors, reference.tensors)),
                        ("volatile", others), ("random", random)):
        if names:
            return what, f"{_described(names)} {'differs' if len(names) == 1 else 'differ'} after the step", names
    return None


def _differing(ours: dict[str, str], theirs: dict[str, str]) -> tuple[str, ...]:
    return tuple(name for name in {**theirs, **ours} if theirs.get(name) != ours.get(name))


def _is(names: tuple[str, ...]) -> str:
    return "is" if len(names) == 1 else "are"


def _described(names: tuple[str, ...]) -> str:
    return _named([described(name) for name in names])


def described(name: str) -> str:
    """A name in a record, in words."""
    setting, state, role = _SETTING.fullmatch(name), _STATE.match(name), _OF_TENSOR.fullmatch(name)
    if name.startswith(RANDOM):
        return name
    if setting is not None:
        return f"`{setting['key']}` of `{setting['optimizer']}`"
    if role is not None:
        word = role["role"].removeprefix("nonpersistent_")
        return (f"{word} `{role['name']}`" if word in ("weight", "buffer")
                else f"optimizer state `{word}` of `{role['name']}`")
    path = _KINDS_INSIDE.sub("", name[state.end():] if state is not None else name)
    path = re.sub(r"^\['(\w+)'\]", r"\1", path)
    return f"`{path or name}`"


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
        owner = f" of {self.owner}" if self.owner and not self.path.isidentifier() else ""
        return f"`{self.path}`{owner} ({self.shown})"


def unprotected_at(reference: Run, other: Run, step: int, seats: Iterable[int], besides: set[str]) -> list[Suspect]:
    """What differs when `step` begins, on any of `seats`; without the paths in `besides`."""
    found: dict[str, Suspect] = {}
    for seat in seats:
        theirs: Any = reference.done.get((step, seat)) or reference.begun.get((step, seat))
        began: list[Any] = [*other.done.get((step, seat), []), *other.begun.get((step, seat), [])]
        for execution in began if theirs else []:
            ours, undisturbed = execution.unprotected, theirs[0].unprotected
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


def judge(reference: Run, disturbed: Run, again: Run | None, rehearsed: list[str] | None = None,
          lines: Sequence[dict[str, int]] = (), read_back: Sequence[str] = ()) -> Verdict:
    """`again`: a second undisturbed run, where there is one. `rehearsed`: files before which rehearsing spares were
    stopped. `lines`: how many lines each text has that a run has written; of the runs in this order. `read_back`: files
    that the script reads after it has written them."""
    rehearsed = rehearsed or []
    besides = unsteady_paths(reference, again) if again is not None else set()
    if again is not None:
        itself = first_difference(reference, again)
        if itself is not None:
            return _differs_from_itself(itself, besides, reference, again)
    difference = first_difference(reference, disturbed)
    ending = unprotected_to_the_end(reference, disturbed, besides)
    if difference is not None:
        return _differs(difference, reference, disturbed, besides, rehearsed, read_back)
    notes = tuple(_note(suspect) for suspect in ending if suspect.kind not in STATE_KINDS) + (
        *_rehearsal_notes(rehearsed), *_file_notes(lines))
    states = [suspect for suspect in ending if suspect.kind in STATE_KINDS]
    if not states:
        return Verdict("equal", notes=notes)
    first = _earliest(states, reference, disturbed, besides)
    return Verdict("state", f"step {first.step}, seat {first.seat}: {_named([each.named() for each in states])} "
                            f"{'is not what it is' if len(states) == 1 else 'are not what they are'} in the "
                            f"undisturbed run",
                   "state that isn't protected: losses and protected state are equal, but "
                   f"{'this was' if len(states) == 1 else 'these were'} not taken back when steps were undone",
                   _remedies(states), notes)


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


def suspects_of_standstill(reference: Run, disturbed: Run) -> list[Suspect]:
    """Where the job came to its end or stands, each seat in the step that it began last (others may have begun a later
    one before the loss): what then is as it was undisturbed in another step. (There is no second undisturbed run then
    that would tell it from clocks.)"""
    last = {seat: max((each for (_, at), begins in disturbed.begun.items() if at == seat for each in begins),
                      key=lambda each: each.t_ns) for seat in sorted({seat for _, seat in disturbed.begun})}
    found: dict[str, Suspect] = {}
    for seat, stands in last.items():
        own = Run(begun={(stands.step, seat): [stands]})
        for suspect in unprotected_at(reference, own, stands.step, [seat], set()):
            digests = {step: begins[0].unprotected[suspect.path][1] for (step, at), begins in reference.begun.items()
                       if at == seat and suspect.path in begins[0].unprotected}
            now = digests.pop(stands.step, None)
            ours = stands.unprotected.get(suspect.path)
            if ours is not None and ours[1] != now and ours[1] in digests.values():
                found.setdefault(suspect.path, suspect)
    return list(found.values())


def unprotected_sentence(suspects: list[Suspect]) -> tuple[str, str]:
    """Cause and remedy."""
    return (f"state that isn't protected: {_named([each.named() for each in suspects])} "
            f"{'was' if len(suspects) == 1 else 'were'} not taken back when steps were undone", _remedies(suspects))


def _differs(difference: Difference, reference: Run, disturbed: Run, besides: set[str],
             rehearsed: list[str], read_back: Sequence[str]) -> Verdict:
    suspects = unprotected_at(reference, disturbed, difference.step, sorted(reference.seats()), besides)
    feeding = [suspect for suspect in suspects if suspect.feeds()]
    notes = _rehearsal_notes(rehearsed)
    if difference.what in ("inputs", "samples") and feeding:
        return Verdict("differs", difference.shown(),
                       f"a sampler that isn't restored: {_named([each.named() for each in feeding])} "
                       f"{'was' if len(feeding) == 1 else 'were'} not taken back to the step from which the job "
                       f"went on, so other samples came", _sampler_remedy(feeding[0]), notes)
    if suspects and difference.what != "restored":
        first = _earliest(suspects, reference, disturbed, besides)
        cause, remedy = unprotected_sentence(suspects)
        since = f"; `{first.path}` differs since step {first.step}" if first.step < difference.step else ""
        return Verdict("differs", difference.shown(), cause + since, remedy, notes)
    if read_back and difference.what not in ("restored", "missing"):
        return Verdict("differs", difference.shown(),
                       f"a file that isn't taken back: the script reads {_named([f'`{path}`' for path in read_back])}, "
                       f"which it has written before", "keep what is in it in a variable, and protect that: "
                       "job.protect(state={...}); write the file in job.on_commit(...)", notes)
    return Verdict("differs", difference.shown(), *_without_suspects(difference), notes)


def _without_suspects(difference: Difference) -> tuple[str, str]:
    """Cause and remedy where nothing that the loop carries differed when the step began."""
    what, names = difference.what, _described(difference.names)
    if what == "restored" and _OF_TENSOR.fullmatch(difference.names[0]):
        return (f"{names} {_is(difference.names)} restored as it never was: written while the step was copied, where "
                f"pawl doesn't see it (.data, numpy, C code)",
                "call step.fence() right before that write, or write it after the optimizer's step")
    if what in ("restored", "volatile"):
        return (f"{names} {_is(difference.names)} protected, but what was saved of it doesn't bring it back: "
                f"state_dict() leaves something out, or it depends on something that isn't protected",
                "let state_dict() and load_state_dict() of that object hold all that it changes")
    if what in ("samples", "inputs"):
        return ("samples come from something that can't be taken back and that the drill can't look into: an iterator, "
                "a file, a stream, or what the dataset itself keeps or draws from",
                f"{_SAMPLER}; let a dataset draw from torch's, numpy's or Python's global random numbers, or from "
                f"generators that it has from its __init__ on")
    if what == "settings":
        return (f"{names} {_is(difference.names)} set from something that isn't protected and that the drill can't "
                "look into", "protect the scheduler, or compute it from the step's number")
    if what == "random":
        return ("random numbers were drawn more often or less often than undisturbed, by something that isn't "
                "protected and that the drill can't look into",
                "draw the same number of them in each step, inside of its block; for evaluation: `with job.aside():`")
    where = {"loss": "The model had the same weights and inputs: look at what goes into the loss beside them (labels, "
                     "a weight of a term), or draws random numbers of its own",
             "tensor": "The loss was the same: look at what goes into the update beside it (clipping, a hand-made "
                       "write, attributes of the optimizer)"}.get(what, "")
    return ("unknown: nothing that the loop carries differed when the step began; it may be state out of sight "
            f"(a C extension, another process, a file), or a fault of pawl. {where}".rstrip(". "),
            "look at the records of both runs (--keep DIR), and tell us")


def _differs_from_itself(difference: Difference, besides: set[str], reference: Run, again: Run) -> Verdict:
    suspects = unprotected_at(reference, again, difference.step, sorted(reference.seats()), set())
    at_begin = f" When that step began, {_named([each.named() for each in suspects])} differed." if suspects else ""
    clocks = (f" Times and seeds that no two runs have alike come from {_named(reference.clocks)}."
              if reference.clocks else "")
    return Verdict("itself", difference.shown(),
                   f"the script differs from itself without faults: two undisturbed runs are not equal, so no recovery "
                   f"can be shown to be exact.{at_begin}{clocks}",
                   "seed every generator (torch.manual_seed, random.seed, torch.Generator), take nothing from the "
                   "clock, and let each rank compute with one thread (OMP_NUM_THREADS=1, "
                   "torch.use_deterministic_algorithms(True)); where sets of texts are gone through, PYTHONHASHSEED=0")


def _note(suspect: Suspect) -> str:
    if suspect.kind == "file":
        return f"{suspect.named()} holds lines of steps that were done twice: write in step.on_commit(...)"
    return (f"{suspect.named()} counts steps that were undone, too; nothing that was trained depends on it; remedy: "
            f"{_remedy(suspect)}")


def _file_notes(lines: Sequence[dict[str, int]]) -> tuple[str, ...]:
    if len(lines) < 2:
        return ()
    reference, disturbed = lines[0], lines[1]
    again = lines[2] if len(lines) > 2 else reference
    found = []
    for path, count in sorted(reference.items()):
        now = disturbed.get(path, 0)
        if now != count and again.get(path) == count:
            why = ("steps that were done twice, or a process that began anew, wrote there, too" if now > count else
                   "a process that took over a seat does not write there, or began the file anew")
            found.append(f"`{path}` has {now} lines, undisturbed {count}: {why}; remedy: open it to append, in "
                         f"job.on_commit(...) or step.on_commit(...)")
    return tuple(found)


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


def _remedies(suspects: list[Suspect]) -> str:
    """That of the first, and with it those of others that are named and that the same call takes."""
    first = _remedy(suspects[0])
    for form, joined in ((_HANDED, "hand them to job.protect(..., {})"), (_AS_STATE, "job.protect(state={{{}}})")):
        found = [form.fullmatch(_remedy(suspect)) for suspect in suspects[:NAMED_MAX]]
        taken = list(dict.fromkeys(each[1] for each in found if each is not None))
        if found[0] is not None and len(taken) > 1:
            return joined.format(", ".join(taken))
    return first


_HANDED = re.compile(r"hand it to job\.protect\(\.\.\., ([^,]+)\)")
_AS_STATE = re.compile(r"job\.protect\(state=\{(.+)\}\)")


def _remedy(suspect: Suspect) -> str:
    """What is handed over is taken back in place: an object by its attributes, a container by what is in it."""
    owner, how = _owner(suspect.path)
    if suspect.owner in ("a function", "a class") or (how == "attribute" and not suspect.owner
                                                      and suspect.kind == "value"):
        name = re.split(r"\W+", suspect.path.rstrip(")"))[-1]
        return f'keep it in a dict of the script that is protected: kept = {{"{name}": ...}}; job.protect(state=kept)'
    if suspect.owner.startswith("the module ") and suspect.kind in ("value", "tensor"):
        return (f"keep it in a buffer (register_buffer), or let {suspect.owner.removeprefix('the module ')} hold it in "
                f"get_extra_state() and set_extra_state()")
    if suspect.owner.startswith("the protected "):
        return f"job.protect(state={{{_key(suspect.path)}: {suspect.path}}}), or keep it in {owner}.state[parameter]"
    if suspect.kind in ("module", "optimizer", "stateful", "generator"):
        return f"hand it to job.protect(..., {suspect.path})"
    if suspect.kind == "iterator":
        return "compute it from the step's number: an iterator can't be taken back"
    if how == "attribute" and suspect.kind == "tensor":
        return f"hand it to job.protect(..., {owner})"
    if how == "attribute" and suspect.kind == "value":
        return f"hand it to job.protect(..., {owner}), or act in step.on_commit(...)"
    kept = owner if how == "item" else suspect.path
    return f"job.protect(state={{{_key(kept)}: {kept}}})"


def _owner(path: str) -> tuple[str, str]:
    """Who has it, and how: an attribute of an object, an item of a container, or a variable by itself."""
    item = re.fullmatch(r"(.+?)\[(?:'[^']*'|\"[^\"]*\"|[^\[\]]*)\]", path)
    if item is not None:
        return item[1], "item"
    owner, dot, _ = path.rpartition(".")
    return (owner, "attribute") if dot else (path, "variable")


def _key(path: str) -> str:
    return '"' + re.sub(r"\W+", "_", path).strip("_") + '"'

"""What the loop carries from step to step and nobody protects, told once each, by each process.

Most of it is harmless: a clock's time, a running loss that is only printed. What training depends on (a counter from
which the learning rate is computed, a scheduler, an average of the weights) would be wrong on one rank after a loss,
without a word. pawl can't tell the two apart; `pawl drill` can, by trying.

A look compares what there is with what there was at the look before. Looks are in the second and third step of this
process, then where something may change that no step before has changed: in the first step of an epoch, in the first
one after job.aside(), and in steps 4, 8, 16 and so on of this process. So they are in the same steps on all ranks, as
the script's objects are asked, which may ask all ranks; for the same reason nobody looks after a loss, nor more than
LOOKS_MAX times. A look reads so many bytes at most, and no more of one thing than BYTES_MAX; what is larger is not
compared.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from pawl.job import Job, Step, observe_steps
from pawl.protect import Protected
from pawl.unprotected_state import FILE, UNREAD, VALUE, Finder, Known, Unprotected

TOLD_MAX = 8  # objects
NAMES_MAX = 6  # of one object
BYTES_MAX = 16 << 20  # of one thing that is read
LOOKS_MAX = 64

# Words in names. What training may depend on is told before what is printed.
_STEERS = re.compile(r"best|patien|wait|bad_|stale|stop|lr|rate|step|epoch|iter|seen|token|count|num_|n_|temp|warm|"
                     r"phase|stage|beta|alpha|tau|eps|decay|scale|curric|mask|seed", re.IGNORECASE)
_REPORTS = re.compile(r"loss|avg|average|mean|sum|total|acc|metric|meter|hist|log|time|timer|clock|start|began|elapsed|"
                      r"tic|toc|speed|throughput|bar|print", re.IGNORECASE)
_REPORTERS = re.compile(r"meter|metric|timer|clock|average|progress|track|log|stat", re.IGNORECASE)


class LookAround:
    """A StepObserver. The training thread's."""

    def __init__(self, protected: Protected, say: Callable[[str], None]) -> None:
        self.protected, self._say = protected, say
        self._known = Known(protected)
        self._finder = Finder(self._known, BYTES_MAX)
        self._before: dict[str, Unprotected] | None = None
        self._told: set[str] = set()  # paths
        self._blocks = 0     # that this process has entered
        self._due = False    # something has happened since the last look
        self._epoch = 0
        self._looks = 0

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        """What job.protect() was called with."""
        self._known.add(things, ordinary)

    def end(self) -> None:
        """It looks no more."""
        observe_steps(None)

    def aside(self) -> None:
        """The script has evaluated."""
        self._due = True

    def entering(self, job: Job, step: Step, loop: FrameType) -> None:
        if step.rehearsal:
            return
        self._blocks += 1
        self._due = self._due or job.epoch != self._epoch
        self._epoch = job.epoch
        if self._blocks < 2 or not (self._blocks == 3 or self._due or self._blocks & (self._blocks - 1) == 0):
            return
        self._due = False
        try:
            self._look(loop)
        except Exception as error:  # the script's own objects answer here; training goes on whatever they say
            observe_steps(None)
            self._say(f"could not look for what the loop carries unprotected: {type(error).__name__}: {error}")
        self._looks += 1
        if self._looks == LOOKS_MAX:
            self.end()

    def _look(self, loop: FrameType) -> None:
        self._known.refresh()
        before, self._before = self._before, dict(self._finder.find(loop))
        if before is None:
            return
        carried = [(path, each) for path, each in self._before.items()
                   if each.kind != FILE and path in before and path not in self._told
                   and UNREAD not in (before[path].digest, each.digest) and before[path].digest != each.digest]
        self._told.update(path for path, _ in carried)
        if carried:
            self._say(f"carried from step to step and not protected: {in_words(carried)}. What training depends on "
                      f'belongs into job.protect(...), variables as state={{"name": name}}; `pawl drill` finds out '
                      f"what does")

    def finished(self, job: Job, step: Step) -> None:
        pass


def in_words(carried: list[tuple[str, Unprotected]]) -> str:
    """By object, those first that training may depend on."""
    objects: dict[str, list[tuple[str, Unprotected]]] = {}
    for path, each in carried:
        objects.setdefault(object_of(path), []).append((path, each))
    in_order = sorted(objects.values(), key=lambda parts: min(_rank(path, each) for path, each in parts))
    more = f" and {len(in_order) - TOLD_MAX} more" if len(in_order) > TOLD_MAX else ""
    return ", ".join(map(_object_in_words, in_order[:TOLD_MAX])) + more


def _object_in_words(parts: list[tuple[str, Unprotected]]) -> str:
    path, first = parts[0]
    if len(parts) == 1:
        return f"{path} ({first.shown})"
    start = object_of(path)
    names = [part[len(start):].removeprefix(".") for part, _ in sorted(parts, key=lambda part: _rank(*part))]
    rest = f" and {len(names) - NAMES_MAX} more" if len(names) > NAMES_MAX else ""
    kind = f"{first.owner}: " if first.owner.isidentifier() else ""
    return f"{start} ({kind}{', '.join(names[:NAMES_MAX])}{rest})"


def object_of(path: str) -> str:
    """What has it: `meter` of `meter.sum`, and of `meter.sums["a"]`, too; a variable has itself."""
    attribute = re.match(r"^(.*?)(\[[^\]]*\])*$", path)
    whole = attribute.group(1) if attribute is not None and attribute.group(1) else path
    owner, dot, _ = whole.rpartition(".")
    return owner if dot else whole


def _rank(path: str, each: Unprotected) -> int:
    """0 for what is most likely to matter."""
    name = path.removeprefix(object_of(path)) or path
    if each.kind != VALUE and not (_REPORTS.search(name) or _REPORTERS.search(each.owner)):
        return 0  # a model, an optimizer, a generator, a tensor
    if _REPORTERS.search(each.owner):
        return 3
    if _STEERS.search(name):
        return 2 if _REPORTS.search(name) and "best" not in name else 0
    return 3 if _REPORTS.search(name) else 1

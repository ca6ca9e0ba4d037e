"""What a trainer writes down in a drill, so that drill_verdict.py can compare two runs bit by bit.

Only where PAWL_DRILL_RECORD names a folder; otherwise `recording` is False and nothing is observed. Each step adds two
lines to seat<seat>.<pid>.jsonl: one when its block begins, one when it has ended, before the next begins. A step that
is done again after a recovery adds others, from the same process or another one. The first holds the state that the
loop brings into the step unprotected (unprotected_state.py; only what changed since the last such line); in a run that
is to be compared with (PAWL_DRILL_BEGINS), and where a process begins in a generation, digests of the protected state
as well. The second holds the bits of what backward() was called on; digests of each input of the protected models by
the script's name for it, of every protected tensor, and of every piece of the volatile state; and the samples that were
drawn. Reads the script's state and never writes it. The training thread's.
"""
from __future__ import annotations

import dis
import functools
import json
import os
import re
import sys
import time
import types
from typing import TYPE_CHECKING, Any

from pawl import witness
from pawl.job import Job, Step, observe_steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from pawl.protect import Protected
    from pawl.unprotected_state import Unprotected

RECORD, STEPS, BEGINS = "PAWL_DRILL_RECORD", "PAWL_DRILL_STEPS", "PAWL_DRILL_BEGINS"
IDS_MAX = 64
PIECES_DEPTH, PIECES_MAX = 4, 64  # of a part of the volatile state
CLOCKS = frozenset({"time", "time_ns", "perf_counter", "perf_counter_ns", "monotonic", "monotonic_ns", "now", "utcnow",
                    "getpid", "urandom", "uuid1", "uuid4", "token_bytes", "token_hex", "SystemRandom", "default_rng"})

recording = bool(os.environ.get(RECORD))
_recorder: Recorder | None = None


def protected(what: Protected, things: Iterable[Any], ordinary: Any) -> None:
    """job.protect() was called with these. Does nothing where no drill runs."""
    global _recorder
    if not recording:
        return
    if _recorder is None or _recorder.protected is not what:
        _recorder = Recorder(os.environ[RECORD], what)
        observe_steps(_recorder)
    _recorder.add(things, ordinary)


def last_step(total: int) -> int:
    """How many steps to do where the script wants `total`."""
    limit = os.environ.get(STEPS, "") if recording else ""
    return min(total, int(limit)) if limit else total


class Recorder:
    """Of one job in one process; a StepObserver. In a rehearsal it sees what is protected and nothing else."""

    def __init__(self, folder: str, protected: Protected) -> None:
        from pawl.unprotected_state import Finder, Known
        self.protected = protected
        self._folder, self._path = folder, ""
        self._known = Known(protected)
        self._finder = Finder(self._known)
        self._names: list[str] = []
        self._inside = False
        self._random: dict[str, str] = {}
        self._roots: list[dict[str, Any]] = []
        self._inputs: list[list[str]] = []
        self._written: dict[str, Unprotected] = {}
        self._generation = -1
        self._every_begin = bool(os.environ.get(BEGINS))
        self._called: dict[str, str] = {}  # the script's name for a part of the volatile state
        _see_backward()

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        self._known.add(things, ordinary)
        for module in self.protected.wrappers:
            witness.see_calls(self, module)

    def entering(self, job: Job, step: Step, loop: FrameType) -> None:
        if step.rehearsal or job.rehearsal:
            return
        self._known.refresh()
        unprotected = self._finder.find(loop)
        line: dict[str, Any] = {"begin": int(step), **_who(job), "unprotected": self._changes(unprotected)}
        if self._generation < 0:
            self._called = self._names_of_parts(loop)
            line["clocks"] = clocks_of(loop)
        if self._every_begin or self._generation != job.generation:
            line.update(self._protected_state())
        self._generation = job.generation
        self._append(line, job.rank)
        for module in self.protected.wrappers:
            witness.see_calls(self, module)  # where it was compiled in place meanwhile
        self._roots, self._inputs, self._inside = [], [], True
        self._random = _random()

    def finished(self, job: Job, step: Step) -> None:
        if step.rehearsal:
            return
        self._inside = False
        line: dict[str, Any] = {"step": int(step), **_who(job), "losses": self._roots, "inputs": self._inputs,
                                "samples": [_samples(sampler) for sampler in self.protected.samplers],
                                **self._protected_state()}
        line["volatile"].update({name: digest for name, digest in _random().items()
                                 if self._random.get(name) != digest})
        self._append(line, job.rank)

    def _protected_state(self) -> dict[str, Any]:
        """By name. Names come only when they are others than before."""
        from pawl.digest import digest_of_tensor
        held = self.protected.held()
        found: dict[str, Any] = {"tensors": "".join(digest_of_tensor(each.memory) for each in held)}
        names = [f"{each.name} ({each.role})" for each in held]
        if names != self._names:
            found["names"] = self._names = names
        found["volatile"] = {}
        for part in self.protected.parts:
            found["volatile"].update(pieces_of(self._called.get(part.name, part.name), part.save()))
        return found

    def _names_of_parts(self, loop: FrameType) -> dict[str, str]:
        """{part: variable}, where a variable of the script's holds what the part is of."""
        from pawl import script_frames
        variables: dict[int, str] = {}
        for frame in script_frames.around(loop):
            for name, value in script_frames.variables(frame).items():
                variables.setdefault(id(value), name)
        left, found = [part.name for part in self.protected.parts], {}
        for number, optimizer in enumerate(self.protected.optimizers):
            found[f"optimizer{number}"] = variables.get(id(optimizer), f"optimizer{number}")
        for thing in self.protected.stateful:
            part = next((name for name in left if re.fullmatch(rf"{type(thing).__name__}\d+", name)), None)
            if part is not None:
                left.remove(part)
                found[part] = variables.get(id(thing), part)
        return found

    def see_root(self, tensors: Any) -> None:
        if self._inside:
            from pawl.unprotected_state import flattened
            for tensor in flattened([tensors]):
                self._roots.append(_root(tensor))

    # What happens in a step.

    def see(self, module: Any, arguments: Any, keywords: Any) -> None:
        import torch
        if not self._inside or torch.compiler.is_compiling():
            return
        from pawl import script_frames
        from pawl.digest import digest_of
        frame = script_frames.above("torch")
        for path, value in witness.leaves(arguments, keywords):
            name = witness.variable(frame, value) if frame is not None else None
            self._inputs.append([digest_of(value), f"{name or path}, given to {type(module).__name__}"])

    def _changes(self, unprotected: dict[str, Unprotected]) -> dict[str, list[str] | None]:
        changes: dict[str, list[str] | None] = {
            path: [each.kind, each.digest, each.shown, each.owner] for path, each in unprotected.items()
            if self._written.get(path) != each}
        changes.update({path: None for path in self._written if path not in unprotected})
        self._written = unprotected
        return changes

    def _append(self, line: dict[str, Any], seat: int) -> None:
        if not self._path:
            os.makedirs(self._folder, exist_ok=True)
            self._path = os.path.join(self._folder, f"seat{seat}.{os.getpid()}.jsonl")
        with open(self._path, "ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


def pieces_of(name: str, value: Any) -> dict[str, str]:
    """Digests of what is in the containers of a part, by path; of large ones as a whole."""
    from pawl.digest import digest_of
    found: dict[str, str] = {}

    def walk(path: str, each: Any, depth: int) -> None:
        inside: list[tuple[Any, Any]] = list(each.items()) if isinstance(each, dict) else (
            list(enumerate(each)) if isinstance(each, (list, tuple)) else [])
        if not inside or depth == PIECES_DEPTH or len(inside) + len(found) > PIECES_MAX:
            found[path] = digest_of(each)
            return
        for key, part in inside:
            walk(f"{path}[{key!r}]", part, depth + 1)
    walk(name, value, 0)
    return found


def clocks_of(loop: FrameType) -> list[str]:
    """Where the script takes a time or a seed that no two runs have alike: ["time_ns (train.py:12)"]."""
    from pawl import script_frames
    codes, seen, found = [frame.f_code for frame in script_frames.around(loop)], set(), []
    for frame in script_frames.around(loop):
        codes += [each.__code__ for each in list(frame.f_globals.values()) if isinstance(each, types.FunctionType)
                  and not script_frames.of_library(each.__code__.co_filename)]
    while codes:
        code = codes.pop(0)
        if code in seen or f"{os.sep}pawl{os.sep}" in code.co_filename:
            continue
        seen.add(code)
        codes += [each for each in code.co_consts if isinstance(each, types.CodeType)]
        for each in dis.get_instructions(code) if CLOCKS & set(code.co_names) else ():
            of_object = each.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if each.argval in CLOCKS and (of_object or each.argval != "time" and each.opname.startswith("LOAD_")):
                line = each.positions.lineno if each.positions is not None else code.co_firstlineno
                found.append(f"{each.argval} ({os.path.basename(code.co_filename)}:{line})")
    return list(dict.fromkeys(found))


def _who(job: Job) -> dict[str, Any]:
    return {"seat": job.rank, "pid": os.getpid(), "generation": job.generation, "t_ns": time.monotonic_ns()}


def _see_backward() -> None:
    """Tensor.backward() goes through torch.autograd.backward, too. Once in a process."""
    import torch
    original = torch.autograd.backward
    if getattr(original, "seen_by_pawl", False):
        return

    @functools.wraps(original)
    def backward(tensors: Any, *arguments: Any, **keywords: Any) -> Any:
        if _recorder is not None:
            _recorder.see_root(tensors)
        return original(tensors, *arguments, **keywords)

    backward.seen_by_pawl = True  # type: ignore[attr-defined]
    torch.autograd.backward = backward


def _random() -> dict[str, str]:
    """The generators that code uses without naming them. Python's and numpy's begin elsewhere in each process that
    doesn't seed them, so only those that a step has moved are written down."""
    from pawl import volatile_state
    from pawl.digest import digest_of
    return {f"random numbers of {name}": digest_of(value) for name, value in volatile_state.save_random().items()}


def _root(tensor: Any) -> dict[str, Any]:
    from pawl.digest import bits_of, digest_of_tensor
    if tensor.numel() > 1:
        return {"bits": digest_of_tensor(tensor), "value": None}
    value = tensor.detach().double().item() if tensor.numel() == 1 and not tensor.is_complex() else None
    return {"bits": bits_of(tensor), "value": value if value is None or abs(value) < sys.float_info.max else str(value)}


def _samples(sampler: Any) -> dict[str, Any]:
    drawn = sampler._last
    return {"position": sampler.position, "hash": f"{sampler.hash:016x}",
            "ids": list(drawn[1][:IDS_MAX]) if drawn is not None else []}

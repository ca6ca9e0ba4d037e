"""What a trainer writes down in a drill, so that drill_verdict.py can compare two runs bit by bit.

Only where PAWL_DRILL_RECORD names a folder; otherwise `recording` is False and nothing is observed. Each finished step
adds one line to seat<seat>.<pid>.jsonl, written before the next step begins. A step that is done again after a recovery
adds another line, from the same process or another one. A line holds the bits of what backward() was called on; digests
of the inputs of the protected models, and of every protected tensor and every part of the volatile state after the
step; the samples that were drawn; and the state that the loop brought into the step unprotected (unprotected_state.py;
only what changed since the line before). Reads the script's state and never writes it. The training thread's.
"""
from __future__ import annotations

import functools
import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from pawl.job import Job, Step, observe_steps

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import FrameType

    from pawl.protect import Protected
    from pawl.unprotected_state import Unprotected

RECORD, STEPS = "PAWL_DRILL_RECORD", "PAWL_DRILL_STEPS"
IDS_MAX = 64

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
        self._inputs: list[str] = []
        self._unprotected: dict[str, Unprotected] = {}
        self._written: dict[str, Unprotected] = {}
        self._hooked: set[int] = set()
        _see_backward()

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        self._known.add(things, ordinary)
        for _, module in self.protected.modules:
            if id(module) not in self._hooked:
                self._hooked.add(id(module))
                module.register_forward_pre_hook(self._see_inputs, with_kwargs=True)

    def entering(self, job: Job, step: Step, loop: FrameType) -> None:
        if step.rehearsal or job.rehearsal:
            return
        self._known.refresh()
        self._unprotected = self._finder.find(loop)
        self._roots, self._inputs, self._inside = [], [], True
        self._random = _random()

    def finished(self, job: Job, step: Step) -> None:
        if step.rehearsal:
            return
        from pawl.digest import digest_of, digest_of_tensor
        self._inside = False
        held = self.protected.held()
        names = [f"{each.name} ({each.role})" for each in held]
        line: dict[str, Any] = {"step": int(step), "seat": job.rank, "pid": os.getpid(), "generation": job.generation,
                                "t_ns": time.monotonic_ns(), "losses": self._roots, "inputs": self._inputs,
                                "samples": [_samples(sampler) for sampler in self.protected.samplers],
                                "tensors": "".join(digest_of_tensor(each.tensor) for each in held)}
        if names != self._names:
            line["names"] = self._names = names
        line["volatile"] = {name: digest for name, digest in _random().items() if self._random.get(name) != digest}
        line["volatile"].update({part.name: digest_of(part.save()) for part in self.protected.parts})
        line["unprotected"] = self._changes()
        self._append(line, job.rank)

    def see_root(self, tensors: Any) -> None:
        if self._inside:
            from pawl.unprotected_state import flattened
            for tensor in flattened([tensors]):
                self._roots.append(_root(tensor))

    # What happens in a step.

    def _see_inputs(self, _module: Any, arguments: Any, keywords: Any) -> None:
        if self._inside:
            from pawl.digest import digest_of
            self._inputs.append(digest_of([arguments, keywords]))

    def _changes(self) -> dict[str, list[str] | None]:
        changes: dict[str, list[str] | None] = {
            path: [each.kind, each.digest, each.shown, each.owner] for path, each in self._unprotected.items()
            if self._written.get(path) != each}
        changes.update({path: None for path in self._written if path not in self._unprotected})
        self._written = self._unprotected
        return changes

    def _append(self, line: dict[str, Any], seat: int) -> None:
        if not self._path:
            os.makedirs(self._folder, exist_ok=True)
            self._path = os.path.join(self._folder, f"seat{seat}.{os.getpid()}.jsonl")
        with open(self._path, "ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")


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

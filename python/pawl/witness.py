"""What the model is given in each step, so that a step that is done again is given the same.

For the last steps a digest of each tensor and number that a protected module's forward() gets. A process compares what
it gives in a step that it has done before, also where the first try was cut short; the digests of the last two steps
are volatile state, so a process that takes over a seat has them too, if the job goes back that far. Another input is
Refused, with the name of the variable that holds it. A process that is new in its seat also has what the seat was given
in its first steps: if it is given that again, its data has begun anew.

Before any loss, in the loop's third step: a tensor that was there before the step began, is new since the step before,
and reaches the model, was carried from step to step (a batch fetched ahead, a hidden state), unless it has reached it
in the step before, too (a mask that was made once). If no `state=` has it, it is refused as well. All is done in the
training thread. Nothing is read on devices: of a tensor there, and of one that autograd follows, only shape and type
count.
"""
from __future__ import annotations

import contextlib
import functools
import types
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Protocol

from pawl import script_frames, sharded, volatile_state
from pawl.errors import Refused

if TYPE_CHECKING:
    import torch

STEPS_KEPT = 4     # as many as may be done again, and more
STEPS_SAVED = 2
DIGESTS_MAX = 64   # of one step; what comes later in it is not compared
SAMPLE = 1024      # elements of a tensor that are read
WHOLE_BYTES = 8192  # a tensor up to this size is read whole
FIRST_STEPS = 6    # of the job, whose inputs are kept
AGAIN_STEPS = 3    # so many of them, one after the other, are no accident
CARRIED_STEP = 3   # of this process, when carried variables are looked for
ELEMENTS_MAX = 64  # of a container that is looked into


class Witness:
    """Of one process. `settled` tells whether what the step computes now still counts; `warn`, if given, is told what
    would be refused."""

    def __init__(self, settled: Callable[[], bool] = lambda: True, warn: Callable[[str], None] | None = None) -> None:
        self._settled, self._warn = settled, warn
        self._known: dict[int, list[int]] = {}  # digests by step
        self._step = 0                         # whose block this is; 0: none
        self._now: list[int] = []
        self._first: dict[int, int] = {}       # of the job's first steps, one digest each
        self._joined: int | None = None        # the step that this process was restored to, when it was new
        self._watched: list[weakref.ref[torch.nn.Module]] = []
        self.carried = Carried()

    def watch(self, modules: Iterable[torch.nn.Module]) -> None:
        for module in modules:
            if all(known() is not module for known in self._watched):
                self._watched.append(weakref.ref(module))
        self._see_calls()

    def _see_calls(self) -> None:
        """Idempotent; again where the script has compiled a module in place."""
        for known in self._watched:
            module = known()
            if module is not None:
                see_calls(self, module)

    def begin(self, step: int) -> None:
        """The step's block begins. Fails: Refused, if the data has begun anew."""
        if self._joined is not None and step > self._joined + AGAIN_STEPS:
            self._refuse_a_new_begin(self._joined)
            self._joined = None
        self._see_calls()
        self._step, self._now = step, []

    def end(self) -> None:
        """It has ended, or is lost. Idempotent."""
        if self._step and self._now:
            before = self._known.get(self._step, [])
            self._known[self._step] = self._now + before[len(self._now):]
            if self._step <= FIRST_STEPS:
                self._first[self._step] = _whole(self._known[self._step])
            for old in sorted(self._known)[:-STEPS_KEPT]:
                del self._known[old]
        self._step, self._now = 0, []
        self.carried.forget()

    def part(self) -> volatile_state.Part:
        def save() -> dict[str, Any]:
            return {"steps": {str(step): self._known[step] for step in sorted(self._known)[-STEPS_SAVED:]},
                    "first": {str(step): each for step, each in self._first.items()}}

        def load(saved: dict[str, Any]) -> None:
            if not self._known and saved["steps"]:
                self._joined = max(map(int, saved["steps"]))
            for step, digests in saved["steps"].items():
                self._known.setdefault(int(step), list(digests))
            for step, each in saved["first"].items():
                self._first.setdefault(int(step), each)
        return volatile_state.Part("witness", save, load, load_elsewhere=lambda _: None)  # ranks get other samples

    def _refuse_a_new_begin(self, joined: int) -> None:
        now = [_whole(self._known.get(joined + each, [])) for each in range(AGAIN_STEPS + 1)]
        for begin in range(2, min(FIRST_STEPS - AGAIN_STEPS + 1, joined) + 1):  # it has rehearsed before
            first = [self._first.get(begin - 1 + each) for each in range(AGAIN_STEPS + 1)]
            if now[1:] == first[1:] and now[0] != first[0]:  # else the data is as it was at the begin, again and again
                self._complain(f"since this process has taken over its seat at step {joined}, the model is given what "
                               f"it was given in step {begin} and after it: the data has begun anew here. "
                               f"{_keep(None)}. If that does no harm: {_CONSENT}")
                return

    def see(self, module: Any, arguments: Any, keywords: Any) -> None:
        import torch
        if torch.compiler.is_compiling() or not self._step or not torch.is_grad_enabled() or not self._settled():
            return
        known = self._known.get(self._step, [])
        for path, value in leaves(arguments, keywords):
            place = len(self._now)
            if place == DIGESTS_MAX:
                return
            self._now.append(digest(value))
            self.carried.given(value)
            name = self.carried.name_of(value)
            if name is not None:
                self._complain(f"{name}, which {type(module).__name__} is given in step {self._step}, was there before "
                               f"that step began, and isn't protected: after a loss it would hold something else. "
                               f"{_keep(name)}")
            if place < len(known) and known[place] != self._now[place]:
                known[place:] = []  # said once
                self._complain(_other(module, path, value, self._step))

    def _complain(self, sentence: str) -> None:
        if self._warn is None:
            raise Refused(sentence)
        self._warn(sentence)


class Seer(Protocol):
    def see(self, module: Any, arguments: Any, keywords: Any) -> None:
        """The module is called with these."""


def see_calls(seer: Seer, module: torch.nn.Module) -> None:
    """From now on it is told. Idempotent; again where the script has compiled the module in place."""
    calls = vars(module).get("_compiled_call_impl")
    if not (isinstance(calls, _Calls) and calls.seen_by(seer)):
        vars(module)["_compiled_call_impl"] = _Calls(seer, module, calls)  # past the __setattr__ of torch.compile


class _Calls:
    """Of a module: somebody sees them, compiled or not. A hook would be compiled with the module, and
    torch.jit.script takes only those that it can compile, too."""

    def __init__(self, seer: Seer, module: torch.nn.Module, compiled: Any) -> None:
        self._seer, self._module, self._compiled = seer, weakref.ref(module), compiled
        _keep_uncompiled()

    def seen_by(self, seer: Seer) -> bool:
        return self._seer is seer or (isinstance(self._compiled, _Calls) and self._compiled.seen_by(seer))

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        module: Any = self._module()
        self._seer.see(module, arguments, keywords)
        return (self._compiled or module._call_impl)(*arguments, **keywords)

    def __reduce__(self) -> tuple[Callable[[], None], tuple[()]]:
        return _not_compiled, ()


@functools.cache
def _keep_uncompiled() -> None:
    """Where torch.compile() was given the module, what it compiles begins with the module's forward(), as without
    calls that are seen."""
    with contextlib.suppress(ImportError):
        from torch._C._dynamo.eval_frame import skip_code
        skip_code(_Calls.__call__.__code__)


def _not_compiled() -> None:
    """What a copy of a module, or one in a file, has in its place."""


def _other(module: Any, path: str, value: Any, step: int) -> str:
    frame = script_frames.above("torch")
    name = variable(frame, value) if frame is not None else None
    line = f" ({frame.f_code.co_filename}:{frame.f_lineno})" if frame is not None else ""
    what = f"{name or path}, which {type(module).__name__} is given{line}," if name else (
        f"{path} of {type(module).__name__}{line}")
    return (f"{what} is not what it was when step {step} was done before the loss: where the data is, or what it is "
            f"made from, isn't protected. {_keep(name)}. If other inputs do no harm: {_CONSENT}")


def _keep(name: str | None) -> str:
    by_loader = "take the batches from job.batches(loader) or job.loop(loader)"
    if name is None or not name.isidentifier():
        return f"Protect the sampler or loader that it comes from, or {by_loader}"
    return f'If it is fetched ahead: job.protect(state={{"{name}": {name}}}); if it comes from a loader: {by_loader}'


_CONSENT = 'pawl.init(on_mismatch="warn")'


def _whole(digests: list[int]) -> int:
    return zlib.crc32(repr(digests).encode())


class Carried:
    """Tensors in the loop's variables that are new since the step before, and that nothing protects."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[str, Any]] | None = None
        self._found: dict[int, tuple[str, Any]] = {}
        self._given: list[Any] = []  # storages that reached the model since the first look; none is made anew meanwhile

    def look(self, frame: types.FrameType | None, compare: bool, protected: Callable[[], Iterable[Any]]) -> None:
        """At the begin of a step; `compare`: with the last look, and the step's inputs with what is new."""
        now: dict[int, tuple[str, Any]] = {}
        for each in script_frames.loops(frame):
            for name, tensor in _tensors_of(each):
                now.setdefault(_storage(tensor), (name, tensor))
        if compare and self._before is not None:
            kept = {_storage(tensor) for tensor in protected()} | {int(each._cdata) for each in self._given}
            self._found = {each: found for each, found in now.items() if each not in self._before and each not in kept}
        self._before = None if compare else now
        self._given = []

    def given(self, value: Any) -> None:
        """To the model."""
        if self._before is not None and _is_tensor(value) and value.layout is _strided() and (
                value.device.type != "meta"):
            self._given.append(sharded.memory_of(value).untyped_storage())

    def name_of(self, value: Any) -> str | None:
        if not self._found or not _is_tensor(value):
            return None
        return self._found.get(_storage(value), (None, None))[0]

    def forget(self) -> None:
        self._found = {}


# Variables --------------------------------------------------------------------------------------------------------

def _tensors_of(frame: types.FrameType) -> Iterator[tuple[str, Any]]:
    for name, value in script_frames.variables(frame).items():
        if isinstance(value, types.GeneratorType) and value.gi_frame is not None:
            for inside, held in value.gi_frame.f_locals.items():
                for tensor in _tensors_in(held):
                    yield f"{inside} in the generator {name}", tensor
            continue
        for tensor in _tensors_in(value):
            yield name, tensor


def _tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    import torch
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.device.type != "meta":
            yield value
        return
    if depth == 2 or isinstance(value, (torch.nn.Module, torch.optim.Optimizer, type, types.ModuleType)):
        return
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        inside = list(value.values())
    elif isinstance(value, (list, tuple)):
        inside = value
    elif hasattr(value, "__dict__") and not callable(value):
        inside = list(vars(value).values())
    for _, each in zip(range(ELEMENTS_MAX), inside, strict=False):
        yield from _tensors_in(each, depth + 1)


def variable(frame: types.FrameType, value: Any) -> str | None:
    """The script's name for it."""
    if not _is_tensor(value):
        return next((name for name, each in frame.f_locals.items() if each is value and not _plain(value)), None)
    return next((name for name, each in _tensors_of(frame) if each is value), None)


def _strided() -> Any:
    import torch
    return torch.strided


def _storage(tensor: Any) -> int:
    return int(sharded.memory_of(tensor).untyped_storage()._cdata)


# Digests ----------------------------------------------------------------------------------------------------------

def leaves(arguments: Any, keywords: Any) -> Iterator[tuple[str, Any]]:
    for number, value in enumerate(arguments):
        yield from _leaves_of(f"argument {number + 1}", value, 0)
    for name, value in keywords.items():
        yield from _leaves_of(f"argument {name}", value, 0)


def _leaves_of(path: str, value: Any, depth: int) -> Iterator[tuple[str, Any]]:
    if depth < 3 and isinstance(value, (list, tuple)):
        for number, each in zip(range(ELEMENTS_MAX), value, strict=False):
            yield from _leaves_of(f"{path}[{number}]", each, depth + 1)
    elif depth < 3 and isinstance(value, dict):
        for _, (key, each) in zip(range(ELEMENTS_MAX), value.items(), strict=False):
            yield from _leaves_of(f"{path}[{key!r}]", each, depth + 1)
    else:
        yield path, value


def digest(value: Any) -> int:
    """32 bits. Of large tensors a fixed sample of the elements is read, of a DTensor only what this rank has."""
    if _is_tensor(value):
        return _tensor_digest(value)
    shown = repr(value) if _plain(value) else type(value).__qualname__
    return zlib.crc32(shown.encode())


def _tensor_digest(tensor: Any) -> int:
    import torch
    start = zlib.crc32(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
    if tensor.requires_grad or tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        return start
    values = sharded.memory_of(tensor.detach())
    if sharded.is_other_kind(values):
        return start
    count = values.numel()
    try:
        if count * values.element_size() > WHOLE_BYTES:
            values = values.take(_places(count))
        values = values.contiguous()
        if values.is_conj() or values.is_neg():
            values = values.resolve_conj().resolve_neg()
        return zlib.crc32(volatile_state.bytes_of(values), start)
    except (RuntimeError, NotImplementedError, TypeError):
        return start  # no such elements can be taken


@functools.lru_cache(maxsize=32)
def _places(count: int) -> Any:
    """Drawn once, the same in every process: evenly spaced ones would always meet the same columns."""
    import torch
    drawn = torch.randint(count, (SAMPLE,), generator=torch.Generator().manual_seed(count))
    return drawn.sort().values


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def _is_tensor(value: Any) -> bool:
    import torch
    return isinstance(value, torch.Tensor)

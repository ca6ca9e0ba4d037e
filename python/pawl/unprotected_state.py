"""The state that a training loop takes from step to step and that is not protected.

In each step of a drill, and once in other jobs (look_around.py). Looks at the variables of the frames that the loop
runs in, at the script's own modules, and at what is reachable from them: tensors, models, optimizers, generators,
samplers, iterators, counters, lists, open files; also what functions, classes and protected optimizers of the script's
own keep. A variable that every step writes before it reads isn't state. Nothing is changed; what can't be read is
skipped. Paths are as the script would write them: `ema["weight"]`, `sampler.position`; `scaled().n` is a variable that
the function has from the one that made it, and `mixed(seen)` a parameter's default.
"""
from __future__ import annotations

import argparse
import contextlib
import dis
import io
import itertools
import os
import random
import sys
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawl import module_attributes
from pawl.digest import Limit, TooMuch, digest_of, digest_of_tensor

if TYPE_CHECKING:
    from pawl.protect import Protected

DEPTH_MAX = 6
FOUND_MAX = 4000      # things at one time
A_FUNCTION, A_CLASS, A_MODULE, PROTECTED = "a function", "a class", "the module ", "the protected "  # owners
ELEMENTS_MAX = 64     # of a container that are looked at one by one; a longer one counts as a whole
ARRAY_BYTES_MAX = 16 << 20
SHOWN_MAX = 40
LOOK_BYTES = 32 << 20  # that a bounded look reads in all
SMALL_BYTES = 8 << 10  # of one thing that it reads nevertheless: counters, where a data set comes before them
UNREAD = ""  # the digest of what is more than that

# Kinds, by what one would do about them.
TENSOR, MODULE, OPTIMIZER, STATEFUL, GENERATOR = "tensor", "module", "optimizer", "stateful", "generator"
ITERATOR, VALUE, FILE = "iterator", "value", "file"
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_ITERATORS: tuple[type, ...] = (
    types.GeneratorType, type(iter([])), type(iter(())), type(iter(range(0))), enumerate, zip, map, filter,
    itertools.count, itertools.cycle, itertools.chain, itertools.islice)


@dataclass(frozen=True)
class Unprotected:
    """One thing, as it is at the begin of a step."""

    kind: str
    digest: str
    shown: str    # in a few words
    owner: str   # type of the object that has it; empty: a variable


class Known:
    """What is protected, and so isn't looked for."""

    def __init__(self, protected: Protected) -> None:
        self.protected = protected
        self._things: list[Any] = []  # kept, so that no other object gets their ids
        self._ids: set[int] = set()
        self._ids_of_tensors: set[int] = set()
        self._ids_of_iterators: set[int] = set()
        self._ids_of_modules: set[int] = set()
        self._unkept: set[tuple[int, str]] = set()  # plain attributes of those
        self._of_places: list[Any] = []  # what the places in loaders keep, as wholes
        self._attributes_of_places: set[tuple[int, str]] = set()

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        """What job.protect() was called with."""
        for thing in flattened(things):
            self._know(thing)
        self._know_ordinary(ordinary)
        for optimizer in self.protected.optimizers:
            self._know(optimizer)
            self._know(getattr(optimizer, "optim", None))

    def refresh(self) -> None:
        """Buffers may have been replaced, generators, and workers' iterators by those of the next epoch."""
        self._ids_of_tensors = {id(tensor) for _, tensor in self.protected.parameters()}
        self._ids_of_tensors |= {id(tensor) for _, module in self.protected.modules for tensor in module.buffers()}
        self._ids_of_modules = {id(each) for _, module in self.protected.modules for each in module.modules()}
        self._unkept = {(id(module), key) for each in self.protected.attributes for module, key in each.unkept()}
        self._ids_of_iterators = {id(place.loader._iterator) for place in self.protected.places
                                  if getattr(place.loader, "_iterator", None) is not None}  # workers that persist
        kept = [place.kept() for place in self.protected.places]
        self._of_places = [one for each in kept for one in each.objects]
        self._attributes_of_places = {one for each in kept for one in each.attributes}

    def is_variable(self, name: str) -> bool:
        """One of the loop's for which an entry of `state=` stands."""
        return name in self.protected.variables

    def keeps_attribute(self, module: Any, key: str, value: Any) -> bool:
        """A plain one of a protected module."""
        return (id(module) in self._ids_of_modules and module_attributes.is_kept(value) and
                (id(module), key) not in self._unkept)

    def keeps_of_loader(self, thing: Any, name: str) -> bool:
        """An attribute of a loader's sampler or dataset."""
        return (id(thing), name) in self._attributes_of_places

    def __call__(self, thing: Any) -> bool:
        return type(thing).__module__ == "pawl.job" or _is_generator_of_pawl(thing) or any(
            id(thing) in known for known in (self._ids, self._ids_of_tensors, self._ids_of_iterators)) or any(
            thing is each for each in self._of_places)

    def _know(self, thing: Any) -> None:
        if thing is None or isinstance(thing, sys.modules["torch"].nn.Module):
            return  # of a module, its tensors are protected, its other attributes are not
        self._things.append(thing)
        self._ids.add(id(thing))

    def _know_ordinary(self, ordinary: Any) -> None:
        """The container, and what is taken back in place inside of it (volatile_state.py)."""
        if ordinary is None:
            return
        self._know(ordinary)
        inside: Iterable[Any] = ordinary if isinstance(ordinary, (list, tuple)) else (
            ordinary.values() if isinstance(ordinary, dict) else getattr(ordinary, "__dict__", {}).values())
        for value in inside:
            if isinstance(value, (dict, list)):
                self._know_ordinary(value)
            elif not isinstance(value, _PLAIN):
                self._know(value)


def _is_generator_of_pawl(thing: Any) -> bool:
    """Such as job.loop(), where a variable holds it."""
    frame = thing.gi_frame if isinstance(thing, types.GeneratorType) else None
    return frame is not None and frame.f_globals.get("__name__", "").startswith("pawl.")


def flattened(things: Any) -> Iterator[Any]:
    for thing in things:
        if isinstance(thing, (list, tuple)):
            yield from flattened(thing)
        else:
            yield thing


@dataclass
class Finder:
    """Finds it once in each step; unchanged tensors are not read twice. `is_known`: protected, or pawl's own.
    `bytes_max`: of one thing; with it a look is bounded. Of tensors that are larger, or that no bytes are left for, a
    write in place through torch is seen, and no other; other things are UNREAD."""

    is_known: Known
    bytes_max: int | None = None
    _tensors: dict[int, tuple[Any, int, int, str]] = field(default_factory=dict)
    _dead: dict[tuple[types.CodeType, int], frozenset[str]] = field(default_factory=dict)
    _found: dict[str, Unprotected] = field(default_factory=dict)
    _left: int = 0                # bytes that a bounded look may still read
    _limit: Limit | None = None  # of the thing that is read
    _seen: set[int] = field(default_factory=set)

    def find(self, loop: types.FrameType) -> dict[str, Unprotected]:
        """`loop`: the frame that is about to enter the step's block."""
        self._found, self._seen, self._left = {}, set(), LOOK_BYTES
        for name, value in self._variables(loop):
            self._visit(name, value, "", 0)
        return self._found

    # Where to begin.

    def _variables(self, loop: types.FrameType) -> Iterator[tuple[str, Any]]:
        dead = self._written_first(loop)
        shown: set[str] = set()
        for frame in _frames_of_the_script(loop):
            for name, value in list(frame.f_locals.items()):
                if frame is loop and name in dead or name.startswith("__") or name in shown or (
                        self.is_known.is_variable(name)):
                    continue
                shown.add(name)
                yield name, value
        for prefix, module in _modules_of_the_script():
            for name, value in list(vars(module).items()):
                if not name.startswith("__") and prefix + name not in shown and not (
                        prefix == "" and (name in dead or self.is_known.is_variable(name))):
                    yield prefix + name, value

    def _written_first(self, loop: types.FrameType) -> frozenset[str]:
        key = (loop.f_code, loop.f_lasti)
        if key not in self._dead:
            self._dead[key] = (names_written_first(loop.f_code, loop.f_lasti)
                               | names_written_at_the_top(loop.f_code, loop.f_lasti))
        return self._dead[key]

    # What is there.

    def _visit(self, path: str, value: Any, owner: str, depth: int) -> None:
        if len(self._found) >= FOUND_MAX or depth > DEPTH_MAX:
            return
        if isinstance(value, _PLAIN) and not self.is_known(value):
            return self._note(path, VALUE, self._digest(value), _shorten(repr(value)), owner)
        if id(value) in self._seen or isinstance(value, types.ModuleType):
            return None
        known = self.is_known(value)
        if known and not isinstance(value, sys.modules["torch"].optim.Optimizer):
            return None
        self._seen.add(id(value))
        try:
            if known:
                self._visit_attributes(path, value, depth, _OF_OPTIMIZERS)
            else:
                self._visit_object(path, value, owner, depth)
        except Exception:  # a property that raises, a closed file: it can't be read, and that is all
            return None

    def _visit_object(self, path: str, value: Any, owner: str, depth: int) -> None:
        torch, numpy = sys.modules["torch"], sys.modules.get("numpy")
        if isinstance(value, torch.Tensor):
            self._note(path, TENSOR, self._tensor_digest(value), _tensor_shown(value), owner)
        elif isinstance(value, torch.nn.Module):
            self._visit_module(path, value, depth)
        elif isinstance(value, torch.optim.Optimizer):
            self._note(path, OPTIMIZER, self._digest_of_state(value), type(value).__name__, owner)
        elif isinstance(value, torch.Generator):
            self._note(path, GENERATOR, digest_of_tensor(value.get_state()), "torch.Generator", owner)
        elif isinstance(value, random.Random):
            self._note(path, GENERATOR, digest_of(value.getstate()), "random.Random", owner)
        elif numpy is not None and isinstance(value, (numpy.random.Generator, numpy.random.RandomState)):
            state = getattr(value, "bit_generator", None)
            self._note(path, GENERATOR, digest_of(state.state if state else value.get_state()), "a generator of numpy",
                       owner)
        elif numpy is not None and isinstance(value, numpy.ndarray):
            if value.nbytes <= ARRAY_BYTES_MAX:
                self._note(path, TENSOR, self._digest(value), f"array {value.dtype}{list(value.shape)}", owner)
        elif isinstance(value, io.IOBase):
            self._visit_file(path, value, owner)
        elif isinstance(value, _ITERATORS) or type(value).__name__.endswith("DataLoaderIter"):
            self._visit_iterator(path, value, owner, depth)
        elif isinstance(value, (dict, list, tuple, set, frozenset, deque, bytearray)):
            self._visit_container(path, value, owner, depth)
        elif isinstance(value, types.FunctionType):
            self._visit_function(path, value, depth)
        elif isinstance(value, type):
            self._visit_class(path, value, depth)
        elif not isinstance(value, (types.BuiltinFunctionType, types.MethodType)):
            self._visit_instance(path, value, owner, depth)

    def _visit_module(self, path: str, module: Any, depth: int) -> None:
        """A protected one: attributes that are neither parameters nor buffers. Another: all of its tensors."""
        loose = [tensor for tensor in itertools.chain(module.parameters(), module.buffers())
                 if not self.is_known(tensor)]
        if loose:
            modes = [each.training for each in module.modules()] + [each.requires_grad for each in loose]
            self._note(path, MODULE, digest_of([[self._tensor_digest(tensor) for tensor in loose], modes]),
                       type(module).__name__, "")
        for name, each in module.named_modules():
            self._seen.add(id(each))
            if type(each).__module__.startswith("torch."):
                continue
            for key, value in vars(each).items():
                if not key.startswith("_") and key != "training" and not self.is_known.keeps_attribute(each, key,
                                                                                                       value):
                    self._visit(".".join(part for part in (path, name, key) if part), value,
                                A_MODULE + type(each).__name__, depth + 1)

    def _visit_file(self, path: str, file: Any, owner: str) -> None:
        if not file.closed and file.writable() and file not in (sys.stdout, sys.stderr):
            name = getattr(file, "name", "")
            self._note(path, FILE, digest_of(file.tell()), f"open for writing: {name}", owner)

    def _visit_iterator(self, path: str, iterator: Any, owner: str, depth: int) -> None:
        if self.is_known(getattr(iterator, "_index_sampler", None)):
            return  # a DataLoader's, that goes wherever the protected sampler is
        self._note(path, ITERATOR, _place_of(iterator), _iterator_shown(iterator), owner)
        frame = getattr(iterator, "gi_frame", None)
        for name, value in (frame.f_locals if frame is not None else {}).items():
            if not isinstance(value, _PLAIN):
                self._visit(f"{path}.{name}", value, "a generator", depth + 1)

    def _visit_container(self, path: str, container: Any, owner: str, depth: int) -> None:
        whole = isinstance(container, (set, frozenset, bytearray)) or len(container) > ELEMENTS_MAX or (
            not isinstance(container, dict) and all(isinstance(each, _PLAIN) for each in container))
        if whole:
            shown = f"{type(container).__name__} of {len(container)}"
            return self._note(path, VALUE, self._digest(container), shown, owner)
        pairs: Iterable[tuple[Any, Any]] = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in list(pairs):
            self._visit(f"{path}[{key!r}]", value, owner, depth + 1)

    def _visit_function(self, path: str, function: Any, depth: int) -> None:
        """What it keeps from call to call: variables of the function that made it, defaults that it changes, attributes
        of its own."""
        if not _is_of_script(function.__module__, function.__code__.co_filename):
            return
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # empty
                self._visit(f"{path}().{name}", cell.cell_contents, A_FUNCTION, depth + 1)
        code, defaults = function.__code__, function.__defaults__ or ()
        positional = code.co_varnames[:code.co_argcount]
        for name, value in [*zip(positional[len(positional) - len(defaults):], defaults, strict=True),
                            *(function.__kwdefaults__ or {}).items()]:
            if not isinstance(value, _PLAIN):
                self._visit(f"{path}({name})", value, A_FUNCTION, depth + 1)
        for name, value in vars(function).items():
            if not name.startswith("__"):
                self._visit(f"{path}.{name}", value, A_FUNCTION, depth + 1)

    def _visit_class(self, path: str, kind: Any, depth: int) -> None:
        file = getattr(sys.modules.get(kind.__module__), "__file__", None)
        if not _is_of_script(kind.__module__, file or ""):
            return
        for name, value in list(vars(kind).items()):
            if not name.startswith("__") and not callable(value) and not hasattr(type(value), "__get__"):
                self._visit(f"{path}.{name}", value, A_CLASS, depth + 1)

    def _visit_attributes(self, path: str, thing: Any, depth: int, but: frozenset[str]) -> None:
        """Those that an object of the script's own or of a package has beside what is protected."""
        if _is_foreign(type(thing).__module__):
            return
        for name, value in list(vars(thing).items()):
            if not name.startswith("_") and name not in but and not callable(value):
                self._visit(f"{path}.{name}", value, PROTECTED + type(thing).__name__, depth + 1)

    def _visit_instance(self, path: str, thing: Any, owner: str, depth: int) -> None:
        kind = type(thing)
        if callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None)):
            return self._note(path, STATEFUL, self._digest_of_state(thing), kind.__name__, owner)
        left_alone = kind.__module__.split(".")[0] in _LEFT_ALONE and not kind.__module__.startswith("torch.utils.data")
        if left_alone and not isinstance(thing, (argparse.Namespace, types.SimpleNamespace)):
            return None
        names = [*getattr(thing, "__dict__", {}), *(name for each in kind.__mro__ for name in _slots_of(each))]
        for name in names:
            if not name.startswith("__") and not self.is_known.keeps_of_loader(thing, name):
                self._visit(f"{path}.{name}", getattr(thing, name, None), kind.__name__, depth + 1)

    def _note(self, path: str, kind: str, digest: str, shown: str, owner: str) -> None:
        self._found[path] = Unprotected(kind, digest, shown, owner)

    def _digest(self, value: Any) -> str:
        return self._read(lambda: digest_of(value, self._limit))

    def _digest_of_state(self, thing: Any) -> str:
        state = thing.state_dict()  # which may ask all ranks, however much is left
        return self._read(lambda: self._state_digest(state))

    def _read(self, read: Callable[[], str]) -> str:
        """Within what may be read of one thing, and of all."""
        before = self._readable()
        if before is None:
            return read()
        self._limit = Limit(before)
        try:
            return read()
        except TooMuch:
            return UNREAD
        finally:
            self._left -= before - self._limit.left
            self._limit = None

    def _readable(self) -> int | None:
        """Bytes of the next thing. None: all."""
        return None if self.bytes_max is None else min(self.bytes_max, max(self._left, SMALL_BYTES))

    def _state_digest(self, state: Any) -> str:
        torch = sys.modules["torch"]
        if isinstance(state, torch.Tensor):
            return self._tensor_digest(state)
        if isinstance(state, dict):
            return digest_of([(str(key), self._state_digest(value)) for key, value in state.items()], self._limit)
        if isinstance(state, (list, tuple)):
            return digest_of([self._state_digest(value) for value in state], self._limit)
        return digest_of(state, self._limit)

    def _tensor_digest(self, tensor: Any) -> str:
        """A data set that lies in a tensor is read once."""
        known = self._tensors.get(id(tensor))
        if known is not None and known[0]() is tensor and known[1:3] == (tensor._version, tensor.data_ptr()):
            return known[3]
        most = self._readable()
        if most is not None and tensor.nbytes > most:
            digest = f"{tensor.data_ptr()} {tensor._version}"
        else:
            digest = digest_of_tensor(tensor)
            self._left -= tensor.nbytes
        self._tensors[id(tensor)] = (weakref.ref(tensor), tensor._version, tensor.data_ptr(), digest)
        return digest


_OF_OPTIMIZERS = frozenset({"param_groups", "state", "defaults"})
_LEFT_ALONE = (frozenset(sys.stdlib_module_names) | {"torch", "numpy", "pawl", "pawl_c10d",
                                                     "__mp_main__"}) - {"__main__"}


# Which frames and modules are the script's ------------------------------------------------------------------------

def _frames_of_the_script(loop: types.FrameType) -> Iterator[types.FrameType]:
    """From the loop outwards to the script's own level."""
    frame: types.FrameType | None = loop
    while frame is not None and not _is_foreign(frame.f_globals.get("__name__", "")):
        yield frame
        if frame.f_code.co_name == "<module>":
            return
        frame = frame.f_back


def _is_foreign(module: str) -> bool:
    return module.split(".")[0] in _LEFT_ALONE


def _is_of_script(module: str | None, file: str) -> bool:
    return not _is_foreign(module or "") and "site-packages" not in file


def _modules_of_the_script() -> Iterator[tuple[str, types.ModuleType]]:
    """The script itself, and modules that lie beside it or below the working folder."""
    script = os.path.dirname(os.path.abspath(sys.argv[0])) if sys.argv and sys.argv[0] else os.getcwd()
    folders = tuple({script + os.sep, os.getcwd() + os.sep})
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__":
            yield "", module
        elif file and os.path.abspath(file).startswith(folders) and "site-packages" not in file:
            if not _is_foreign(name):
                yield name + ".", module


# Which variables a step writes before it reads --------------------------------------------------------------------

def names_written_first(code: types.CodeType, at: int) -> frozenset[str]:
    """Of the variables of `code`, those that the innermost loop around the instruction `at` writes, from there on once
    around, before it reads them. Goes through the instructions in their order, not along branches."""
    loop = _loop_around(code, at)
    return _stored_first([each for each in loop if at < each.offset] + [each for each in loop if each.offset <= at])


def names_written_at_the_top(code: types.CodeType, at: int) -> frozenset[str]:
    """Those that this loop writes, before it reads them, whenever it begins anew, up to its first branch: the batch
    that it draws. But for what enumerate() and its like count, which begins at 0 in a new process."""
    loop = [each for each in _loop_around(code, at) if each.offset <= at]
    top = loop[:1] + list(itertools.takewhile(lambda each: "JUMP" not in each.opname, loop[1:]))
    counter = next((name for each in top for access, name in _accesses(each) if access == "STORE"), "")
    return _stored_first(top) - ({counter} if loop and _is_counted(code, loop[0]) else set())


def _is_counted(code: types.CodeType, begin: dis.Instruction) -> bool:
    """Whether something between the loop and pawl counts: what stands in the loop's head says so."""
    head = begin.positions
    if begin.opname != "FOR_ITER" or head is None or head.lineno is None:
        return False
    first, last = (head.lineno, head.col_offset or 0), (head.end_lineno or head.lineno, head.end_col_offset or 0)
    called = {each.argval for each in dis.get_instructions(code)
              if each.offset < begin.offset and "LOAD" in each.opname and each.positions is not None
              and first <= (each.positions.lineno or 0, each.positions.col_offset or 0) < last}
    return "enumerate" in called or "zip" in called and not called.isdisjoint(("count", "range"))


def _loop_around(code: types.CodeType, at: int) -> list[dis.Instruction]:
    """The innermost one's instructions, in their order; none: there is no loop."""
    instructions = list(dis.get_instructions(code))
    backward = [each for each in instructions if each.offset > at and "JUMP_BACKWARD" in each.opname
                and isinstance(each.argval, int) and each.argval <= at]
    if not backward:
        return []
    begin = max(each.argval for each in backward)
    end = max(each.offset for each in backward if each.argval == begin)
    return [each for each in instructions if begin <= each.offset <= end]


def _stored_first(instructions: list[dis.Instruction]) -> frozenset[str]:
    first: dict[str, str] = {}
    for each in instructions:
        for access, name in _accesses(each):
            first.setdefault(name, access)
    return frozenset(name for name, access in first.items() if access == "STORE")


def _accesses(instruction: dis.Instruction) -> list[tuple[str, str]]:
    """[("LOAD" or "STORE", variable)]; newer interpreters join two accesses in one instruction."""
    kinds = [word for word in instruction.opname.split("_") if word in ("LOAD", "STORE")]
    names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
    scoped = any(word in instruction.opname for word in ("FAST", "NAME", "GLOBAL", "DEREF"))
    if not scoped or not kinds:
        return []
    if len(kinds) < len(names):
        kinds = kinds * len(names)
    return [(kind, name) for kind, name in zip(kinds, names, strict=False) if isinstance(name, str)]


# Words ------------------------------------------------------------------------------------------------------------

def _place_of(iterator: Any) -> str:
    """How far it has come, as far as it lets that be seen."""
    yielded = getattr(iterator, "_num_yielded", None)
    if yielded is not None:
        return digest_of(yielded)
    frame = getattr(iterator, "gi_frame", None)
    if frame is not None:
        plain = {name: value for name, value in frame.f_locals.items() if isinstance(value, _PLAIN)}
        return digest_of([frame.f_lasti, plain, [_place_of(each) for each in frame.f_locals.values()
                                                 if isinstance(each, _ITERATORS) and each is not iterator]])
    if isinstance(iterator, (zip, map, filter, itertools.chain, itertools.islice)):
        return ""
    return digest_of([each if isinstance(each, (*_PLAIN, tuple)) else _place_of(each) if isinstance(each, _ITERATORS)
                      else "" for each in _flat(iterator.__reduce__()[1:])])


def _flat(values: Any) -> Iterator[Any]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _iterator_shown(iterator: Any) -> str:
    code = getattr(iterator, "gi_code", None)
    return f"the generator {code.co_name}()" if code is not None else f"a {type(iterator).__name__}"


def _tensor_shown(tensor: Any) -> str:
    return f"tensor {str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = getattr(kind, "__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _shorten(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else text[:SHOWN_MAX - 3] + "..."

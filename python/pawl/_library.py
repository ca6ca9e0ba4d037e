"""libpawl by ctypes: include/pawl/pawl.h, call by call.

A status becomes an exception: PAWL_RECOVER `Recover`, PAWL_STOP `Stop`, all others a `PawlError` with libpawl's
sentence. Each call releases the interpreter's lock while it waits. Callbacks and what they refer to live as long as the
handle. Threads are those of pawl.h: the training thread, unless a method says otherwise. Nothing here knows torch.
"""
from __future__ import annotations

import ctypes
import enum
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from pawl.errors import PawlError, Recover, Refused, Stop, TimedOut, Unreachable

NAME = "libpawl.so.0"
VALUE_BYTES = 64 << 10  # room for a value of the rendezvous at first; longer ones are asked for again


class Phase(enum.IntEnum):
    """What the training thread is doing (pawl_phase)."""

    NONE = 0
    COMPUTE = 1
    ALLREDUCE = 2
    FENCE = 3
    UPDATE = 4
    ALLGATHER = 5
    JOIN = 6
    RESTORE = 7
    ASIDE = 8
    FINISH = 9
    EXCHANGE = 10


class Role(enum.IntEnum):
    """What a trainer without a seat is (pawl_role)."""

    UNKNOWN = 0
    SEATED = 1
    SPARE = 2


class Placement(enum.IntEnum):
    """How a tensor lies on its mesh (pawl_placement)."""

    REPLICATE = 0
    UNIQUE = 1


class Region(Protocol):
    """Which box of a tensor a rank holds, in elements."""

    @property
    def shape(self) -> Sequence[int]: ...

    @property
    def begin(self) -> Sequence[int]: ...

    @property
    def size(self) -> Sequence[int]: ...


class Lifetime(enum.IntEnum):
    """When a tensor changes (pawl_lifetime)."""

    STABLE = 0
    VOLATILE = 1
    DERIVED = 2


class _Status(enum.IntEnum):
    OK = 0
    RECOVER = 1
    STOP = 2
    INVALID = 3
    TIMEOUT = 4
    UNREACHABLE = 5
    CORRUPT = 6
    IO = 7
    BROKEN = 8


_RAISES: dict[int, type[Exception]] = {
    _Status.RECOVER: Recover,
    _Status.STOP: Stop,
    _Status.INVALID: Refused,
    _Status.TIMEOUT: TimedOut,
    _Status.UNREACHABLE: Unreachable,
}


@dataclass(frozen=True)
class Seat:
    """A place in the job, as of one generation."""

    seat: int
    rank: int
    world: int
    local_rank: int
    generation: int
    resume_step: int


@dataclass(frozen=True)
class FenceReport:
    """How the last window went."""

    step: int
    captured: bool
    waited_ns: int
    captured_bytes: int
    why_void: str
    written: int | None  # a stable tensor (by its index) that was seen to be written while the window was open


class SizedStructure(ctypes.Structure):
    """A struct of the C interface: it begins with its size. Fields of a subclass come after that."""

    _fields_ = [("struct_size", ctypes.c_size_t)]

    def __init__(self, **values: object) -> None:
        super().__init__(struct_size=ctypes.sizeof(type(self)), **values)


class _Seat(SizedStructure):
    _fields_ = [
        ("seat", ctypes.c_uint32), ("rank", ctypes.c_uint32), ("world", ctypes.c_uint32),
        ("local_rank", ctypes.c_uint32), ("generation", ctypes.c_uint64), ("resume_step", ctypes.c_uint64),
        ("rendezvous_prefix", ctypes.c_char * 48),
    ]


class _Tensor(SizedStructure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("role", ctypes.c_char_p), ("dtype", ctypes.c_int),
        ("dimension_count", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_uint64)),
        ("begin", ctypes.POINTER(ctypes.c_uint64)), ("size", ctypes.POINTER(ctypes.c_uint64)),
        ("mesh", ctypes.c_uint32), ("placement", ctypes.c_int), ("lifetime", ctypes.c_int),
        ("data", ctypes.c_void_p), ("equal_axes", ctypes.c_uint64), ("unit", ctypes.c_char_p),
        ("logical_dimension_count", ctypes.c_uint32), ("logical_shape", ctypes.POINTER(ctypes.c_uint64)),
        ("order", ctypes.POINTER(ctypes.c_uint32)),
    ]


class _FenceReport(SizedStructure):
    _fields_ = [
        ("step", ctypes.c_uint64), ("captured", ctypes.c_int), ("waited_ns", ctypes.c_uint64),
        ("captured_bytes", ctypes.c_uint64), ("why_void", ctypes.c_char * 96),
        ("was_written", ctypes.c_int), ("written_tensor", ctypes.c_uint32),
    ]


class _Options(SizedStructure):
    _fields_ = [("socket_path", ctypes.c_char_p)]


_SAVE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.POINTER(ctypes.c_size_t))
_LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

_HANDLE, _TEXT, _U32, _U64 = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint32, ctypes.c_uint64
_SIZE, _BYTES = ctypes.c_size_t, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "attach": (ctypes.c_int, (ctypes.POINTER(_Options), ctypes.POINTER(_HANDLE))),
    "detach": (None, (_HANDLE,)),
    "error": (_TEXT, (_HANDLE,)),
    "identity": (ctypes.c_int, (_HANDLE, ctypes.POINTER(_Seat))),
    "role_of": (ctypes.c_int, (_HANDLE,)),
    "world": (_U32, (_HANDLE,)),
    "mesh_add": (ctypes.c_int, (_HANDLE, _TEXT, ctypes.POINTER(_TEXT), ctypes.POINTER(_U64), _U32,
                                ctypes.POINTER(_U32))),
    "tensor_add": (ctypes.c_int, (_HANDLE, ctypes.POINTER(_Tensor), ctypes.POINTER(_U32))),
    "tensor_rebind": (ctypes.c_int, (_HANDLE, _U32, _BYTES)),
    "blob_add": (ctypes.c_int, (_HANDLE, _TEXT, _SIZE, _SAVE, _LOAD, ctypes.c_void_p)),
    "layout_seal": (ctypes.c_int, (_HANDLE,)),
    "step_begin": (ctypes.c_int, (_HANDLE, _U64)),
    "fence": (ctypes.c_int, (_HANDLE, ctypes.POINTER(_FenceReport))),
    "window_open": (ctypes.c_int, (_HANDLE, _U64, _U64)),
    "window_void": (ctypes.c_int, (_HANDLE, _TEXT)),
    "progress": (ctypes.c_int, (_HANDLE, ctypes.c_int)),
    "committed_step": (_U64, (_HANDLE,)),
    "interrupted": (ctypes.c_int, (_HANDLE,)),
    "fault_report_lost": (ctypes.c_int, (_HANDLE, _TEXT, _TEXT)),
    "recover_join": (ctypes.c_int, (_HANDLE, ctypes.POINTER(_Seat))),
    "restore": (ctypes.c_int, (_HANDLE,)),
    "recover_done": (ctypes.c_int, (_HANDLE,)),
    "finish": (ctypes.c_int, (_HANDLE,)),
    "stop_after": (ctypes.c_int, (_HANDLE, _U64, ctypes.POINTER(_U64))),
    "stop_step": (_U64, (_HANDLE,)),
    "persist": (ctypes.c_int, (_HANDLE,)),
    "stored_step": (_U64, (_HANDLE,)),
    "rendezvous_set": (ctypes.c_int, (_HANDLE, _TEXT, _BYTES, _SIZE)),
    "rendezvous_get": (ctypes.c_int, (_HANDLE, _TEXT, _BYTES, ctypes.POINTER(_SIZE), _U32)),
    "rendezvous_try_get": (ctypes.c_int, (_HANDLE, _TEXT, _BYTES, ctypes.POINTER(_SIZE))),
    "rendezvous_add": (ctypes.c_int, (_HANDLE, _TEXT, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))),
    "rendezvous_compare_set": (ctypes.c_int, (_HANDLE, _TEXT, _BYTES, _SIZE, _BYTES, _SIZE, _BYTES,
                                         ctypes.POINTER(_SIZE))),
    "rendezvous_delete": (ctypes.c_int, (_HANDLE, _TEXT, ctypes.POINTER(ctypes.c_int))),
    "status_json": (_TEXT, (_HANDLE,)),
}


def find_library() -> str:
    """libpawl's path: $PAWL_LIBRARY, else beside the package, else the checkout's build. Refused if there is none."""
    named = os.environ.get("PAWL_LIBRARY")
    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    places = [named] if named else [os.path.join(package, NAME), os.path.join(checkout, "build", "lib", NAME)]
    for place in places:
        if os.path.exists(place):
            return place
    raise Refused(f"libpawl is not at {' nor at '.join(places)}: build it (make), or name it with PAWL_LIBRARY")


def load(path: str) -> ctypes.CDLL:
    """The library at `path`, its functions typed."""
    return load_typed("libpawl", path, _SIGNATURES)


def load_typed(name: str, path: str, signatures: Mapping[str, tuple[object, tuple[object, ...]]]) -> ctypes.CDLL:
    """A library of ours whose functions are pawl_<key>, with their results and arguments."""
    try:
        library = ctypes.CDLL(path)
        for key, (result, arguments) in signatures.items():
            function = getattr(library, "pawl_" + key)
            function.restype, function.argtypes = result, arguments
    except OSError as error:
        raise Refused(f"{name} can't be loaded: {error}") from None
    except AttributeError as error:
        raise Refused(f"{path} is of another version than this package ({error}): install the same release of both"
                      ) from None
    return library


def _integers(values: Sequence[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * max(1, len(values)))(*values)


class Written(Protocol):
    """Bytes that can be written to memory."""

    def __len__(self) -> int: ...
    def write_to(self, address: int) -> None: ...


class Trainer:
    """One attached handle. Methods are the calls of pawl.h under their names."""

    def __init__(self, path: str | None = None, socket_path: str | None = None) -> None:
        self.path = path or find_library()
        self._library = load(self.path)
        self._handle = _HANDLE()
        self._callbacks: list[object] = []
        self._callback_error: BaseException | None = None
        self._said_broken = False
        options = ctypes.byref(_Options(socket_path=socket_path.encode())) if socket_path else None
        self._check(self._library.pawl_attach(options, ctypes.byref(self._handle)))

    @property
    def handle(self) -> int:
        """pawl_trainer* as a number; 0 after detach."""
        return self._handle.value or 0

    def detach(self) -> None:
        """Idempotent. Nothing may be called afterwards."""
        if self._handle:
            self._library.pawl_detach(self._handle)
            self._handle = _HANDLE()
            self._callbacks.clear()

    def _check(self, status: int, must: bool = False) -> None:
        """`must`: there is nothing to go on with if pawl has broken. Else training goes on, unprotected."""
        error, self._callback_error = self._callback_error, None
        if error is not None:
            raise error
        if status == _Status.BROKEN and self._handle and not must:
            self._say_broken()
        elif status != _Status.OK:
            text = (self._library.pawl_error(self._handle) or b"").decode(errors="replace")
            raise _RAISES.get(status, PawlError)(text or _Status(status).name.lower())

    def _say_broken(self) -> None:
        if not self._said_broken:
            self._said_broken = True
            print(f"pawl: {(self._library.pawl_error(self._handle) or b'').decode(errors='replace')}", file=sys.stderr,
                  flush=True)

    # Who we are.

    def identity(self) -> Seat:
        seat = _Seat()
        self._check(self._library.pawl_identity(self._handle, ctypes.byref(seat)))
        return self._seat(seat)

    def role(self) -> Role:
        """Any thread."""
        return Role(self._library.pawl_role_of(self._handle))

    def world(self) -> int:
        """Seats of the job, also while parked; 0: not known yet. Any thread."""
        return int(self._library.pawl_world(self._handle))

    @staticmethod
    def _seat(seat: _Seat) -> Seat:
        return Seat(seat.seat, seat.rank, seat.world, seat.local_rank, seat.generation, seat.resume_step)

    # Declarations.

    def mesh_add(self, name: str, axes: Sequence[tuple[str, int]]) -> int:
        names = (ctypes.c_char_p * max(1, len(axes)))(*[axis.encode() for axis, _ in axes])
        mesh = ctypes.c_uint32()
        self._check(self._library.pawl_mesh_add(self._handle, name.encode(), names,
                                                _integers([size for _, size in axes]), len(axes), ctypes.byref(mesh)))
        return mesh.value

    def tensor_add(self, name: str, role: str, dtype: int, shape: Sequence[int], data: int, *, mesh: int,
                   placement: Placement, lifetime: Lifetime, region: Region | None = None,
                   equal_axes: int = 0, order: Sequence[int] = ()) -> int:
        """`data` is an address; the memory stays the caller's and must stay where it is. `shape` is what lies there;
        `region` says which box of a larger tensor that is; bit i of `equal_axes` that every byte is the same on all
        ranks along axis i of the mesh; `order`, where it isn't row-major, its dimensions from the slowest to the
        fastest in memory."""
        begin, size = (region.begin, region.size) if region is not None else ((0,) * len(shape), shape)
        whole = region.shape if region is not None else shape
        tensor = _Tensor(name=name.encode(), role=role.encode(), dtype=dtype, dimension_count=len(whole),
                         shape=_integers(whole), begin=_integers(begin), size=_integers(size), mesh=mesh,
                         placement=int(placement), lifetime=int(lifetime),
                         data=data or None, equal_axes=equal_axes,
                         order=(ctypes.c_uint32 * len(order))(*order) if order else None)
        index = ctypes.c_uint32()
        self._check(self._library.pawl_tensor_add(self._handle, ctypes.byref(tensor), ctypes.byref(index)))
        return index.value

    def tensor_rebind(self, index: int, data: int) -> None:
        self._check(self._library.pawl_tensor_rebind(self._handle, index, data))

    def blob_add(self, name: str, capacity: int, save: Callable[[int], Written | None],
                 load: Callable[[memoryview], None]) -> None:
        """`save` and `load` run on the training thread; what they raise is raised by the call they ran in. `save` is
        told the room: `capacity`, or what a restored snapshot has. If it gives None, its window is void. `load` must
        not keep what it is given."""

        def on_save(_: object, buffer: int, room: int, size: ctypes._Pointer[ctypes.c_size_t]) -> int:
            try:
                data = save(room)
                if data is None:
                    return 1
                if len(data) > room:
                    raise Refused(f"{name}: {len(data)} bytes, but there is room for {room}")
                data.write_to(buffer)
                size[0] = len(data)
                return 0
            except BaseException as error:
                self._callback_error = error
                return 1

        def on_load(_: object, buffer: int, size: int) -> int:
            try:
                load(memoryview((ctypes.c_char * size).from_address(buffer)).cast("B"))
                return 0
            except BaseException as error:
                self._callback_error = error
                return 1

        callbacks = (_SAVE(on_save), _LOAD(on_load))
        self._callbacks.append(callbacks)
        self._check(self._library.pawl_blob_add(self._handle, name.encode(), capacity, *callbacks, None))

    def layout_seal(self) -> None:
        self._check(self._library.pawl_layout_seal(self._handle))

    # A step.

    def step_begin(self, step: int) -> None:
        self._check(self._library.pawl_step_begin(self._handle, step))

    def fence(self) -> FenceReport:
        report = _FenceReport()
        self._check(self._library.pawl_fence(self._handle, ctypes.byref(report)))
        return FenceReport(report.step, bool(report.captured), report.waited_ns, report.captured_bytes,
                           report.why_void.decode(errors="replace"),
                           report.written_tensor if report.was_written else None)

    def window_open(self, step: int, samples: int) -> None:
        self._check(self._library.pawl_window_open(self._handle, step, samples))

    def window_void(self, why: str) -> None:
        """The open window, unless it is sealed already: the fence's report says."""
        self._check(self._library.pawl_window_void(self._handle, why.encode()))

    def progress(self, phase: Phase) -> None:
        """Any thread; never fails for a live handle."""
        self._library.pawl_progress(self._handle, int(phase))

    def committed_step(self) -> int:
        """Any thread."""
        return int(self._library.pawl_committed_step(self._handle))

    def interrupted(self) -> bool:
        """Any thread."""
        return bool(self._library.pawl_interrupted(self._handle))

    def use_stream(self, stream: int) -> None:
        """The CUstream in which the program writes its state: before window_open, step_begin and restore, where it
        lies on a GPU. Until then it is the default stream."""
        call = getattr(self._library, "pawl_stream_use", None)
        if call is None:
            raise Refused(f"{self.path} can't capture from a GPU: install the same release of libpawl and this package")
        call.restype, call.argtypes = ctypes.c_int, (_HANDLE, ctypes.c_void_p)
        self._check(call(self._handle, stream or None))

    # Recovery and the end.

    def fault_report(self, what: str, lost: str = "") -> None:
        """`lost`: ranks or hosts that the trainer found gone, with blanks between."""
        self._check(self._library.pawl_fault_report_lost(self._handle, what.encode(), lost.encode()))

    def recover_join(self) -> Seat:
        seat = _Seat()
        self._check(self._library.pawl_recover_join(self._handle, ctypes.byref(seat)), must=True)
        return self._seat(seat)

    def restore(self) -> None:
        self._check(self._library.pawl_restore(self._handle))

    def recover_done(self) -> None:
        self._check(self._library.pawl_recover_done(self._handle))

    def finish(self) -> None:
        self._check(self._library.pawl_finish(self._handle))

    def stop_after(self, step: int) -> int:
        agreed = ctypes.c_uint64()
        self._check(self._library.pawl_stop_after(self._handle, step, ctypes.byref(agreed)))
        return agreed.value

    def stop_step(self) -> int:
        """0: none. Any thread."""
        return int(self._library.pawl_stop_step(self._handle))

    def persist(self) -> None:
        self._check(self._library.pawl_persist(self._handle))

    def stored_step(self) -> int:
        """0: none. Any thread."""
        return int(self._library.pawl_stored_step(self._handle))

    # Rendezvous.

    def rendezvous_set(self, key: str, value: bytes) -> None:
        self._check(self._library.pawl_rendezvous_set(self._handle, key.encode(), value, len(value)))

    def rendezvous_get(self, key: str, timeout_s: float) -> bytes:
        """Waits for the key. A long value is fetched in a second call, which may take as long again."""
        def get(value: object, size: object) -> int:
            return int(self._library.pawl_rendezvous_get(self._handle, key.encode(), value, size,
                                                         int(timeout_s * 1000)))

        return self._value(get, VALUE_BYTES)

    def rendezvous_delete(self, key: str) -> None:
        """Whether it was there or not."""
        self._check(self._library.pawl_rendezvous_delete(self._handle, key.encode(), None))

    def rendezvous_add(self, key: str, amount: int) -> int:
        """The sum."""
        total = ctypes.c_int64()
        self._check(self._library.pawl_rendezvous_add(self._handle, key.encode(), amount, ctypes.byref(total)))
        return total.value

    def rendezvous_compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """What the key holds afterwards (as in c10d: an empty `expected` also stands for a key that isn't there)."""
        def compare_set(value: object, size: object) -> int:
            return int(self._library.pawl_rendezvous_compare_set(
                self._handle, key.encode(), expected, len(expected), desired, len(desired), value, size))

        # With room for both, a value that is longer is neither: nothing was changed, and the call may be repeated.
        return self._value(compare_set, max(VALUE_BYTES, len(expected), len(desired)))

    def _value(self, call: Callable[[object, object], int], room: int) -> bytes:
        """What call(buffer, size) answers, called again while the value is longer than the buffer."""
        while True:
            value, size = ctypes.create_string_buffer(room), ctypes.c_size_t(room)
            status = call(value, ctypes.byref(size))
            if status != _Status.INVALID or size.value <= room:
                self._check(status, must=True)  # once pawl is broken there is no value
                return value.raw[:size.value]
            room = size.value

    def status_json(self) -> str:
        return (self._library.pawl_status_json(self._handle) or b"{}").decode()

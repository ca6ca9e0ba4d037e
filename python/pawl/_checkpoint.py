"""libpawl_checkpoint by ctypes: include/pawl/checkpoint.h, call by call.

A status becomes an exception: PAWL_INVALID `Refused`, all others a `PawlError`, each with the library's sentence. Calls
release the interpreter's lock while they read. Those that move bytes can be interrupted (Ctrl-C), and told about while
they run, by a `Watcher`. Memory is given by address: whoever calls keeps it alive and in place until the call returns.
Nothing here knows torch.
"""
from __future__ import annotations

import ctypes
import json
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from pawl._library import SizedStructure, load_typed
from pawl.errors import PawlError, Refused

NAME = "libpawl_checkpoint.so.0"

# A call's bytes that are done, all of them, and whether it has ended well. In the thread of whoever calls.
Watcher = Callable[[int, int, bool], None]
_LOOK_EVERY_S = 0.1
_LEAVE_MS = 500
_Answer = TypeVar("_Answer")


class _Request(SizedStructure):
    _fields_ = [
        ("tensor", ctypes.c_uint32), ("dimension_count", ctypes.c_uint32), ("dtype", ctypes.c_char_p),
        ("begin", ctypes.c_void_p), ("size", ctypes.c_void_p), ("stride_bytes", ctypes.c_void_p),
        ("memory", ctypes.c_void_p), ("memory_bytes", ctypes.c_uint64), ("peers", ctypes.c_void_p),
        ("peer", ctypes.c_uint32),
    ]


class _Report(SizedStructure):
    _fields_ = [("bytes_read", ctypes.c_uint64), ("bytes_moved", ctypes.c_uint64), ("overflowed", ctypes.c_uint64)]


class _Piece(SizedStructure):
    _fields_ = [
        ("name", ctypes.c_char_p), ("role", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
        ("dimension_count", ctypes.c_uint32), ("shape", ctypes.c_void_p), ("begin", ctypes.c_void_p),
        ("size", ctypes.c_void_p), ("stride_bytes", ctypes.c_void_p), ("memory", ctypes.c_void_p),
    ]


class _HeldPiece(SizedStructure):
    _fields_ = [
        ("name", ctypes.c_void_p), ("role", ctypes.c_void_p), ("dtype", ctypes.c_void_p),
        ("dimension_count", ctypes.c_uint32), ("element_bytes", ctypes.c_uint32), ("shape", ctypes.c_void_p),
        ("begin", ctypes.c_void_p), ("size", ctypes.c_void_p), ("sample", ctypes.c_uint64),
    ]


class _DivisionOptions(SizedStructure):
    _fields_ = [("without_replica_check", ctypes.c_int), ("part_bytes_min", ctypes.c_uint64)]


class _OpenOptions(SizedStructure):
    _fields_ = [
        ("tag", ctypes.c_char_p), ("parameter_names_file", ctypes.c_char_p), ("names", ctypes.c_int),
        ("family", ctypes.c_char_p), ("attention_heads", ctypes.c_uint64), ("query_groups", ctypes.c_uint64),
        ("head_size", ctypes.c_uint64), ("vocabulary", ctypes.c_uint64),
    ]


class _AccessOptions(SizedStructure):
    _fields_ = [
        ("memory_bytes", ctypes.c_uint64), ("threads", ctypes.c_uint32), ("without_io_uring", ctypes.c_int),
        ("without_direct", ctypes.c_int), ("prove", ctypes.c_int), ("seen", ctypes.c_char_p),
        ("trusted_copy", ctypes.POINTER(ctypes.c_uint32)), ("watch", ctypes.c_void_p),
    ]


class _StoreOptions(SizedStructure):
    _fields_ = [("overwrite", ctypes.c_int), ("expected_bytes", ctypes.c_uint64)]


_NAMES = {"stored": 0, "huggingface": 1, "megatron": 2}  # pawl_checkpoint_names

_HANDLE, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t
_REQUESTS, _NUMBERS, _TEXTS = ctypes.POINTER(_Request), ctypes.POINTER(ctypes.c_uint32), ctypes.POINTER(_TEXT)
_NUMBER = ctypes.POINTER(ctypes.c_uint64)
_ACCESS = ctypes.POINTER(_AccessOptions)
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "checkpoint_open": (ctypes.c_int, (_TEXT, ctypes.POINTER(_OpenOptions), ctypes.POINTER(_HANDLE))),
    "checkpoint_json": (_TEXT, (_HANDLE,)),
    "checkpoint_check": (ctypes.c_int, (_HANDLE, _REQUESTS, _SIZE, _ACCESS)),
    "checkpoint_read": (ctypes.c_int, (_HANDLE, _REQUESTS, _SIZE, _ACCESS, ctypes.POINTER(_Report))),
    "checkpoint_seen": (_TEXT, (_HANDLE,)),
    "checkpoint_compare": (ctypes.c_int, (_HANDLE, _NUMBERS, _SIZE, _ACCESS)),
    "checkpoint_prove": (ctypes.c_int, (_HANDLE, _NUMBERS, _SIZE, ctypes.c_uint32, ctypes.c_uint32, _ACCESS)),
    "checkpoint_close": (None, (_HANDLE,)),
    "checkpoint_error": (_TEXT, ()),
    "checkpoint_watch_create": (ctypes.c_int, (ctypes.POINTER(_HANDLE),)),
    "checkpoint_watch_look": (None, (_HANDLE, _NUMBER, _NUMBER)),
    "checkpoint_watch_cancel": (None, (_HANDLE,)),
    "checkpoint_watch_free": (None, (_HANDLE,)),
    "checkpoint_peers_open": (ctypes.c_int, (ctypes.POINTER(_HANDLE),)),
    "checkpoint_peers_ticket": (_TEXT, (_HANDLE,)),
    "checkpoint_peers_join": (ctypes.c_int, (_HANDLE, _TEXTS, _SIZE, _SIZE)),
    "checkpoint_peers_read": (ctypes.c_int, (_HANDLE, _SIZE, ctypes.c_uint64, ctypes.c_void_p, _SIZE)),
    "checkpoint_peers_leave": (ctypes.c_int, (_HANDLE, ctypes.c_uint32)),
    "checkpoint_peers_free": (None, (_HANDLE,)),
    "checkpoint_store_begin": (ctypes.c_int, (_TEXT, ctypes.POINTER(_StoreOptions), ctypes.POINTER(_HANDLE))),
    "checkpoint_store_folder": (_TEXT, (_HANDLE,)),
    "checkpoint_store_write_part": (ctypes.c_int, (_TEXT, ctypes.c_uint32, ctypes.POINTER(_Piece), _SIZE, _ACCESS,
                                                   ctypes.POINTER(_TEXT))),
    "checkpoint_store_publish": (ctypes.c_int, (_HANDLE, _TEXTS, _SIZE, _TEXT, _TEXTS, _SIZE)),
    "checkpoint_store_end": (None, (_HANDLE,)),
    "checkpoint_divide": (ctypes.c_int, (ctypes.POINTER(_HeldPiece), ctypes.POINTER(_SIZE), _SIZE,
                                         ctypes.POINTER(_DivisionOptions), ctypes.POINTER(_HANDLE))),
    "checkpoint_division_boxes": (_NUMBER, (_HANDLE, _SIZE, ctypes.POINTER(_SIZE))),
    "checkpoint_division_free": (None, (_HANDLE,)),
}
_OK, _INVALID, _TIMEOUT = 0, 3, 4

_loaded: dict[str, ctypes.CDLL] = {}
_loading = threading.Lock()


def find_library() -> str:
    """Its path: $PAWL_CHECKPOINT_LIBRARY, else beside the package, else the checkout's build. Refused without one."""
    named = os.environ.get("PAWL_CHECKPOINT_LIBRARY")
    package = os.path.dirname(os.path.abspath(__file__))
    checkout = os.path.dirname(os.path.dirname(package))
    places = [named] if named else [os.path.join(package, NAME), os.path.join(checkout, "build", "lib", NAME)]
    for place in places:
        if os.path.exists(place):
            return place
    raise Refused(f"libpawl_checkpoint is not at {' nor at '.join(places)}: build it (make), or name it with "
                  f"PAWL_CHECKPOINT_LIBRARY")


def library() -> ctypes.CDLL:
    """The library, its functions typed; loaded once."""
    path = find_library()
    with _loading:
        if path not in _loaded:
            _loaded[path] = load_typed("libpawl_checkpoint", path, _SIGNATURES)
        return _loaded[path]


class Peers:
    """Processes of this machine that read into each other's memory. Its calls are those of checkpoint.h."""

    def __init__(self) -> None:
        self._library = library()
        self.handle = _HANDLE()
        _check(self._library.pawl_checkpoint_peers_open(ctypes.byref(self.handle)))
        self.ticket: str = self._library.pawl_checkpoint_peers_ticket(self.handle).decode()

    def join(self, tickets: Sequence[str], self_number: int) -> None:
        """With the tickets of all, in one order; `self_number` is this process's place. PawlError: not allowed here."""
        _check(self._library.pawl_checkpoint_peers_join(self.handle, _texts(tickets), len(tickets), self_number))

    def read(self, number: int, address: int, size_bytes: int) -> bytes:
        """Memory of one of them, which has to keep it until then."""
        memory = ctypes.create_string_buffer(max(1, size_bytes))
        _check(self._library.pawl_checkpoint_peers_read(self.handle, number, address, memory, size_bytes))
        return memory.raw[:size_bytes]

    def close(self) -> None:
        """No other process writes into this one when it has returned. Idempotent. Waits for one that is stopped in the
        middle of a write, and can be interrupted (Ctrl-C) in that: then it isn't closed."""
        while self.handle:
            status = self._library.pawl_checkpoint_peers_leave(self.handle, _LEAVE_MS)
            if status == _TIMEOUT:
                continue
            _check(status)
            self._library.pawl_checkpoint_peers_free(self.handle)
            self.handle = _HANDLE()


@dataclass(frozen=True)
class Request:
    """A box of a tensor, in elements, and the memory that it is wanted in."""

    tensor: int
    dtype: str | None  # torch's name of what it is wanted as; None: as it is stored
    begin: Sequence[int]
    size: Sequence[int]
    stride_bytes: Sequence[int]  # in memory
    memory: int  # an address
    memory_bytes: int
    peers: Peers | None = None  # None: of this process
    peer: int = 0               # else of the one with this number there


@dataclass(frozen=True)
class Read:
    """What a read came to."""

    bytes_read: int = 0   # from files, with what was read along
    bytes_moved: int = 0  # into memory
    overflowed: int = 0   # finite numbers that a cast made infinite

    def __add__(self, other: Read) -> Read:
        return Read(self.bytes_read + other.bytes_read, self.bytes_moved + other.bytes_moved,
                    self.overflowed + other.overflowed)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint."""

    index: int
    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    copies: int


class Checkpoint:
    """An open checkpoint. Methods are the calls of checkpoint.h under their names."""

    def __init__(self, path: str, **options: Any) -> None:
        self.path = path
        self._library = library()
        self._handle = _HANDLE()
        _check(self._library.pawl_checkpoint_open(os.fsencode(path), _filled(_OpenOptions(), options),
                                                  ctypes.byref(self._handle)))
        said = json.loads(self._library.pawl_checkpoint_json(self._handle))
        self.format: str = said["format"]
        self.facts: list[tuple[str, str]] = [(name, value) for name, value in said["facts"]]
        self.aliases: dict[str, str] = dict(said["aliases"])
        self.objects: list[str] = said["objects"]
        self.notes: list[str] = said["notes"]
        self.unnamed: list[str] = said["unnamed"]
        self.unsupported: list[str] = said["unsupported"]
        self.problems: list[str] = said["problems"]
        self.family: str | None = said["family"]
        self.names: str | None = said["names"]
        self.values: Any = said["values"]
        self.tensors = [Tensor(index, each["name"], each["role"], each["dtype"], tuple(each["shape"]), each["bytes"],
                               each["copies"]) for index, each in enumerate(said["tensors"])]

    def check(self, requests: Sequence[Request], **options: Any) -> None:
        """Whether `read` could answer these. Reads no tensor."""
        _check(self._library.pawl_checkpoint_check(self._handle, _array(requests), len(requests),
                                                   _filled(_AccessOptions(), options)))

    def read(self, requests: Sequence[Request], watcher: Watcher | None = None, **options: Any) -> Read:
        """One plan for all; what several want is read once."""
        report, array, access = _Report(), _array(requests), _filled(_AccessOptions(), options)
        _watched(lambda: _check(self._library.pawl_checkpoint_read(self._handle, array, len(requests), access,
                                                                   ctypes.byref(report))), access, watcher)
        return Read(report.bytes_read, report.bytes_moved, report.overflowed)

    def seen(self) -> str:
        """What reads with prove=True saw of the checksums, for `prove`: prove(..., seen="the texts of all ranks")."""
        return (self._library.pawl_checkpoint_seen(self._handle) or b"").decode()

    def compare(self, tensors: Sequence[int], **options: Any) -> None:
        """Fails where the stored replicas of one of these differ."""
        numbers = (ctypes.c_uint32 * max(1, len(tensors)))(*tensors)
        access = _filled(_AccessOptions(), options)
        _watched(lambda: _check(self._library.pawl_checkpoint_compare(self._handle, numbers, len(tensors), access)),
                 access)

    def prove(self, tensors: Sequence[int], share: int = 0, shares: int = 1, watcher: Watcher | None = None,
              **options: Any) -> None:
        """Fails where stored bytes of these don't agree with their checksums, of formats that have them."""
        numbers = (ctypes.c_uint32 * max(1, len(tensors)))(*tensors)
        access = _filled(_AccessOptions(), options)
        _watched(lambda: _check(self._library.pawl_checkpoint_prove(self._handle, numbers, len(tensors), share, shares,
                                                                    access)), access, watcher)

    def close(self) -> None:
        """Idempotent. Not while another thread reads."""
        if self._handle:
            self._library.pawl_checkpoint_close(self._handle)
            self._handle = _HANDLE()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check(status: int) -> None:
    if status == _OK:
        return
    text = (library().pawl_checkpoint_error() or b"").decode(errors="replace")
    raise (Refused if status == _INVALID else PawlError)(text or f"status {status}")


def _watched(call: Callable[[], _Answer], access: _AccessOptions, watcher: Watcher | None = None) -> _Answer:
    """What the call gives or fails with. It runs in a thread of its own, so that Python hears signals meanwhile: what
    their handlers raise (KeyboardInterrupt) cancels the call, and goes on when that has let go of the memory."""
    if threading.current_thread() is not threading.main_thread():
        return call()
    loaded, watch = library(), _HANDLE()
    _check(loaded.pawl_checkpoint_watch_create(ctypes.byref(watch)))
    access.watch = watch
    begun, ended = threading.Event(), threading.Event()
    answers: list[_Answer] = []
    errors: list[BaseException] = []

    def work() -> None:
        begun.set()
        try:
            answers.append(call())
        except BaseException as error:
            errors.append(error)
        finally:
            ended.set()

    def tell() -> None:
        if watcher is not None:
            done, of = ctypes.c_uint64(), ctypes.c_uint64()
            loaded.pawl_checkpoint_watch_look(watch, ctypes.byref(done), ctypes.byref(of))
            watcher(of.value if answers else done.value, of.value, bool(answers))

    try:
        threading.Thread(target=work, name="pawl-checkpoint").start()
        while not ended.wait(_LOOK_EVERY_S):
            tell()
        tell()
    except BaseException:
        loaded.pawl_checkpoint_watch_cancel(watch)
        _wait_until_it_ended(begun, ended)
        raise
    finally:
        if ended.is_set():  # else it may yet begin, and end at once
            loaded.pawl_checkpoint_watch_free(watch)
    if errors:
        raise errors[0]
    return answers[0]


def _wait_until_it_ended(begun: threading.Event, ended: threading.Event) -> None:
    """Whatever signals come: the call uses the caller's memory until then. What never began is not waited for."""
    while not ended.is_set():
        try:
            if not begun.wait(1):
                return
            ended.wait()
        except KeyboardInterrupt:
            continue


@dataclass(frozen=True)
class StorePiece:
    """A box of a tensor, and the memory that holds it."""

    name: str
    role: str
    dtype: str  # torch's name
    shape: Sequence[int]
    begin: Sequence[int]
    size: Sequence[int]
    memory: int  # an address
    stride_bytes: Sequence[int]


class Store:
    """A checkpoint of pawl's own format in the making; one process has it. Its calls are those of checkpoint.h."""

    def __init__(self, path: str, **options: Any) -> None:
        self._library = library()
        self._handle = _HANDLE()
        _check(self._library.pawl_checkpoint_store_begin(os.fsencode(path), _filled(_StoreOptions(), options),
                                                         ctypes.byref(self._handle)))
        self.folder = os.fsdecode(self._library.pawl_checkpoint_store_folder(self._handle))

    def publish(self, shares: Sequence[str], values: str = "", aliases: dict[str, str] | None = None) -> None:
        """`values`: JSON text. Afterwards the checkpoint is at its path, and on the disk."""
        pairs = [text for pair in (aliases or {}).items() for text in pair]
        _check(self._library.pawl_checkpoint_store_publish(self._handle, _texts(shares), len(shares),
                                                           values.encode() or None, _texts(pairs), len(pairs) // 2))

    def close(self) -> None:
        """Idempotent. What was not published is removed."""
        if self._handle:
            self._library.pawl_checkpoint_store_end(self._handle)
            self._handle = _HANDLE()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_store_part(folder: str, part: int, pieces: Sequence[StorePiece], watcher: Watcher | None = None,
                     **options: Any) -> str:
    """Writes and syncs one part of the save in `folder`; the answer is its share for `publish`. From any process."""
    array, access = _piece_array(pieces), _filled(_AccessOptions(), options)

    def write() -> str:
        share = _TEXT()  # of the thread that writes
        _check(library().pawl_checkpoint_store_write_part(os.fsencode(folder), part, array, len(pieces), access,
                                                          ctypes.byref(share)))
        return (share.value or b"").decode()

    return _watched(write, access, watcher)


class HeldBox(Protocol):
    """Where a box begins and how large it is, in elements."""

    @property
    def begin(self) -> tuple[int, ...]: ...

    @property
    def size(self) -> tuple[int, ...]: ...


class HeldPiece(Protocol):
    """A box of a tensor that a rank holds, as the other ranks know it."""

    @property
    def name(self) -> str: ...

    @property
    def role(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def box(self) -> HeldBox: ...

    @property
    def element_bytes(self) -> int: ...

    @property
    def sample(self) -> int: ...  # a checksum of some elements


class WrittenBox(NamedTuple):
    """A box that a rank writes, of the piece with this index in its list."""

    piece: int
    begin: tuple[int, ...]
    size: tuple[int, ...]


def divide(ranks: Sequence[Sequence[HeldPiece]], **options: Any) -> list[list[WrittenBox]]:
    """What each rank writes, by what each holds."""
    division, loaded = _HANDLE(), library()
    array = _held_array([piece for pieces in ranks for piece in pieces])
    counts = (_SIZE * max(1, len(ranks)))(*map(len, ranks))
    _check(loaded.pawl_checkpoint_divide(array, counts, len(ranks), _filled(_DivisionOptions(), options),
                                         ctypes.byref(division)))
    try:
        return [_boxes_of(division, rank, pieces) for rank, pieces in enumerate(ranks)]
    finally:
        loaded.pawl_checkpoint_division_free(division)


def _boxes_of(division: ctypes.c_void_p, rank: int, pieces: Sequence[HeldPiece]) -> list[WrittenBox]:
    count, at, boxes = _SIZE(), 0, []
    numbers = library().pawl_checkpoint_division_boxes(division, rank, ctypes.byref(count))
    for _ in range(count.value):
        piece = numbers[at]
        dimensions = len(pieces[piece].shape)
        begin, size, end = at + 1, at + 1 + dimensions, at + 1 + 2 * dimensions
        boxes.append(WrittenBox(piece, tuple(numbers[begin:size]), tuple(numbers[size:end])))
        at = end
    return boxes


def _held_array(pieces: Sequence[HeldPiece]) -> ctypes.Array[_HeldPiece]:
    """One array for all numbers, and each text once: there may be hundreds of thousands, and ranks share names."""
    flat = _flat([number for piece in pieces for number in (*piece.shape, *piece.box.begin, *piece.box.size)])
    texts = {text for piece in pieces for text in (piece.name, piece.role, piece.dtype)}
    encoded = {text: text.encode() for text in texts}
    address = {text: address_of(content) for text, content in encoded.items()}
    array = (_HeldPiece * max(1, len(pieces)))()
    array._pointed_at = (flat, encoded)  # type: ignore[attr-defined]  # by the pointers below
    at, struct_size = ctypes.addressof(flat), ctypes.sizeof(_HeldPiece)
    for to, piece in zip(array, pieces, strict=False):
        to.struct_size = struct_size
        to.name, to.role, to.dtype = address[piece.name], address[piece.role], address[piece.dtype]
        to.dimension_count = step = len(piece.shape)
        to.element_bytes, to.sample = piece.element_bytes, piece.sample
        to.shape, to.begin, to.size = at, at + 8 * step, at + 16 * step
        at += 24 * step
    return array


def address_of(content: bytes) -> int:
    """Of its first byte, for as long as it lives."""
    return ctypes.cast(ctypes.c_char_p(content), ctypes.c_void_p).value or 0


def _texts(texts: Sequence[str]) -> ctypes.Array[ctypes.c_char_p]:
    return (_TEXT * max(1, len(texts)))(*[text.encode() for text in texts])


def _piece_array(pieces: Sequence[StorePiece]) -> ctypes.Array[_Piece]:
    flat = _flat([number for piece in pieces
                  for number in (*piece.shape, *piece.begin, *piece.size, *piece.stride_bytes)])
    array = (_Piece * max(1, len(pieces)))()
    array._numbers = flat  # type: ignore[attr-defined]  # the pointers below are into it
    at = ctypes.addressof(flat)
    for to, piece in zip(array, pieces, strict=False):
        to.struct_size = ctypes.sizeof(_Piece)
        to.name, to.role, to.dtype = piece.name.encode(), piece.role.encode(), piece.dtype.encode()
        to.dimension_count = step = len(piece.shape)
        to.shape, to.begin, to.size, to.stride_bytes = (at + 8 * step * i for i in range(4))
        at += 32 * step
        to.memory = piece.memory or None
    return array


def _flat(numbers: list[int]) -> ctypes.Array[ctypes.c_uint64]:
    return (ctypes.c_uint64 * max(1, len(numbers)))(*numbers)


_Options = TypeVar("_Options", bound=SizedStructure)


def _filled(options: _Options, given: dict[str, Any]) -> _Options:
    """With what is given; None is as if it wasn't. Fails: Refused, naming the option."""
    kinds = {field[0]: field[1] for field in type(options)._fields_}
    for key, value in given.items():
        if value is None:
            continue
        kind: Any = kinds.get(key)
        if kind is None or key == "watch":
            raise Refused(f'options: "{key}" is not one that is known')
        if key == "names":
            if value not in _NAMES:
                raise Refused(f'options: names "{value}": {", ".join(_NAMES)} are possible')
            value = _NAMES[value]
        is_pointer = key == "trusted_copy"
        if kind is ctypes.c_char_p:
            if not isinstance(value, str):
                raise Refused(f'options: "{key}": {value!r} is no text')
            value = os.fsencode(value)
        else:
            bits = 8 * ctypes.sizeof(ctypes.c_uint32 if is_pointer else kind)
            if not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise Refused(f'options: "{key}": {value!r} is no number from 0 to {(1 << bits) - 1}')
        setattr(options, key, ctypes.pointer(ctypes.c_uint32(value)) if is_pointer else value)
    return options


def _array(requests: Sequence[Request]) -> ctypes.Array[_Request]:
    """One array for all numbers of all requests: there may be hundreds of thousands."""
    flat = _flat([number for request in requests for number in (*request.begin, *request.size, *request.stride_bytes)])
    array = (_Request * max(1, len(requests)))()
    array._numbers = flat  # type: ignore[attr-defined]  # the pointers below are into it
    at = ctypes.addressof(flat)
    for to, request in zip(array, requests, strict=False):
        to.struct_size, to.tensor, to.dimension_count = ctypes.sizeof(_Request), request.tensor, len(request.begin)
        to.dtype = request.dtype.encode() if request.dtype is not None else None
        step = 8 * len(request.begin)
        to.begin, to.size, to.stride_bytes = at, at + step, at + 2 * step
        at += 3 * step
        to.memory, to.memory_bytes = request.memory or None, request.memory_bytes
        if request.peers is not None:
            to.peers, to.peer = request.peers.handle, request.peer
    return array

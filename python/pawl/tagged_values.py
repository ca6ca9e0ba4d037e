"""Values as JSON and back: numbers, texts, bytes, tensors, arrays, and containers of these. Nothing in it is executed.

State of a job lies in other nodes' memory, goes over networks and into storage; whoever could change a pickle there
would run code here. An object with the key "pawl:type" stands for what JSON lacks. What has no form here is refused,
with the way to it: `state0['model'].hook`.

Alone (dumps), all of it is JSON, the bytes of tensors too. As pieces, the bytes of large tensors and arrays follow the
JSON as they lie in memory, and are copied once, to where they shall be.
"""
from __future__ import annotations

import base64
import collections
import ctypes
import json
import math
import struct
import sys
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pawl import devices
from pawl.errors import Refused

_TYPE = "pawl:type"
DEPTH_MAX = 60
FLOATS_MIN = 8  # a list of so many numbers is packed
BESIDE_MIN = 4096  # bytes of a tensor or an array that stand beside the JSON
_ALIGNED = 64
_AS_THEY_ARE = {type(None), bool, int, str}
_PLAIN_KINDS: tuple[Any, ...] = (bool, int, float, str, dict, tuple, list)
_HEAD = struct.Struct("<8sQ")  # a mark, and how long the JSON is, compressed
_MARK = b"pawl:val"


class KeptAsInt(int):
    """A number that can more, in the script, than its value says: it is kept as that value."""


def _is_as_it_is(value: Any) -> bool:
    """In JSON."""
    return type(value) in _AS_THEY_ARE or type(value) is float and math.isfinite(value)


@dataclass
class Writer:
    """How values are written."""

    beside: Pieces | None = None         # takes the bytes of large tensors and arrays
    tensor_bytes_max: int | None = None  # larger ones are refused
    kinds_as_they_are: bool = True  # numpy's numbers keep theirs; else they, enumerations and subclasses are plain ones

    def to_json(self, about: str, value: Any, depth: int = 0) -> Any:
        """Fails: Refused for what has no form."""
        kind = type(value)
        if kind in (bool, int, str) or value is None or (kind is float and math.isfinite(value)):
            return value
        if isinstance(value, KeptAsInt):
            return int(value)
        if depth > DEPTH_MAX:
            raise Refused(f"{about}: more than {DEPTH_MAX} levels deep; does it hold itself?")
        write = _WRITE.get(kind)
        if write is not None:
            return write(self, about, value, depth + 1)
        torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
        if torch is not None and isinstance(value, torch.Tensor):
            return self._tensor(about, value)
        if not self.kinds_as_they_are:
            for plain in _PLAIN_KINDS:
                if isinstance(value, plain):
                    return self.to_json(about, plain(value), depth)
        if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
            return self._array(value)
        if torch is not None and kind in (torch.Size, torch.dtype):
            of = list(value) if kind is torch.Size else str(value).removeprefix("torch.")
            return {_TYPE: kind.__name__, "of": of}
        raise Refused(f"{about} is a {kind.__module__}.{kind.__qualname__}, which can't be kept: nothing that is "
                      f"executed may be in the state, so it holds numbers, texts, bytes, tensors, arrays, lists, "
                      f"tuples, sets and dicts of these, and what has state_dict() and load_state_dict()")

    def items(self, about: str, values: Any, depth: int) -> list[Any]:
        return [self.to_json(f"{about}[{place}]", each, depth) for place, each in enumerate(values)]

    def list_form(self, about: str, value: list[Any], depth: int) -> Any:
        if len(value) >= FLOATS_MIN and all(type(each) is float for each in value):
            return {_TYPE: "floats", "base64": _text(struct.pack(f"<{len(value)}d", *value))}
        if _AS_THEY_ARE.issuperset(map(type, value)):
            return list(value)
        return self.items(about, value, depth)

    def dict_form(self, about: str, value: dict[Any, Any], depth: int) -> Any:
        if type(value) is dict and _TYPE not in value and all(type(key) is str for key in value):
            return {key: self.to_json(f"{about}[{key!r}]", each, depth) for key, each in value.items()}
        if _AS_THEY_ARE.issuperset(map(type, value)) and all(map(_is_as_it_is, value.values())):
            pairs = [[key, each] for key, each in value.items()]
        else:
            pairs = [[self.to_json(about, key, depth), self.to_json(f"{about}[{key!r}]", each, depth)]
                     for key, each in value.items()]
        return {_TYPE: type(value).__name__, "items": pairs}

    def _tensor(self, about: str, value: Any) -> Any:
        import torch
        plain = value.detach()
        if plain.layout != torch.strided or plain.device.type == "meta" or plain.is_quantized:
            raise Refused(f"{about} is a tensor that is {plain.layout} on {plain.device}: only dense ones can be kept")
        if self.tensor_bytes_max is not None and plain.nbytes > self.tensor_bytes_max:
            raise Refused(f"{about} is a tensor of {list(plain.shape)}: what is stored beside the model is small "
                          f"({self.tensor_bytes_max >> 20} MiB at most); give large ones to the model as buffers")
        plain = plain.resolve_conj().resolve_neg().cpu().contiguous()
        if plain.nbytes and not plain.data_ptr():
            raise Refused(f"{about} is a {type(value).__name__} whose bytes don't lie in memory: it can't be kept")
        form: dict[str, Any] = {_TYPE: "tensor", "dtype": str(plain.dtype).removeprefix("torch."),
                                "shape": list(plain.shape)}
        if self.beside is not None:  # of a process that goes on: as the script had it
            form |= {"leaf": True} if value.requires_grad and value.is_leaf else {}
            form |= {"device": str(value.device)} if value.device.type != "cpu" else {}
        if self.beside is not None and plain.nbytes >= BESIDE_MIN:
            return {**form, **self.beside.add(plain, plain.data_ptr(), plain.nbytes)}
        data = bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""
        return {**form, "base64": _text(data)}

    def _array(self, value: Any) -> Any:
        numpy = sys.modules["numpy"]
        form = {_TYPE: "array" if isinstance(value, numpy.ndarray) else "number", "dtype": value.dtype.str,
                "shape": list(value.shape)}
        if self.beside is not None and value.nbytes >= BESIDE_MIN:
            plain = numpy.ascontiguousarray(value)
            return {**form, **self.beside.add(plain, plain.ctypes.data, plain.nbytes)}
        return {**form, "base64": _text(value.tobytes())}


@dataclass
class Pieces:
    """Bytes that are written once, one piece after the other: the JSON, then what stands beside it. What `add` was
    given is not copied before write_to(), so it must stay as it is until then."""

    head: bytes = b""
    size: int = 0  # of what stands beside; each begins at a multiple of 64
    _beside: list[tuple[Any, int, int, int]] = field(default_factory=list)  # its owner, address, bytes, place

    def add(self, owner: Any, address: int, size: int) -> dict[str, int]:
        place = -(-self.size // _ALIGNED) * _ALIGNED
        self._beside.append((owner, address, size, place))
        self.size = place + size
        return {"at": place, "bytes": size}

    def finish(self, json_value: Any) -> Pieces:
        """`json_value`: what a writer with these pieces has given."""
        text = pack(json_value)
        head = _HEAD.pack(_MARK, len(text)) + text
        self.head = head + bytes(-len(head) % _ALIGNED)
        return self

    def __len__(self) -> int:
        return len(self.head) + self.size

    def write_to(self, address: int) -> None:
        """There are len(self) bytes."""
        ctypes.memmove(address, self.head, len(self.head))
        end = address + len(self.head)
        for _, source, size, place in self._beside:
            begin = address + len(self.head) + place
            ctypes.memset(end, 0, begin - end)
            ctypes.memmove(begin, source, size)
            end = begin + size

    def joined(self) -> bytearray:
        data = bytearray(len(self))
        self.write_to(ctypes.addressof(ctypes.c_char.from_buffer(data)))
        return data


def dumps(about: str, value: Any) -> bytes:
    """Fails: Refused for what has no form."""
    return pack(to_json(about, value))


def pack(json_value: Any) -> bytes:
    """Of what to_json() has given."""
    return zlib.compress(json.dumps(json_value, separators=(",", ":")).encode(), 1)


def to_json(about: str, value: Any) -> Any:
    """Alone. Fails: Refused for what has no form."""
    return Writer().to_json(about, value)


@dataclass
class _Reader:
    """How they are read."""

    beside: memoryview = field(default_factory=lambda: memoryview(b""))

    def from_json(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.from_json(each) for each in value]
        if not isinstance(value, dict):
            return value
        if _TYPE not in value:
            return {key: self.from_json(each) for key, each in value.items()}
        read = _READ.get(value[_TYPE])
        if read is None:
            raise Refused(f"the state has a value of the kind {value[_TYPE]!r}, which this pawl doesn't know")
        return read(self, value)

    def bytes_of(self, value: dict[str, Any]) -> Any:
        if "at" not in value:
            return bytearray(base64.b64decode(value["base64"]))
        begin, size = int(value["at"]), int(value["bytes"])
        if not 0 <= begin <= begin + size <= len(self.beside):
            raise ValueError("bytes that aren't there")
        return self.beside[begin:begin + size]

    def pairs(self, value: dict[str, Any]) -> list[Any]:
        return [(self.from_json(key), self.from_json(each)) for key, each in value["items"]]

    def tensor(self, value: dict[str, Any]) -> Any:
        import torch
        data, kind = self.bytes_of(value), _dtype(value["dtype"])
        if not data:
            return torch.empty(value["shape"], dtype=kind)
        found = torch.frombuffer(data, dtype=torch.uint8).clone().view(kind).reshape(value["shape"])
        return found.to(_device(value.get("device", "cpu"))).requires_grad_(bool(value.get("leaf")))

    def array(self, value: dict[str, Any]) -> Any:
        import numpy
        kind = numpy.dtype(str(value["dtype"]))
        if kind.hasobject:
            raise Refused("the state has an array of objects")
        array = numpy.frombuffer(self.bytes_of(value), dtype=kind).reshape(value["shape"])
        return array.copy() if value[_TYPE] == "array" else array[()]


def loads(data: bytes) -> Any:
    """What dumps() was given. Fails: Refused for what dumps() doesn't write."""
    return _read(lambda: (_Reader(), json.loads(zlib.decompress(data))))


def load_pieces(data: Any) -> Any:
    """What Pieces have written, `data` being anything that has a buffer; nothing holds that afterwards. Fails:
    Refused."""
    def split() -> tuple[_Reader, Any]:
        view = memoryview(data).cast("B")
        mark, size = _HEAD.unpack_from(view)
        if mark != _MARK or _HEAD.size + size > len(view):
            raise ValueError("that is no state")
        text = zlib.decompress(view[_HEAD.size:_HEAD.size + size])
        return _Reader(view[-(-(_HEAD.size + size) // _ALIGNED) * _ALIGNED:]), json.loads(text)
    return _read(split)


def bytes_in(json_value: Any) -> int:
    """About how many a value takes that to_json() has given."""
    if isinstance(json_value, dict):
        inside = sum(len(str(key)) + bytes_in(each) for key, each in json_value.items())
        return inside + (int(json_value["bytes"]) if "at" in json_value and _TYPE in json_value else 0)
    if isinstance(json_value, list):
        return sum(map(bytes_in, json_value)) + len(json_value)
    return len(str(json_value))


def heaviest(json_value: Any) -> tuple[str, int]:
    """The way to the innermost value that has most of the bytes, as in Python (`['name'][3]`), and its bytes."""
    path, size = "", bytes_in(json_value)
    while isinstance(json_value, (dict, list)) and _TYPE not in json_value:
        inside: Any = json_value.items() if isinstance(json_value, dict) else enumerate(json_value)
        sizes = [(bytes_in(each), key, each) for key, each in inside]
        most = max(sizes, key=lambda each: each[0], default=None)
        if most is None or 2 * most[0] <= size:
            break
        path, size, json_value = f"{path}[{most[1]!r}]", most[0], most[2]
    return path, size


def from_json(value: Any) -> Any:
    return _Reader().from_json(value)


def _read(split: Callable[[], tuple[_Reader, Any]]) -> Any:
    try:
        reader, found = split()
        return reader.from_json(found)
    except (zlib.error, ValueError, KeyError, TypeError, RuntimeError, struct.error) as error:
        raise Refused(f"state can't be read: {type(error).__name__}: {error}") from None


# Each kind --------------------------------------------------------------------------------------------------------

def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _dtype(name: str) -> Any:
    import torch
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(f"the state has a tensor of {name!r}, which this torch doesn't know")
    return found


def _device(name: str) -> str:
    """A GPU is this process's own one, which may have another number than that of the process that wrote it."""
    own = devices.of_job()
    return str(own) if name.startswith("cuda") and own.type == "cuda" else name


def _floats(value: dict[str, Any]) -> list[float]:
    data = base64.b64decode(value["base64"])
    return list(struct.unpack(f"<{len(data) // 8}d", data))


def _size(value: dict[str, Any]) -> Any:
    import torch
    return torch.Size(value["of"])


_WRITE: dict[type, Callable[[Writer, str, Any, int], Any]] = {
    float: lambda _, __, value, ___: {_TYPE: "float", "text": repr(value)},
    complex: lambda _, __, value, ___: {_TYPE: "complex", "parts": [repr(value.real), repr(value.imag)]},
    bytes: lambda _, __, value, ___: {_TYPE: "bytes", "base64": _text(value)},
    bytearray: lambda _, __, value, ___: {_TYPE: "bytearray", "base64": _text(bytes(value))},
    list: Writer.list_form,
    tuple: lambda writer, about, value, depth: {_TYPE: "tuple", "items": writer.items(about, value, depth)},
    set: lambda writer, about, value, depth: {_TYPE: "set", "items": writer.items(about, value, depth)},
    frozenset: lambda writer, about, value, depth: {_TYPE: "frozenset", "items": writer.items(about, value, depth)},
    collections.deque: lambda writer, about, value, depth: {
        _TYPE: "deque", "items": writer.items(about, value, depth), "longest": value.maxlen},
    range: lambda _, __, value, ___: {_TYPE: "range", "of": [value.start, value.stop, value.step]},
    dict: Writer.dict_form,
    collections.OrderedDict: Writer.dict_form,
    collections.Counter: Writer.dict_form,
}
_READ: dict[str, Callable[[_Reader, dict[str, Any]], Any]] = {
    "float": lambda _, value: float(value["text"]),
    "floats": lambda _, value: _floats(value),
    "complex": lambda _, value: complex(*map(float, value["parts"])),
    "bytes": lambda _, value: base64.b64decode(value["base64"]),
    "bytearray": lambda _, value: bytearray(base64.b64decode(value["base64"])),
    "tuple": lambda reader, value: tuple(reader.from_json(value["items"])),
    "set": lambda reader, value: set(reader.from_json(value["items"])),
    "frozenset": lambda reader, value: frozenset(reader.from_json(value["items"])),
    "deque": lambda reader, value: collections.deque(reader.from_json(value["items"]), value["longest"]),
    "range": lambda _, value: range(*value["of"]),
    "dict": lambda reader, value: dict(reader.pairs(value)),
    "OrderedDict": lambda reader, value: collections.OrderedDict(reader.pairs(value)),
    "Counter": lambda reader, value: collections.Counter(dict(reader.pairs(value))),
    "counter": lambda reader, value: collections.Counter(dict(reader.pairs(value))),  # as checkpoints had it
    "tensor": _Reader.tensor,
    "array": _Reader.array,
    "number": _Reader.array,
    "Size": lambda _, value: _size(value),
    "dtype": lambda _, value: _dtype(value["of"]),
}

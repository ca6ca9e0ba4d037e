"""Values as JSON and back: numbers, texts, bytes, tensors, arrays, and containers of these. Nothing in it is executed.

State of a job lies in other nodes' memory, goes over networks and into storage; whoever could change a pickle there
would run code here. An object with the key "pawl:type" stands for what JSON lacks. What has no form here is refused,
with the way to it: `state0['model'].hook`.
"""
from __future__ import annotations

import base64
import collections
import json
import math
import struct
import sys
import zlib
from collections.abc import Callable
from typing import Any

from pawl.errors import Refused

_TYPE = "pawl:type"
DEPTH_MAX = 60
FLOATS_MIN = 8  # a list of so many numbers is packed


class KeptAsInt(int):
    """A number that can more, in the script, than its value says: it is kept as that value."""


def dumps(about: str, value: Any) -> bytes:
    """Fails: Refused for what has no form."""
    return pack(to_json(about, value))


def pack(json_value: Any) -> bytes:
    """Of what to_json() has given."""
    return zlib.compress(json.dumps(json_value, separators=(",", ":")).encode(), 1)


def loads(data: bytes) -> Any:
    """What dumps() was given. Fails: Refused for what dumps() doesn't write."""
    try:
        return from_json(json.loads(zlib.decompress(data)))
    except (zlib.error, ValueError, KeyError, TypeError, struct.error) as error:
        raise Refused(f"state can't be read: {type(error).__name__}: {error}") from None


def to_json(about: str, value: Any, depth: int = 0) -> Any:
    kind = type(value)
    if kind in (bool, int, str) or value is None or (kind is float and math.isfinite(value)):
        return value
    if isinstance(value, KeptAsInt):
        return int(value)
    if depth > DEPTH_MAX:
        raise Refused(f"{about}: more than {DEPTH_MAX} levels deep; does it hold itself?")
    write = _WRITE.get(kind)
    if write is not None:
        return write(about, value, depth + 1)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor_to_json(about, value)
    if numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and not value.dtype.hasobject:
        return {_TYPE: "array" if isinstance(value, numpy.ndarray) else "number", "dtype": value.dtype.str,
                "shape": list(value.shape), "base64": _text(value.tobytes())}
    if torch is not None and kind in (torch.Size, torch.dtype):
        return {_TYPE: kind.__name__, "of": list(value) if kind is torch.Size else str(value).removeprefix("torch.")}
    raise Refused(f"{about} is a {kind.__module__}.{kind.__qualname__}, which can't be kept: nothing that is executed "
                  f"may be in the state, so it holds numbers, texts, bytes, tensors, arrays, lists, tuples, sets and "
                  f"dicts of these, and what has state_dict() and load_state_dict()")


def from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    if _TYPE not in value:
        return {key: from_json(each) for key, each in value.items()}
    read = _READ.get(value[_TYPE])
    if read is None:
        raise Refused(f"the state has a value of the kind {value[_TYPE]!r}, which this pawl doesn't know")
    return read(value)


# Each kind --------------------------------------------------------------------------------------------------------

def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _items(about: str, values: Any, depth: int) -> list[Any]:
    return [to_json(f"{about}[{place}]", each, depth) for place, each in enumerate(values)]


def _list_to_json(about: str, value: list[Any], depth: int) -> Any:
    if len(value) >= FLOATS_MIN and all(type(each) is float for each in value):
        return {_TYPE: "floats", "base64": _text(struct.pack(f"<{len(value)}d", *value))}
    return _items(about, value, depth)


def _dict_to_json(about: str, value: dict[Any, Any], depth: int) -> Any:
    if type(value) is dict and _TYPE not in value and all(type(key) is str for key in value):
        return {key: to_json(f"{about}[{key!r}]", each, depth) for key, each in value.items()}
    pairs = [[to_json(about, key, depth), to_json(f"{about}[{key!r}]", each, depth)] for key, each in value.items()]
    return {_TYPE: type(value).__name__, "items": pairs}


def _tensor_to_json(about: str, value: Any) -> Any:
    import torch
    plain = value.detach()
    if plain.layout != torch.strided or plain.device.type == "meta" or plain.is_quantized:
        raise Refused(f"{about} is a tensor that is {plain.layout} on {plain.device}: only dense ones can be kept")
    plain = plain.cpu().contiguous()
    data = bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes()) if plain.numel() else b""
    return {_TYPE: "tensor", "dtype": str(plain.dtype).removeprefix("torch."), "shape": list(plain.shape),
            "base64": _text(data)}


def _dtype(name: str) -> Any:
    import torch
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise Refused(f"the state has a tensor of {name!r}, which this torch doesn't know")
    return found


def _tensor_from_json(value: dict[str, Any]) -> Any:
    import torch
    data, kind = bytearray(base64.b64decode(value["base64"])), _dtype(value["dtype"])
    if not data:
        return torch.empty(value["shape"], dtype=kind)
    return torch.frombuffer(data, dtype=torch.uint8).clone().view(kind).reshape(value["shape"])


def _array_from_json(value: dict[str, Any]) -> Any:
    import numpy
    kind = numpy.dtype(str(value["dtype"]))
    if kind.hasobject:
        raise Refused("the state has an array of objects")
    array = numpy.frombuffer(base64.b64decode(value["base64"]), dtype=kind).reshape(value["shape"])
    return array.copy() if value[_TYPE] == "array" else array[()]


def _size_from_json(value: dict[str, Any]) -> Any:
    import torch
    return torch.Size(value["of"])


def _pairs(value: dict[str, Any]) -> list[Any]:
    return [(from_json(key), from_json(each)) for key, each in value["items"]]


def _floats(value: dict[str, Any]) -> list[float]:
    data = base64.b64decode(value["base64"])
    return list(struct.unpack(f"<{len(data) // 8}d", data))


_WRITE: dict[type, Callable[[str, Any, int], Any]] = {
    float: lambda _, value, __: {_TYPE: "float", "text": repr(value)},
    complex: lambda _, value, __: {_TYPE: "complex", "parts": [repr(value.real), repr(value.imag)]},
    bytes: lambda _, value, __: {_TYPE: "bytes", "base64": _text(value)},
    bytearray: lambda _, value, __: {_TYPE: "bytearray", "base64": _text(bytes(value))},
    list: _list_to_json,
    tuple: lambda about, value, depth: {_TYPE: "tuple", "items": _items(about, value, depth)},
    set: lambda about, value, depth: {_TYPE: "set", "items": _items(about, value, depth)},
    frozenset: lambda about, value, depth: {_TYPE: "frozenset", "items": _items(about, value, depth)},
    collections.deque: lambda about, value, depth: {_TYPE: "deque", "items": _items(about, value, depth),
                                                    "longest": value.maxlen},
    range: lambda _, value, __: {_TYPE: "range", "of": [value.start, value.stop, value.step]},
    dict: _dict_to_json,
    collections.OrderedDict: _dict_to_json,
    collections.Counter: _dict_to_json,
}
_READ: dict[str, Callable[[dict[str, Any]], Any]] = {
    "float": lambda value: float(value["text"]),
    "floats": _floats,
    "complex": lambda value: complex(*map(float, value["parts"])),
    "bytes": lambda value: base64.b64decode(value["base64"]),
    "bytearray": lambda value: bytearray(base64.b64decode(value["base64"])),
    "tuple": lambda value: tuple(from_json(value["items"])),
    "set": lambda value: set(from_json(value["items"])),
    "frozenset": lambda value: frozenset(from_json(value["items"])),
    "deque": lambda value: collections.deque(from_json(value["items"]), value["longest"]),
    "range": lambda value: range(*value["of"]),
    "dict": lambda value: dict(_pairs(value)),
    "OrderedDict": lambda value: collections.OrderedDict(_pairs(value)),
    "Counter": lambda value: collections.Counter(dict(_pairs(value))),
    "tensor": _tensor_from_json,
    "array": _array_from_json,
    "number": _array_from_json,
    "Size": _size_from_json,
    "dtype": lambda value: _dtype(value["of"]),
}

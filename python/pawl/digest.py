"""Digests of values: equal bits give equal digests, in this process and in any other.

A pickle doesn't work for this: its bytes depend on which objects are shared. 64 bits, in hex. Needs torch for tensors
only.
"""
from __future__ import annotations

import ctypes
import hashlib
import struct
import sys
from typing import Any

from pawl import sharded

DEPTH_MAX = 12      # deeper than that only the type counts
ELEMENTS_MAX = 20000  # of one container; of longer ones the ends and the length count
ENDS = 200
ELEMENT_BYTES = 256  # one element of a container takes as long as so many bytes of an array


class TooMuch(Exception):
    """What is asked for is more than may be read."""


class Limit:
    """What may be read, in bytes of arrays."""

    def __init__(self, size: int) -> None:
        self.left = size

    def take(self, size: int) -> None:
        """Fails: TooMuch, before so much is read."""
        if size > self.left:
            raise TooMuch
        self.left -= size


class _Hasher:
    def __init__(self, limit: Limit | None) -> None:
        self._made, self.limit = hashlib.blake2b(digest_size=8), limit
        self.update, self.hexdigest = self._made.update, self._made.hexdigest

    def expect(self, size: int) -> None:
        if self.limit is not None:
            self.limit.take(size)


def digest_of(value: Any, limit: Limit | None = None) -> str:
    """Of numbers, text, containers, tensors, arrays and plain objects, whatever is nested in what. Fails: TooMuch."""
    hasher = _Hasher(limit)
    _feed(hasher, value, ())
    return hasher.hexdigest()


def digest_of_tensor(tensor: Any, limit: Limit | None = None) -> str:
    """Fails: TooMuch."""
    hasher = _Hasher(limit)
    _feed_tensor(hasher, tensor)
    return hasher.hexdigest()


def bits_of(tensor: Any) -> str:
    """The elements' own bytes, in hex; for scalars and the like."""
    return bytes(_memory(tensor)).hex()


def _feed(hasher: _Hasher, value: Any, above: tuple[int, ...]) -> None:
    kind = type(value)
    hasher.expect(ELEMENT_BYTES)
    hasher.update(kind.__name__.encode() + b"\0")
    if value is None or isinstance(value, (bool, int, str)):
        hasher.expect(len(value) if isinstance(value, str) else 0)
        hasher.update(str(value).encode("utf-8", "surrogatepass") + b"\0")
    elif isinstance(value, float):
        hasher.update(struct.pack(">d", value))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        hasher.expect(value.nbytes if isinstance(value, memoryview) else len(value))
        hasher.update(value)
    elif len(above) >= DEPTH_MAX or id(value) in above:
        return
    elif isinstance(value, dict):
        _feed_all(hasher, [part for pair in value.items() for part in pair], (*above, id(value)))
    elif isinstance(value, (set, frozenset)):
        _feed_all(hasher, sorted(digest_of(each, hasher.limit) for each in value), above)
    elif isinstance(value, (list, tuple)) or kind.__name__ == "deque":
        _feed_all(hasher, list(value), (*above, id(value)))
    elif _is_tensor(value):
        _feed_tensor(hasher, value)
    elif _is_array(value):
        hasher.expect(value.nbytes)
        hasher.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif hasattr(value, "__dict__") and not callable(value):
        _feed(hasher, vars(value), (*above, id(value)))


def _feed_all(hasher: _Hasher, values: list[Any], above: tuple[int, ...]) -> None:
    hasher.update(struct.pack(">q", len(values)))
    for value in values if len(values) <= ELEMENTS_MAX else values[:ENDS] + values[-ENDS:]:
        _feed(hasher, value, above)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))


def _feed_tensor(hasher: _Hasher, tensor: Any) -> None:
    hasher.expect(tensor.numel() * tensor.element_size())
    hasher.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
    hasher.update(_memory(tensor))


def _memory(tensor: Any) -> Any:
    """The elements in logical order, as a buffer that is read before anything else happens."""
    import torch
    plain = sharded.memory_of(tensor.detach())
    if plain.layout != torch.strided:
        plain = plain.to_dense()
    plain = plain.cpu().contiguous()
    size = plain.numel() * plain.element_size()
    return ctypes.string_at(plain.data_ptr(), size) if size else b""

"""Who writes what in a save: each byte is written once, by a rank that holds it, and all ranks write equally much.

Every rank describes what it holds (`describe`). All ranks get all descriptions, in one gather, and compute the same
answer: the library does (src/checkpoint/store/division.h). Pure but for `describe`, which reads a few elements of each
piece.
What always holds of a division:
 * each box of each tensor is written by ranks that hold it, once, whole or cut into rows;
 * what several ranks hold is given to them so that the fullest of them has as little as possible. A piece is cut only
   into parts that are worth it (PART_BYTES_MIN), and never where copies may differ: buffers come whole from the lowest
   rank that holds them, as in torch;
 * if a sample of replicas of weights or optimizer state differs, the save is rejected: a mix of them would be neither.
"""
from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pawl import _checkpoint
from pawl.torch.boxes import Box
from pawl.torch.pieces import BUFFER, EXTRA_STATE, Piece

PART_BYTES_MIN = 1 << 20
_PLACES, _AT_EACH = 8, 8  # of a piece: elements that are compared with the other ranks'


@dataclass(frozen=True)
class Description:
    """One piece, as other ranks know it."""

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...]
    box: Box
    element_bytes: int
    sample: int = 0  # a checksum of some elements; 0: copies may differ


@dataclass(frozen=True)
class Share:
    """A box that a rank writes, of the piece with this index in its own list."""

    piece: int
    box: Box


def describe(pieces: Sequence[Piece]) -> list[Description]:
    """The pieces in their order. Reads up to 64 elements of each that should be equal wherever it is held."""
    return [Description(p.name, p.role, p.dtype, p.shape, p.box, p.tensor.element_size(),
                        _sample(p.tensor) if p.role not in (BUFFER, EXTRA_STATE) and p.box.count else 0)
            for p in pieces]


def _sample(tensor: torch.Tensor) -> int:
    tensor = tensor.detach()
    count = tensor.numel()
    if tensor.dim() == 0:
        tensor = tensor.reshape(1)
    if tensor.is_contiguous():  # nearly always; each place is a page that nobody has touched for long
        some = tensor.view(-1)
        if count > _PLACES * _AT_EACH:
            some = some.as_strided((_PLACES, _AT_EACH), ((count - _AT_EACH) // (_PLACES - 1), 1))
    else:
        step = max(1, -(-count // (_PLACES * _AT_EACH)))
        some = tensor[torch.unravel_index(torch.arange(0, count, step, device=tensor.device), tensor.shape)]
    return zlib.crc32(bytes(some.cpu().contiguous().view(-1).view(torch.uint8).tolist())) | 1 << 32


def divide(ranks: Sequence[Sequence[Description]], *, check_replicas: bool = True,
           part_bytes_min: int = PART_BYTES_MIN) -> list[list[Share]]:
    """What each rank writes. Fails: Refused, naming the first tensors that ranks know in different shapes or types, or,
    unless `check_replicas` is off, hold different values of; with it off, those come whole from the lowest rank."""
    divided = _checkpoint.divide(ranks, without_replica_check=int(not check_replicas), part_bytes_min=part_bytes_min)
    return [[Share(piece, Box(begin, size)) for piece, begin, size in boxes] for boxes in divided]

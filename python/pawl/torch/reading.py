"""From a checkpoint's files into the tensors of a training: requests, staging memory, and what ranks pass on.

What several ranks hold is read once: each reads its share of it and broadcasts it to the others. What always holds:
 * tensors in host memory that need no cast beyond the library's are read straight into place, whatever their strides;
   everything else goes through buffers of STAGING_BYTES;
 * ranks that share read the same boxes under the same names, in the same order: each rank computes who shares with whom
   from what all ranks said, and all come to the same answer.
"""
from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from pawl._checkpoint import Checkpoint, Read, Request
from pawl.torch.boxes import Box, rows_between, rows_of
from pawl.torch.matching import DIRECT, Match
from pawl.torch.pieces import Piece
from pawl.torch.same_machine_reads import is_worth_sharing

STAGING_BYTES = 256 << 20
_BUCKET_BYTES = 32 << 20
_DIRECT_BYTES = 4 << 20  # a part as large as that is broadcast from where it lies


@dataclass
class Part:
    """A box of a piece: what one rank reads."""

    match: Match
    box: Box
    reader: int  # of those that share it: its place among them
    is_replica: bool = False  # others have all of it too

    @property
    def tensor(self) -> torch.Tensor:
        """The part's memory."""
        return narrowed(self.match.piece, self.box)

    @property
    def size_bytes(self) -> int:
        return self.box.count * self.match.piece.tensor.element_size()


def narrowed(piece: Piece, box: Box) -> torch.Tensor:
    """A box of a piece, as a view of its memory."""
    tensor = piece.tensor.detach()
    for dimension, (begin, size) in enumerate(zip(box.begin, box.size, strict=True)):
        tensor = tensor.narrow(dimension, begin - piece.box.begin[dimension], size)
    return tensor


# Who reads what ---------------------------------------------------------------------------------------------------

def key_of(piece: Piece) -> bytes:
    """The same on all ranks that hold the same box of the same tensor as the same type."""
    text = repr((piece.name, piece.role, piece.dtype, piece.shape, piece.box.begin, piece.box.size,
                 piece.tensor.device.type))
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def shares_of(matches: Sequence[Match], of_ranks: Sequence[Sequence[bytes]], rank: int, neighbours: Sequence[int] = ()
              ) -> dict[tuple[int, ...], list[Part]]:
    """For each set of ranks that hold the same boxes, this one among them: the parts that they read, in one order on
    all of them, cut so that all read alike much. `of_ranks`: the keys of what each rank is going to load. `neighbours`:
    ranks that read for each other in their own way: what nobody else holds is whole here, and marked as a replica."""
    holders: dict[bytes, list[int]] = {}
    for other, keys in enumerate(of_ranks):
        for key in keys:
            holders.setdefault(key, []).append(other)
    groups: dict[tuple[int, ...], list[tuple[bytes, Match]]] = {}
    for match in matches:
        if match.piece.box.count:
            key = key_of(match.piece)
            groups.setdefault(tuple(holders.get(key, [rank])), []).append((key, match))
    shares: dict[tuple[int, ...], list[Part]] = {}
    for ranks in sorted(groups):
        found = [match for _, match in sorted(groups[ranks], key=lambda each: each[0])]
        if len(ranks) > 1 and set(ranks) <= set(neighbours):
            whole = [match for match in found if is_direct(match) and match.piece.tensor.is_contiguous()]
            shares.setdefault((rank,), []).extend(Part(match, match.piece.box, 0, is_replica=True) for match in whole)
            taken = {id(match) for match in whole}
            found = [match for match in found if id(match) not in taken]
        if found:
            shares.setdefault(ranks, []).extend(_cut(found, len(ranks)))
    return shares


def _cut(matches: Sequence[Match], readers: int) -> list[Part]:
    """End to end, cut at the rows nearest to where each reader's equal share ends."""
    whole = sum(_bytes(match.piece) for match in matches)
    parts: list[Part] = []
    at = 0
    for match in matches:
        rows = rows_of(match.piece.box)
        row_bytes = _bytes(match.piece) // rows
        done = 0
        while done < rows:
            reader = min(readers - 1, at * readers // whole)
            take = rows - done
            if reader < readers - 1:
                take = min(take, max(1, round(((reader + 1) * whole / readers - at) / row_bytes)))
            box = match.piece.box if take == rows else rows_between(match.piece.box, done, done + take)
            assert box is not None
            parts.append(Part(match, box, reader))
            done += take
            at += take * row_bytes
    return parts


def _bytes(piece: Piece) -> int:
    return piece.box.count * piece.tensor.element_size()


# Reading ----------------------------------------------------------------------------------------------------------

def is_direct(match: Match) -> bool:
    """Whether the library can write into the tensor's own memory."""
    piece = match.piece
    return piece.tensor.device.type == "cpu" and (not match.is_cast or _library_casts(match)) \
        and tuple(match.source.shape) == tuple(piece.shape)


def _library_casts(match: Match) -> bool:
    return match.piece.dtype in DIRECT and match.source.dtype in DIRECT


def request_of(match: Match, box: Box, memory: torch.Tensor) -> Request:
    """`memory` has the box's shape."""
    unit = memory.element_size()
    begin, size, stride_bytes = box.begin, box.size, tuple(unit * stride for stride in memory.stride())
    reach = sum((extent - 1) * stride for extent, stride in zip(memory.shape, stride_bytes, strict=True)) + unit
    if tuple(match.source.shape) != tuple(match.piece.shape):  # a number, in another form
        begin, size = (0,) * len(match.source.shape), match.source.shape
        stride_bytes = (unit,) * len(size)
    dtype = str(memory.dtype).removeprefix("torch.")
    return Request(match.source.index, dtype, begin, size, stride_bytes, memory.data_ptr(), reach)


def staging_type(match: Match) -> torch.dtype:
    """What a part that isn't direct is read as: what it becomes, where the library can cast to that."""
    if not match.is_cast or _library_casts(match):
        return match.piece.tensor.dtype
    found: torch.dtype = getattr(torch, match.source.dtype)
    return found


def check_all(checkpoint: Checkpoint, matches: Sequence[Match], **options: Any) -> None:
    """Whether everything can be read. Nothing is written: the memory that is named is what it will go to."""
    requests = []
    for match in matches:
        if match.piece.box.count:
            memory = match.piece.tensor.detach()
            if not is_direct(match):  # never read: only its form counts
                memory = torch.empty(0, dtype=staging_type(match))
                size = match.piece.box.size
                requests.append(_form_of(match, Box((0,) * len(size), size), memory))
            else:
                requests.append(request_of(match, match.piece.box, memory))
    checkpoint.check(requests, **options)


def _form_of(match: Match, box: Box, memory: torch.Tensor) -> Request:
    unit = memory.element_size()
    dense = [unit * math.prod(box.size[dimension + 1:]) for dimension in range(len(box.size))]
    begin, size = match.piece.box.begin, box.size
    if tuple(match.source.shape) != tuple(match.piece.shape):
        begin, size, dense = (0,) * len(match.source.shape), match.source.shape, [unit] * len(match.source.shape)
    return Request(match.source.index, str(memory.dtype).removeprefix("torch."), begin, size, dense, 8,
                   box.count * unit)


@dataclass
class Sorted:
    """Parts that this rank reads: as requests where the library can write into the tensor's own memory."""

    requests: list[Request]
    offered: list[tuple[Request, int]]  # that neighbours may better read along, with their elements' bytes
    staged: list[Part]


def sort_parts(parts: Sequence[Part], with_neighbours: bool) -> Sorted:
    found = Sorted([], [], [])
    for part in parts:
        if is_direct(part.match):
            request, item_bytes = request_of(part.match, part.box, part.tensor), part.match.piece.tensor.element_size()
            if with_neighbours and is_worth_sharing(request, item_bytes, part.match.piece.shape, part.is_replica):
                found.offered.append((request, item_bytes))
            else:
                found.requests.append(request)
        else:
            found.staged.append(part)
    return found


def read_parts(checkpoint: Checkpoint, requests: Sequence[Request], staged: Sequence[Part], **options: Any) -> Read:
    """Reads all of it to where it belongs."""
    total = Read()
    if requests:
        total += checkpoint.read(requests, **options)
    for batch in _batches(staged):
        total += _read_staged(checkpoint, batch, **options)
    return total


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    room = STAGING_BYTES
    for part in (small for each in parts for small in _small_parts(each)):
        needed = part.box.count * staging_type(part.match).itemsize
        if batch and needed > room:
            yield batch
            batch, room = [], STAGING_BYTES
        batch.append(part)
        room -= needed
    if batch:
        yield batch


def _small_parts(part: Part) -> Iterator[Part]:
    """Cut by rows, and rows again by theirs, until each fits."""
    size = part.box.count * staging_type(part.match).itemsize
    rows = rows_of(part.box)
    if size <= STAGING_BYTES or rows == 1:
        yield part
        return
    step = max(1, rows * STAGING_BYTES // size)
    for first in range(0, rows, step):
        box = rows_between(part.box, first, min(rows, first + step))
        assert box is not None
        yield from _small_parts(Part(part.match, box, part.reader))


def _read_staged(checkpoint: Checkpoint, parts: Sequence[Part], **options: Any) -> Read:
    buffers = [torch.empty(part.box.size, dtype=staging_type(part.match)) for part in parts]
    read = checkpoint.read([request_of(part.match, part.box, buffer)
                            for part, buffer in zip(parts, buffers, strict=True)], **options)
    with torch.no_grad():
        for part, buffer in zip(parts, buffers, strict=True):
            part.tensor.copy_(buffer)
    return read


# Passing on -------------------------------------------------------------------------------------------------------

def can_pass_on(group: Any, devices: set[str]) -> bool:
    """Whether the group can broadcast what lies on these devices."""
    backing = group if group is not None else dist.group.WORLD
    try:
        for device in devices:
            backing._get_backend(torch.device(device))
    except (RuntimeError, AttributeError):
        return False
    return True


def pass_on(shares: dict[tuple[int, ...], list[Part]], rank: int, world: int, group: Any) -> int:
    """Broadcasts each part from its reader to the others that hold it; the answer is how many bytes this rank got."""
    received = 0
    for ranks, parts in shares.items():
        if len(ranks) == 1:
            continue
        for reader in range(len(ranks)):
            mine = [part for part in parts if part.reader == reader]
            _broadcast(mine, _Circle(ranks, reader, ranks.index(rank), len(ranks) == world, group))
            if ranks[reader] != rank:
                received += sum(part.size_bytes for part in mine)
    return received


@dataclass(frozen=True)
class _Circle:
    """Ranks that one of them broadcasts to."""

    ranks: tuple[int, ...]  # of the group
    source: int             # its place among them
    mine: int               # this rank's
    is_whole_group: bool
    group: Any

    @property
    def is_source(self) -> bool:
        return self.mine == self.source

    def broadcast(self, tensor: torch.Tensor) -> None:
        """By a binomial tree of sends where they are but a part of the group: a group of their own would need a name
        that all ranks come to alike, and torch's (new_group with use_local_synchronization) counts the groups that
        each rank has; it comes again, with stale addresses, when a group was destroyed."""
        if self.is_whole_group:
            dist.broadcast(tensor, self._global(0), group=self.group)
            return
        count = len(self.ranks)
        place, step = (self.mine - self.source) % count, 1
        while step < count and not place & step:
            step <<= 1
        if place:
            dist.recv(tensor, self._global(place - step), group=self.group)
        while step > 1:
            step >>= 1
            if place + step < count:
                dist.send(tensor, self._global(place + step), group=self.group)

    def _global(self, place: int) -> int:
        rank = self.ranks[(place + self.source) % len(self.ranks)]
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


def _broadcast(parts: Sequence[Part], circle: _Circle) -> None:
    bucket: list[torch.Tensor] = []
    room = _BUCKET_BYTES
    for tensor in (part.tensor for part in parts):
        size = tensor.numel() * tensor.element_size()
        if size >= _DIRECT_BYTES and tensor.is_contiguous():
            circle.broadcast(_as_bytes(tensor))
            continue
        if bucket and (size > room or bucket[0].device != tensor.device):
            _broadcast_together(bucket, circle)
            bucket, room = [], _BUCKET_BYTES
        bucket.append(tensor)
        room -= size
    if bucket:
        _broadcast_together(bucket, circle)


def _broadcast_together(tensors: Sequence[torch.Tensor], circle: _Circle) -> None:
    flat = torch.cat([_as_bytes(tensor) for tensor in tensors])
    circle.broadcast(flat)
    if circle.is_source:
        return
    at = 0
    with torch.no_grad():
        for tensor in tensors:
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(flat[at:at + size].clone().view(tensor.dtype).view(tensor.shape))
            at += size


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    flat = tensor.contiguous().reshape(-1)
    if flat.numel() == 1:  # of one element every stride is contiguous, 0 too
        flat = flat.as_strided((1,), (1,))
    return flat.view(torch.uint8)

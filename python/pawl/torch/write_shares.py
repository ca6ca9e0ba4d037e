"""Who writes what in a save: each byte is written once, by a rank that holds it, and all ranks write equally much.

Every rank describes what it holds (`describe`). All ranks get all descriptions, in one gather, and compute the same
answer. Pure but for `describe`, which reads a few elements of each piece.
What always holds of a division:
 * each box of each tensor is written by ranks that hold it, once, whole or cut into rows;
 * what several ranks hold is given to them so that the fullest of them has as little as possible. A piece is cut only
   into parts that are worth it (PART_BYTES_MIN), and never where copies may differ: buffers come whole from the lowest
   rank that holds them, as in torch;
 * if a sample of replicas of weights or optimizer state differs, the save is rejected: a mix of them would be neither.
"""
from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from pawl.errors import Refused
from pawl.torch.boxes import Box, rows_between, rows_of
from pawl.torch.pieces import BUFFER, EXTRA_STATE, Piece
from pawl.torch.report import first_of

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

    def __str__(self) -> str:
        return f"{self.name} ({self.role})"


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


def holders_of(ranks: Sequence[Sequence[Description]]) -> dict[tuple[str, str, Box], tuple[int, ...]]:
    """Which ranks hold each box that isn't empty, ascending."""
    found: dict[tuple[str, str, Box], list[int]] = {}
    for rank, descriptions in enumerate(ranks):
        for each in descriptions:
            if each.box.count:
                found.setdefault((each.name, each.role, each.box), []).append(rank)
    return {key: tuple(holders) for key, holders in found.items()}


def divide(ranks: Sequence[Sequence[Description]], *, check_replicas: bool = True,
           part_bytes_min: int = PART_BYTES_MIN) -> list[list[Share]]:
    """What each rank writes. Fails: Refused, naming the first tensors that ranks know in different shapes or types, or,
    unless `check_replicas` is off, hold different values of; with it off, those come whole from the lowest rank."""
    diverged = _check_agreement(ranks, check_replicas)
    indices = [{(d.name, d.role, d.box): index for index, d in enumerate(descriptions)} for descriptions in ranks]
    known = {(d.name, d.role, d.box): d for descriptions in reversed(ranks) for d in reversed(descriptions)}
    groups: dict[tuple[int, ...], list[Description]] = {}
    shares: list[list[Share]] = [[] for _ in ranks]
    loads = [0] * len(ranks)

    def give(rank: int, item: Description, box: Box) -> None:
        shares[rank].append(Share(indices[rank][item.name, item.role, item.box], box))
        loads[rank] += box.count * item.element_bytes

    for key, holders in holders_of(ranks).items():
        item = known[key]
        if len(holders) == 1 or item.role in (BUFFER, EXTRA_STATE) or key in diverged:
            give(holders[0], item, item.box)
        else:
            groups.setdefault(holders, []).append(item)
    _give_empty_tensors(ranks, shares)
    for holders in sorted(groups, key=lambda ranks_of: (len(ranks_of), ranks_of)):
        items = sorted(groups[holders], key=lambda d: (d.name, d.role, d.box))
        _divide_group(items, holders, _filled(loads, holders, sum(_bytes(d) for d in items)), part_bytes_min, give)
    return [sorted(of_rank, key=lambda share: (share.piece, share.box)) for of_rank in shares]


def _bytes(item: Description) -> int:
    return item.box.count * item.element_bytes


def _filled(loads: Sequence[int], holders: Sequence[int], more: int) -> list[int]:
    """How much of `more` each holder gets, so that the fullest has as little as can be."""
    ascending = sorted(loads[rank] for rank in holders)
    level, counted = 0, 0
    for count, load in enumerate(ascending, 1):
        counted += load
        level = -(-(more + counted) // count)
        if count == len(ascending) or level <= ascending[count]:
            break
    return [max(0, level - loads[rank]) for rank in holders]


def _divide_group(items: Sequence[Description], holders: Sequence[int], room: list[int], part_bytes_min: int,
                  give: Callable[[int, Description, Box], None]) -> None:
    """The items, end to end, over the holders in their order, each up to its room."""
    at = 0
    for item in items:
        rows, done = rows_of(item.box), 0
        row_bytes = max(1, _bytes(item) // rows)
        while done < rows:
            take = rows - done
            if at + 1 < len(holders):
                take = _rows_for(room[at], take, row_bytes, part_bytes_min)
            if take == 0:
                at += 1
                continue
            box = item.box if take == rows else rows_between(item.box, done, done + take)
            assert box is not None
            give(holders[at], item, box)
            room[at] -= take * row_bytes
            done += take


def _rows_for(room: int, rows: int, row_bytes: int, part_bytes_min: int) -> int:
    """How many of these rows fit best: all, some if both parts are worth it, or none."""
    rest = rows * row_bytes
    if room >= rest:
        return rows
    take = (room + row_bytes // 2) // row_bytes
    if min(take * row_bytes, rest - take * row_bytes) >= part_bytes_min:
        return take
    return rows if room > rest // 2 else 0


def _give_empty_tensors(ranks: Sequence[Sequence[Description]], shares: list[list[Share]]) -> None:
    """A tensor that is empty as a whole is there all the same: its lowest holder says so."""
    seen: set[tuple[str, str]] = set()
    for rank, descriptions in enumerate(ranks):
        for index, each in enumerate(descriptions):
            if 0 in each.shape and (each.name, each.role) not in seen:
                seen.add((each.name, each.role))
                shares[rank].append(Share(index, each.box))


def _check_agreement(ranks: Sequence[Sequence[Description]], check_replicas: bool) -> set[tuple[str, str, Box]]:
    """The boxes of which copies differ."""
    first: dict[tuple[str, str], tuple[int, Description]] = {}
    copies: dict[tuple[str, str, Box], tuple[int, int]] = {}
    unlike: list[str] = []
    diverged: dict[tuple[str, str, Box], str] = {}
    for rank, descriptions in enumerate(ranks):
        for each in descriptions:
            other, known = first.setdefault((each.name, each.role), (rank, each))
            if (known.shape, known.dtype) != (each.shape, each.dtype):
                unlike.append(f"{each}: {known.dtype} {list(known.shape)} on rank {other}, {each.dtype} "
                              f"{list(each.shape)} on rank {rank}")
            key = (each.name, each.role, each.box)
            other, sample = copies.setdefault(key, (rank, each.sample))
            if sample != each.sample:
                diverged.setdefault(key, f"{each} on ranks {other} and {rank}")
    if unlike:
        raise Refused(f"tensors of one name differ between ranks: {first_of(unlike)}: give each rank's model "
                      f"names of its own, with rename=")
    if diverged and check_replicas:
        raise Refused(f"ranks hold different values of what should be equal: {first_of(list(diverged.values()))}: if "
                      f"these are different parameters, give them names of their own, with rename=; if they are "
                      f"replicas that have diverged, broadcast one of them, or save with check_replicas=False, which "
                      f"keeps those of the lowest rank")
    return set(diverged)

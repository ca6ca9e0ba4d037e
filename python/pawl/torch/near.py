"""Ranks of one machine that read for each other, straight into each other's memory.

What several of them need of a file is read by one: rows of a tensor that is cut along its columns, which each by itself
would pick out of the file in short runs; and replicas, instead of broadcasts. What always holds:
 * who reads what follows from what all of them offered, and each comes to it by itself;
 * a rank that has left, in whatever way, is written to by nobody;
 * where the system doesn't let one process write into another (see pawl/checkpoint.h), or the memory isn't the host's,
   each reads for itself, and nothing is lost but time.
"""
from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pawl._checkpoint import Peers, Request, address_of
from pawl.errors import PawlError
from pawl.torch.save import Ranks

_SHORT_RUN_BYTES = 1 << 20  # a stored run as long as that is read as fast by whoever wants it
_MEMORY_RUN_BYTES = 512     # shorter ones cost more to hand over than to read
_SHARE_BYTES = 256 << 10    # at least so much is one reader's


def machine() -> str:
    """The same on ranks that may be able to read for each other: of one boot, process namespace and user."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return f"{file.read().strip()} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}"
    except OSError:
        return ""


@dataclass(frozen=True)
class Want:
    """A request of one rank, as it tells the others."""

    member: int
    item_bytes: int
    request: Request

    def rows(self, dimension: int, first: int, last: int, peers: Peers | None) -> Want | None:
        """What of it lies between two indices along a dimension; a number lies between any."""
        given = self.request
        if not given.size:
            return replace(self, request=replace(given, peers=peers, peer=self.member))
        low = max(first, given.begin[dimension])
        high = min(last, given.begin[dimension] + given.size[dimension])
        if low >= high:
            return None
        begin, size = list(given.begin), list(given.size)
        begin[dimension], size[dimension] = low, high - low
        skipped = (low - given.begin[dimension]) * given.strides[dimension] * self.item_bytes
        reach = sum((extent - 1) * stride for extent, stride in zip(size, given.strides, strict=True)) + 1
        return replace(self, request=replace(given, begin=begin, size=size, memory=given.memory + skipped,
                                             memory_bytes=reach * self.item_bytes, peers=peers, peer=self.member))

    @property
    def size_bytes(self) -> int:
        return math.prod(self.request.size) * self.item_bytes


def is_worth_sharing(request: Request, item_bytes: int, shape: Sequence[int], is_replica: bool) -> bool:
    """Whether others may better read it along: what lies in short runs in a row-major file, or in all of their memory;
    and lies in long enough ones in memory."""
    count = math.prod(request.size)
    in_memory = _run(request.size, request.strides)
    if in_memory < count and in_memory * item_bytes < _MEMORY_RUN_BYTES:
        return False
    dense = [1] * len(shape)  # strides in the file
    for dimension in reversed(range(len(shape) - 1)):
        dense[dimension] = dense[dimension + 1] * shape[dimension + 1]
    run = _run(request.size, dense)
    return is_replica or (run < count and run * item_bytes < _SHORT_RUN_BYTES)


def _run(size: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie together."""
    run = 1
    for extent, stride in zip(reversed(size), reversed(strides), strict=True):
        if extent != 1 and stride != run:
            break
        run *= extent
    return run


def divided(wants: Sequence[Want], self_number: int, peers: Peers | None = None) -> Iterator[Want]:
    """What this rank reads of what all want, and for whom: each tensor cut by rows over those that want it. All of them
    give the same wants."""
    of_tensor: dict[int, list[Want]] = {}
    for want in wants:
        of_tensor.setdefault(want.request.tensor, []).append(want)
    for number, tensor in enumerate(sorted(of_tensor)):
        together = of_tensor[tensor]
        readers = sorted({want.member for want in together})
        low = [min(ends) for ends in zip(*(want.request.begin for want in together), strict=True)]
        high = [max(ends) for ends in zip(*([begin + size for begin, size in zip(want.request.begin, want.request.size,
                                                                                 strict=True)]
                                            for want in together), strict=True)]
        dimension = next((d for d in range(len(low)) if high[d] - low[d] > 1), 0)
        rows = high[dimension] - low[dimension] if low else 1
        shares = max(1, min(len(readers), rows, sum(want.size_bytes for want in together) // _SHARE_BYTES))
        for share in range(shares):
            if readers[(number + share) % len(readers)] != self_number:
                continue
            first, last = ((low[dimension] if low else 0) + rows * each // shares for each in (share, share + 1))
            for want in together:
                part = want.rows(dimension, first, last, peers if want.member != self_number else None)
                if part is not None:
                    yield part


class Near:
    """The ranks of this machine that this one reads with, joined."""

    def __init__(self, members: Sequence[int], number: int) -> None:
        self.members = tuple(members)  # of the ranks' group
        self._number = number          # this rank's among them
        self._peers = Peers()
        self._wants = b""  # the others read it
        self.received = 0  # bytes that others read for this rank, by the last requests()

    @staticmethod
    def make(ranks: Ranks, machines: Sequence[str]) -> Near | None:
        """Collective. `machines`: machine() of each rank, "" where it can't take part. None: it reads for itself."""
        mine = machines[ranks.rank]
        members = [rank for rank, each in enumerate(machines) if each == mine] if mine else [ranks.rank]
        near = Near(members, members.index(ranks.rank))
        joined: list[bool] = []
        try:
            tickets = ranks.gather(lambda: near._peers.ticket)
            joined = ranks.gather(lambda: len(members) > 1 and near._join([tickets[rank] for rank in members]))
        finally:
            is_joined = bool(joined) and all(joined[rank] for rank in members)
            if not is_joined:
                near.close()
        return near if is_joined else None

    def _join(self, tickets: Sequence[str]) -> bool:
        try:
            self._peers.join(tickets, self._number)
        except PawlError:
            return False
        return True

    def offer(self, wanted: Sequence[tuple[Request, int]]) -> tuple[int, int]:
        """What this rank would have any of them read, each with its elements' bytes; the answer is for requests()."""
        self._wants = pickle.dumps([Want(self._number, item_bytes, request) for request, item_bytes in wanted])
        return address_of(self._wants), len(self._wants)

    def requests(self, offers: Sequence[tuple[int, int]]) -> list[Request]:
        """What this rank reads, for itself and others. `offers`: of all ranks of the group."""
        wants: list[Want] = []
        for number, rank in enumerate(self.members):
            wants += pickle.loads(self._peers.read(number, *offers[rank]))
        parts = list(divided(wants, self._number, self._peers))
        own = sum(part.size_bytes for part in parts if part.member == self._number)
        self.received = sum(want.size_bytes for want in wants if want.member == self._number) - own
        return [part.request for part in parts]

    def close(self) -> None:
        """Nobody writes into this rank's memory any more. Waits for no other rank but one that does. Idempotent."""
        self._peers.close()

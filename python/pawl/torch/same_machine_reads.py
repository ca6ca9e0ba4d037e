"""Ranks of one machine that read for each other, straight into each other's memory.

What several of them need of a file is read by one: rows of a tensor that is cut along its columns, which each rank
alone would pick out of the file in short runs; and replicas, instead of broadcasts. What always holds:
 * who reads what follows from what all of them offered; each rank computes it by itself;
 * nobody writes into a rank that has left, in whatever way it left;
 * where the system doesn't let one process write into another (see pawl/checkpoint.h), or the memory isn't the host's,
   each rank reads for itself: this is slower, and nothing else changes.
"""
from __future__ import annotations

import math
import os
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pawl._checkpoint import Peers, Request, address_of
from pawl.errors import PawlError
from pawl.torch.cores import boot

_SHORT_RUN_BYTES = 1 << 20  # a stored run as long as that is read as fast by whoever wants it
_MEMORY_RUN_BYTES = 2048    # shorter ones cost more to hand over than to read
_SHARE_BYTES = 256 << 10    # at least so much is one reader's


def machine() -> str:
    """The same on ranks that may be able to read for each other: of one boot, process namespace and user."""
    try:
        booted = boot()
        return f"{booted} {os.readlink('/proc/self/ns/pid')} {os.geteuid()}" if booted else ""
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
        skipped = (low - given.begin[dimension]) * given.stride_bytes[dimension]
        last = sum((extent - 1) * stride for extent, stride in zip(size, given.stride_bytes, strict=True))
        return replace(self, request=replace(given, begin=begin, size=size, memory=given.memory + skipped,
                                             memory_bytes=last + self.item_bytes, peers=peers, peer=self.member))

    @property
    def size_bytes(self) -> int:
        return math.prod(self.request.size) * self.item_bytes


def is_worth_sharing(request: Request, item_bytes: int, shape: Sequence[int], is_replica: bool) -> bool:
    """Whether others may better read it along: what lies in short runs in a row-major file, or in all of their memory;
    and lies in long enough ones in memory."""
    count = math.prod(request.size)
    in_memory = _run(request.size, [stride // item_bytes for stride in request.stride_bytes])
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


class Neighbours:
    """The ranks of this machine that this one reads with. First each gives its ticket to all, then join()s, then they
    agree() whether all could; until then, and where they couldn't, it has no members and offers nothing."""

    def __init__(self) -> None:
        self.members: tuple[int, ...] = ()  # of the ranks' group, this one among them
        self.received = 0                   # bytes that others read for this rank, by the last requests()
        self._number = 0                    # this rank's among the members
        self._peers: Peers | None = None
        self._wants = b""                   # the others read it

    def ticket(self) -> str:
        """For join() of all ranks. Others may write into this one from then on, until close()."""
        self._peers = Peers()
        return f"{machine()}|{self._peers.ticket}"

    def join(self, rank: int, tickets: Sequence[str]) -> bool:
        """`tickets`: of all ranks, "" where one can't take part. Whether this rank found all that are on its
        machine."""
        machines, of_peers = zip(*(each.split("|") if each else ("", "") for each in tickets), strict=True)
        mine = machines[rank]
        self.members = tuple(other for other, each in enumerate(machines) if each == mine) if mine else (rank,)
        self._number = self.members.index(rank)
        if len(self.members) == 1 or not mine or self._peers is None:
            return False
        try:
            self._peers.join([of_peers[member] for member in self.members], self._number)
        except PawlError:
            return False
        return True

    def agree(self, joined: Sequence[bool]) -> None:
        """`joined`: what join() gave on each rank."""
        if not all(joined[member] for member in self.members):
            self.members = ()
            self.close()

    def offer(self, wanted: Sequence[tuple[Request, int]]) -> tuple[int, int]:
        """What this rank would have any of them read, each with its elements' bytes; the answer is for requests()."""
        if not self.members:
            return 0, 0
        self._wants = pickle.dumps([Want(self._number, item_bytes, request) for request, item_bytes in wanted])
        return address_of(self._wants), len(self._wants)

    def requests(self, offers: Sequence[tuple[int, int]]) -> list[Request]:
        """What this rank reads, for itself and others. `offers`: of all ranks of the group."""
        if self._peers is None:
            return []
        wants: list[Want] = []
        for number, rank in enumerate(self.members):
            wants += pickle.loads(self._peers.read(number, *offers[rank]))
        parts = list(divided(wants, self._number, self._peers))
        own = sum(part.size_bytes for part in parts if part.member == self._number)
        self.received = sum(want.size_bytes for want in wants if want.member == self._number) - own
        return [part.request for part in parts]

    def close(self) -> None:
        """Nobody writes into this rank's memory any more. Waits for no other rank but one that does. Idempotent."""
        if self._peers is not None:
            self._peers.close()
            self._peers = None

"""ElasticSampler: which samples a step trains on, as a function of one global position.

The job consumes samples 0, 1, 2, ... of an endless sequence: epoch after epoch, each a permutation of the data set by
the seed. A step takes the next `global_batch` of them; rank r takes the r-th slice, whoever trains. So a recovery skips
no sample and repeats none. `hash` proves it: it covers all ids that this rank has consumed, within a step independent
of their order. A permutation is computed, not stored: memory doesn't grow with the data set. If the sampler is
protected, its position is part of the state. It reads no data, and needs no torch.
"""
from __future__ import annotations

import sys
from collections.abc import Iterator, Sized
from types import FrameType
from typing import Any

from pawl.errors import Refused
from pawl.job import current_job
from pawl.mixing import mixed


class Permutation:
    """A permutation of range(size) by its keys: a Feistel network over the next power of two, walked until inside."""

    ROUNDS = 6

    def __init__(self, size: int, seed: int, epoch: int) -> None:
        self.size = size
        bits = max(2, (size - 1).bit_length())
        self._low_bits, self._high_bits = bits // 2, bits - bits // 2
        root = mixed(seed * 0x9E3779B97F4A7C15 + epoch)
        self._keys = [mixed(root + number) for number in range(self.ROUNDS)]

    def __getitem__(self, index: int) -> int:
        if self.size == 1:
            return 0
        while True:  # the network is one to one on the power of two, so the walk ends inside, and elsewhere for each
            index = self._network(index)
            if index < self.size:
                return index

    def _network(self, value: int) -> int:
        low_bits, high_bits = self._low_bits, self._high_bits
        high, low = value >> low_bits, value & ((1 << low_bits) - 1)
        for key in self._keys:  # the halves change places each round, and with them their widths
            high, low = low, high ^ (mixed(low ^ key) & ((1 << high_bits) - 1))
            low_bits, high_bits = high_bits, low_bits
        return (high << low_bits) | low


class ElasticSampler:
    """`dataset`: its size, or anything with a length. `rank` and `world`: by default those of the job.

    `batch(step)` is for loops of one's own; a DataLoader that has it as `batch_sampler` gives the same batches. If that
    has workers, which fetch ahead of the step: by job.batches(loader) only. `shuffle=False` takes the samples in their
    order.
    """

    def __init__(self, dataset: int | Sized, global_batch: int, seed: int = 0, *, rank: int | None = None,
                 world: int | None = None, shuffle: bool = True) -> None:
        job = current_job()
        self.dataset_size = dataset if isinstance(dataset, int) else len(dataset)
        self.global_batch, self.seed, self.shuffle = global_batch, seed, shuffle
        self.rank = rank if rank is not None else job.rank if job else 0
        self.world = world if world is not None else job.world_size if job else 1
        if self.dataset_size < 1:
            raise Refused("ElasticSampler: the data set is empty")
        if global_batch < 1 or global_batch % self.world != 0:
            raise Refused(f"ElasticSampler: the global batch of {global_batch} can't be cut evenly over {self.world} "
                          f"ranks: take a multiple of {self.world}")
        self.position = 0  # samples that the whole job has consumed
        self.hash = 0      # over the ids that this rank has consumed
        self.drawn = 0     # batches by this object since its state was loaded
        self._last: tuple[int, list[int]] | None = None  # the step drawn last, and what it got
        self._permutation: tuple[int, Permutation] | None = None  # of one epoch

    @property
    def epoch(self) -> int:
        """Of the next sample."""
        return self.epoch_at(self.position)

    def epoch_at(self, position: int) -> int:
        return position // self.dataset_size

    def batch(self, step: int) -> list[int]:
        """This rank's indices of the step. The same again if asked again; steps in their order otherwise."""
        if getattr(step, "rehearsal", False):
            return self._slice(0)
        number = int(step)
        if self._last is not None and self._last[0] == number:
            return list(self._last[1])
        if (number - 1) * self.global_batch != self.position:
            raise Refused(f"ElasticSampler: step {number} was asked for at sample {self.position}, where step "
                          f"{self.position // self.global_batch + 1} is next: hand the sampler to job.protect(), and "
                          f"draw one batch in each step")
        return self._consume(number)

    def __iter__(self) -> Iterator[list[int]]:
        return _Batches(self)

    def __len__(self) -> int:
        """Steps in an epoch, the last one begun counted; iteration itself never ends."""
        return -(-self.dataset_size // self.global_batch)

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "hash": self.hash, "dataset_size": self.dataset_size,
                "global_batch": self.global_batch, "seed": self.seed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name in ("dataset_size", "global_batch", "seed"):
            if state[name] != getattr(self, name):
                keep = "; it is the whole job's, and stays as it is when the number of ranks changes"
                raise Refused(f"ElasticSampler: the state has {name} {state[name]}, this one {getattr(self, name)}"
                              f"{keep if name == 'global_batch' else ''}")
        self.position, self.hash = state["position"], state["hash"]
        self._last, self.drawn = None, 0

    def at(self, position: int) -> list[int]:
        """This rank's indices of the step that begins there; draws nothing. In a rehearsal, those of the first."""
        job = current_job()
        return self._slice(0 if job is not None and job.rehearsal else position)

    def take_next(self) -> None:
        """The next step's indices, which at() gave, were used. Not in a rehearsal."""
        job = current_job()
        if job is None or not job.rehearsal:
            self._consume(self.position // self.global_batch + 1)

    def _next(self) -> list[int]:
        """The next batch, for iteration."""
        job = current_job()
        if job is not None and job.rehearsal:
            return self._slice(0)
        return self._consume(self.position // self.global_batch + 1)

    def _consume(self, number: int) -> list[int]:
        ids = self._slice(self.position)
        self.position += self.global_batch
        self.drawn += 1
        self.hash = mixed(self.hash + mixed(number) + sum(map(mixed, ids)))
        self._last = (number, ids)
        return list(ids)

    def _slice(self, position: int) -> list[int]:
        each = self.global_batch // self.world
        begin = position + self.rank * each
        return [self._sample(begin + i) for i in range(each)]

    def _sample(self, position: int) -> int:
        epoch, index = divmod(position, self.dataset_size)
        if not self.shuffle:
            return index
        if self._permutation is None or self._permutation[0] != epoch:
            self._permutation = (epoch, Permutation(self.dataset_size, self.seed, epoch))
        return self._permutation[1][index]


class _Batches(Iterator[list[int]]):
    """Goes on where the sampler is, also after a recovery."""

    def __init__(self, sampler: ElasticSampler) -> None:
        self._sampler, self._begun = sampler, False

    def __next__(self) -> list[int]:
        if not self._begun:
            _refuse_workers()
            self._begun = True
        return self._sampler._next()


def _refuse_workers() -> None:
    """A DataLoader with workers draws batches ahead of the step: after a recovery those would be lost.

    Who draws is seen in the calling frames only. Not before the first batch: a loader stopped earlier can't clean up.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):
        if frame is None:
            return
        workers = getattr(frame.f_locals.get("loader"), "num_workers", 0)
        if workers > 0:
            raise Refused(f"ElasticSampler: this DataLoader has {workers} workers, which fetch ahead of the step: take "
                          f"the batches from job.batches(loader), or use num_workers=0")
        frame = frame.f_back

"""Who of a loader wants to know the epoch: its samplers, its datasets, and those inside of them."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from pawl import loader_parts


class Told:
    """Inner ones are told first, and each once."""

    def __init__(self, samplers: list[Any], dataset: Any) -> None:
        self._samplers, self._dataset = samplers[::-1], dataset
        self.epoch: int | None = None  # that they were told last

    def tell(self, epoch: int, end_workers: Callable[[], None], again: bool = False) -> bool:
        """Whether they were told: once, since it may cost much, and who shuffles what there is would do so twice.
        `again`: even so, but for the datasets, whose workers have to be made anew to hear it."""
        is_first, self.epoch = self.epoch != epoch, epoch
        for each in self.samplers() if is_first or again else ():
            each.set_epoch(epoch)
        for each in self.datasets() if is_first else ():
            end_workers()
            each.set_epoch(epoch)
        return is_first or again

    def samplers(self) -> list[Any]:
        return list(_who_take_epochs(self._samplers))

    def datasets(self) -> list[Any]:
        return list(_who_take_epochs(loader_parts.datasets_of(self._dataset)[::-1]))

    def lengths_may_differ(self) -> bool:
        """From epoch to epoch."""
        from torch.utils.data.distributed import DistributedSampler
        return bool(self.datasets()) or any(
            getattr(type(each), "set_epoch", None) is not DistributedSampler.set_epoch for each in self.samplers())


def _who_take_epochs(things: list[Any]) -> Iterator[Any]:
    seen: dict[int, Any] = {}  # whose method it is: some give the attributes of what is inside of them for their own
    for each in things:
        tell = getattr(each, "set_epoch", None)
        owner = getattr(tell, "__self__", each)
        if _takes_an_epoch(tell) and id(owner) not in seen:
            seen[id(owner)] = owner
            yield each


def _takes_an_epoch(tell: Any) -> bool:
    """And nothing else."""
    try:
        inspect.signature(tell).bind(0)
    except ValueError:  # it doesn't say
        return callable(tell)
    except TypeError:
        return False
    return True

"""Ranks that act together: each does its part, all learn all results, and if one fails, all fail with its error.

    ranks = Ranks(group, "nothing was changed")
    sizes = ranks.gather(measure)             # what measure() returned on each rank, on all of them

Collectives: all ranks make the same calls in the same order. Objects are pickled and go over the given group.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from pawl.errors import PawlError, Refused
from pawl.torch.report import first_of

_Outcome = tuple[bool, Any]  # (True, what it gave), or (False, why not): a kind and a sentence


class Ranks:
    """The ranks of a group, or this process alone. `left`: what is so if they lose each other.

    A rank that dies is noticed by those that wait for it as soon as its connections close, and by all when these leave,
    or after the group's timeout (of init_process_group): no wait here is longer."""

    def __init__(self, group: dist.ProcessGroup | None, left: str = "") -> None:
        self.group = group
        self.left = left
        self.joined = dist.is_available() and dist.is_initialized()
        if group is not None and not self.joined:
            raise Refused("a group is given, and torch.distributed isn't initialized: call init_process_group() first")
        self.rank = dist.get_rank(group) if self.joined else 0
        self.world = dist.get_world_size(group) if self.joined else 1
        if self.rank < 0:
            raise Refused("this rank is not in the group: only its members take part")

    def gather(self, work: Callable[[], Any]) -> list[Any]:
        """What `work` gave on each rank, on all of them. Fails on all with what it failed with on any; on a rank that
        was interrupted with KeyboardInterrupt."""
        return self._settle(_outcome(work), self._collected)

    def first(self, work: Callable[[], Any]) -> Any:
        """What `work` gave on the first rank, on all of them."""
        return self.gather(lambda: work() if self.rank == 0 else None)[0]

    def through_first(self, work: Callable[[], Any], then: Callable[[list[Any]], Any]) -> Any:
        """What `then` makes, on the first rank, of what `work` gave on each: on all of them. Fails as gather() does."""
        def through(mine: _Outcome) -> list[_Outcome]:
            outcomes = self._at_first(mine)
            if self.rank == 0 and all(good for good, _ in outcomes):
                made = _outcome(lambda: then([answer for _, answer in outcomes]))
                outcomes = [made] + [(True, None)] * (self.world - 1)
            return self._from_first(outcomes)
        return self._settle(_outcome(work), through)[0]

    def _settle(self, mine: _Outcome, collective: Callable[[_Outcome], list[_Outcome]]) -> list[Any]:
        interrupted = _interruption(mine)
        try:
            outcomes = collective(mine)
            interrupted = interrupted or _interruption(outcomes[self.rank])
        except PawlError:
            if not interrupted:
                raise
            outcomes = []  # the others may have been interrupted, too, and be gone
        if interrupted:
            raise KeyboardInterrupt(interrupted)
        failures = [(rank, answer) for rank, (good, answer) in enumerate(outcomes) if not good]
        if failures:
            raise _joined_failure(failures, self.world)
        return [answer for _, answer in outcomes]

    def _collected(self, mine: _Outcome) -> list[_Outcome]:
        if self.world == 1:
            return [mine]
        answers: list[Any] = [None] * self.world
        self._together(lambda: dist.all_gather_object(answers, mine, group=self.group))
        return answers

    def _at_first(self, mine: _Outcome) -> list[_Outcome]:
        """All of them on the first rank; [] on the others."""
        if self.world == 1:
            return [mine]
        answers: list[Any] | None = [None] * self.world if self.rank == 0 else None
        self._together(lambda: dist.gather_object(mine, answers, dst=self._first_rank(), group=self.group))
        return answers or []

    def _from_first(self, outcomes: list[_Outcome]) -> list[_Outcome]:
        if self.world == 1:
            return outcomes
        said = [outcomes]
        self._together(lambda: dist.broadcast_object_list(said, src=self._first_rank(), group=self.group))
        return said[0]

    def _first_rank(self) -> int:
        """By its number among all."""
        return dist.get_global_rank(self.group, 0) if self.group else 0

    def _together(self, collective: Callable[[], Any]) -> None:
        try:
            collective()
        except PawlError:
            raise
        except Exception as error:
            left = f": {self.left}" if self.left else ""
            raise PawlError(f"the ranks lost each other ({error}){left}") from error


def _outcome(work: Callable[[], Any]) -> _Outcome:
    try:
        return True, work()
    except Refused as error:
        return False, ("refused", str(error))
    except PawlError as error:
        return False, ("failed", str(error))
    except KeyboardInterrupt as error:
        return False, ("interrupted", str(error) or "interrupted (KeyboardInterrupt)")
    except Exception as error:  # anything: the other ranks are waiting to hear of it
        return False, ("failed", f"{type(error).__name__}: {error}")


def _interruption(outcome: _Outcome) -> str:
    """What it says; "": it was none."""
    return "" if outcome[0] or outcome[1][0] != "interrupted" else outcome[1][1]


def _joined_failure(failures: Sequence[tuple[int, tuple[str, str]]], world: int) -> PawlError:
    sentences: dict[str, list[int]] = {}
    for rank, (_, sentence) in failures:
        sentences.setdefault(sentence, []).append(rank)
    def said(sentence: str, ranks: list[int]) -> str:
        if len(ranks) == world:
            return sentence
        return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {sentence}"
    text = first_of([said(sentence, ranks) for sentence, ranks in sentences.items()])
    return (Refused if all(kind == "refused" for _, (kind, _) in failures) else PawlError)(text)

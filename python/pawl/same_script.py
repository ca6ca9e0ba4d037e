"""All seats of a job run the same script with the same arguments and have built the same: a digest that they compare in
each generation, before they connect: groups that differ would wait for each other in vain."""
from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from pawl.errors import Refused

if TYPE_CHECKING:
    from pawl._library import Trainer

KEY = "pawl/script"
ORDER_SHOWN = 64  # names of an order that another seat is shown
SHOWN_MAX = 300  # characters of a command line in a sentence


def agree(trainer: Trainer, rank: int, group_count: int, order: list[str]) -> None:
    """Once in each generation. `group_count`: groups of all ranks that this seat has. `order`: of the gradients in
    DDP's buckets, none before a model is built. Fails: Refused, if another seat runs another script, or has built
    something else."""
    mine = {"digest": digest(), "seat": rank, "command": " ".join(sys.argv)[:SHOWN_MAX], "groups": group_count,
            "order": hashlib.sha256(json.dumps(order).encode()).hexdigest(), "first": order[:ORDER_SHOWN]}
    found = json.loads(trainer.rendezvous_compare_set(KEY, b"", json.dumps(mine).encode()))
    if found["digest"] != mine["digest"]:
        _refuse_script(found, rank)
    if found["groups"] != mine["groups"]:
        raise Refused(f"seats {found['seat']} and {rank} run the same script, but have made {found['groups']} and "
                      f"{mine['groups']} groups of all ranks: new_group, meshes and wrappers that make groups must be "
                      f"called alike on each rank, each time that the script starts")
    if found["order"] != mine["order"]:
        _refuse_order(found, rank, order)


def _refuse_order(found: dict[str, Any], rank: int, order: list[str]) -> NoReturn:
    """Gradients would be added to those of other parameters, without an error where they have the same sizes."""
    pairs = itertools.zip_longest(found["first"], order[:ORDER_SHOWN], fillvalue="nothing")
    place, theirs, ours = next(((place, *pair) for place, pair in enumerate(pairs) if pair[0] != pair[1]),
                               (ORDER_SHOWN, "another", "another"))
    raise Refused(f"DDP exchanges gradients in another order on seat {found['seat']} than on seat {rank}, one of which "
                  f"was built anew after a loss (number {place + 1} is {theirs} there, {ours} here): DDP takes the "
                  f"order in which rank 0's first backward came to them, and this rank's own, or its first steps', is "
                  f"another. Use the model's parts in the same order on each rank, and DDP without no_sync() in the "
                  f"first two steps; or keep the order of declaration: "
                  f"DistributedDataParallel(..., find_unused_parameters=True)")


def _refuse_script(found: dict[str, Any], rank: int) -> NoReturn:
    if found["command"] == " ".join(sys.argv)[:SHOWN_MAX]:
        raise Refused(f"two scripts in one job: seats {found['seat']} and {rank} run `{found['command']}`, but the "
                      f"file's text differs: it was changed after the job began, or each node has its own copy; put "
                      f"the same script everywhere, and don't change it while the job runs")
    raise Refused(f"two scripts in one job: seat {found['seat']} runs `{found['command']}`, seat {rank} runs "
                  f"`{' '.join(sys.argv)[:SHOWN_MAX]}`: start every node with the same script and arguments")


@functools.cache
def digest() -> str:
    """Of the script's content and its arguments, as they were when this process began."""
    known = hashlib.sha256(json.dumps([os.path.basename(sys.argv[0]), *sys.argv[1:]]).encode())
    try:
        with open(sys.argv[0], "rb") as file:
            known.update(file.read())
    except OSError:
        pass  # no file: an interactive session, or python -c
    return known.hexdigest()

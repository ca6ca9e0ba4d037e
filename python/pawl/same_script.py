"""All seats of a job run the same script with the same arguments: a digest that they compare in each generation."""
from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from typing import TYPE_CHECKING

from pawl.errors import Refused

if TYPE_CHECKING:
    from pawl._library import Trainer

KEY = "pawl/script"
SHOWN_MAX = 300  # characters of a command line in a sentence


def agree(trainer: Trainer, rank: int) -> None:
    """Once in each generation. Fails: Refused, if another seat runs another script."""
    mine = {"digest": digest(), "seat": rank, "command": " ".join(sys.argv)[:SHOWN_MAX]}
    found = json.loads(trainer.rendezvous_compare_set(KEY, b"", json.dumps(mine).encode()))
    if found["digest"] == mine["digest"]:
        return
    if found["command"] == mine["command"]:
        raise Refused(f"two scripts in one job: seats {found['seat']} and {rank} run `{mine['command']}`, but the "
                      f"file's text differs: it was changed after the job began, or each node has its own copy; put "
                      f"the same script everywhere, and don't change it while the job runs")
    raise Refused(f"two scripts in one job: seat {found['seat']} runs `{found['command']}`, seat {rank} runs "
                  f"`{mine['command']}`: start every node with the same script and arguments")


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

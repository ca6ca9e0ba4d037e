"""Saving an engine of DeepSpeed into pawl's store: every rank writes its own parts, and nothing is gathered.

    pawl.deepspeed.save(engine, "run/step1200", client_state={"epoch": 3})

The promises of pawl.torch.save hold here too. Weights that ranks share are divided over them; masters and optimizer
state come from the rank that has them.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from pawl.deepspeed.layout import held_by
from pawl.deepspeed.values import EngineValues, to_json, values_of
from pawl.torch.pieces import Layout, Piece
from pawl.torch.ranks import Ranks
from pawl.torch.saving import Said, Saved, merge_groups, write


def save(engine: Any, path: str | os.PathLike[str], client_state: Any = None, *, overwrite: bool = False,
         rename: Callable[[str], str] | None = None, frozen_parameters: bool = True,
         check_replicas: bool = True) -> Saved:
    """Publishes the engine's training: weights, masters, optimizer state, hyperparameters, counters, loss scale and lr
    scheduler. All ranks call it, between steps, with the same arguments.

    client_state               numbers, texts, bytes, small tensors, and lists, tuples and dicts of these: load() gives
                               it back. That of rank 0 is stored.
    overwrite                  replace a checkpoint of pawl's at `path`
    frozen_parameters          False: parameters that aren't trained are left out
    rename, check_replicas     as for pawl.torch.save

    Fails, with one error on all ranks: Refused where a change helps, or where it isn't possible with this engine;
    PawlError for what the system refused. Then `path` has what it had before.
    """
    of_engine: dict[str, Any] = {}
    client: list[Any] = []

    def look() -> tuple[Layout, list[Piece]]:
        layout = held_by(engine, rename).to_save(frozen=frozen_parameters)
        of_engine.update(values_of(engine))
        return layout, layout.pieces

    def stored(of_ranks: list[Said]) -> EngineValues:
        return EngineValues(client[0], merge_groups([said.groups for said in of_ranks]),
                            {name: value for said in reversed(of_ranks) for name, value in said.extra_state.items()},
                            f"torch {torch.__version__}", None, of_engine)

    ranks = Ranks(None, "at the path there is what was there before, or all of the new checkpoint")
    client.append(ranks.first(lambda: to_json("client_state", client_state)))
    return write(os.fspath(path), ranks, look, None, stored, overwrite=overwrite, check_replicas=check_replicas)

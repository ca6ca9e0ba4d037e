"""Saving a live training into pawl's store: every rank writes its own pieces, side by side; one rank publishes.

    pawl.torch.save("run/step1200", model, optimizer, values={"step": 1200})

What always holds:
 * at `path` there is the old checkpoint, or all of the new one, at any instant. A failure on one rank raises the same
   error on all, and nothing is published. If a rank dies, only the new checkpoint is lost;
 * each byte is written once: what several ranks hold is divided over them (pawl.torch.write_shares);
 * Ctrl-C cancels at once what a rank writes. That rank raises KeyboardInterrupt; the others learn of it;
 * save() returns on any rank only when the checkpoint is published and on the disk.
`StoredValues` is what is stored beside the tensors. Tensors on a device are copied to host memory, only a rank's own
share. Collectives: all ranks of `group` call save() with the same arguments, between steps.
"""
from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from pawl import _checkpoint
from pawl.errors import PawlError, Refused
from pawl.torch.cores import RankCores, threads_for
from pawl.torch.json_values import as_json
from pawl.torch.layout import layout_of
from pawl.torch.pieces import Layout, Piece, piece_of_number
from pawl.torch.ranks import Ranks
from pawl.torch.report import Progress
from pawl.torch.write_shares import Description, Share, describe, divide

_FIRST = 5


@dataclass
class Saved:
    """What a save came to, on this rank."""

    path: str
    tensors: int        # in the checkpoint
    bytes: int          # of all tensors, written by all ranks together
    bytes_written: int  # by this rank


@dataclass
class StoredValues:
    """What a checkpoint of ours holds that is no tensor; the manifest's "values" are these fields, as JSON."""

    user: Any = None                                                # what was given to save() as values=
    param_groups: list[dict[str, Any]] = field(default_factory=list)  # hyperparameters; "params" are names
    extra_state: dict[str, Any] = field(default_factory=dict)       # what modules' get_extra_state() gave, by name
    framework: str = ""                                             # "torch 2.13.0"
    dcp: dict[str, Any] | None = None                               # of pawl.torch.dcp alone: its state's keys

    def text(self) -> str:
        return json.dumps(vars(self), separators=(",", ":"))


def save(path: str | os.PathLike[str], model: Any, optimizer: Any = None, *, values: Any = None,
         group: dist.ProcessGroup | None = None, overwrite: bool = False, rename: Callable[[str], str] | None = None,
         check_replicas: bool = True) -> Saved:
    """Publishes the training that all ranks of `group` (None: the default one; no group: this process alone) hold.

    `model`, `optimizer`, `rename` are as for pawl.torch.layout_of. `values`: numbers, texts, lists and dicts that come
    back from load(): the step, the scheduler's state_dict(), ... `overwrite`: replace a checkpoint of pawl's at `path`.
    Fails, with one error on all ranks: Refused where a change of the script helps; PawlError for what the system
    refused. Where names clash between ranks, different tensors look like replicas: so a sample of each piece is
    compared. `check_replicas=False` turns that off.
    """
    def look() -> tuple[Layout, list[Piece]]:
        layout = layout_of(model, optimizer, rename=rename)
        return layout, layout.pieces + [piece_of_number(number) for number in layout.numbers]

    def stored(of_ranks: list[Said]) -> StoredValues:
        return StoredValues(of_ranks[0].values, merge_groups([said.groups for said in of_ranks]),
                            {name: value for said in reversed(of_ranks) for name, value in said.extra_state.items()},
                            f"torch {torch.__version__}")

    ranks = Ranks(group, "at the path there is what was there before, or all of the new checkpoint")
    return write(os.fspath(path), ranks, look, values, stored, overwrite=overwrite, check_replicas=check_replicas)


# A save -----------------------------------------------------------------------------------------------------------

@dataclass
class Said:
    """What a rank says of itself before anything is written."""

    path: str
    folder: str      # that the first rank has begun; "" of the others
    free_bytes: int  # there
    descriptions: list[Description]
    aliases: dict[str, str]
    groups: list[tuple[list[str], dict[str, Any]]]
    extra_state: dict[str, Any]
    values: Any
    cores: RankCores


def write(path: str, ranks: Ranks, look: Callable[[], tuple[Layout, list[Piece]]], values: Any,
          stored: Callable[[list[Said]], Any], *, overwrite: bool, check_replicas: bool = True) -> Saved:
    """`look`: what this rank holds; `stored`: from what all ranks said to what has text(), for the manifest."""
    mine: list[Piece] = []
    store: _checkpoint.Store | None = None

    def say() -> Said:
        nonlocal store
        layout, pieces = look()
        mine.extend(pieces)
        free_bytes = 0
        if ranks.rank == 0:  # before it knows how much there is in all: one meeting less
            store = _checkpoint.Store(path, overwrite=overwrite)
            free_bytes = _free_bytes(store.folder)
        return Said(os.path.abspath(path), store.folder if store else "", free_bytes, describe(pieces), layout.aliases,
                    [(each.parameters, each.values) for each in layout.groups], layout.extra_state,
                    as_json("values", values), RankCores.mine())

    try:
        said: list[Said] = ranks.gather(say)
        if len({each.path for each in said}) > 1:
            paths = sorted({each.path for each in said})
            raise Refused(f"ranks save to different paths: {paths[:_FIRST]}: pass the same path on all")
        descriptions = [each.descriptions for each in said]
        division = divide(descriptions, check_replicas=check_replicas)
        written = [sum(_bytes_of(of_rank[share.piece], share) for share in shares)
                   for of_rank, shares in zip(descriptions, division, strict=True)]
        text, aliases = stored(said).text(), merge_aliases(said)
        threads = threads_for([each.cores for each in said], ranks.rank)
        _check_room(said[0], sum(written))
        with Progress("save", path, written[ranks.rank], shown=ranks.rank == 0) as progress:
            ranks.through_first(
                lambda: _write_part(said[0].folder, ranks.rank, mine, division[ranks.rank], progress, threads),
                lambda parts: store.publish(parts, values=text, aliases=aliases) if store else None)
    finally:
        if store is not None:
            store.close()  # what isn't published is removed
    tensors = len({(each.name, each.role) for of_rank in descriptions for each in of_rank})
    return Saved(path, tensors, sum(written), written[ranks.rank])


def _bytes_of(description: Description, share: Share) -> int:
    return share.box.count * description.element_bytes


def _free_bytes(folder: str) -> int:
    disk = os.statvfs(folder)
    return disk.f_bavail * disk.f_frsize


def _check_room(first: Said, needed_bytes: int) -> None:
    if first.free_bytes < needed_bytes:
        raise PawlError(f"no room in {os.path.dirname(first.path)}: {needed_bytes} bytes are needed and "
                        f"{first.free_bytes} are free, so {needed_bytes - first.free_bytes} are missing: free as many, "
                        f"or write elsewhere")


def _write_part(folder: str, part: int, pieces: Sequence[Piece], shares: Sequence[Share], progress: Progress,
                threads: int) -> str:
    kept: list[torch.Tensor] = []  # until they are written
    return _checkpoint.write_store_part(folder, part, store_pieces(pieces, shares, kept), progress, threads=threads)


def store_pieces(pieces: Sequence[Piece], shares: Sequence[Share], kept: list[torch.Tensor]
                 ) -> list[_checkpoint.StorePiece]:
    """As the library takes them; `kept` holds their memory."""
    return [_store_piece(pieces[share.piece], share, kept) for share in shares]


def _store_piece(piece: Piece, share: Share, kept: list[torch.Tensor]) -> _checkpoint.StorePiece:
    tensor = piece.tensor.detach()
    for dimension, (begin, size) in enumerate(zip(share.box.begin, share.box.size, strict=True)):
        tensor = tensor.narrow(dimension, begin - piece.box.begin[dimension], size)
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    kept.append(tensor)
    return _checkpoint.StorePiece(piece.name, piece.role, piece.dtype, piece.shape, share.box.begin, share.box.size,
                                  tensor.data_ptr() if tensor.numel() else 0,
                                  [stride * tensor.element_size() for stride in tensor.stride()])


# From all ranks' words to one -------------------------------------------------------------------------------------

def merge_aliases(said: Sequence[Said]) -> dict[str, str]:
    """Tied names of all ranks; one that some rank holds by itself is no alias."""
    names = {each.name for of_rank in said for each in of_rank.descriptions}
    return {alias: kept for of_rank in reversed(said) for alias, kept in of_rank.aliases.items()
            if alias not in names and kept in names}


def merge_groups(of_ranks: Sequence[Sequence[tuple[list[str], dict[str, Any]]]]) -> list[dict[str, Any]]:
    """Param groups of all ranks: those of one place with equal values are one. Fails: Refused where ranks have
    different values for one parameter."""
    merged: dict[tuple[int, str], dict[str, Any]] = {}
    group_of: dict[str, tuple[tuple[int, str], int]] = {}
    for rank, groups in enumerate(of_ranks):
        for place, (names, values) in enumerate(groups):
            key = (place, json.dumps(values, sort_keys=True))
            into = merged.setdefault(key, {**values, "params": []})
            for name in names:
                if name not in group_of:
                    group_of[name] = key, rank
                    into["params"].append(name)
                known, other = group_of[name]
                if known[1] != key[1]:
                    raise Refused(f"{name} has {known[1]} on rank {other} and {key[1]} on rank {rank}: param groups "
                                  f"must be equal on all ranks that hold a parameter")
    return [merged[key] for key in sorted(merged, key=lambda key: key[0])]

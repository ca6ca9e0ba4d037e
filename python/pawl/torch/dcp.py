"""torch.distributed.checkpoint over pawl: programs that use dcp.save() and dcp.load() change one argument.

    dcp.save(state, storage_writer=pawl.torch.dcp.Writer("run/step1200"))
    dcp.load(state, storage_reader=pawl.torch.dcp.Reader("run/step1200"))

The writer makes a checkpoint of pawl's store: published whole or not at all, its tensors under the parameters' names
and roles where the state says them (state.<parameter>.<word> of an optimizer), so that all of pawl reads it.
What is no tensor is stored as torch pickles it, and pawl never unpickles it: torch's planner does, as always.
The reader takes that, and every other checkpoint that pawl opens; for those, the keys of the state are made from names
and roles: `<model>.<name>` and `<optimizer>.state.<name>.<word>`. Each rank reads only its boxes, cast to its types.
"""
from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    SavePlan,
    SavePlanner,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from pawl import _checkpoint
from pawl.errors import PawlError, Refused
from pawl.torch.boxes import Box
from pawl.torch.cores import RankCores, threads_for
from pawl.torch.json_values import as_json
from pawl.torch.pieces import BUFFER, EXTRA_STATE, WEIGHT, Piece
from pawl.torch.placement import place
from pawl.torch.saving import StoredValues, store_pieces
from pawl.torch.write_shares import Share

_OF_OPTIMIZER_STATE = "optimizer state"  # problems that begin so leave the weights whole
OBJECT = "object"  # the role of what torch pickled: its bytes
Path = tuple[Any, ...]


@dataclass
class _Part:
    """What the first rank tells one about the save: a plan's storage_data."""

    folder: str
    part: int
    names: dict[str, tuple[str, str]]  # of a key of the state: name and role
    paths: dict[str, Path]             # where it lay, of param groups' hyperparameters
    threads: int | None


@dataclass
class _Written:
    """What a rank's first WriteResult carries to the first rank."""

    share: str
    hyperparameters: list[tuple[Path, Any]] = field(default_factory=list)  # where they lay, and what JSON has


class Writer(StorageWriter):
    """Saves into pawl's store. One save at a time; `overwrite` replaces a checkpoint of pawl's that is there."""

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        self.path = os.fspath(path)
        self.overwrite = overwrite
        self._store: _checkpoint.Store | None = None
        self._names: dict[str, tuple[str, str]] = {}

    def __del__(self) -> None:
        self._abandon()  # of a save that failed on another rank, nothing came here

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        self._abandon()
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return replace(plan, storage_data=RankCores.mine())

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the first rank: the folder is begun, and all are told its name and the tensors'."""
        paths: dict[str, Path] = {}
        for plan in plans:
            paths.update({item.index.fqn: (item.index.fqn,) for item in plan.items if item.index.fqn not in paths})
            paths.update({key: tuple(path) for key, path in (plan.planner_data or {}).items() if key in paths})
        self._names = names_of(paths)
        for key in {item.index.fqn for plan in plans for item in plan.items if item.type == WriteItemType.BYTE_IO}:
            self._names[key] = key, OBJECT
        size = sum(_size_bytes(item) for plan in plans for item in plan.items)
        path = self.path if "://" in self.path else os.path.abspath(self.path)  # an address is refused by its own name
        self._store = _checkpoint.Store(path, overwrite=self.overwrite, expected_bytes=size)
        return [replace(plan, storage_data=self._part(part, {item.index.fqn for item in plan.items}, paths, threads))
                for part, (plan, threads) in enumerate(zip(plans, _threads_of(plans), strict=True))]

    def _part(self, part: int, keys: set[str], paths: dict[str, Path], threads: int | None) -> _Part:
        assert self._store is not None
        return _Part(self._store.folder, part, {key: self._names[key] for key in keys},
                     {key: paths[key] for key in keys if is_hyperparameter(paths[key])}, threads)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        about: _Part = plan.storage_data
        pieces, found, results = [], [], []
        for item in plan.items:
            pieces.append(_piece_of(item, about.names[item.index.fqn], planner))
            if item.index.fqn in about.paths:
                found += _hyperparameter(planner, item, about.paths[item.index.fqn])
            results.append(WriteResult(item.index, pieces[-1].size_bytes, None))
        if pieces:
            shares = [Share(index, piece.box) for index, piece in enumerate(pieces)]
            kept: list[torch.Tensor] = []
            share = _checkpoint.write_store_part(about.folder, about.part, store_pieces(pieces, shares, kept),
                                                 threads=about.threads)
            results[0] = replace(results[0], storage_data=_Written(share, found))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the first rank: everything is there, and is published."""
        if self._store is None:
            raise PawlError("a save can't be finished that was not begun on this rank: use a Writer for one dcp.save()")
        written = [result.storage_data for of_rank in results for result in of_rank if result.storage_data is not None]
        values = StoredValues(param_groups=groups_of([found for each in written for found in each.hyperparameters]),
                              framework=f"torch {torch.__version__}")
        values.dcp = {"names": self._names, "paths": metadata.planner_data or {}}
        self._store.publish([each.share for each in written], values=values.text(), aliases={})
        self._abandon()

    def _abandon(self) -> None:
        store, self._store = getattr(self, "_store", None), None
        if store is not None:
            store.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike)) and "://" not in os.fspath(checkpoint_id)


def _threads_of(plans: Sequence[SavePlan | LoadPlan]) -> list[int | None]:
    """Of each rank, from the cores that the ranks' own plans came with; None: one per core that it may run on."""
    of_ranks = [plan.storage_data for plan in plans]
    if not all(isinstance(each, RankCores) for each in of_ranks):
        return [None] * len(plans)  # of a planner that keeps nothing of what it doesn't know
    of_machine: dict[str, list[RankCores]] = {}  # so that thousands of ranks aren't each held against all others
    places = []
    for each in of_ranks:
        neighbours = of_machine.setdefault(each.boot, [])
        places.append((neighbours, len(neighbours)))
        neighbours.append(each)
    return [threads_for(neighbours, place) for neighbours, place in places]


def _size_bytes(item: WriteItem) -> int:
    if item.tensor_data is None:
        return item.bytes_io_data.nbytes if item.bytes_io_data is not None else 0
    return item.tensor_data.chunk.sizes.numel() * torch._utils._element_size(item.tensor_data.properties.dtype)


def _piece_of(item: WriteItem, named: tuple[str, str], planner: SavePlanner) -> Piece:
    found = planner.resolve_data(item)
    if item.type == WriteItemType.BYTE_IO:
        tensor = torch.frombuffer(bytearray(found.getvalue()), dtype=torch.uint8)
        return Piece(*named, tuple(tensor.shape), Box((0,), tuple(tensor.shape)), tensor)
    assert item.tensor_data is not None
    box = Box(tuple(item.tensor_data.chunk.offsets), tuple(item.tensor_data.chunk.sizes))
    placed = place(item.index.fqn, found)
    if placed is None or tuple(found.shape) != box.size:
        raise Refused(f"{item.index.fqn}: the planner says {list(box.size)} and hands out {list(found.shape)}")
    return Piece(*named, tuple(item.tensor_data.size), box, placed[2])


def is_hyperparameter(path: Path) -> bool:
    """(..., "param_groups", number, word), as torch's planner flattens an optimizer's groups."""
    return len(path) >= 3 and path[-3] == "param_groups" and isinstance(path[-2], int) and isinstance(path[-1], str)


def _hyperparameter(planner: SavePlanner, item: WriteItem, path: Path) -> list[tuple[Path, Any]]:
    """As JSON, if it is that: what torch has pickled is stored anyway."""
    try:
        return [(path, as_json(item.index.fqn, planner.lookup_object(item.index)))]
    except (Refused, AttributeError):
        return []


def groups_of(found: Sequence[tuple[Path, Any]]) -> list[dict[str, Any]]:
    """Param groups from their hyperparameters, in the groups' order."""
    groups: dict[str, dict[str, Any]] = {}
    order: dict[str, tuple[str, int]] = {}
    for path, value in found:
        key = repr(path[:-1])
        order[key] = repr(path[:-2]), path[-2]
        groups.setdefault(key, {})[path[-1]] = value
    return [groups[key] for key in sorted(groups, key=lambda key: order[key])]


def names_of(paths: dict[str, Path]) -> dict[str, tuple[str, str]]:
    """Name and role of each key of a state, from where it lay in it.

    (..., "state", parameter, word) is an optimizer's; the dicts that hold its parameters are models, and their names
    begin below them. Everything else keeps its key. Keys whose names would meet keep theirs, too.
    """
    states = {key: path for key, path in paths.items()
              if len(path) >= 3 and path[-3] == "state" and isinstance(path[-2], str) and isinstance(path[-1], str)}
    parameters = {path[-2] for path in states.values()}
    models = {path[:-1] for key, path in paths.items() if key not in states and path[-1] in parameters}
    named: dict[str, tuple[str, str]] = {}
    for key, path in paths.items():
        if key in states:
            named[key] = path[-2], path[-1]
        elif path[:-1] in models and isinstance(path[-1], str):
            named[key] = path[-1], WEIGHT
        else:
            named[key] = key, WEIGHT
    of: dict[tuple[str, str], list[str]] = {}
    for key, name in named.items():
        of.setdefault(name, []).append(key)
    if any(len(keys) > 1 for keys in of.values()):
        return {key: (key, WEIGHT) for key in paths}
    return named


class Reader(StorageReader):
    """Loads from any checkpoint that pawl opens.

    model, optimizer: where the state that is loaded into keeps the model's and the optimizer's own, for checkpoints
    that Writer has not made; "" if names stand at the top. More options are those of pawl_checkpoint_open: tag, names.
    """

    def __init__(self, path: str | os.PathLike[str], *, model: str = "model", optimizer: str = "optim",
                 **options: Any) -> None:
        self.path = os.fspath(path)
        self._model, self._optimizer, self._options = model, optimizer, options
        self._checkpoint: _checkpoint.Checkpoint | None = None
        self._tensors: dict[str, _checkpoint.Tensor] = {}
        self._objects: dict[str, Any] = {}  # by key, where they are no stored bytes

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._checkpoint = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        checkpoint = self._open()
        self._refuse([problem for problem in checkpoint.problems if not problem.startswith(_OF_OPTIMIZER_STATE)])
        found: dict[str, Any] = {key: _metadata_of(tensor) for key, tensor in self._tensors.items()}
        found.update({key: BytesStorageMetadata() for key in self._objects})
        paths = {key: tuple(path) for key, path in _dcp_values(checkpoint).get("paths", {}).items()}
        return Metadata(state_dict_metadata=found, planner_data=paths or None)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        self._open()  # metadata was read on the first rank alone

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        wanted = {self._tensors[item.storage_index.fqn].role for item in plan.items
                  if item.storage_index.fqn in self._tensors}
        if wanted - {WEIGHT, BUFFER, EXTRA_STATE, OBJECT}:
            checkpoint = self._open()
            self._refuse([*checkpoint.problems, *checkpoint.unnamed])
        return replace(plan, storage_data=RankCores.mine())

    def _refuse(self, problems: Sequence[str]) -> None:
        if problems:
            raise Refused(f"{self.path}: {'; '.join(problems[:5])}")

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return [replace(plan, storage_data=threads)
                for plan, threads in zip(plans, _threads_of(plans), strict=True)]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        checkpoint = self._open()
        requests: list[_checkpoint.Request] = []
        wanted: list[tuple[Any, torch.Tensor, torch.Tensor]] = []  # item, the planner's tensor, and what is read into
        for item in plan.items:
            key = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes_of(checkpoint, key))
                continue
            target = planner.resolve_tensor(item).detach()
            memory = target if target.device.type == "cpu" else torch.empty_like(target, device="cpu")
            if tuple(memory.shape) != tuple(item.lengths):
                raise Refused(f"{key}: the planner wants {list(item.lengths)} and hands out {list(memory.shape)}")
            wanted.append((item, target, memory))
            if memory.numel():
                requests.append(_request(self._tensors[key], item.storage_offsets, memory))
        checkpoint.read(requests, threads=plan.storage_data)
        for item, target, memory in wanted:
            if memory is not target:
                target.copy_(memory)
            planner.commit_tensor(item, target)
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _open(self) -> _checkpoint.Checkpoint:
        if self._checkpoint is None:
            self._checkpoint = _checkpoint.Checkpoint(self.path, **self._options)
            self._tensors, self._objects = self._keys_of(self._checkpoint)
        return self._checkpoint

    def _keys_of(self, checkpoint: _checkpoint.Checkpoint) -> tuple[dict[str, _checkpoint.Tensor], dict[str, Any]]:
        by_name = {(tensor.name, tensor.role): tensor for tensor in checkpoint.tensors}
        names = _dcp_values(checkpoint).get("names")
        if names is not None:
            return {key: by_name[name, role] for key, (name, role) in names.items() if (name, role) in by_name}, {}
        found: dict[str, _checkpoint.Tensor] = {}
        for (name, role), tensor in by_name.items():
            found[self._key(name, role)] = tensor
        for alias, kept in checkpoint.aliases.items():
            if (kept, WEIGHT) in by_name:
                found.setdefault(self._key(alias, WEIGHT), by_name[kept, WEIGHT])
        values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
        objects: dict[str, Any] = {}
        for number, group in enumerate(values.get("param_groups") or []):
            for word, value in group.items():
                pair = isinstance(value, list) and word != "params"  # JSON has no tuples, and torch's are: betas, eps
                objects[_joined(self._optimizer, f"param_groups.{number}.{word}")] = tuple(value) if pair else value
        _flatten(values.get("user"), "", objects)
        return found, {key: value for key, value in objects.items() if key not in found}

    def _key(self, name: str, role: str) -> str:
        if role in (WEIGHT, BUFFER, EXTRA_STATE):
            return _joined(self._model, name)
        return _joined(self._optimizer, f"state.{name}.{role}")

    def _bytes_of(self, checkpoint: _checkpoint.Checkpoint, key: str) -> io.BytesIO:
        if key in self._objects:
            out = io.BytesIO()
            torch.save(self._objects[key], out)
            out.seek(0)
            return out
        tensor = self._tensors[key]
        memory = torch.empty(tensor.shape, dtype=torch.uint8)
        checkpoint.read([_request(tensor, (0,), memory)])
        return io.BytesIO(bytes(memory.untyped_storage()))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, (str, os.PathLike)) and os.path.exists(checkpoint_id)


def _request(tensor: _checkpoint.Tensor, begin: Sequence[int], memory: torch.Tensor) -> _checkpoint.Request:
    unit = memory.element_size()
    stride_bytes = tuple(unit * stride for stride in memory.stride())
    last = sum((size - 1) * stride for size, stride in zip(memory.shape, stride_bytes, strict=True))
    dtype = str(memory.dtype).removeprefix("torch.")
    return _checkpoint.Request(tensor.index, dtype, tuple(begin), tuple(memory.shape), stride_bytes,
                               memory.data_ptr(), last + unit)


def _metadata_of(tensor: _checkpoint.Tensor) -> Any:
    if tensor.role == OBJECT:
        return BytesStorageMetadata()
    kind = getattr(torch, tensor.dtype, None)
    if not isinstance(kind, torch.dtype):
        raise Refused(f"{tensor.name} ({tensor.role}) is of {tensor.dtype}, which this torch doesn't have")
    shape = torch.Size(tensor.shape)
    whole = ChunkStorageMetadata(offsets=torch.Size([0] * len(shape)), sizes=shape)
    return TensorStorageMetadata(properties=TensorProperties(dtype=kind), size=shape, chunks=[whole])


def _dcp_values(checkpoint: _checkpoint.Checkpoint) -> dict[str, Any]:
    values = checkpoint.values
    return (values.get("dcp") or {}) if isinstance(values, dict) else {}


def _joined(prefix: str, key: str) -> str:
    return f"{prefix}.{key}" if prefix else key


def _flatten(value: Any, prefix: str, into: dict[str, Any]) -> None:
    """As torch's planner flattens a state: dicts are keys' parts, everything else is a value."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            _flatten(each, _joined(prefix, key), into)
    elif prefix:
        into[prefix] = value

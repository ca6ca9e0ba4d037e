"""A training's save and load: pawl.torch against raw reads and writes, torch.save, safetensors, DCP; who reads what.

Ranks are forked processes over gloo that the bench sends tasks to, one thread each; a task's seconds are those between
two barriers. The state is weights and AdamW's moments of a plain stack of linear layers, filled with noise.
"""
from __future__ import annotations

import functools
import importlib.util
import io
import math
import multiprocessing
import os
import pathlib
import shutil
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from machine import Failed, evict, files_below, floor, run_round, size_of
from telling import against_peers, goal_line, rates, spread, table

LAYERS, VOCABULARY = 8, 8192
SAVERS, LOADERS, REPLICAS = 4, 2, 8
_PATIENCE_S = 300


# In the ranks -----------------------------------------------------------------------------------------------------

def hidden_for(size_bytes: int) -> int:
    """12 bytes a parameter; 8 h^2 of them a layer, and one matrix of the vocabulary."""
    layer, parameters = 8 * LAYERS, size_bytes / 12
    hidden = (math.sqrt(VOCABULARY * VOCABULARY + 4 * layer * parameters) - VOCABULARY) / (2 * layer)
    return max(64, round(hidden / 64) * 64)


class Training:
    """What one rank holds."""

    def __init__(self, kind: str, size_bytes: int) -> None:
        import torch
        import torch.distributed as dist
        torch.manual_seed(dist.get_rank() if kind == "fsdp2" else 0)
        with torch.device("meta" if kind == "fsdp2" else "cpu"):
            model = _model(hidden_for(size_bytes))
        self.model = _laid_out(kind, model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.reference: list[Any] = []
        for tensor in self.tensors():
            tensor.normal_()

    def tensors(self) -> list[Any]:
        """The memory of all weights and moments here."""
        import torch
        from torch.distributed.tensor import DTensor
        states = [value for state in self.optimizer.state.values() for value in state.values()
                  if isinstance(value, torch.Tensor) and value.dim()]
        found = [each.detach() for each in (*self.model.parameters(), *states)]
        return [each.to_local() if isinstance(each, DTensor) else each for each in found]

    def named(self) -> dict[str, Any]:
        return {str(number): tensor for number, tensor in enumerate(self.tensors())}


def _model(hidden: int) -> Any:
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
            self.norm = nn.LayerNorm(hidden)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(VOCABULARY, hidden)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    return Model()


def _laid_out(kind: str, model: Any) -> Any:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    if kind == "replicated":
        return model
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ranks",))
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model.to_empty(device="cpu")
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    plan: dict[str, Any] = {"embed": RowwiseParallel()}
    for number in range(LAYERS):
        plan[f"blocks.{number}.up"], plan[f"blocks.{number}.down"] = ColwiseParallel(), RowwiseParallel()
    return parallelize_module(model, mesh, plan)


def _synced(path: str, write: Callable[[Any], None]) -> None:
    with open(path, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def _torch_save(training: Training, folder: str, rank: int) -> None:
    import torch
    state = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
    _synced(os.path.join(folder, f"rank{rank}.pt"), lambda file: torch.save(state, file))


def _safetensors_save(training: Training, folder: str, rank: int) -> None:
    from safetensors.torch import save_file
    path = os.path.join(folder, f"rank{rank}.safetensors")
    save_file(training.named(), path)
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def _dcp_state(training: Training) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict import get_state_dict
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optim": optimizer}


def _dcp_save(training: Training, folder: str, rank: int) -> None:
    import torch.distributed.checkpoint as dcp
    dcp.save(_dcp_state(training), storage_writer=dcp.FileSystemWriter(folder, sync_files=True))


def _dcp_load(training: Training, folder: str, rank: int) -> None:
    import torch.distributed.checkpoint as dcp
    dcp.load(_dcp_state(training), storage_reader=dcp.FileSystemReader(folder))


def _pawl_save(training: Training, folder: str, rank: int) -> None:
    import pawl.torch
    pawl.torch.save(folder, training.model, training.optimizer)


def _pawl_load(training: Training, folder: str, rank: int, **options: Any) -> Any:
    import pawl.torch
    return pawl.torch.load(folder, training.model, training.optimizer, **options)


def _io() -> dict[str, int]:
    with open("/proc/self/io", encoding="ascii") as file:
        return {name: int(value) for name, value in (line.split(":") for line in file)}


class _Rank:
    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._training: Training | None = None

    def make(self, kind: str, size_bytes: int) -> int:
        """Bytes of this rank's state."""
        self._training = Training(kind, size_bytes)
        return sum(tensor.numel() * tensor.element_size() for tensor in self._training.tensors())

    def time(self, what: str, folder: str) -> tuple[float, dict[str, int]]:
        """Seconds from one barrier to the next; bytes that this rank read, by the kernel and by what pawl says."""
        import torch.distributed as dist
        work = {"torch.save": _torch_save, "safetensors": _safetensors_save, "dcp.save": _dcp_save,
                "dcp.load": _dcp_load, "pawl.save": _pawl_save, "pawl.load": _pawl_load,
                "pawl.load proven while reading": lambda *given: _pawl_load(*given, verify="reading"),
                "pawl.load unverified": lambda *given: _pawl_load(*given, verify=False)}[what]
        # As a step of the training has just done: ranks that have slept through a floor of seconds run Python five
        # times slower for their first moments, whatever they are asked for.
        for tensor in self._training.tensors():
            tensor.sum()
        dist.barrier()
        before, began = _io(), time.perf_counter()
        answer = work(self._training, folder, self._rank)
        dist.barrier()
        seconds, after = time.perf_counter() - began, _io()
        read = {name: after[name] - before[name] for name in ("read_bytes", "rchar")}
        return seconds, {**read, "told": getattr(answer, "bytes_read", 0)}

    def forget(self) -> None:
        for tensor in self._training.tensors():
            tensor.zero_()

    def remember(self) -> None:
        self._training.reference = [tensor.clone() for tensor in self._training.tensors()]

    def is_right(self) -> bool:
        """Whether the state is what was remembered, bit for bit."""
        import torch
        return all(torch.equal(a, b) for a, b in zip(self._training.tensors(), self._training.reference, strict=True))


def _rank_main(rank: int, world: int, store: str, pipe: Any) -> None:
    import torch
    import torch.distributed as dist
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends its ranks
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    sys.stdin = io.StringIO()
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world,
                            timeout=timedelta(seconds=_PATIENCE_S))
    self = _Rank(rank)
    while True:
        try:
            name, arguments = pipe.recv()
        except EOFError:
            os._exit(0)  # the bench is gone
        try:
            pipe.send((True, getattr(self, name)(*arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))


# In the bench -----------------------------------------------------------------------------------------------------

class Ranks:
    """Forked ranks of one training; they end with this."""

    def __init__(self, folder: pathlib.Path, world: int, kind: str, size_bytes: int) -> None:
        import torch._dynamo  # noqa: F401 - optimizers load it with their first step
        import torch.distributed.checkpoint.state_dict  # noqa: F401
        import torch.distributed.fsdp  # noqa: F401
        import torch.distributed.tensor.parallel  # noqa: F401

        import pawl.torch  # noqa: F401 - and torch with it: once, for all ranks
        context = multiprocessing.get_context("fork")
        self._scratch = tempfile.mkdtemp(prefix="meet-", dir=folder)
        self._pipes, self._processes = [], []
        for rank in range(world):
            ours, theirs = context.Pipe()
            meet = f"{self._scratch}/store"
            process = context.Process(target=_rank_main, args=(rank, world, meet, theirs), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)
        self.bytes_of_ranks: list[int] = self.all("make", kind, size_bytes)

    def all(self, name: str, *arguments: Any) -> list[Any]:
        for pipe in self._pipes:
            pipe.send((name, arguments))
        answers = []
        for rank, pipe in enumerate(self._pipes):
            if not pipe.poll(_PATIENCE_S):
                raise Failed(f"rank {rank} does not answer")
            good, answer = pipe.recv()
            if not good:
                raise Failed(f"rank {rank}: {answer}")
            answers.append(answer)
        return answers

    def seconds(self, what: str, folder: pathlib.Path) -> float:
        return max(seconds for seconds, _ in self.all("time", what, str(folder)))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Beside:
    """Ours between two of the floor's: a disk that others use as well moves by more within a round than what is to be
    seen."""

    def __init__(self, floor_seconds: Callable[[], float]) -> None:
        self._floor_seconds = floor_seconds
        self.floors: list[float] = []
        self._ratios: dict[str, list[float]] = {}
        self._moved: dict[str, list[float]] = {}

    def forget(self) -> None:
        """What was seen in a warm-up."""
        self.floors, self._ratios, self._moved = [], {}, {}

    def time(self, name: str, ours: Callable[[], float]) -> float:
        before, seconds, after = self._floor_seconds(), ours(), self._floor_seconds()
        self.floors += [before, after]
        self._ratios.setdefault(name, []).append((before + after) / 2 / seconds)
        self._moved.setdefault(name, []).append(max(before, after) / min(before, after))
        return seconds

    def told(self, name: str) -> dict[str, float]:
        """Our rate over the floor's, and by how much that moved from one side of ours to the other."""
        return {**spread(self._ratios[name]), "floor_moved": statistics.median(self._moved[name])}


_WRITE = "raw write, O_DIRECT"
_SAVES = {"pawl.torch.save": "pawl.save", "torch.save + fsync": "torch.save", "safetensors + fsync": "safetensors",
          "dcp.save, synced": "dcp.save"}


def save(folder: pathlib.Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """Durable saves of 4 ranks' FSDP2 state, each rank its own part side by side."""
    wanted = dict(_SAVES)
    without = [] if importlib.util.find_spec("safetensors") else ["safetensors + fsync"]
    for name in without:
        del wanted[name]
    with Ranks(folder, SAVERS, "fsdp2", size_bytes) as ranks:
        size = sum(ranks.bytes_of_ranks)

        def one(what: str) -> float:
            target = folder / "save"
            os.sync()
            if not what.startswith("pawl"):
                target.mkdir()
            try:
                return ranks.seconds(what, target)
            finally:
                shutil.rmtree(target, ignore_errors=True)

        def raw() -> float:
            os.sync()
            try:
                return floor("write", folder / "raw", size)
            finally:
                (folder / "raw").unlink(missing_ok=True)

        beside = Beside(raw)
        tasks: dict[str, Callable[[], float]] = {}
        for name, what in wanted.items():
            timed = functools.partial(one, what)
            tasks[name] = functools.partial(beside.time, name, timed) if "pawl" in name else timed
        run_round("save (warm-up)", -1, tasks)
        beside.forget()
        found = [run_round("save", number, tasks) for number in range(rounds)]
    peers = [name for name in wanted if "pawl" not in name]
    return {"bytes": size, "tasks": rates([*found, *({_WRITE: each} for each in beside.floors)], lambda _: size),
            "left_out": without, "rate_over_raw": beside.told("pawl.torch.save"),
            "best_peer_over_pawl": against_peers(found, "pawl.torch.save", peers)}


_PROVEN = "pawl.torch.load of the store, verify='reading'"
_UNVERIFIED = "pawl.torch.load of the store, verify=False"
_DCP_PROVEN = "pawl.torch.load of the DCP, verify='reading'"
_DCP_UNVERIFIED = "pawl.torch.load of the DCP, verify=False"
_LOADS = {"pawl.torch.load of the store": ("pawl.load", "store"),
          _PROVEN: ("pawl.load proven while reading", "store"), _UNVERIFIED: ("pawl.load unverified", "store"),
          _DCP_PROVEN: ("pawl.load proven while reading", "DCP"), _DCP_UNVERIFIED: ("pawl.load unverified", "DCP"),
          "dcp.load of the DCP": ("dcp.load", "DCP")}
_RAW_READS = {"O_DIRECT": "direct", "buffered": "buffered", "mmap": "mapped"}


def load(folder: pathlib.Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """From cold files of 4 ranks' FSDP2 into 2 ranks' tensor parallelism: pawl's own store, and DCP."""
    sources = {"store": folder / "store", "DCP": folder / "dcp"}
    with Ranks(folder, SAVERS, "fsdp2", size_bytes) as ranks:
        ranks.all("time", "pawl.save", str(sources["store"]))
        sources["DCP"].mkdir()
        ranks.all("time", "dcp.save", str(sources["DCP"]))
    files = {name: files_below(path) for name, path in sources.items()}
    sizes = {name: size_of(found) for name, found in files.items()}
    with Ranks(folder, LOADERS, "tp", size_bytes) as ranks:
        ranks.all("time", "dcp.load", str(sources["DCP"]))
        ranks.all("remember")

        def one(what: str, source: str) -> float:
            ranks.all("forget")
            evict(files[source])
            seconds = ranks.seconds(what, sources[source])
            if not all(ranks.all("is_right")):
                raise Failed(f"{what} of the {source} gave other values than dcp.load")
            return seconds

        def raw(how: str, source: str) -> float:
            evict(files[source])
            return floor("read", how, *files[source])

        floors = {source: {f"raw read of the {source}'s files, {name}": functools.partial(raw, how, source)
                           for name, how in _RAW_READS.items()} for source in sources}
        first = {source: run_round("load (floors)", -1, tasks) for source, tasks in floors.items()}
        best = {source: min(seconds, key=seconds.__getitem__) for source, seconds in first.items()}
        beside = {source: Beside(floors[source].pop(best[source])) for source in sources}
        tasks: dict[str, Callable[[], float]] = {**floors["store"], **floors["DCP"]}
        for name, (what, source) in _LOADS.items():
            timed = functools.partial(one, what, source)
            tasks[name] = functools.partial(beside[source].time, name, timed) if "pawl" in what else timed
        run_round("load (warm-up)", -1, tasks)
        for each in beside.values():
            each.forget()
        found = [run_round("load", number, tasks) for number in range(rounds)]
    told = {source: [{best[source]: each} for each in beside[source].floors] for source in sources}
    return {"bytes": sizes, "tasks": rates([*found, *told["store"], *told["DCP"]],
                                           lambda name: sizes["DCP" if "DCP" in name else "store"]),
            "store_over_raw": beside["store"].told("pawl.torch.load of the store"),
            "store_proven_over_raw": beside["store"].told(_PROVEN),
            "store_unverified_over_raw": beside["store"].told(_UNVERIFIED),
            "dcp_over_raw": beside["DCP"].told(_DCP_UNVERIFIED),
            "dcp_proven_over_raw": beside["DCP"].told(_DCP_PROVEN),
            "dcp_load_over_pawl": against_peers(found, _DCP_UNVERIFIED, ["dcp.load of the DCP"]),
            "dcp_load_over_pawl_store": against_peers(found, _PROVEN, ["dcp.load of the DCP"])}


def bypass(folder: pathlib.Path, size_bytes: int, rounds: int) -> dict[str, Any]:
    """What 8 data-parallel ranks read, all together, to load one checkpoint that each of them wants all of."""
    source = folder / "replicated"
    with Ranks(folder, REPLICAS, "replicated", size_bytes) as ranks:
        ranks.all("time", "pawl.save", str(source))
        ranks.all("remember")
        files = files_below(source)
        whole, ratios = size_of(files), {}
        for number in range(rounds):
            for name, what in (("verified first", "pawl.load"), ("verify='reading'", "pawl.load proven while reading"),
                               ("verify=False", "pawl.load unverified")):
                ranks.all("forget")
                evict(files)
                answers = [read for _, read in ranks.all("time", what, str(source))]
                if not all(ranks.all("is_right")):
                    raise Failed("the replicated checkpoint came back with other values")
                for key in ("read_bytes", "told", "rchar"):
                    ratios.setdefault(name, {}).setdefault(key, []).append(sum(each[key] for each in answers) / whole)
                print(f"  bypass, round {number + 1}: {name:34} {ratios[name]['read_bytes'][-1]:8.3f} x the checkpoint",
                      file=sys.stderr, flush=True)
    return {"bytes": whole, "ranks": REPLICAS,
            "over_checkpoint": {name: {key: spread(values) for key, values in each.items()}
                                for name, each in ratios.items()}}


# In words ---------------------------------------------------------------------------------------------------------

def text_of_save(told: dict[str, Any]) -> list[str]:
    left = [f"* left out: {', '.join(told['left_out'])} (tools/setup-peers)"] if told["left_out"] else []
    return [f"### Save, durable: {told['bytes'] / 1e9:.2f} GB of FSDP2 on {SAVERS} ranks", "", *table(told["tasks"]),
            goal_line("pawl.torch.save's rate over the raw write's", told["rate_over_raw"], ">= 0.93"),
            goal_line("the best other's time over pawl's", told["best_peer_over_pawl"], ">= 1.4"), *left, ""]


def text_of_load(told: dict[str, Any]) -> list[str]:
    return [f"### Load from cold files: {told['bytes']['store'] / 1e9:.2f} GB of FSDP2 on {SAVERS} ranks into tensor "
            f"parallelism on {LOADERS}", "", *table(told["tasks"]),
            goal_line("pawl's store, verify='reading', rate over the best raw read's", told["store_proven_over_raw"],
                      ">= 0.95"),
            goal_line("the same with checksums looked at first, in a pass of its own (the default)",
                      told["store_over_raw"], "none"),
            goal_line("the same without looking at checksums", told["store_unverified_over_raw"], "none"),
            goal_line("DCP's files by pawl without looking at checksums, as dcp.load, rate over the best raw read's",
                      told["dcp_over_raw"], ">= 0.95"),
            goal_line("the same, verify='reading'", told["dcp_proven_over_raw"], "none"),
            goal_line("dcp.load's time over pawl's for the same files, both without looking at checksums",
                      told["dcp_load_over_pawl"], "more than 1"),
            goal_line("dcp.load's time over pawl's for the store", told["dcp_load_over_pawl_store"], "more than 1"), ""]


def text_of_bypass(told: dict[str, Any]) -> list[str]:
    found = told["over_checkpoint"]
    return [f"### Read by {told['ranks']} data-parallel ranks together: {told['bytes'] / 1e9:.2f} GB, all each", "",
            *(goal_line(f"{name}: bytes from the disk over the checkpoint's", each["read_bytes"], "<= 1.05")
              for name, each in found.items()),
            *(goal_line(f"{name}: bytes that pawl says it read into tensors", each["told"], "<= 1.05")
              for name, each in found.items()), ""]

"""The GPT of examples/gpt without pawl, made safe with PyTorch's own means: what pawl is measured against.

    torchrun --nproc-per-node 4 bench/pytorch/saving_train.py --save torch --every 10 --folder DIR [flags of train.py]

Every rank saves what is its own, all in parallel, nothing gathered: under ZeroRedundancyOptimizer its part of that
state, and rank 0 the weights too; of what FSDP2 and tensor parallelism have cut, dcp and dcp-sync alone save the
shards. A start with torch or dcp-sync finds the newest step that all ranks have saved, and goes on there.
  torch        torch.save into the page cache: it outlives the process, not the machine
  torch-fsync  the same, and on the disk before the step ends
  dcp          torch.distributed.checkpoint.async_save with a thread and a stager that is kept (of its kinds the fastest
               for a state of this size); one save in flight, as the library demands
  dcp-sync     torch.distributed.checkpoint.save and load, into the page cache
When a rank's part of a step is safe, a line of saved.<rank>.jsonl in the record says so.
"""
import argparse
import json
import math
import os
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt"))

import train  # noqa: E402
from data import Batches, read_text  # noqa: E402
from model import BYTE_VALUES, GPT  # noqa: E402
from record import Record  # noqa: E402


class Training:
    """Everything that changes while it trains, as train.py makes it."""

    def __init__(self, options: argparse.Namespace) -> None:
        rank, world = dist.get_rank(), dist.get_world_size()
        self.row, self.rows = (rank // 2, world // 2) if options.parallel.startswith("tp-") else (rank, world)
        self.cut = options.parallel != "ddp-zero1"
        torch.manual_seed(options.seed)
        self.model: Any = train.parallel(GPT(options.layers, options.width, options.heads, options.context),
                                         options.parallel, options.shards)
        torch.manual_seed(options.seed * 1_000_003 + self.row + 1)
        self.optimizer: Any = train.make_optimizer(self.model, options.learning_rate, options.parallel)
        self.scheduler = LambdaLR(self.optimizer, lambda step: min(
            (step + 1) / options.warm_up, 0.5 + 0.5 * math.cos(math.pi * min(1.0, step / options.steps))))
        self.scaler = torch.amp.GradScaler("cpu")
        text = read_text(options.data, bytes_min=options.context + 2)
        self.batches = Batches(text, options.batch, options.context, options.seed)

    def tensors(self, rank: int) -> dict[str, Any]:
        """This rank's part: its share of the optimizer's state, and on rank 0 the weights. Shards are DTensors."""
        if self.cut:
            from torch.distributed.checkpoint.state_dict import get_state_dict
            return dict(zip(("model", "optimizer"), get_state_dict(self.model, self.optimizer), strict=True))
        mine: dict[str, Any] = {f"optimizer.{rank}": self.optimizer.optim.state_dict()["state"]}
        if rank == 0:
            mine["model"] = self.model.module.state_dict()
        return mine

    def small(self) -> dict[str, Any]:
        return {"scheduler": self.scheduler.state_dict(), "scaler": self.scaler.state_dict(),
                "batches": self.batches.state_dict(), "random": torch.get_rng_state(),
                "rates": [group["lr"] for group in self.optimizer.param_groups]}

    def load(self, weights: dict[str, Any], own: dict[str, Any], small: dict[str, Any]) -> None:
        self.model.module.load_state_dict(weights)
        groups = self.optimizer.optim.state_dict()["param_groups"]
        self.optimizer.optim.load_state_dict({"state": own, "param_groups": groups})
        self.load_small(small)

    def load_shards(self, tensors: dict[str, Any], small: dict[str, Any]) -> None:
        """What tensors() has given, loaded in place."""
        from torch.distributed.checkpoint.state_dict import set_state_dict
        set_state_dict(self.model, self.optimizer, model_state_dict=tensors["model"],
                       optim_state_dict=tensors["optimizer"])
        self.load_small(small)

    def load_small(self, small: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(small["scheduler"])
        self.scaler.load_state_dict(small["scaler"])
        self.batches.load_state_dict(small["batches"])
        for group, rate in zip(self.optimizer.param_groups, small["rates"], strict=True):
            group["lr"] = rate
        torch.set_rng_state(small["random"])


class TorchSave:
    """One file a rank and step; the last two steps are kept. Whole files only: each appears by its rename."""

    def __init__(self, folder: str, every: int, to_disk: bool, tell: Callable[[int], None]) -> None:
        self.folder, self.every, self.to_disk, self.tell, self.rank = folder, every, to_disk, tell, dist.get_rank()

    def path(self, rank: int, step: int) -> str:
        return os.path.join(self.folder, f"{rank}.{step}.pt")

    def save(self, training: Training, step: int) -> None:
        path = self.path(self.rank, step)
        with open(path + ".part", "wb") as file:
            torch.save({**training.tensors(self.rank), "small": training.small()}, file)
            if self.to_disk:
                file.flush()
                os.fsync(file.fileno())
        os.rename(path + ".part", path)
        self.tell(step)
        if step > 2 * self.every:
            os.unlink(self.path(self.rank, step - 2 * self.every))

    def load(self, training: Training) -> int:
        """Into `training`; the step that was loaded, 0: none was there."""
        names = [name.split(".") for name in os.listdir(self.folder) if name.endswith(".pt")]
        steps = [{int(step) for rank, step, _ in names if int(rank) == each} for each in range(dist.get_world_size())]
        whole = set.intersection(*steps)
        if not whole:
            return 0
        step = max(whole)
        mine = torch.load(self.path(self.rank, step))
        weights = mine["model"] if self.rank == 0 else torch.load(self.path(0, step), mmap=True)["model"]
        training.load(weights, mine[f"optimizer.{self.rank}"], mine["small"])
        return step

    def finish(self) -> None:
        pass


class DcpSyncSave:
    """A folder a step; the last two are kept. Whole ones have the metadata, which is written last."""

    def __init__(self, folder: str, every: int, tell: Callable[[int], None]) -> None:
        import torch.distributed.checkpoint as dcp
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
        self.dcp, self.folder, self.every, self.tell, self.rank = dcp, folder, every, tell, dist.get_rank()

    def path(self, step: int) -> str:
        return os.path.join(self.folder, str(step))

    def save(self, training: Training, step: int) -> None:
        self.dcp.save({**training.tensors(self.rank), f"small.{self.rank}": training.small()},
                      checkpoint_id=self.path(step))
        self.tell(step)
        if self.rank == 0 and step > 2 * self.every:
            shutil.rmtree(self.path(step - 2 * self.every), ignore_errors=True)

    def load(self, training: Training) -> int:
        """Into `training`; the step that was loaded, 0: none was there."""
        whole = [int(name) for name in os.listdir(self.folder)
                 if os.path.exists(os.path.join(self.folder, name, ".metadata"))]
        if not whole:
            return 0
        state = {**training.tensors(self.rank), f"small.{self.rank}": training.small()}
        self.dcp.load(state, checkpoint_id=self.path(max(whole)))
        training.load_shards(state, state[f"small.{self.rank}"])
        return max(whole)

    def finish(self) -> None:
        pass


class DcpSave:
    """The last two checkpoints are kept in turn. Starts from nothing: it is here for what it costs."""

    def __init__(self, folder: str, tell: Callable[[int], None]) -> None:
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")
        self.dcp, self.folder, self.tell, self.rank = dcp, folder, tell, dist.get_rank()
        self.group = dist.new_group(backend="gloo")
        self.stager = DefaultStager(StagingOptions(use_pinned_memory=False, use_shared_memory=False,
                                                   use_async_staging=False, use_non_blocking_copy=False))
        self.pending: Future[Any] | None = None

    def save(self, training: Training, step: int) -> None:
        self.finish()
        state = {**training.tensors(self.rank), f"small.{self.rank}": training.small()}
        answer = self.dcp.async_save(state, checkpoint_id=os.path.join(self.folder, str(step % 2)),
                                     process_group=self.group, async_stager=self.stager)
        if hasattr(answer, "staging_completion"):
            answer.staging_completion.result()
            answer = answer.upload_completion
        answer.add_done_callback(lambda _: self.tell(step))
        self.pending = answer

    def load(self, training: Training) -> int:
        return 0

    def finish(self) -> None:
        if self.pending is not None:
            self.pending.result()
            self.pending = None


def parse() -> tuple[argparse.Namespace, argparse.Namespace]:
    """(our own flags, those of train.py)"""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--save", choices=("torch", "torch-fsync", "dcp", "dcp-sync"), required=True)
    parser.add_argument("--every", type=int, default=1, help="steps")
    parser.add_argument("--folder", required=True, help="where the checkpoints go")
    own, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    options = train.parse()
    if own.save.startswith("torch") and options.parallel != "ddp-zero1":
        parser.error(f"--save {own.save} is for --parallel ddp-zero1")
    return own, options


def make_saver(own: argparse.Namespace, tell: Callable[[int], None]) -> TorchSave | DcpSave | DcpSyncSave:
    os.makedirs(own.folder, exist_ok=True)
    if own.save == "dcp":
        return DcpSave(own.folder, tell)
    if own.save == "dcp-sync":
        return DcpSyncSave(own.folder, own.every, tell)
    return TorchSave(own.folder, own.every, own.save == "torch-fsync", tell)


def main() -> None:
    own, options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    record, training = Record(options.record), Training(options)
    told = open(os.path.join(options.record, f"saved.{rank}.jsonl"), "ab", buffering=0)

    def tell(step: int) -> None:
        told.write(json.dumps({"step": step, "t_ns": time.monotonic_ns()}).encode() + b"\n")

    saver = make_saver(own, tell)
    for number in range(saver.load(training) + 1, options.steps + 1):
        loss = one_step(training, options, number)
        record.updated(number)
        if number % own.every == 0:
            saver.save(training, number)
        record.step(number, loss, training.batches)
    saver.finish()
    record.final(options.steps, training.model, training.optimizer, training.scheduler, training.scaler,
                 training.batches)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # threads of the checkpoint library would keep the process


def one_step(training: Training, options: argparse.Namespace, number: int) -> torch.Tensor:
    """As in train.py."""
    inputs, targets = training.batches.next(training.row, training.rows)
    training.optimizer.zero_grad()
    logits = training.model(inputs)
    loss = nn.functional.cross_entropy(logits.view(-1, BYTE_VALUES), targets.reshape(-1))
    overflow = math.inf if number == options.overflow_step else 1.0
    training.scaler.scale(loss * overflow).backward()
    time.sleep(options.device_ms / 1000)
    training.scaler.unscale_(training.optimizer)
    nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
    training.scaler.step(training.optimizer)
    training.scaler.update()
    training.scheduler.step()
    return loss


if __name__ == "__main__":
    main()

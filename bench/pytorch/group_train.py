"""The GPT's step over plain gloo and over the managed group, in turn within the same processes.

Two equal models on each rank, one whose DDP and ZeroRedundancyOptimizer use a gloo group, one with a managed group.
Steps alternate, each begun together; rank 0 writes a line of JSON: the mean over the ranks of each step's milliseconds,
by kind. The managed group runs without libpawl here: what it adds to gloo by itself.
"""
import argparse
import json
import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt"))

from data import Batches, read_text  # noqa: E402
from model import BYTE_VALUES, GPT  # noqa: E402

from pawl import groups  # noqa: E402

CONTEXT = 64
WARM_STEPS = 6


class Side:
    """One model over one group."""

    def __init__(self, group: Any, options: argparse.Namespace) -> None:
        torch.manual_seed(1)
        self.model = DistributedDataParallel(GPT(options.layers, options.width, 4, CONTEXT, dropout=0.0),
                                             process_group=group)
        self.optimizer = ZeroRedundancyOptimizer(self.model.parameters(), torch.optim.AdamW, process_group=group,
                                                 lr=1e-3)

    def step(self, inputs: Tensor, targets: Tensor, device_ms: int) -> Tensor:
        self.optimizer.zero_grad()
        logits = self.model(inputs)
        loss = nn.functional.cross_entropy(logits.view(-1, BYTE_VALUES), targets.reshape(-1))
        loss.backward()
        time.sleep(device_ms / 1000)
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        groups.wait_all()  # as the end of a protected step does
        return loss.detach()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="of steps")
    parser.add_argument("--device-ms", type=int, default=0)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    groups.register()
    store = dist.PrefixStore("managed", dist.distributed_c10d._get_default_store())
    managed = dist.new_group(backend="pawl")
    groups.open_generation(1, store, "127.0.0.1", timedelta(seconds=60))
    sides = {"gloo": Side(dist.new_group(backend="gloo"), options), "managed": Side(managed, options)}
    batches = Batches(read_text(None, CONTEXT + 2), options.batch, CONTEXT, seed=1)
    times: dict[str, list[float]] = {name: [] for name in sides}
    for pair in range(WARM_STEPS + options.pairs):
        inputs, targets = batches.next(rank, world)
        losses = {}
        for name in sorted(sides, reverse=pair % 2 == 1):
            dist.barrier()
            began = time.perf_counter()
            losses[name] = sides[name].step(inputs, targets, options.device_ms)
            took = torch.tensor((time.perf_counter() - began) * 1e3, dtype=torch.float64)
            dist.all_reduce(took)
            if pair >= WARM_STEPS:
                times[name].append(took.item() / world)
        if not torch.equal(losses["gloo"], losses["managed"]):
            sys.exit(f"rank {rank}: losses differ in pair {pair}: {losses}")
    if groups.failed():
        sys.exit(f"rank {rank}: {groups.failed()}")
    if rank == 0:
        print(json.dumps(times), flush=True)
    dist.barrier()
    groups.close_generation()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

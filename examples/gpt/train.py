"""Trains a GPT over bytes, data-parallel, with the optimizer's state sharded over the ranks (ZeRO-1), or weights and
gradients as well (FSDP2), if need be by several replicas of shards (HSDP), with each layer cut over two ranks (TP) or not.

    torchrun --nproc-per-node 4 examples/gpt/train.py                    # plain PyTorch
    pawl run --nnodes 4 --spares 1 --standalone examples/gpt/train.py    # protected: now kill a node

It is one script: what pawl needs are the lines marked "pawl", and without pawl they do nothing.
"""
import argparse
import math
import sys
import time
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor, Replicate, distribute_module
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from data import Batches, read_text
from model import BYTE_VALUES, GPT
from record import Record

try:  # pawl
    import pawl  # pawl
except ImportError:  # pawl
    pawl = None  # pawl


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", metavar="FILE|DIR", help="text; default: the Python standard library's sources")
    parser.add_argument("--parallel", choices=("ddp", "ddp-zero1", "fsdp2", "hsdp", "tp-fsdp2", "tp-hsdp"), default="ddp-zero1",
                        help="DDP, DDP with ZeRO-1, FSDP2, HSDP (replicas of shards), or FSDP2 or HSDP over pairs of ranks that share each layer")
    parser.add_argument("--shards", type=int, default=2, help="of each replica of HSDP")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1, help="of weights, samples and dropout")
    parser.add_argument("--batch", type=int, default=4, help="samples per rank and step")
    parser.add_argument("--context", type=int, default=64, help="bytes per sample")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--learning-rate", type=float, default=1e-3, help="after the warm-up")
    parser.add_argument("--warm-up", type=int, default=20, help="steps")
    parser.add_argument("--overflow-step", type=int, default=9, help="its loss overflows, so the scaler skips the update; 0: none")
    parser.add_argument("--device-ms", type=int, default=0, help="wait so long in each step, as for a device that computes")
    parser.add_argument("--record", metavar="DIR", help="write losses, and the state after the last step, to this folder")
    return parser.parse_args()


def parallel(model: GPT, how: str, shards: int = 2) -> nn.Module:
    """The model, spread over the ranks."""
    if how in ("ddp", "ddp-zero1"):
        return DistributedDataParallel(model)
    world = dist.get_world_size()
    shape, names = {"fsdp2": ((world,), ("shard",)), "hsdp": ((world // shards, shards), ("replicate", "shard")),
                    "tp-fsdp2": ((world // 2, 2), ("shard", "tensor")),
                    "tp-hsdp": ((world // shards // 2, shards, 2), ("replicate", "shard", "tensor"))}[how]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if names[-1] == "tensor":
        cut_layers(model, mesh["tensor"])
        mesh = mesh[names[:-1]]
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def cut_layers(model: GPT, mesh: DeviceMesh) -> None:
    """Each rank has some heads and a part of the hidden features, and the rest whole."""
    for block in model.blocks:
        parallelize_module(block, mesh, {"attention.query_key_value": ColwiseParallel(), "attention.out": RowwiseParallel(),
                                         "hidden.0": ColwiseParallel(), "hidden.2": RowwiseParallel()})
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.Embedding)):  # so that all parameters lie on one mesh
            distribute_module(module, mesh, input_fn=lambda _, inputs, mesh: tuple(DTensor.from_local(one, mesh) for one in inputs),
                              output_fn=lambda _, output, mesh: output.to_local())


def make_optimizer(model: nn.Module, learning_rate: float, how: str = "ddp-zero1") -> torch.optim.Optimizer:
    """AdamW; matrices decay, biases and norms do not."""
    parameters = list(model.parameters())
    groups = [{"params": [one for one in parameters if one.dim() >= 2], "weight_decay": 0.1},
              {"params": [one for one in parameters if one.dim() < 2], "weight_decay": 0.0}]
    options: dict[str, Any] = {"lr": learning_rate, "betas": (0.9, 0.95)}
    if how == "ddp-zero1":
        return ZeroRedundancyOptimizer(groups, optimizer_class=torch.optim.AdamW, **options)
    return torch.optim.AdamW(groups, **options)


def main() -> None:
    options = parse()
    torch.set_num_threads(1)  # one thread per rank: sums are then the same in every run
    try:
        text = read_text(options.data, bytes_min=options.context + 2)
    except ValueError as error:
        sys.exit(f"train.py: {error}")

    job = pawl.init() if pawl else None  # pawl
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    row, rows = (rank // 2, world // 2) if options.parallel.startswith("tp-") else (rank, world)  # who share layers share samples
    record = Record(options.record)

    torch.manual_seed(options.seed)
    model = parallel(GPT(options.layers, options.width, options.heads, options.context), options.parallel, options.shards)
    torch.manual_seed(options.seed * 1_000_003 + row + 1)  # dropout is each row's own
    optimizer = make_optimizer(model, options.learning_rate, options.parallel)
    scheduler = LambdaLR(optimizer, lambda step: min((step + 1) / options.warm_up,
                                                     0.5 + 0.5 * math.cos(math.pi * min(1.0, step / options.steps))))
    scaler = torch.amp.GradScaler("cpu")
    batches = Batches(text, options.batch, options.context, options.seed)
    if job:  # pawl
        job.protect(model, optimizer, scheduler, scaler, batches)  # pawl

    plain = (nullcontext(step) for step in range(1, options.steps + 1))
    for step in job.steps(options.steps) if job else plain:  # pawl
        with step as number:  # pawl
            inputs, targets = batches.next(row, rows)
            optimizer.zero_grad()
            logits = model(inputs)
            loss = nn.functional.cross_entropy(logits.view(-1, BYTE_VALUES), targets.reshape(-1))
            overflow = math.inf if number == options.overflow_step else 1.0
            scaler.scale(loss * overflow).backward()
            time.sleep(options.device_ms / 1000)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            record.updated(number)
        if job and step.lost:  # pawl
            continue  # pawl
        record.step(number, loss, batches)
        if rank == 0 and number % 10 == 0:
            print(f"step {int(number)} loss {loss.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}", flush=True)

    record.final(options.steps, model, optimizer, scheduler, scaler, batches)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""A training that another number of ranks may go on with: it notes the samples of each step, and saves by itself what
it was restored to."""
import argparse
import json
import os
import random
import time

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import pawl
import pawl.torch

options = argparse.ArgumentParser()
options.add_argument("--kind", choices=("ddp", "zero", "fsdp2"), required=True)
options.add_argument("--steps", type=int, required=True)
options.add_argument("--to", required=True, help="a folder for what is noted")
options.add_argument("--samples", type=int, default=300)
options.add_argument("--global-batch", type=int, default=12)
options.add_argument("--loader", choices=("elastic", "distributed"), default="elastic")
options.add_argument("--seed-by-rank", action="store_true")
options.add_argument("--pause-s", type=float, default=0.0, help="in the first step after a restore")
options = options.parse_args()


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return options.samples

    def __getitem__(self, index):
        return index, torch.randn(10, generator=torch.Generator().manual_seed(index))


class Model(torch.nn.Module):
    """Of lengths that can't be cut evenly."""

    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(10, 37)
        self.norm = torch.nn.BatchNorm1d(37)
        self.drop = torch.nn.Dropout(0.1)
        self.outer = torch.nn.Linear(37, 5)

    def forward(self, rows):
        return self.outer(self.drop(self.norm(self.inner(rows))))


def wrapped(model):
    if options.kind != "fsdp2":
        return DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard
    return fully_shard(model)


def optimizer_for(net):
    if options.kind != "zero":
        return torch.optim.AdamW(net.parameters(), lr=1e-3)
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return ZeroRedundancyOptimizer(net.parameters(), torch.optim.AdamW, lr=1e-3)


def loader_of(numbers):
    if options.loader == "elastic":
        return DataLoader(numbers, batch_sampler=pawl.ElasticSampler(numbers, options.global_batch))
    each = options.global_batch // job.world_size
    return DataLoader(numbers, batch_size=each, sampler=DistributedSampler(numbers, job.world_size, job.rank))


def note(kind, **values):
    with open(os.path.join(options.to, f"{kind}.{job.rank}.jsonl"), "a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")


job = pawl.init()
torch.manual_seed(0)
model = Model()
if options.seed_by_rank:
    torch.manual_seed(1 + job.rank)
random.seed(7)
net = wrapped(model)
optimizer = optimizer_for(net)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
job.protect(net, optimizer, scheduler)
restored_in = None  # the generation whose restore was noted
for step, (ids, rows) in job.batches(loader_of(Numbers()), steps=options.steps):
    with step:
        if not step.rehearsal:
            if restored_in != job.generation and int(step) > 1:
                restored_in = job.generation
                done = int(step) - 1
                note("restored", step=done, torch=torch.rand(()).item(), python=random.random(),
                     rate=scheduler.get_last_lr()[0])
                pawl.torch.save(f"{options.to}/{done}", model, optimizer, values={"step": done}, overwrite=True)
                time.sleep(options.pause_s)
            restored_in = restored_in or job.generation
        optimizer.zero_grad()
        net(rows).square().mean().backward()
        optimizer.step()
        scheduler.step()
    if not step.lost and not step.rehearsal:
        note("samples", step=int(step), ids=ids.tolist())

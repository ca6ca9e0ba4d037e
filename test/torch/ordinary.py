"""A training as users write them: a DataLoader with two workers and a DistributedSampler over several epochs, gradients
accumulated over two halves of a batch, an average of the weights (EMA) after each step, an evaluation now and then.

One script: under pawl the loader's loop is job.batches(), and without it the plain one that anybody would write. What
it writes down (examples/gpt/record.py) holds the inputs and the average after each step, too, so that a run is compared
with a plain one bit by bit in all of these.
"""
import argparse
import contextlib
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist
import torch.optim.swa_utils
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples", "gpt"))

from model import BYTE_VALUES, GPT
from record import Record
from train import make_optimizer

try:
    import pawl
except ImportError:
    pawl = None

BATCHES = 24  # of a rank in an epoch
EVALUATED = 10  # steps between two evaluations


class Windows(Dataset):
    def __init__(self, count, context, seed):
        generator = torch.Generator().manual_seed(seed)
        self.text = torch.randint(BYTE_VALUES, (count + context + 1,), generator=generator)
        self.context, self.count = context, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        window = self.text[index:index + self.context + 1]
        return window[:-1], window[1:]


class Seen:
    """What Record asks of a source of batches: how many samples there were, and a hash of them all. Each step adds
    its inputs and the average of the weights."""

    def __init__(self):
        self.position, self.hash = 0, ""

    def add(self, inputs, average):
        used = hashlib.blake2b(self.hash.encode(), digest_size=8)
        used.update(inputs.numpy().tobytes())
        for tensor in average.parameters():
            used.update(tensor.detach().numpy().tobytes())
        self.hash = used.hexdigest()
        self.position += len(inputs)

    def state_dict(self):
        return {"position": self.position, "hash": self.hash}

    def load_state_dict(self, state):
        self.position, self.hash = state["position"], state["hash"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("steps", 60), ("seed", 1), ("batch", 4), ("context", 16), ("layers", 2), ("width", 32),
                          ("device-ms", 0)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--record", metavar="DIR")
    return parser.parse_args()


def plain_batches(loader, steps):
    number = 0
    for epoch in range(steps):
        loader.sampler.set_epoch(epoch)
        for batch in loader:
            number += 1
            yield contextlib.nullcontext(number), batch
            if number == steps:
                return


def main():
    options = parse()
    torch.set_num_threads(1)
    job = pawl.init() if pawl else None
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    record = Record(options.record)

    torch.manual_seed(options.seed)
    model = DistributedDataParallel(GPT(options.layers, options.width, 2, options.context))
    average = torch.optim.swa_utils.AveragedModel(
        model.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    torch.manual_seed(options.seed * 1_000_003 + rank + 1)
    optimizer = make_optimizer(model, 1e-3)
    scheduler = StepLR(optimizer, 7, 0.9)
    scaler = torch.amp.GradScaler("cpu")
    windows = Windows(BATCHES * options.batch * world, options.context, options.seed)
    held_out = Windows(options.batch * world, options.context, options.seed + 1)
    sampler = DistributedSampler(windows, num_replicas=world, rank=rank, seed=options.seed)
    loader = DataLoader(windows, batch_size=options.batch, sampler=sampler, num_workers=2)
    seen = Seen()
    if job:
        job.protect(model, optimizer, scheduler, scaler, average, seen)

    batches = job.batches(loader, epochs=options.steps, steps=options.steps) if job else \
        plain_batches(loader, options.steps)
    for step, (inputs, targets) in batches:
        with step as number:
            optimizer.zero_grad()
            losses = []
            for half in range(2):
                with model.no_sync() if half == 0 else contextlib.nullcontext():
                    logits = model(inputs[half::2])
                    loss = nn.functional.cross_entropy(logits.view(-1, BYTE_VALUES), targets[half::2].reshape(-1)) / 2
                    scaler.scale(loss).backward()
                    losses.append(loss.detach())
            time.sleep(options.device_ms / 1000)
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            average.update_parameters(model.module)
            seen.add(inputs, average)
            record.updated(number)
        if job and step.lost:
            continue
        record.step(number, sum(losses), seen)
        if number % EVALUATED == 0:
            with job.aside() if job else contextlib.nullcontext():
                evaluate(average, held_out, rank, world, options.batch)

    record.final(options.steps, model, optimizer, scheduler, scaler, seen)
    dist.destroy_process_group()


def evaluate(average, held_out, rank, world, batch):
    average.eval()
    with torch.no_grad():
        rows = [held_out[index] for index in range(rank * batch, (rank + 1) * batch)]
        logits = average(torch.stack([row[0] for row in rows]))
        targets = torch.stack([row[1] for row in rows])
        loss = nn.functional.cross_entropy(logits.view(-1, BYTE_VALUES), targets.reshape(-1))
        dist.all_reduce(loss)
    average.train()
    if rank == 0:
        print(f"evaluation: {loss.item() / world:.4f}", flush=True)


if __name__ == "__main__":
    main()

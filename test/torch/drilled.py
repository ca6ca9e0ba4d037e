"""A small training for test_drill.py, as public scripts are: options, the default group and ranks from the environment,
an evaluation every few steps, a log and a checkpoint in a folder. Sound as it stands, and with one flag each unsound in
a way that users know."""
import argparse
import os
import time

import torch
from torch import nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

import pawl

SAMPLES, BATCH = 512, 16


class OwnOrder:
    """A sampler that knows nothing of pawl."""

    def __init__(self, size):
        self.order, self.position = torch.randperm(size, generator=torch.Generator().manual_seed(3)), 0

    def batch(self, count):
        self.position += count
        return self.order[torch.arange(self.position - count, self.position) % len(self.order)]


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--ema", choices=("unprotected", "protected"), help="an average of the weights beside them")
    parser.add_argument("--own-sampler", choices=("unprotected", "protected"))
    parser.add_argument("--noise", action="store_true", help="seeded by the clock")
    parser.add_argument("--losses", action="store_true", help="a list of all losses")
    parser.add_argument("--habits", action="store_true", help="numbers that functions and classes keep")
    parser.add_argument("--counted-barrier", action="store_true", help="in the eighteenth step of this process")
    parser.add_argument("--script", action="store_true", help="the model is compiled by torch.jit")
    parser.add_argument("--out-dir", help="for a log and checkpoints")
    return parser.parse_args()


class Growing:
    """A factor that grows with each call, and a class that counts them, too."""

    calls = 0

    def __call__(self, values):
        Growing.calls += 1
        return values * (1 + 0.01 * Growing.calls)


def growing():
    calls = 0

    def grow(values):
        nonlocal calls
        calls += 1
        return values * (1 + 0.01 * calls)
    return grow


@torch.no_grad()
def evaluated(model, inputs, labels):
    model.eval()
    ids = torch.randint(SAMPLES, (BATCH,))
    loss = nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).item()
    model.train()
    return loss


def main():
    options = parse()
    torch.set_num_threads(1)
    job = pawl.init()
    if "RANK" in os.environ:
        init_process_group(backend="gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(1)
    inputs, labels = torch.randn(SAMPLES, 8), torch.randint(4, (SAMPLES,))
    net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4))
    # What torch.jit compiles in its first runs changes the order of gradients, by which DDP lays its buckets.
    model = DistributedDataParallel(torch.jit.script(net) if options.script else net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = pawl.ElasticSampler(SAMPLES, BATCH * job.world_size)
    order = OwnOrder(SAMPLES)
    noise = torch.Generator().manual_seed(time.time_ns() % (1 << 40) if options.noise else 5)
    ema = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    losses, calls, wider, longer = [], 0, growing(), Growing()
    own = torch.Generator().manual_seed(6)
    job.protect(model, optimizer, sampler, noise, state={"ema": ema} if options.ema == "protected" else None)

    if options.own_sampler == "protected":
        job.protect(order)

    for step in job.steps(options.steps):
        with step:
            ids = sampler.batch(step)
            if options.own_sampler:
                ids = order.batch(BATCH)
            optimizer.zero_grad()
            blurred = inputs[ids] + 0.01 * torch.randn(BATCH, 8, generator=noise)
            if options.habits:
                blurred = longer(wider(blurred)) + 0.01 * torch.randn(BATCH, 8, generator=own)
            loss = nn.functional.cross_entropy(model(blurred), labels[ids])
            loss.backward()
            time.sleep(0.02)
            optimizer.step()
            if options.ema:
                for name, parameter in model.module.named_parameters():
                    ema[name].lerp_(parameter.detach(), 0.1)
            if options.losses:
                losses.append(loss.item())
            if options.counted_barrier:
                calls += 1
                if calls == 18:  # one that was begun anew doesn't come to it
                    torch.distributed.barrier()
        if step.lost:
            continue
        if options.out_dir and step % 5 == 0:
            with job.aside():
                loss = evaluated(model.module, inputs, labels)
            if rank == 0 and not step.rehearsal:
                with open(os.path.join(options.out_dir, "log"), "a", encoding="utf-8") as log:
                    print(int(step), loss, file=log)
                torch.save(model.module.state_dict(), os.path.join(options.out_dir, "checkpoint.pt"))
    destroy_process_group()


if __name__ == "__main__":
    main()

"""A small training for test_drill.py: sound as it stands, and with one flag each unsound in a way that users know."""
import argparse
import time

import torch
from torch import nn
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
    return parser.parse_args()


def main():
    options = parse()
    torch.set_num_threads(1)
    job = pawl.init()
    torch.manual_seed(1)
    inputs, labels = torch.randn(SAMPLES, 8), torch.randint(4, (SAMPLES,))
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    sampler = pawl.ElasticSampler(SAMPLES, BATCH * job.world_size)
    order = OwnOrder(SAMPLES)
    noise = torch.Generator().manual_seed(time.time_ns() % (1 << 40) if options.noise else 5)
    ema = {name: parameter.detach().clone() for name, parameter in model.module.named_parameters()}
    losses = []
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
            loss = nn.functional.cross_entropy(model(blurred), labels[ids])
            loss.backward()
            time.sleep(0.02)
            optimizer.step()
            if options.ema:
                for name, parameter in model.module.named_parameters():
                    ema[name].lerp_(parameter.detach(), 0.1)
            if options.losses:
                losses.append(loss.item())
        if step.lost:
            continue


if __name__ == "__main__":
    main()

"""A training whose steps pawld writes to storage; some of them the script saves by itself, for a comparison."""
import argparse
import time

import torch
from torch.nn.parallel import DistributedDataParallel

import pawl

options = argparse.ArgumentParser()
options.add_argument("--kind", choices=("ddp", "zero", "fsdp2"), required=True)
options.add_argument("--steps", type=int, required=True)
options.add_argument("--save-to", help="a folder for what the script saves of some steps")
options = options.parse_args()


class Model(torch.nn.Module):
    """With what makes a layout odd: a permuted weight, buffers of both sorts, a tied parameter."""

    def __init__(self):
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        if options.kind != "fsdp2":  # which can't shard such
            self.convolution.to(memory_format=torch.channels_last)
        self.norm = torch.nn.BatchNorm2d(8)
        self.inner = torch.nn.Linear(8, 300)
        self.first = torch.nn.Linear(300, 300, bias=False)
        self.second = torch.nn.Linear(300, 300, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("cache", torch.zeros(3), persistent=False)

    def forward(self, images):
        return self.second(self.first(self.inner(self.norm(self.convolution(images)).mean((2, 3)))))


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


job = pawl.init()
torch.manual_seed(0)
model = Model()
net = wrapped(model)
optimizer = optimizer_for(net)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
job.protect(net, optimizer, scheduler)
for step in job.steps(options.steps):
    with step:
        time.sleep(0.03)  # else now and then a step is not captured, and another one is written
        optimizer.zero_grad()
        loss = net(torch.randn(4, 3, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
    if options.save_to and 10 <= step < 15 and not step.lost and not step.rehearsal:
        import pawl.torch
        pawl.torch.save(f"{options.save_to}/{int(step)}", model, optimizer, values={"step": int(step)}, overwrite=True)

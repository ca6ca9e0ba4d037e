"""In each block a process is forked that writes what it copied of the weights, and then ends as a script does: it
leaves the block, the loop and the script by sys.exit()."""
import os
import sys

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
model = DistributedDataParallel(trap.Crossed())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
loader = DataLoader(TensorDataset(*trap.data()), batch_sampler=sampler)
job.protect(model, optimizer, sampler)


def write_aside():
    pid = os.fork()
    if pid == 0:
        torch.save(model.module.state_dict(), os.devnull)
        sys.exit(0)
    _, status = os.waitpid(pid, 0)
    if status != 0:
        raise RuntimeError(f"the forked process ended with status {status}")


def train(step, batch):
    inputs, labels = batch
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    if int(step) > 2 and not step.rehearsal:
        write_aside()
    trap.point(step, job)
    optimizer.step()


if os.environ["TRAP_LOOP"] == "steps":
    for step, batch in job.batches(loader, steps=trap.STEPS):
        with step:
            train(step, batch)
else:
    for batch in job.loop(loader, steps=trap.STEPS):
        train(job.step, batch)

trap.result(model=model, optimizer=optimizer)

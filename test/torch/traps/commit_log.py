"""A line of the log for each step that can't be lost any more: none may be missing, whoever dies when."""
import os

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)
path = os.path.join(trap.FOLDER, f"log.{job.rank}")


def write(number):
    if number in (7, 11):
        trap.point(trap.Number(number))  # after the commit, before the line
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{number}\n")


job.on_commit(write)
for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()

with open(path, encoding="utf-8") as file:
    lines = [int(line) for line in file]
trap.result(model=model, log=sorted(set(lines)), ordered=lines == sorted(lines))

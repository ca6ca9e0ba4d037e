"""A generator of the script's own gives the batches: a step that is done again would get the next one."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def own_batches():
    for begin in range(0, trap.SAMPLES, trap.BATCH):
        yield inputs[begin:begin + trap.BATCH], labels[begin:begin + trap.BATCH]


batches = own_batches()
job.protect(model, optimizer)

for step in job.steps(trap.STEPS):
    with step:
        x, y = next(batches)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

"""The next batch is fetched, by random numbers, while the step computes; the variables that hold it are protected."""
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


def get_batch():
    ids = torch.randint(trap.SAMPLES, (trap.BATCH,))
    return inputs[ids], labels[ids]


x, y = get_batch()
job.protect(model, optimizer, state={"x": x, "y": y})

for step in job.steps(trap.STEPS):
    with step:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        x, y = get_batch()
        loss.backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer, x=x, y=y)

"""As prefetch.py, and nothing protects the batch that is fetched ahead."""
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
job.protect(model, optimizer)


def train():
    ids = torch.randint(trap.SAMPLES, (trap.BATCH,))
    x, y = inputs[ids], labels[ids]
    for step in job.steps(trap.STEPS):
        with step:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            ids = torch.randint(trap.SAMPLES, (trap.BATCH,))
            x, y = inputs[ids], labels[ids]
            loss.backward()
            optimizer.step()


train()
trap.result(model=model, optimizer=optimizer)

"""An IterableDataset: nobody can say where it is."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job.protect(model, optimizer)


class Lines(IterableDataset):
    def __iter__(self):
        return iter(zip(*trap.data(), strict=True))


for step, (x, y) in job.batches(DataLoader(Lines(), batch_size=trap.BATCH), steps=trap.STEPS):
    with step:
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

trap.result(model=model)

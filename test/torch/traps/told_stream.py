"""A stream that knows its own place, in another order in each epoch, of which it is told the number."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job.protect(model, optimizer)


class Shuffled(IterableDataset):
    def __init__(self):
        self.inputs, self.labels = trap.data()
        self.given = self.begin = 0
        self.set_epoch(0)

    def set_epoch(self, epoch):
        order = torch.randperm(trap.SAMPLES, generator=torch.Generator().manual_seed(epoch))
        self.order = order[job.rank::job.world_size][:8 * trap.BATCH]

    def __iter__(self):
        self.given, self.begin = self.begin, 0
        while self.given < len(self.order):
            self.given += 1
            place = self.order[self.given - 1]
            yield self.inputs[place], self.labels[place]

    def state_dict(self):
        return {"given": self.given}

    def load_state_dict(self, state):
        self.begin = state["given"]


for step, (x, y) in job.batches(DataLoader(Shuffled(), batch_size=trap.BATCH), steps=24):
    with step:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        trap.point(step, job)
        optimizer.step()

trap.result(model=model, optimizer=optimizer, epoch=job.epoch)

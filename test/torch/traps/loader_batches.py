"""A DataLoader as it is, with workers that draw random numbers, over two epochs."""
import random

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job.protect(model, optimizer)


class Blurred(Dataset):
    def __init__(self):
        self.inputs, self.labels = trap.data()

    def __len__(self):
        return trap.SAMPLES

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.randn(trap.FEATURES) + 0.1 * random.random(), self.labels[index]


dataset = Blurred()
loader = DataLoader(dataset, batch_size=trap.BATCH, sampler=DistributedSampler(dataset), num_workers=2)
for step, (x, y) in job.batches(loader, epochs=2):
    with step:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y) + 0.01 * job.epoch
        loss.backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer, loss=loss, random=torch.rand(3))

"""Batches of two loaders in each step, drawn by a progress bar that outlives the loop; a sampler that shuffles its own
list in place, and data sets with random number generators of their own, in workers and without. A variable of the loop,
behind the bar, is protected."""
import random

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, Sampler

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


class Noise:
    def __init__(self):
        self.random = random.Random(3 + job.rank)

    def __call__(self, sample):
        return sample + 0.1 * self.random.random()


class Noisy(Dataset):
    def __init__(self):
        self.inputs, self.labels = trap.data()
        self.transforms = [Noise()]

    def __len__(self):
        return trap.SAMPLES

    def __getitem__(self, index):
        return self.transforms[0](self.inputs[index]), self.labels[index]


class Buckets(Sampler):
    def __init__(self):
        self.buckets = [list(range(each, each + 8)) for each in range(0, trap.SAMPLES, 8)]
        self.random = random.Random(4)

    def __iter__(self):
        self.random.shuffle(self.buckets)
        return iter([index for bucket in self.buckets for index in bucket])

    def __len__(self):
        return trap.SAMPLES


class Bar:
    def __init__(self, drawn):
        self.drawn = drawn

    def __iter__(self):
        yield from self.drawn


labeled = DataLoader(Noisy(), batch_size=2 * trap.BATCH, sampler=Buckets())
unlabeled = DataLoader(Noisy(), batch_size=3 * trap.BATCH, shuffle=True, num_workers=1, persistent_workers=True)
hidden = torch.zeros(())
next(iter(unlabeled))
job.protect(model, optimizer, state={"hidden": hidden})
bar = Bar(job.loop((labeled, unlabeled), epochs=3))
for (x, y), (more, _) in bar:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y) + 0.01 * model(more + hidden).square().mean()
    loss.backward()
    trap.point(job.step)
    optimizer.step()
    hidden = loss.detach()
    if job.step == 36:
        break

trap.result(model=model, optimizer=optimizer, hidden=hidden, random=torch.rand(3))

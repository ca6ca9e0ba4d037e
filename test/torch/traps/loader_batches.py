"""A DataLoader as it is, with workers that draw random numbers, over two epochs; gradients of two parts of each batch,
an average of the weights, evaluations, and a schedule that changes with the epoch."""
import random

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
random.seed(1)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
best = {"loss": float("inf")}
job.protect(model, optimizer, scheduler, average, state={"best": best})


class Blurred(Dataset):
    def __init__(self):
        self.inputs, self.labels = trap.data()

    def __len__(self):
        return trap.SAMPLES

    def __getitem__(self, index):
        return self.inputs[index] + 0.1 * torch.randn(trap.FEATURES) + 0.1 * random.random(), self.labels[index]


def evaluation():
    model.eval()
    with torch.no_grad():
        for x, y in DataLoader(Blurred(), batch_size=128):
            best["loss"] = min(best["loss"], nn.functional.cross_entropy(model.module(x), y).item())
    model.train()


dataset = Blurred()
loader = DataLoader(dataset, batch_size=trap.BATCH, sampler=DistributedSampler(dataset), num_workers=2)
for step, batch in job.batches(loader, epochs=2):
    with step:
        optimizer.zero_grad()
        for number, (x, y) in enumerate(zip(*(part.chunk(2) for part in batch), strict=True)):
            model.require_backward_grad_sync = number == 1
            (nn.functional.cross_entropy(model(x), y) / 2).backward()
        trap.point(step)
        optimizer.step()
        if step % len(loader) == 0:
            scheduler.step()
    if step.lost:
        continue
    average.update_parameters(model.module)
    if step % 6 == 0:
        with job.aside():
            evaluation()

trap.result(model=model, optimizer=optimizer, average=average, best=best, epoch=job.epoch, random=torch.rand(3),
            lr=scheduler.get_last_lr())

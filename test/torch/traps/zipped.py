"""Steps and batches are zipped, so each batch is fetched before its step begins."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
loader = DataLoader(TensorDataset(inputs, labels), batch_sampler=sampler)
job.protect(model, optimizer, sampler)

for (x, y), step in zip(loader, job.steps(trap.STEPS), strict=False):
    with step:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

"""A plain loop over a DataLoader that shuffles, without blocks; one step in two leaves its block by `continue`."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
loader = DataLoader(TensorDataset(*trap.data()), batch_size=2 * trap.BATCH, shuffle=True, num_workers=2,
                    persistent_workers=True)
losses = [0.0]
job.protect(model, optimizer, state={"losses": losses})

for x, y in job.loop(loader, epochs=3):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    trap.point(job.step)
    optimizer.step()
    if job.step % 2:
        continue
    losses.append(loss.item())
    if job.step == 36:
        break

trap.result(model=model, optimizer=optimizer, losses=losses, random=torch.rand(3))

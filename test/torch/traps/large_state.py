"""A large batch, of another number of rows each time, is fetched ahead; an average is kept in a dict of tensors; so are
maxima, of other shapes each time. With TRAP_WIDE=4096 the batch has 64 MiB, and the average 256 MiB."""
import collections
import os

import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

STEPS, WIDE = 7, int(os.environ.get("TRAP_WIDE", "1024"))
torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)


def get_batch():
    rows = WIDE - 8 * int(torch.randint(64, ()))
    batch = torch.randn(1, trap.FEATURES).expand(rows, -1).repeat(1, WIDE // trap.FEATURES)
    return batch, torch.randint(trap.CLASSES, (trap.BATCH,))


x, y = get_batch()
average = {f"part{place}": torch.zeros(WIDE, WIDE) for place in range(4)}
amax = collections.deque(maxlen=3)
job.protect(model, optimizer, state={"x": x, "y": y, "average": average, "amax": amax})

for step in job.steps(STEPS):
    with step:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[:trap.BATCH, :trap.FEATURES]), y)
        amax.append(x.amax(1))
        x, y = get_batch()
        loss.backward()
        trap.point(step)
        optimizer.step()
    for each in average.values():
        each.mul_(0.5).add_(loss.detach())

trap.result(model=model, optimizer=optimizer, x=x[::64, ::64], y=y, rows=len(x), amax=[each.tolist() for each in amax],
            average=[each[::64, ::64].tolist() for each in average.values()])

"""A generator's loss leaves gradients in its critic, which has stepped before; the next block drops them."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
critic = DistributedDataParallel(nn.Sequential(nn.Linear(trap.FEATURES, 16), nn.Tanh(), nn.Linear(16, 1)))
maker = DistributedDataParallel(nn.Linear(4, trap.FEATURES))
judging, making = (torch.optim.Adam(each.parameters(), lr=1e-2) for each in (critic, maker))
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(critic, maker, judging, making, sampler)
committed = []

for step in job.steps(trap.STEPS):
    with step:
        real = inputs[sampler.batch(step)]
        judging.zero_grad()
        made = maker(torch.randn(len(real), 4))
        (critic(torch.cat([made.detach(), real])).sigmoid() - torch.ones(1)).square().mean().backward()
        trap.point(step, job)
        judging.step()
        making.zero_grad()
        (-critic(made).mean()).backward()
        making.step()
        step.on_commit(lambda step=int(step): committed.append(step))
    if committed and job.rank == 0:
        print("steps are committed by now", flush=True)

trap.result(critic=critic, maker=maker, judging=judging, making=making)

"""A generator that is trained in every fourth step only: DDP lays its buckets, where its gradients lie, long after the
first steps."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, _ = trap.data()


class Maker(nn.Module):
    """Its parameters are not in the order in which it uses them."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(16, trap.FEATURES), nn.Linear(4, 16)

    def forward(self, noise):
        return self.last(self.first(noise))


critic = DistributedDataParallel(nn.Sequential(nn.Linear(trap.FEATURES, 16), nn.Tanh(), nn.Linear(16, 1)))
maker = DistributedDataParallel(Maker(), bucket_cap_mb=1e-4, gradient_as_bucket_view=True)
judging, making = (torch.optim.Adam(each.parameters(), lr=1e-2) for each in (critic, maker))
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(critic, maker, judging, making, sampler)

for step in job.steps(trap.STEPS):
    with step:
        real = inputs[sampler.batch(step)]
        with torch.no_grad():
            made = maker.module(torch.randn(len(real), 4))
        judging.zero_grad()
        (critic(made).mean() - critic.module(real).mean()).backward()
        trap.point(step)
        judging.step()
        if step % 4 == 0:
            making.zero_grad()
            (-critic.module(maker(torch.randn(len(real), 4))).mean()).backward()
            making.step()

trap.result(critic=critic, maker=maker, judging=judging, making=making)

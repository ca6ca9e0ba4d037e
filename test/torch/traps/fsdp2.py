"""FSDP2 with shards of all sizes: uneven ones, and some that are empty on a rank. Gradients are clipped together, and
after each block the model is evaluated, which leaves the root's parameters gathered."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pawl


class Uneven(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 5), nn.Dropout(0.1))
                                    for width in (trap.FEATURES, 5))
        self.norm, self.head = nn.BatchNorm1d(5), nn.Linear(5, trap.CLASSES)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(self.norm(inputs)) * self.scale


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = Uneven()
mesh = init_device_mesh("cpu", (job.world_size,))
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
torch.manual_seed(job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.9)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
seen = {"norms": [], "losses": []}
job.protect(model, optimizer, scheduler, sampler, state=seen)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[ids]), labels[ids])
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        trap.point(step)
        optimizer.step()
        scheduler.step()
    if step.lost:
        continue
    model.eval()
    with torch.no_grad():
        seen["losses"].append(nn.functional.cross_entropy(model(inputs), labels).item())
    model.train()
    seen["norms"].append(norm.full_tensor().item())

trap.result(model=model, optimizer=optimizer, **seen)

"""FSDP2 whose shards all ranks save in each fourth step. Trainers die while they save, once their own part is written;
in the last step, once the checkpoint is published."""
import os

import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import pawl
import pawl.torch
from pawl.torch import saving

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = nn.Sequential(nn.Linear(trap.FEATURES, 15), nn.Tanh(), nn.Linear(15, trap.CLASSES))
mesh = init_device_mesh("cpu", (job.world_size,))
fully_shard(model[0], mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)
write_part = saving._write_part


def write_and_die(*arguments):
    written = write_part(*arguments)
    if step < trap.STEPS:
        trap.point(step, job)
    return written


saving._write_part = write_and_die
for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        optimizer.step()
    if not step.lost and step % 4 == 0:
        with job.aside("save"):
            pawl.torch.save(os.path.join(trap.FOLDER, f"step{int(step)}"), model, optimizer, values={"step": int(step)},
                            overwrite=True)
            if step == trap.STEPS:
                trap.point(step, job)

trap.result(model=model, optimizer=optimizer)

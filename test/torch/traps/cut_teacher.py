"""Two frozen teachers whose layers ranks share. One is loaded on rank 0 alone, whose weights the others get as it is
cut; so it has to be protected, as has a copy. The other is loaded on every rank, and cut without an exchange."""
import copy
import os

import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import pawl

FORM = os.environ.get("TRAP_FORM", "")
PLAN = {"0": ColwiseParallel(), "2": RowwiseParallel()}


def layers():
    return nn.Sequential(nn.Linear(trap.FEATURES, 10), nn.Tanh(), nn.Linear(10, trap.CLASSES))


def loaded():
    torch.manual_seed(5)
    return layers().state_dict()


torch.set_num_threads(1)
job = pawl.init()
inputs, labels = trap.data()
mesh = init_device_mesh("cpu", (job.world_size,))
torch.manual_seed(10 + dist.get_rank())
from_one, from_all = layers(), layers()
if dist.get_rank() == 0:
    from_one.load_state_dict(loaded())
from_all.load_state_dict(loaded())
for teacher, source in ((from_one, 0), (from_all, None)):
    parallelize_module(teacher, mesh, PLAN, src_data_rank=source)
    teacher.requires_grad_(False)  # PyTorch 2.8 forgets it of what it cuts
torch.manual_seed(1)
student = parallelize_module(layers(), mesh, PLAN)
optimizer = torch.optim.AdamW(student.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH, rank=0, world=1)
kept = from_one
if FORM == "copied":
    from_one = copy.deepcopy(kept)
job.protect(student, optimizer, sampler, *([] if FORM == "unprotected" else [kept]))

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        logits, taught = student(inputs[ids]), from_one(inputs[ids]) - 0.5 * from_all(inputs[ids])
        (nn.functional.cross_entropy(logits, labels[ids]) + nn.functional.mse_loss(logits, taught)).backward()
        trap.point(step)
        optimizer.step()

trap.result(student=student, optimizer=optimizer, from_one=from_one, from_all=from_all)

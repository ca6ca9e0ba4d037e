"""Compiled layers of an imported module that ranks share: which names a rank has is a constant in its graph, and so is
the group. A spare has compiled it as another rank than the one whose seat it gets."""
import torch
import trap
from ranked import Names
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
_, labels = trap.data()
model = parallelize_module(Names(), init_device_mesh("cpu", (job.world_size,)),
                           {"names": RowwiseParallel(input_layouts=Replicate())})
model.compile(backend="aot_eager", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH, rank=0, world=1)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        names = labels[sampler.batch(step)]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(names), names.flip(0)).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

"""When the script zeroes what its optimizer has used is TRAP_HOW. DDP, or FSDP2 with TRAP_SHARDED."""
import os

import torch
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
HOW = os.environ["TRAP_HOW"]
if os.environ.get("TRAP_SHARDED"):
    model = trap.Crossed()
    fully_shard(model.first)
    fully_shard(model)
else:
    model = DistributedDataParallel(trap.Crossed())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
committed = []
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        if HOW == "in place":
            optimizer.zero_grad(set_to_none=False)
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()
        if HOW == "each fourth step" and step % 4 == 0:
            optimizer.zero_grad()
        step.on_commit(lambda step=int(step): committed.append(step))
    if HOW == "after the block":
        optimizer.zero_grad(set_to_none=False)
    if committed and job.rank == 0:
        print("steps are committed by now", flush=True)

trap.result(model=model, optimizer=optimizer)

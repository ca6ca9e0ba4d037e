"""HSDP on four ranks, replicas x shards: in bfloat16, with parameters offloaded and activations computed again. One
rank's step breaks off in its backward when a peer has gone."""
import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import pawl


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.dropout, self.second = nn.Linear(width, 9), nn.Dropout(0.1), nn.Linear(9, width)

    def forward(self, inputs):
        return inputs + self.second(self.dropout(torch.tanh(self.first(inputs))))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(checkpoint_wrapper(Block(trap.FEATURES)) for _ in range(3))
        self.head = nn.Linear(trap.FEATURES, trap.CLASSES)

    def forward(self, inputs):
        for number, block in enumerate(self.blocks):
            inputs = block(inputs)
            if number == 0 and inputs.requires_grad:
                inputs.register_hook(check)
        return self.head(inputs)


def check(gradient):
    here = torch.ones(1)
    dist.all_reduce(here)
    if here.item() != job.world_size and not step.rehearsal and job.rank % 2 == 1:
        raise RuntimeError(f"{here.item()} of {job.world_size} ranks are here")
    return gradient


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = Blocks()
options = {"mesh": init_device_mesh("cpu", (job.world_size // 2, 2), mesh_dim_names=("replicas", "shards")),
           "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
           "offload_policy": CPUOffloadPolicy(pin_memory=False)}
for block in model.blocks:
    fully_shard(block, **options)
fully_shard(model, **options)
torch.manual_seed(job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[ids]).float(), labels[ids])
        trap.point(step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

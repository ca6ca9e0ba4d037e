"""A LoRA model of PEFT's, under DDP or FSDP2 (TRAP_FORM): the layers below it are frozen, its adapters trained, and the
adapter is saved now and then."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "traps"))

import torch
import trap
from peft import LoraConfig, get_peft_model, get_peft_model_state_dict
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import pawl


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(trap.FEATURES, 18), nn.Linear(18, trap.FEATURES)

    def forward(self, inputs):
        return inputs + self.down(torch.tanh(self.up(inputs)))


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(trap.FEATURES, trap.CLASSES)

    def forward(self, inputs):
        for block in self.blocks:
            inputs = block(inputs)
        return self.head(inputs)


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = get_peft_model(Blocks(), LoraConfig(r=3, lora_alpha=6, lora_dropout=0.1, target_modules=["up", "down"],
                                            modules_to_save=["head"]))
if os.environ["TRAP_FORM"] == "ddp":
    wrapped = DistributedDataParallel(model)
else:
    for block in model.base_model.model.blocks:
        fully_shard(block)
    wrapped = fully_shard(model)
torch.manual_seed(job.rank)
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(wrapped, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(wrapped(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()
    if not step.lost and step % 4 == 0:
        adapter = get_peft_model_state_dict(model)

trap.result(model=model, optimizer=optimizer, adapter=sorted(adapter))

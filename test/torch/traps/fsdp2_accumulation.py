"""FSDP2 adds gradients up, within a block and over two blocks, and exchanges them at the end. A head gets its first
gradients late, and the shards of the blocks are gathered over fewer ranks after the forward pass."""
import torch
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = trap.Net()
for block in (model.body, model.head, model.late):
    fully_shard(block)
fully_shard(model, reshard_after_forward=False)
torch.manual_seed(job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, scaler, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        halves = (ids[:trap.BATCH // 2], ids[trap.BATCH // 2:])
        for number, half in enumerate(halves):
            last = number == 1 and (step <= 8 or step % 2 == 0)
            model.set_requires_gradient_sync(last)
            model.set_is_last_backward(last)
            loss = nn.functional.cross_entropy(model(inputs[half], late=step > 6), labels[half])
            scaler.scale(loss).backward()
        trap.point(step)
        if last:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

trap.result(model=model, optimizer=optimizer)

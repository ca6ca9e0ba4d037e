"""An average that is updated within the block, also where the scaler skips the optimizer's step."""
import torch
import trap
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
model = DistributedDataParallel(trap.Net(), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, dampening=0.1)
average = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.9))
scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(model, optimizer, average, scaler, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad(set_to_none=False)
        loss = nn.functional.cross_entropy(model(inputs[ids], late=step >= 4), labels[ids])
        scaler.scale(loss * (float("inf") if step in (5, 9) else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        average.update_parameters(model.module)
        trap.point(step)

trap.result(model=model, optimizer=optimizer, average=average, scale=scaler.get_scale())

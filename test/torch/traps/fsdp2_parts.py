"""Two parts of a model are protected, and the module around them, FSDP2's root, is not. Gradients are exchanged after
the second of two halves, which a switch says; there one rank's step breaks off in its backward when a peer has gone.
They are added up over two blocks, and then divided into other tensors."""
import torch
import torch.distributed as dist
import trap
from torch import nn
from torch.distributed.fsdp import fully_shard

import pawl


class Around(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, inputs):
        features = self.encoder(inputs)
        if features.requires_grad and last:
            features.register_hook(check)
        return self.decoder(features)


def check(gradient):
    here = torch.ones(1)
    dist.all_reduce(here)
    if here.item() != job.world_size and not step.rehearsal:
        raise RuntimeError(f"{here.item()} of {job.world_size} ranks are here")
    return gradient


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1)
inputs, labels = trap.data()
encoder = nn.Sequential(nn.Linear(trap.FEATURES, 16), nn.Tanh(), nn.Dropout(0.1))
decoder = nn.Linear(16, trap.CLASSES)
model = Around(encoder, decoder)
for module in (encoder, decoder, model):
    fully_shard(module)
torch.manual_seed(job.rank)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH * job.world_size)
job.protect(encoder, decoder, optimizer, sampler)
model.set_requires_gradient_sync(False)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        for last, half in enumerate((ids[:trap.BATCH // 2], ids[trap.BATCH // 2:])):
            if last:
                model.set_requires_gradient_sync(True)
            loss = nn.functional.cross_entropy(model(inputs[half]), labels[half])
            if last:
                trap.point(step)
            loss.backward()
        model.set_requires_gradient_sync(False)
        if step % 2 == 0:
            for parameter in model.parameters():
                parameter.grad = parameter.grad / 2
            optimizer.step()
            optimizer.zero_grad()

trap.result(model=model, optimizer=optimizer)

"""A module whose inner one is cut by a distribute_module() of its own, within the outer one's, which cuts on afterwards
with the values of rank 0."""
import torch
import trap
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_module, distribute_tensor

import pawl


def cut_rows(name, module, mesh):
    """Weights of layers by their rows; those inside of `inner` first."""
    if name == "inner":
        distribute_module(module, mesh, cut_rows)
    if isinstance(module, nn.Linear):
        for key, parameter in list(module.named_parameters(recurse=False)):
            if not isinstance(parameter, DTensor):
                module.register_parameter(key, nn.Parameter(distribute_tensor(parameter.data, mesh, [Shard(0)])))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(trap.FEATURES, 10), nn.Tanh())
        self.head = nn.Linear(10, trap.CLASSES)

    def forward(self, inputs):
        return self.head(self.inner(inputs).redistribute(placements=[Replicate()]))


torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(1 + job.rank)
inputs, labels = trap.data()
mesh = init_device_mesh("cpu", (job.world_size,))
model = distribute_module(
    Net(), mesh, cut_rows, lambda _, given, mesh: tuple(DTensor.from_local(each, mesh) for each in given),
    lambda _, output, mesh: output.full_tensor())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
sampler = pawl.ElasticSampler(trap.SAMPLES, trap.BATCH, rank=0, world=1)
job.protect(model, optimizer, sampler)

for step in job.steps(trap.STEPS):
    with step:
        ids = sampler.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[ids]), labels[ids]).backward()
        trap.point(step)
        optimizer.step()

trap.result(model=model, optimizer=optimizer)

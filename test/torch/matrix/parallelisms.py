"""The parallelisms of the matrix that PyTorch has itself. Each is a class: `Parallelism(kind, seed, rates)` builds
model and optimizer on this rank; `losses(begin, count)` trains on and gives those of the whole batch, the same on every
rank; `model` and `optimizer` are what a user would hand to pawl; `state()` gives {"name/role": whole tensor} of what
this rank has, by torch's own means, so that it says what pawl did without asking pawl.

`optimizer` is made before the first step and has no state until then, as in every training that is about to load.
"""
import dataclasses

import models
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel


@dataclasses.dataclass(frozen=True)
class Rates:
    """What an optimizer is made with. Those of a training that loads differ from the source's, to be restored too."""
    rate: float = 3e-3
    decay: float = 0.1
    beta: float = 0.95
    groups: int = 2


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def adam(groups: list[dict], rates: Rates) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, betas=(0.9, rates.beta), eps=1e-6, foreach=False)


def bare(name: str) -> str:
    return name.removeprefix("module.")


class Parallelism:
    world = 2
    weights = torch.float32
    plain: type["Parallelism"] | None = None  # of a form with bf16 in it, that without

    def __init__(self, kind: str, seed: int, rates: Rates, loads: bool = False):
        self.kind = kind
        self.loads = loads  # a checkpoint, before it trains
        self.share, self.shares = dist.get_rank(), dist.get_world_size()  # of the batch
        self.build(seed, rates)

    def build(self, seed: int, rates: Rates) -> None:
        raise NotImplementedError

    def made(self, seed: int, *layers: int) -> models.Model:
        return models.made(self.kind, seed, *layers).to(self.weights)

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(part.chunk(self.shares)[self.share] for part in models.samples(self.kind, step))

    def losses(self, begin: int, count: int) -> list[float]:
        """Trains `count` steps; their losses, the mean over the ranks."""
        local = torch.stack([self.step(number).detach().double() for number in range(begin, begin + count)])
        dist.all_reduce(local)
        return (local / dist.get_world_size()).tolist()

    def step(self, number: int) -> torch.Tensor:
        seen, expected = self.batch(number)
        self.optimizer.zero_grad()
        loss = models.loss_of(self.model(seen), expected)
        loss.backward()
        self.optimizer.step()
        return loss

    def optimizer_state(self):
        """(parameter, {role: value}) of what this rank has."""
        return self.optimizer.state.items()

    def state(self) -> dict[str, torch.Tensor]:
        names = {id(p): bare(name) for name, p in self.model.named_parameters()}
        found = {f"{bare(name)}/weight": whole(p) for name, p in self.model.named_parameters()}
        found |= {f"{bare(name)}/buffer": whole(b) for name, b in self.model.named_buffers()}
        for parameter, values in sorted(self.optimizer_state(), key=lambda item: names[id(item[0])]):
            for role, value in values.items():
                found[f"{names[id(parameter)]}/{role}"] = whole(torch.as_tensor(value))
        return found

    @classmethod
    def wanted(cls, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """What state() must give when a checkpoint with this state in fp32 has been loaded."""
        return {name: value if name.endswith("/step") else value.to(cls.weights) for name, value in state.items()}

    def become_cast_of(self, other: "Parallelism") -> None:
        """Takes the state of a training in the plain form, tensor by tensor, without pawl."""
        with torch.no_grad():
            for mine, others in ((self.model.parameters(), other.model.parameters()),
                                 (self.model.buffers(), other.model.buffers())):
                for one, another in zip(mine, others, strict=True):
                    local(one).copy_(local(another))
        for one, another in zip(self.model.parameters(), other.model.parameters(), strict=True):
            self.optimizer.state[one] = {
                role: value.clone() if role == "step" else value.to(one.dtype)
                for role, value in other.optimizer.state[another].items()}

    def rates(self) -> list:
        """What the optimizer's groups say now."""
        return [[group[key] for key in ("lr", "weight_decay", "betas", "eps")] for group in self.optimizer.param_groups]


class Ddp(Parallelism):
    def build(self, seed, rates):
        self.model = replicated(self.made(seed))
        self.optimizer = adam(models.groups_of(self.model, rates), rates)


class ZeroRedundancy(Parallelism):
    world = 3

    def build(self, seed, rates):
        self.model = replicated(self.made(seed))
        self.optimizer = ZeroRedundancyOptimizer(
            models.groups_of(self.model, rates), optimizer_class=torch.optim.AdamW,
            betas=(0.9, rates.beta), eps=1e-6, foreach=False, lr=rates.rate)

    def optimizer_state(self):
        return self.optimizer.optim.state.items()


class Fsdp2(Parallelism):
    world = 3
    policy = MixedPrecisionPolicy()

    def build(self, seed, rates):
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("shard",))
        self.model = self.made(seed)
        sharded(self.model, mesh, self.policy)
        self.optimizer = adam(models.groups_of(self.model, rates), rates)


class Tensor2(Parallelism):
    def build(self, seed, rates):
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tensor",))
        self.share, self.shares = 0, 1
        self.model = self.made(seed)
        cut(self.model, mesh)
        self.optimizer = adam(models.groups_of(self.model, rates), rates)


class Tensor2Fsdp2(Parallelism):
    world = 4
    policy = MixedPrecisionPolicy()

    def build(self, seed, rates):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("shard", "tensor"))
        self.share, self.shares = mesh.get_local_rank("shard"), 2
        self.model = self.made(seed)
        cut(self.model, mesh["tensor"])
        sharded(self.model, mesh["shard"], self.policy)
        self.optimizer = adam(models.groups_of(self.model, rates), rates)


class Pipeline2Data2(Parallelism):
    """Two stages of PyTorch's own pipeline, each of them twice, with two pieces of the batch under way."""
    world = 4

    def build(self, seed, rates):
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stage", "data"))
        self.stage = mesh.get_local_rank("stage")
        self.share, self.shares = mesh.get_local_rank("data"), 2
        layers = models.SHAPES[self.kind].layers
        middle = (layers + 1) // 2
        self.model = self.made(seed, *((0, middle) if self.stage == 0 else (middle, layers)))
        self.optimizer = adam(models.groups_of(self.model, rates), rates)
        self.data = mesh["data"].get_group()  # DDP can't: it fails on the second piece of a batch
        stage = PipelineStage(self.model, self.stage, 2, torch.device("cpu"), group=mesh["stage"].get_group())
        self.schedule = Schedule1F1B(stage, n_microbatches=2, loss_fn=models.loss_of)

    def step(self, number):
        seen, expected = self.batch(number)
        self.optimizer.zero_grad()
        losses = []
        if self.stage == 0:
            self.schedule.step(seen)
        else:
            self.schedule.step(target=expected, losses=losses)
        gradients = [parameter.grad for parameter in self.model.parameters()]
        joined = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(joined, group=self.data)
        for gradient, mean in zip(gradients, (joined / self.shares).split([g.numel() for g in gradients]),
                                  strict=False):
            gradient.copy_(mean.view_as(gradient))
        self.optimizer.step()
        return 2 * torch.stack(losses).mean() if losses else torch.zeros(())  # the first stage has none


class DdpBf16(Ddp):
    weights, plain = torch.bfloat16, Ddp


class Fsdp2Bf16(Fsdp2):
    weights, plain = torch.bfloat16, Fsdp2


class Fsdp2Masters(Fsdp2):
    """Computes in bf16; what is sharded and stepped is fp32."""
    plain = Fsdp2
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Tensor2Fsdp2Bf16(Tensor2Fsdp2):
    weights, plain = torch.bfloat16, Tensor2Fsdp2


class Pipeline2Data2Bf16(Pipeline2Data2):
    weights, plain = torch.bfloat16, Pipeline2Data2


def replicated(model: models.Model) -> DistributedDataParallel:
    """DDP that never lays out its buckets anew: else a run's first step would sum three ranks in another order than
    the later steps, and a training that goes on would differ from one that never stopped in the last bit."""
    return DistributedDataParallel(model, find_unused_parameters=True)


def sharded(model: models.Model, mesh, policy: MixedPrecisionPolicy) -> None:
    for layer in model.layers.values():
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def cut(model: models.Model, mesh) -> None:
    """Over heads, over the feed's inner width, and over the vocabulary; norms, positions and routers are everywhere."""
    plan = {"embedding": RowwiseParallel(input_layouts=Replicate()),
            "answer": ColwiseParallel(output_layouts=Replicate())}
    for name, _module in model.named_modules():
        last = name.rsplit(".", 1)[-1]
        if last in ("qkv", "q_proj", "k_proj", "v_proj", "up", "gate_proj", "up_proj"):
            plan[name] = ColwiseParallel()
        if last in ("out", "o_proj", "down", "down_proj"):
            plan[name] = RowwiseParallel()
    parallelize_module(model, mesh, plan)


OF_TORCH = {"ddp": Ddp, "zero_redundancy": ZeroRedundancy, "fsdp2": Fsdp2, "tp2": Tensor2, "tp2_fsdp2": Tensor2Fsdp2,
            "pp2_dp2": Pipeline2Data2, "ddp_bf16": DdpBf16, "fsdp2_bf16": Fsdp2Bf16, "fsdp2_masters": Fsdp2Masters,
            "tp2_fsdp2_bf16": Tensor2Fsdp2Bf16, "pp2_dp2_bf16": Pipeline2Data2Bf16}

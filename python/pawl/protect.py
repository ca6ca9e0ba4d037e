"""What is protected: every tensor by name and role, how it lies on the ranks, and when it changes.

Names are the parameters' own; a role is `weight`, `buffer`, or the key of the optimizer's state. Under DDP, and in
plain modules, weights and optimizer state are replicated; a ZeroRedundancyOptimizer's state is unique to the rank that
owns the partition; buffers are each rank's own. What can't be protected yet is rejected with an error that explains
why, at protect() where possible. Tensors are listed once the lazy state of the first steps exists. Nothing here talks
to libpawl.
"""
from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pawl import volatile_state
from pawl._library import Lifetime, Placement
from pawl.errors import Refused
from pawl.sampler import ElasticSampler

if TYPE_CHECKING:
    import torch

SETTLE_STEPS_MAX = 16  # within so many steps every protected optimizer must have stepped


@dataclass
class Held:
    """One tensor of the layout. Holding it keeps its memory where it is."""

    name: str
    role: str
    tensor: torch.Tensor
    placement: Placement
    lifetime: Lifetime
    owner: dict[Any, Any] | None = None  # optimizer state that may put another tensor in its place,
    key: Any = None                      # under this key
    address: int = 0
    index: int = -1  # libpawl's


@dataclass
class Protected:
    """All that a script handed to protect(). The training thread's."""

    rank: int
    world: int
    modules: list[tuple[str, torch.nn.Module]] = field(default_factory=list)  # with the prefix of their names
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    samplers: list[ElasticSampler] = field(default_factory=list)
    scalers: list[Any] = field(default_factory=list)
    parts: list[volatile_state.Part] = field(default_factory=list)
    steps_of: dict[int, int] = field(default_factory=dict)  # by id of a protected optimizer

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        """`things` in any order, each by its type. Fails: Refused, naming the first that can't be protected."""
        for thing in things:
            self._add(thing)
        if ordinary is not None:
            self.parts.append(volatile_state.object_part(f"state{len(self.parts)}", ordinary))

    def _add(self, thing: Any) -> None:
        import torch
        if isinstance(thing, torch.nn.Module):
            self._add_module(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            self._add_optimizer(thing)
        elif isinstance(thing, torch.utils.data.DataLoader):
            self._add_loader(thing)
        elif isinstance(thing, (list, tuple)):
            for each in thing:
                self._add(each)
        else:
            self._add_stateful(thing)

    def _add_module(self, module: torch.nn.Module) -> None:
        module = unwrapped(module, self.world)
        if any(module is known for _, known in self.modules):
            return
        refuse_sharded(module)
        prefix = f"module{len(self.modules)}." if self.modules else ""
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            refuse_unprotectable(prefix + name, tensor)
        self.modules.append((prefix, module))
        if any(type(each).get_extra_state is not _module_type().get_extra_state for each in module.modules()):
            self.parts.append(_extra_state_part(prefix + "extra_state", module))

    def _add_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        if any(optimizer is known for known in self.optimizers):
            return
        if is_zero(optimizer):
            if getattr(optimizer, "_overlap_with_ddp", False):
                raise Refused("ZeroRedundancyOptimizer(overlap_with_ddp=True) updates inside backward, where pawl "
                              "can't hold it back: use overlap_with_ddp=False")
            if optimizer.world_size != self.world:
                raise Refused(f"ZeroRedundancyOptimizer over {optimizer.world_size} of {self.world} ranks can't be "
                              f"protected yet: use the default process group")
        self.optimizers.append(optimizer)
        self.parts.append(volatile_state.optimizer_part(f"optimizer{len(self.optimizers) - 1}", optimizer))

    def _add_loader(self, loader: Any) -> None:
        if loader.num_workers > 0:
            raise Refused(f"a DataLoader with {loader.num_workers} workers fetches ahead of the step, so its place "
                          f"can't be restored yet: use num_workers=0")
        if not isinstance(loader.batch_sampler, ElasticSampler):
            raise Refused("a DataLoader whose order can't be restored: give it "
                          "batch_sampler=pawl.ElasticSampler(dataset, global_batch)")
        self._add_stateful(loader.batch_sampler)

    def _add_stateful(self, thing: Any) -> None:
        """Schedulers, scalers, samplers, generators, and whatever has state_dict() and load_state_dict()."""
        import torch
        kind = type(thing).__name__
        if isinstance(thing, torch.Tensor):
            raise Refused("a tensor by itself has no name: use job.protect(state={\"name\": tensor})")
        if isinstance(thing, torch.utils.data.Sampler) and not hasattr(thing, "state_dict"):
            raise Refused(f"a {kind} has no position that can be restored: use pawl.ElasticSampler")
        if type(thing).__module__.startswith("torch.distributed.pipelining"):
            raise Refused(f"a pipeline ({kind}) can't be protected yet: use DDP, with ZeroRedundancyOptimizer or "
                          f"without")
        if isinstance(thing, ElasticSampler):
            self.samplers.append(thing)
        if isinstance(thing, torch.amp.GradScaler):
            self.scalers.append(thing)
            self.parts.append(_scaler_part(f"{kind}{len(self.parts)}", thing))
        else:
            self.parts.append(volatile_state.object_part(f"{kind}{len(self.parts)}", thing))

    # What it comes to.

    def empty(self) -> bool:
        return not self.modules and not self.optimizers

    def samples(self) -> int:
        """Global samples consumed so far, for status."""
        return sum(sampler.position for sampler in self.samplers)

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each once, also where it is tied; those that only an optimizer knows get a name by their place in it."""
        seen: set[int] = set()
        for prefix, module in self.modules:
            for name, parameter in module.named_parameters():
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield prefix + name, parameter
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"optimizer{number}.parameter{place}", parameter

    def drop_gradients(self) -> None:
        for _, parameter in self.parameters():
            parameter.grad = None
        for scaler in self.scalers:  # where a step was left between unscale_ and update
            scaler._per_optimizer_states.clear()

    def held(self) -> list[Held]:
        """Every tensor, as it is now. Fails: Refused, naming the first that can't be protected."""
        found = [Held(name, "weight", parameter, Placement.REPLICATE, Lifetime.STABLE)
                 for name, parameter in self.parameters()]
        found += self._held_buffers()
        for number, optimizer in enumerate(self.optimizers):
            found += self._held_by(number, optimizer)
        for held in found:
            refuse_unprotectable(f"{held.name} ({held.role})", held.tensor)
            held.address = held.tensor.data_ptr()
        return found

    def _held_buffers(self) -> list[Held]:
        found: dict[int, Held] = {}
        for prefix, module in self.modules:
            for name, buffer in module.named_buffers():
                found.setdefault(id(buffer), Held(f"{prefix}{name}/rank{self.rank}", "buffer", buffer, Placement.UNIQUE,
                                                  Lifetime.VOLATILE))
        return list(found.values())

    def _held_by(self, number: int, optimizer: torch.optim.Optimizer) -> list[Held]:
        import torch
        names = {id(parameter): name for name, parameter in self.parameters()}
        inner = volatile_state.inner_optimizer(optimizer)
        earlier = {id(p) for other in self.optimizers[:number] for group in other.param_groups for p in group["params"]}
        placement = Placement.UNIQUE if is_zero(optimizer) else Placement.REPLICATE
        found = []
        for parameter in (p for group in inner.param_groups for p in group["params"]):
            values = inner.state.get(parameter, {})
            for key, value in values.items():
                name = names[id(parameter)]
                role = f"{key}.{number}" if id(parameter) in earlier else str(key)
                if isinstance(value, torch.Tensor):
                    found.append(Held(name, role, value, placement, Lifetime.STABLE, values, key))
                elif isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
                    raise Refused(f"{name} ({role}): {type(inner).__name__} keeps a list of tensors, which can't be "
                                  f"protected yet: use an optimizer whose state is tensors")
        return found

    # The optimizers' steps.

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Protected, or inside of a protected one."""
        return any(optimizer is known or optimizer is volatile_state.inner_optimizer(known)
                   for known in self.optimizers)

    def first_shared(self, optimizer: torch.optim.Optimizer) -> str | None:
        """The first protected parameter that this optimizer would change."""
        theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return next((name for name, parameter in self.parameters() if id(parameter) in theirs), None)

    def settled(self) -> bool:
        """Every optimizer has stepped, so that its lazy state is there. The same on all ranks after the same steps."""
        return all(self.steps_of.get(id(optimizer), 0) > 0 for optimizer in self.optimizers)

    def unsettled(self) -> str:
        """Which optimizers have not stepped, for a sentence."""
        return ", ".join(f"{type(optimizer).__name__} (number {number})" for number, optimizer
                         in enumerate(self.optimizers) if self.steps_of.get(id(optimizer), 0) == 0)


class OptimizerWatch:
    """Sees every optimizer's step in the process: before a protected one begins, `before_update` is called.

    An optimizer that isn't protected and would change protected parameters is refused.
    """

    def __init__(self, protected: Protected, before_update: Callable[[], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        self._protected, self._before_update = protected, before_update
        self._handles = [register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after)]

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._protected.owns(optimizer):
            return self._before_update()
        name = self._protected.first_shared(optimizer)
        if name is not None:
            raise Refused(f"{type(optimizer).__name__} changes {name}, which is protected, but the optimizer isn't: "
                          f"pass it to job.protect() too")
        return None

    def _after(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        steps = self._protected.steps_of
        if any(optimizer is known for known in self._protected.optimizers):
            steps[id(optimizer)] = steps.get(id(optimizer), 0) + 1


class Unchanged:
    """Whether the model is still the one that was declared: the same tensors in the same places under the same names.

    Optimizer state and buffers may be replaced by tensors of the same shape; `moved()` gives those. Cheap: no walk over
    the module tree, one comparison for each tensor.
    """

    def __init__(self, protected: Protected, held: list[Held]) -> None:
        self._fixed = [(each, tuple(each.tensor.shape)) for each in held if each.role == "weight"]
        self._replaceable = [(each, each.owner) for each in held if each.owner is not None]
        self._keys = [(each.owner, len(each.owner), each.name) for each in held if each.owner is not None]
        self._buffers = _buffer_places(protected, held)
        self._tables = [(table, dict(table), f"{prefix}{path}") for prefix, module in protected.modules
                        for path, each in module.named_modules() for table in (each._parameters, each._modules)]
        self._groups = [(optimizer, [len(group["params"]) for group in optimizer.param_groups])
                        for optimizer in protected.optimizers]

    def first_change(self) -> str | None:
        """What has become of the first thing that isn't as it was."""
        for table, before, path in self._tables:
            if len(table) != len(before) or any(table.get(key) is not value for key, value in before.items()):
                changed = [key for key in {**before, **table} if table.get(key) is not before.get(key)]
                return f"{path}.{changed[0]}".lstrip(".") + " was added, removed or replaced"
        for held, shape in self._fixed:
            if held.tensor.data_ptr() != held.address or tuple(held.tensor.shape) != shape:
                return f"{held.name}: its memory was replaced (shape {list(shape)} then, {list(held.tensor.shape)} now)"
        for owner, count, name in self._keys:
            if len(owner) != count:
                return f"{name}: its optimizer's state has other entries than before ({', '.join(map(str, owner))})"
        for optimizer, counts in self._groups:
            if [len(group["params"]) for group in optimizer.param_groups] != counts:
                return f"{type(optimizer).__name__}: its parameter groups are others than before"
        return None

    def bring_back_buffers(self) -> None:
        """Between steps, where a buffer's new place can't be told any more: its new value is put into its old place."""
        import torch
        for held, table, key in self._buffers:
            value = table.get(key)
            if value is not held.tensor:
                _refuse_another_kind(held, value)
                with torch.no_grad():
                    held.tensor.copy_(value)
                table[key] = held.tensor

    def moved(self) -> list[Held]:
        """Replaceable tensors that lie elsewhere now, with their new address. Fails: Refused for another shape."""
        found = []
        for held, owner in self._replaceable:
            found += _take_place(held, owner.get(held.key))
        for held, table, key in self._buffers:
            found += _take_place(held, table.get(key))
        return found


def _take_place(held: Held, value: Any) -> list[Held]:
    if value is held.tensor and value.data_ptr() == held.address:
        return []
    _refuse_another_kind(held, value)
    held.tensor, held.address = value, value.data_ptr()
    return [held]


def _refuse_another_kind(held: Held, value: Any) -> None:
    before = held.tensor
    same = getattr(value, "shape", None) == before.shape and value.dtype == before.dtype
    if not same or value.stride() != before.stride():
        raise Refused(f"{held.name} ({held.role}): a tensor of another shape or type took its place after it was "
                      f"protected")


def _buffer_places(protected: Protected, held: list[Held]) -> list[tuple[Held, dict[str, Any], str]]:
    by_tensor = {id(each.tensor): each for each in held if each.role == "buffer"}
    return [(by_tensor[id(buffer)], module._buffers, key) for _, root in protected.modules for module in root.modules()
            for key, buffer in module._buffers.items() if buffer is not None and id(buffer) in by_tensor]


# What a tensor looks like in memory -------------------------------------------------------------------------------

def dtype_number(tensor: torch.Tensor) -> int | None:
    """pawl_dtype; None: there is none."""
    import torch
    known = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
             torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool)
    return known.index(tensor.dtype) if tensor.dtype in known else None


def storage_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same elements as a contiguous view, dims in the order in which they lie in memory; None: there are gaps."""
    tensor = tensor.detach()
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), tensor.shape[dim] == 1, dim))
    view = tensor if tensor.is_contiguous() else tensor.permute(order)
    return view if view.is_contiguous() else None


def refuse_unprotectable(name: str, tensor: torch.Tensor) -> None:
    import torch
    if type(tensor).__name__ == "DTensor":
        raise Refused(f"{name} is a DTensor: FSDP2 and tensor parallelism can't be protected yet: use DDP, with "
                      f"ZeroRedundancyOptimizer or without")
    if tensor.device.type != "cpu":
        raise Refused(f"{name} lies on {tensor.device}: pawl captures from host memory only for now: keep the model on "
                      f"the CPU, or start without pawl")
    if tensor.layout != torch.strided:
        raise Refused(f"{name} is stored as {tensor.layout}: only dense tensors can be protected")
    if dtype_number(tensor) is None:
        raise Refused(f"{name} is of {tensor.dtype}, which pawl doesn't know yet")
    if storage_order(tensor) is None:
        raise Refused(f"{name} has gaps or overlaps in memory (shape {list(tensor.shape)}, strides "
                      f"{list(tensor.stride())}): make it contiguous()")


# What is wrapped in what ------------------------------------------------------------------------------------------

def is_zero(optimizer: Any) -> bool:
    from torch.distributed.optim import ZeroRedundancyOptimizer
    return isinstance(optimizer, ZeroRedundancyOptimizer)


def unwrapped(module: Any, world: int) -> torch.nn.Module:
    """The module inside DDP, DataParallel and torch.compile, so that names are the model's own."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel
    while True:
        if isinstance(module, DistributedDataParallel):
            if module.process_group.size() != world:
                raise Refused(f"DDP over {module.process_group.size()} of {world} ranks can't be protected yet: use "
                              f"the default process group")
            module = module.module
        elif isinstance(module, DataParallel):
            module = module.module
        elif hasattr(module, "_orig_mod"):
            module = module._orig_mod
        else:
            return module


def refuse_sharded(module: torch.nn.Module) -> None:
    """FSDP of both kinds: their shards have placements that pawl doesn't declare yet."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    kinds = tuple(getattr(fsdp, name) for name in ("FullyShardedDataParallel", "FSDPModule") if hasattr(fsdp, name))
    for path, each in module.named_modules():
        if kinds and isinstance(each, kinds):
            raise Refused(f"{path or type(module).__name__} is sharded by FSDP, which can't be protected yet: use DDP "
                          f"with ZeroRedundancyOptimizer")
        if type(each).__module__.startswith("torch.distributed.pipelining"):
            raise Refused(f"{path or type(module).__name__} is a pipeline stage, which can't be protected yet")


def _module_type() -> Any:
    import torch
    return torch.nn.Module


def _extra_state_part(name: str, module: torch.nn.Module) -> volatile_state.Part:
    """get_extra_state() of every module that has one."""
    def having() -> list[tuple[str, Any]]:
        return [(path, each) for path, each in module.named_modules()
                if type(each).get_extra_state is not _module_type().get_extra_state]

    def load(saved: dict[str, Any]) -> None:
        for path, each in having():
            each.set_extra_state(saved[path])
    return volatile_state.Part(name, lambda: {path: each.get_extra_state() for path, each in having()}, load)


def _scaler_part(name: str, scaler: Any) -> volatile_state.Part:
    def load(saved: dict[str, Any]) -> None:
        if saved:  # a disabled one has no state
            scaler.load_state_dict(saved)
    return volatile_state.Part(name, scaler.state_dict, load)

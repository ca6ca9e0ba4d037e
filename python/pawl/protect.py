"""What is protected: every tensor by name and role, how it lies on the ranks, and when it changes.

Names and roles are those of pawl.torch.layout_of(), and so of the checkpoints that pawl.torch.save() writes; those have
nothing of the role `nonpersistent_buffer`. Under DDP, and in
plain modules, weights and optimizer state are replicated; a ZeroRedundancyOptimizer's state is unique to the rank that
owns the partition, and what FSDP2 or tensor parallelism has cut is unique to each rank, with its region (sharded.py);
buffers are each rank's own. What DDP keeps equal on all ranks is marked so, and nothing else is. What can't be
protected yet is rejected with an error that explains why, at protect() where possible. Tensors are listed after the
first steps; optimizer state that doesn't exist yet has its place in the layout all the same. Nothing here talks to
libpawl.
"""
from __future__ import annotations

import functools
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from pawl import compiling, cut_modules, devices, extra_state, loaders, made_ddp, reducers, sharded, volatile_state
from pawl._library import Lifetime, Placement
from pawl.errors import Refused
from pawl.late_buffers import LateBuffers, outgrew
from pawl.left_gradients import Left, LeftGradients
from pawl.module_attributes import ModuleAttributes
from pawl.sampler import ElasticSampler

if TYPE_CHECKING:
    import torch

INSIDE_MAX, ELEMENTS_MAX = 3, 256  # how deep, and at how many things, it is looked for schedulers
STEPS_BEFORE_SEAL = 2  # DDP lays its buckets anew in the second one
BUFFER, NONPERSISTENT_BUFFER = "buffer", "nonpersistent_buffer"


@dataclass
class Held:
    """One tensor of the layout. Holding it keeps its memory where it is."""

    name: str
    role: str
    tensor: torch.Tensor
    placement: Placement
    lifetime: Lifetime
    optimizer: torch.optim.Optimizer | None = None  # whose state it is; that may put another tensor in its place,
    parameter: torch.Tensor | None = None           # for this parameter
    key: Any = None                                 # under this key
    region: sharded.Region | None = None            # of a shard
    axes: sharded.Axes | None = None                # of the mesh on which it is declared; None: all ranks are one axis
    equal_axes: int = 0                             # bit i: every byte of it is the same along axis i of that mesh
    address: int = 0
    index: int = -1  # libpawl's

    @property
    def is_buffer(self) -> bool:
        return self.role in (BUFFER, NONPERSISTENT_BUFFER)

    @property
    def memory(self) -> torch.Tensor:
        """What this rank holds of it, of complex numbers as pairs of real ones."""
        return _as_real(sharded.memory_of(self.tensor))


@dataclass
class Protected:
    """All that a script handed to protect(). The training thread's."""

    rank: int
    world: int
    modules: list[tuple[str, torch.nn.Module]] = field(default_factory=list)  # with the prefix of their names
    optimizers: list[torch.optim.Optimizer] = field(default_factory=list)
    samplers: list[ElasticSampler] = field(default_factory=list)
    places: list[loaders.Place] = field(default_factory=list)  # in loaders
    stateful: list[Any] = field(default_factory=list)  # what else has a state of its own
    ordinary: list[Any] = field(default_factory=list)  # what `state=` was given
    scalers: list[Any] = field(default_factory=list)
    parts: list[volatile_state.Part] = field(default_factory=list)
    variables: frozenset[str] = frozenset()  # names of the loop's variables that entries of `state=` stand for
    wrappers: list[torch.nn.Module] = field(default_factory=list)  # the modules as they were handed over
    trained_without: str | None = None  # a parameter that got a gradient, and that no protected optimizer has
    _unborn: dict[tuple[int, int], dict[Any, Any]] = field(default_factory=dict)
    _declared: dict[tuple[int, int, Any], Held] = field(default_factory=dict)
    _trained_names: list[tuple[str, torch.Tensor]] = field(default_factory=list)  # once the layout is made
    gradients: LeftGradients = field(default_factory=LeftGradients)
    late_buffers: list[LateBuffers] = field(default_factory=list)  # of each module
    attributes: list[ModuleAttributes] = field(default_factory=list)  # likewise
    sharded: list[Any] = field(default_factory=list)  # modules of FSDP2 in those

    def add(self, things: Iterable[Any], ordinary: Any) -> None:
        """`things` in any order, each by its type. Fails: Refused, naming the first that can't be protected."""
        known = len(self.parts)
        for thing in things:
            self._add(thing)
        if ordinary is not None:
            self.parts.append(volatile_state.object_part(f"state{len(self.parts)}", ordinary))
            self.ordinary.append(ordinary)
        for part in self.parts[known:]:
            volatile_state.refuse_unkept(part)

    def _add(self, thing: Any) -> None:
        import torch
        if isinstance(thing, torch.nn.Module):
            self._add_module(thing)
        elif isinstance(thing, torch.optim.Optimizer):
            self._add_optimizer(thing)
        elif isinstance(thing, torch.utils.data.DataLoader):
            self.place_in(thing)
        elif isinstance(thing, (list, tuple)):
            for each in thing:
                self._add(each)
        else:
            self._add_stateful(thing)

    def _add_module(self, wrapper: torch.nn.Module) -> None:
        module = unwrapped(wrapper, self.world)
        if any(module is known for _, known in self.modules):
            return
        refuse_sharded(module)
        prefix = f"module{len(self.modules)}." if self.modules else ""
        shards = sharded.modules_in(module)
        if shards:
            sharded.refuse_unprovable(prefix, wrapper, module, self.world)
        for name, tensor in [*_named_parameters(module, shards), *((name, each) for name, each, _ in _buffers(module))]:
            refuse_unprotectable(prefix + name, tensor, self.world)
        self.modules.append((prefix, module))
        self.sharded += shards
        self.wrappers.append(wrapper)
        self.parts.append(modes_part(prefix + "modes", wrapper))
        self.attributes.append(ModuleAttributes(module))
        self.parts.append(self.attributes[-1].part(prefix + "attributes"))
        if shards:
            self.parts.append(_switches_part(prefix + "switches", shards))
        self.late_buffers.append(LateBuffers(module))
        self.parts.append(self.late_buffers[-1].part(prefix + "late_buffers"))
        extra = extra_state.part_of(prefix + "extra_state", prefix, module)
        self.parts += [extra] if extra is not None else []

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
        number = len(self.optimizers) - 1
        self.parts.append(volatile_state.optimizer_part(
            f"optimizer{number}", optimizer, lambda parameter, key: self._declared[number, id(parameter), key].tensor))

    def place_in(self, loader: Any) -> loaders.Place:
        """The one place that the job has in this loader, or in each of several; from here on it is protected. Fails:
        Refused."""
        if isinstance(loader, (tuple, list)) and loader:
            return loaders.JointPlace([self.place_in(each) for each in loader])
        for known in self.places:
            if known.loader is loader:
                return known
        place = loaders.place_in(loader)
        self.places.append(place)
        if isinstance(getattr(loader, "batch_sampler", None), ElasticSampler):
            self._add_stateful(loader.batch_sampler)
        self.parts.append(place.part(f"loader{len(self.places)}"))
        volatile_state.refuse_unkept(self.parts[-1])
        return place

    def _add_stateful(self, thing: Any) -> None:
        """Schedulers, scalers, samplers, generators, and whatever has state_dict() and load_state_dict()."""
        import torch
        kind = type(thing).__name__
        if isinstance(thing, torch.Tensor):
            raise Refused("a tensor by itself has no name: use job.protect(state={\"name\": tensor})")
        if isinstance(thing, torch.utils.data.Sampler) and not hasattr(thing, "state_dict"):
            raise Refused(f"a {kind} has no position by itself: protect its DataLoader, and take the batches from "
                          f"job.batches(loader) or job.loop(loader)")
        if type(thing).__module__.startswith("torch.distributed.pipelining"):
            raise Refused(f"a pipeline ({kind}) can't be protected yet: use DDP, with ZeroRedundancyOptimizer or "
                          f"without")
        self.stateful.append(thing)
        if isinstance(thing, ElasticSampler):
            if any(thing is known for known in self.samplers):
                return
            self.samplers.append(thing)
        if isinstance(thing, torch.amp.GradScaler):
            self.scalers.append(thing)
            self.parts.append(_scaler_part(f"{kind}{len(self.parts)}", thing))
        else:
            part = volatile_state.object_part(f"{kind}{len(self.parts)}", thing)
            if _gives_a_ranks_samples(thing):
                part = volatile_state.bound_part(part, f"the {kind} has a place that is one rank's")
            self.parts.append(part)

    # What it comes to.

    def samples(self) -> int:
        """Global samples consumed so far, for status."""
        return (sum(sampler.position for sampler in self.samplers)
                + self.world * sum(place.samples() for place in self.places))

    def parameters(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Each once, also where it is tied; those that only an optimizer knows get a name by their place in it."""
        seen: set[int] = set()
        for prefix, module in self.modules:
            for name, parameter in _named_parameters(module, self.sharded):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield prefix + name, parameter
        for number, optimizer in enumerate(self.optimizers):
            for place, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield f"optimizer{number}.parameter{place}", parameter

    def reshard(self) -> None:
        """Between steps: modules have their shards as parameters, and gather them anew from what is restored."""
        sharded.reshard(self.sharded)

    def drop_gradients(self) -> None:
        """And whatever else a step has left that was cut short."""
        sharded.reset(self.sharded)
        for _, parameter in self.parameters():
            parameter.grad = None
        self.gradients.forget()
        for scaler in self.scalers:  # where a step was left between unscale_ and update; one that is off has none
            getattr(scaler, "_per_optimizer_states", {}).clear()

    def gradient_order(self) -> list[str]:
        """Of the parameters in DDP's buckets. DDP lays them anew after the first backward that exchanges gradients, in
        the order in which rank 0 came to them; its own log of that lags by steps."""
        names = {id(parameter): name for name, parameter in self.parameters()}
        found = []
        for module in self.ddp_modules():
            for number, bucket in enumerate(reducers.buckets(module)):
                found.append(f"bucket {number}")
                found += [names.get(id(parameter), "another") for parameter in bucket]
        return found

    def refuse_hooks(self) -> None:
        """What a communication hook keeps between steps (PowerSGD its errors) isn't captured. Fails: Refused."""
        import torch.distributed as dist
        for module in self.ddp_modules():
            for hook, state in module._comm_hooks:
                if state is not None and not isinstance(state, dist.ProcessGroup):
                    raise Refused(f"DDP's communication hook {getattr(hook, '__name__', hook)} has a state "
                                  f"({type(state).__name__}) that lives from step to step, and pawl does not capture "
                                  f"it: after a loss training would go on differently. Use a hook without one "
                                  f"(fp16_compress_hook, bf16_compress_hook), or none")

    def _refuse_lone_schedulers(self) -> None:
        """An optimizer's learning rates follow a scheduler that isn't protected: who takes a dead rank's place would
        begin the schedule anew. Found among all that live; where some of these are hidden (gc.freeze()), by
        torch's mark on the optimizer's step, which is there for all kinds but ReduceLROnPlateau, and also for those
        that are gone."""
        known = list(self._schedulers())
        scheduled = {id(each.optimizer) for each in known}
        lone_ones = _lone_schedulers(self.optimizers, known)
        for optimizer in self.optimizers:
            lone = lone_ones.get(id(optimizer))
            marked = (gc.get_freeze_count() > 0 and getattr(optimizer.step, "_wrapped_by_lr_sched", False) and
                      id(optimizer) not in scheduled)
            if lone is not None or marked:
                raise Refused(f"{_article(lone or 'scheduler')} sets the learning rates of {type(optimizer).__name__}, "
                              f"and it isn't protected: after a loss one rank would begin the schedule anew. Call "
                              f"job.protect(..., scheduler)"
                              + (" with each scheduler that the optimizer has" if scheduled else "") +
                              ", or `del` one that is not used any more")

    def follows_metrics(self) -> bool:
        """Whether a scheduler sets rates by what the script tells it, which may be each rank's own."""
        from torch.optim.lr_scheduler import ReduceLROnPlateau
        return any(isinstance(each, ReduceLROnPlateau) for each in self._schedulers())

    def _schedulers(self) -> Iterator[Any]:
        """Those that are protected, also inside of other things."""
        from torch.optim.lr_scheduler import LRScheduler
        left, seen = [(0, each) for each in (*self.stateful, *self.ordinary)], set()
        while left:
            depth, thing = left.pop()
            if id(thing) in seen or depth > INSIDE_MAX:
                continue
            seen.add(id(thing))
            inside: Iterable[Any] = ()
            if isinstance(thing, LRScheduler):
                yield thing
                inside = vars(thing).values()  # such as those of a SequentialLR
            elif isinstance(thing, (list, tuple, dict)):
                inside = thing.values() if isinstance(thing, dict) else thing
            elif hasattr(thing, "__dict__") and not _is_tensor(thing) and not hasattr(thing, "param_groups"):
                inside = vars(thing).values()
            left += [(depth + 1, each) for each in itertools.islice(inside, ELEMENTS_MAX)]

    def ddp_modules(self) -> list[Any]:
        """All that are in what was handed over, or around it."""
        own = {id(parameter) for _, parameter in self.parameters()}
        return [each for each in made_ddp.made() if any(id(parameter) in own for parameter in each.parameters())]

    # Gradients that one block leaves to the next.

    def carried_gradient(self, step: int = 0) -> Left | None:
        """The first gradient that the block of `step` has left, and to which the next block adds, or may."""
        found = self.gradients.first(self._trained_names or self._trained(), step)
        kept = sharded.kept_gradient(self.sharded)  # that the next exchange adds to, whatever the optimizer does
        return found if kept is None else Left(kept, None, stepped=False, step=step, carries=True)

    def gradients_part(self) -> volatile_state.Part:
        """Which parameters have a gradient, and where it lies. Its values don't count any more when a window opens, but
        an optimizer passes by a parameter that has none, and not by one whose gradient is zero."""
        def save() -> dict[str, Any]:
            there = [(place, each, each.grad) for place, (_, each) in enumerate(self._trained_names)
                     if each.grad is not None]
            placed = {place: sharded.placements_of(gradient, parameter) for place, parameter, gradient in there}
            return {"there": "".join("01"[each.grad is not None] for _, each in self._trained_names),
                    "placed": {str(place): words for place, words in placed.items() if words is not None}}

        def load(saved: dict[str, Any]) -> None:
            for place, ((_, parameter), there) in enumerate(zip(self._trained_names, saved["there"], strict=False)):
                words = saved["placed"].get(str(place))
                parameter.grad = sharded.zero_gradient(parameter, words) if there == "1" else None
        return volatile_state.Part("gradients", save, load)

    def _trained(self) -> list[tuple[str, torch.Tensor]]:
        """What protected optimizers have."""
        names = {id(parameter): name for name, parameter in self.parameters()}
        return [(names[id(p)], p) for optimizer in self.optimizers for group in optimizer.param_groups
                for p in group["params"]]

    def bind_variables(self, frame: FrameType | None) -> None:
        """The loop in this frame is about to begin."""
        if frame is not None:
            self.variables = frozenset(name for part in self.parts for name in part.bind(frame))

    def state_tensors(self) -> list[torch.Tensor]:
        """All that a restore puts back."""
        tensors = [tensor for part in self.parts for tensor in part.tensors()]
        buffers = [buffer for _, module in self.modules for buffer in module.buffers()]
        return tensors + buffers + [sharded.memory_of(tensor) for _, tensor in self.stable()]

    def refuse_unready(self, again: bool = False) -> None:
        """Before the first step: something is protected, with its optimizers. Fails: Refused.

        A parameter that is trained by nobody that pawl knows would be restored without its
        optimizer. A module of its own, such as an average of the weights, may have such; gradients give it away.
        `again`: in a seat whose first process has passed this. Then nothing is looked for among all that lives in the
        process: that takes tenths of a second, and the others wait."""
        from torch.optim.swa_utils import AveragedModel
        if not self.modules and not self.optimizers:
            raise Refused("nothing is protected: call job.protect(model, optimizer, ...) before job.steps()")
        self.refuse_hooks()
        self._refuse_sharded_since()
        sharded.refuse_parts_of_ranks(self.parameters(), self.world)
        if not again:
            sharded.refuse_outside(self.parameters(), self.sharded)
            cut_modules.refuse_unprotected([*self.state_tensors(), *(each for _, each in self.parameters())],
                                           sharded.gathered(self.sharded))
            self._refuse_lone_schedulers()
        trained = {id(parameter) for _, parameter in self._trained()}
        for (prefix, module), wrapper in zip(self.modules, self.wrappers, strict=True):
            loose = [(prefix + name, each) for name, each in _named_parameters(module, self.sharded)
                     if each.requires_grad and id(each) not in trained]
            if not loose:
                continue
            shards = [] if isinstance(module, AveragedModel) else sharded.modules_in(module)
            if (not self.optimizers or wrapper is not module or shards or
                    any(id(each) in trained for each in module.parameters())):
                late = "; an optimizer that was made before fully_shard() has the parameters as they were then"
                raise Refused(no_optimizer(loose[0][0], len(loose) - 1) + (late if shards else ""))
            for name, parameter in loose:
                parameter.register_post_accumulate_grad_hook(functools.partial(self._see_trained, name))

    def _refuse_sharded_since(self) -> None:
        """Modules that were sharded after they were protected have other parameters now; and what can't be mixed with
        FSDP2 may have come since."""
        for (prefix, module), wrapper in zip(self.modules, self.wrappers, strict=True):
            late = next((each for each in sharded.modules_in(module) if not any(each is one for one in self.sharded)),
                        None)
            if late is not None:
                raise Refused(f"fully_shard() was called on a {type(late).__name__} of {prefix or 'the model'} after "
                              f"job.protect(), which knows its parameters as they were before: first fully_shard(), "
                              f"then the optimizer, then job.protect()")
            if sharded.modules_in(module):
                sharded.refuse_unprovable(prefix, wrapper, module, self.world)

    def _see_trained(self, name: str, _parameter: Any) -> None:
        self.trained_without = self.trained_without or name

    def held(self) -> list[Held]:
        """Every tensor, as it is now. Fails: Refused, naming the first that can't be protected."""
        self._refuse_sharded_since()
        found = [Held(name, "weight", parameter, _placement_of(parameter), Lifetime.STABLE)
                 for name, parameter in self.parameters()]
        found += self.buffers()
        for number, optimizer in enumerate(self.optimizers):
            found += self._held_by(number, optimizer)
        for held in found:
            name = f"{held.name} ({held.role})"
            if held.parameter is not None and sharded.is_dtensor(held.parameter):
                sharded.refuse_state(name, held.parameter, held.tensor)
            refuse_unprotectable(name, held.tensor, self.world)
            held.region = sharded.region_of(name, held.tensor)
            held.axes = held.region.axes if held.region is not None else None
            held.address = held.memory.data_ptr()
        self._mark_equal(found)
        self._mark_replicas(found)
        return found

    def _mark_equal(self, found: list[Held]) -> None:
        """Parameters whose gradients DDP averages over all ranks, and what an optimizer keeps of them there. Not what
        is cut (ZeRO, FSDP), nor under a communication hook, which may let ranks drift apart and bring them together
        later. Being marked proves nothing: whoever reads it from another rank compares sums."""
        kept = {id(parameter) for module in self.ddp_modules()
                if module.process_group.size() == self.world and not module._comm_hooks
                for parameter in made_ddp.numbered(module)}
        for held in found:
            owner = held.tensor if held.optimizer is None else held.parameter
            if (held.placement == Placement.REPLICATE and held.lifetime == Lifetime.STABLE and held.region is None
                    and id(owner) in kept):
                held.equal_axes = 1

    def _mark_replicas(self, found: list[Held]) -> None:
        """HSDP's shards, and what an optimizer keeps of them: alike on the ranks that have the same shard."""
        if not sharded.has_replicas(self.sharded):
            return
        for held in found:
            owner = held.tensor if held.optimizer is None else held.parameter
            if held.lifetime != Lifetime.STABLE or not sharded.is_dtensor(owner):
                continue
            # A number that all ranks have alike goes with its shard: so they are one run of bytes.
            if held.region is not None or held.placement == Placement.REPLICATE:
                held.axes = sharded.axes_of(owner)
                held.equal_axes = sharded.replica_axis(held.tensor if held.region is not None else owner)

    def declared(self, held: list[Held]) -> None:
        """These are in the layout: a restored state is put back with them."""
        self._trained_names = self._trained()
        numbers = {id(optimizer): number for number, optimizer in enumerate(self.optimizers)}
        self._declared = {(numbers[id(each.optimizer)], id(each.parameter), each.key): each for each in held
                          if each.optimizer is not None}
        for each in self.late_buffers:
            each.declared(held)

    def buffers(self) -> list[Held]:
        """Each once."""
        found: dict[int, Held] = {}
        for prefix, module in self.modules:
            for name, buffer, role in _buffers(module):
                found.setdefault(id(buffer), Held(prefix + name, role, buffer, Placement.UNIQUE, Lifetime.VOLATILE))
        return list(found.values())

    def _held_by(self, number: int, optimizer: torch.optim.Optimizer) -> list[Held]:
        import torch
        found = []
        for name, role, parameter, key, value in self.state_of(number):
            if isinstance(value, torch.Tensor):
                placement = Placement.UNIQUE if is_zero(optimizer) else _placement_of(value)
                found.append(Held(name, role, value, placement, Lifetime.STABLE, optimizer, parameter, key))
            elif isinstance(value, (list, tuple)) and any(isinstance(each, torch.Tensor) for each in value):
                kind = type(volatile_state.inner_optimizer(optimizer)).__name__
                raise Refused(f"{name} ({role}): {kind} keeps a list of tensors, which can't be protected yet: use an "
                              f"optimizer whose state is tensors")
        return found

    def state_of(self, number: int) -> Iterator[tuple[str, str, torch.Tensor, Any, Any]]:
        """Of an optimizer, each with its parameter and its key there: name, role, parameter, key, value. Where it has
        no state yet, zeros for what it will make."""
        names = {id(parameter): name for name, parameter in self.parameters()}
        inner = volatile_state.inner_optimizer(self.optimizers[number])
        places = [(group, place, p) for group in inner.param_groups for place, p in enumerate(group["params"])]
        earlier = {id(p) for other in self.optimizers[:number] for group in other.param_groups for p in group["params"]}
        for group, place, parameter in places:
            name = names[id(parameter)]
            values = inner.state.get(parameter, {})
            if not any(_is_tensor(value) for value in values.values()):
                values = {**self._not_yet_there(name, inner, group, place, parameter), **values}
            for key, value in values.items():
                yield name, f"{key}.{number}" if id(parameter) in earlier else str(key), parameter, key, value

    def _not_yet_there(self, name: str, inner: Any, group: dict[str, Any], place: int,
                       parameter: torch.Tensor) -> dict[Any, Any]:
        """Zeros that keep the places of the state that the optimizer will make for this parameter."""
        import torch

        from pawl.torch.optimizer_state import state_after_a_step
        key = id(inner), id(parameter)
        if key not in self._unborn:
            try:
                made = state_after_a_step(inner, group, place, parameter)
            except Refused as refused:
                raise Refused(f"{name} has no optimizer state after {STEPS_BEFORE_SEAL} steps, and what it will be "
                              f"can't be found out: {refused}") from None
            self._unborn[key] = {each: torch.zeros_like(value) if _is_tensor(value) else type(value)()
                                 for each, value in made.items()
                                 if _is_tensor(value) or type(value) in (bool, int, float)}
        return self._unborn[key]

    # The optimizers' steps.

    def owns(self, optimizer: torch.optim.Optimizer) -> bool:
        """Protected, or inside of a protected one."""
        return any(optimizer is known or optimizer is volatile_state.inner_optimizer(known)
                   for known in self.optimizers)

    def first_shared(self, optimizer: torch.optim.Optimizer) -> str | None:
        """The first protected parameter that this optimizer would change."""
        theirs = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return next((name for name, parameter in self.parameters() if id(parameter) in theirs), None)

    def stable(self) -> list[tuple[str, torch.Tensor]]:
        """Weights and optimizer state that is there and counts its writes, for who watches them before the layout is
        sealed."""
        found = [(name, each) for name, each in self.parameters()]
        for optimizer in self.optimizers:
            inner = volatile_state.inner_optimizer(optimizer)
            found += [("optimizer state", value) for state in inner.state.values() for value in state.values()
                      if _is_tensor(value)]
        return [(name, tensor) for name, tensor in found if counts_writes(tensor)]


class OptimizerWatch:
    """Sees every optimizer's step in the process: before a protected one begins, `before_update` is called.

    An optimizer that isn't protected and would change protected parameters is refused. A protected scaler's step counts
    as one of its optimizer's, also where it skips it.
    """

    _living: list[OptimizerWatch] = []

    def __init__(self, protected: Protected, before_update: Callable[[], None]) -> None:
        self._protected, self._before_update = protected, before_update
        self._known: dict[int, Any] = {}  # optimizers that are protected
        self._thread = threading.get_ident()
        self._register()
        _see_scaler_steps()
        OptimizerWatch._living.append(self)

    def _register(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
        self._is_untraced = compiling.is_loaded()
        self._on_begin, self._on_end = compiling.untraced(self._before), compiling.untraced(self._after)
        self._handles = [register_optimizer_step_pre_hook(self._on_begin),
                         register_optimizer_step_post_hook(self._on_end)]

    def see_compiler(self) -> None:
        """A compiled step of an optimizer must call the hooks, not contain them. Cheap."""
        if not self._is_untraced and compiling.is_loaded():
            for handle in self._handles:
                handle.remove()
            self._register()

    def close(self) -> None:
        if self in OptimizerWatch._living:
            OptimizerWatch._living.remove(self)
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before(self, optimizer: Any, arguments: Any, keywords: Any) -> None:
        if self._is_protected(optimizer):
            # backward() of what lies on a GPU has a thread of its own
            if threading.get_ident() != self._thread and devices.of_job().type == "cuda":
                raise Refused(f"{type(optimizer).__name__} steps in another thread than the training's, as in a hook "
                              f"that backward() calls, and there no window can be closed: step it after backward()")
            self._before_update()
            computes = any(map(callable, (*arguments, *keywords.values())))
            return self._protected.gradients.about_to_step(optimizer, computes)
        name = self._protected.first_shared(optimizer)
        if name is not None:
            raise Refused(f"{type(optimizer).__name__} changes {name}, which is protected, but the optimizer isn't: "
                          f"pass it to job.protect() too")
        return None

    def _after(self, optimizer: Any, _arguments: Any, _keywords: Any) -> None:
        if self._is_protected(optimizer):
            self._protected.gradients.used(optimizer)

    def _is_protected(self, optimizer: Any) -> bool:
        """A script may have an optimizer for each of many parameters."""
        if self._known.get(id(optimizer)) is optimizer:
            return True
        if not self._protected.owns(optimizer):
            return False
        self._known[id(optimizer)] = optimizer
        return True

    def before_scaler(self, scaler: Any, optimizer: Any) -> None:
        if any(scaler is known for known in self._protected.scalers):
            self._on_begin(optimizer, (), {})

    def after_scaler(self, scaler: Any, optimizer: Any) -> None:
        if any(scaler is known for known in self._protected.scalers):
            self._on_end(optimizer, (), {})


@functools.cache
def _see_scaler_steps() -> None:
    """A scaler that skips its optimizer's step calls no hook. Once in a process."""
    import torch
    original = torch.amp.GradScaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *arguments: Any, **keywords: Any) -> Any:
        for watch in list(OptimizerWatch._living):
            watch.before_scaler(self, optimizer)
        answer = original(self, optimizer, *arguments, **keywords)
        for watch in list(OptimizerWatch._living):
            watch.after_scaler(self, optimizer)
        return answer

    torch.amp.GradScaler.step = step


def counts_writes(tensor: torch.Tensor) -> bool:
    """Tensors that were made in inference mode don't."""
    return not tensor.is_inference()


class Unchanged:
    """Whether the model is still the one that was declared: the same tensors in the same places under the same names.

    Optimizer state and buffers may be replaced by tensors of the same shape; `moved()` gives those. Buffers of another
    shape are late_buffers.py's. Cheap: no walk over the module tree, one comparison for each tensor.
    """

    def __init__(self, protected: Protected, held: list[Held]) -> None:
        self._fixed = [(each, tuple(each.tensor.shape)) for each in held if each.role == "weight"]
        self._state = [(optimizer, [each for each in held if each.optimizer is optimizer])
                       for optimizer in protected.optimizers]
        self._known = {(id(each.optimizer), id(each.parameter), each.key) for each in held
                       if each.optimizer is not None}
        self._counts: dict[tuple[int, int], int] = {}  # entries of a parameter's state, when it was last looked at
        self._parameters = [(optimizer, _named(protected, optimizer)) for optimizer in protected.optimizers]
        self._buffers = _buffer_places(protected, held)
        self._tables = [(table, dict(table), f"{prefix}{path}") for prefix, module in protected.modules
                        for path, each in module.named_modules() for table in (each._parameters, each._modules)
                        if isinstance(table, dict)]  # of a module of torch.jit's nothing can be replaced so
        self._groups = [(optimizer, [[*map(id, group["params"])] for group in optimizer.param_groups])
                        for optimizer in protected.optimizers]

    def first_change(self) -> str | None:
        """What has become of the first thing that isn't as it was."""
        for table, before, path in self._tables:
            if len(table) != len(before) or any(table.get(key) is not value for key, value in before.items()):
                changed = [key for key in {**before, **table} if table.get(key) is not before.get(key)]
                return f"{path}.{changed[0]}".lstrip(".") + " was added, removed or replaced"
        for held, shape in self._fixed:
            if _is_seen_otherwise(held.tensor):
                return f"{held.name}: {_SEEN_OTHERWISE}"
            if held.memory.data_ptr() != held.address or tuple(held.tensor.shape) != shape:
                return f"{held.name}: its memory was replaced (shape {list(shape)} then, {list(held.tensor.shape)} now)"
        for optimizer, parameters in self._parameters:
            now = volatile_state.inner_optimizer(optimizer).state
            for name, parameter in parameters:
                state, place = now.get(parameter, {}), (id(optimizer), id(parameter))
                if len(state) != self._counts.get(place, 0):
                    for key, value in state.items():
                        if _is_tensor(value) and (*place, key) not in self._known:
                            return (f"optimizer state of {name} appeared ({key}) that was not there when the layout "
                                    f"was made, after {STEPS_BEFORE_SEAL} steps")
                    self._counts[place] = len(state)
        for optimizer, groups in self._groups:
            if [[*map(id, group["params"])] for group in optimizer.param_groups] != groups:
                return f"{type(optimizer).__name__}: its parameter groups are others than before"
        return None

    def moved(self) -> list[Held]:
        """Replaceable tensors that lie elsewhere now, with their new address. Fails: Refused for another shape."""
        found = []
        for optimizer, states in self._state:
            now = volatile_state.inner_optimizer(optimizer).state
            for held in states:
                value = now.get(held.parameter, {}).get(held.key)
                if value is not None:  # else `held.tensor` keeps the place
                    found += _take_place(held, value)
        for held, table, key in self._buffers:
            if key not in table or not outgrew(held, table[key]):  # else it is kept as one that came late
                found += _take_place(held, table.get(key))
        return found


def _take_place(held: Held, value: Any) -> list[Held]:
    if value is held.tensor and held.memory.data_ptr() == held.address and not _is_seen_otherwise(value):
        return []
    _refuse_another_kind(held, value)
    held.tensor, held.address = value, sharded.memory_of(value).data_ptr()
    return [held]


def _refuse_another_kind(held: Held, value: Any) -> None:
    before = held.tensor
    if _is_seen_otherwise(value):
        raise Refused(f"{held.name} ({held.role}): {_SEEN_OTHERWISE}")
    same = getattr(value, "shape", None) == before.shape and value.dtype == before.dtype
    if same and value.device != before.device:
        raise Refused(f"{held.name} ({held.role}): it lay on {before.device} when it was protected, and lies on "
                      f"{value.device} now")
    if (not same or value.stride() != before.stride() or
            sharded.region_of(f"{held.name} ({held.role})", value) != held.region):
        if value is None:
            raise Refused(f"{held.name} ({held.role}): it was deleted after it was protected: give it its place again "
                          f"with register_buffer(), or set it to None instead")
        raise Refused(f"{held.name} ({held.role}): a tensor of another shape or type took its place after it was "
                      f"protected")


def _named(protected: Protected, optimizer: Any) -> list[tuple[str, torch.Tensor]]:
    names = {id(parameter): name for name, parameter in protected.parameters()}
    inner = volatile_state.inner_optimizer(optimizer)
    return [(names[id(p)], p) for group in inner.param_groups for p in group["params"]]


def _buffer_places(protected: Protected, held: list[Held]) -> list[tuple[Held, dict[str, Any], str]]:
    by_tensor = {id(each.tensor): each for each in held if each.is_buffer}
    return [(by_tensor[id(buffer)], module._buffers, key) for _, root in protected.modules for module in root.modules()
            for key, buffer in module._buffers.items() if buffer is not None and id(buffer) in by_tensor]


# What a tensor looks like in memory -------------------------------------------------------------------------------

def dtype_number(tensor: torch.Tensor) -> int | None:
    """pawl_dtype; None: there is none."""
    import torch
    known = (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int16, torch.int32,
             torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex32,
             torch.complex64, torch.complex128)
    return known.index(tensor.dtype) if tensor.dtype in known else None


_SEEN_OTHERWISE = ("its bytes are not its values: it is a lazy conjugate or negative of them (torch.conj(), .imag of "
                   "one); call resolve_conj() or resolve_neg() on it")


def _is_seen_otherwise(tensor: Any) -> bool:
    """Whether torch conjugates or negates the numbers in its memory each time it reads them."""
    return _is_tensor(tensor) and (tensor.is_conj() or tensor.is_neg())


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory."""
    import torch
    pairs = tensor.is_complex() and not tensor.is_conj() and tensor.layout == torch.strided
    return torch.view_as_real(tensor.detach()) if pairs else tensor


def memory_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """Its dims from the slowest to the fastest, as they lie in memory, empty where that is row-major; None: there are
    gaps."""
    if tensor.is_contiguous():
        return ()
    order = sorted(range(tensor.dim()), key=lambda dim: (-tensor.stride(dim), tensor.shape[dim] == 1, dim))
    return tuple(order) if tensor.detach().permute(order).is_contiguous() else None


def storage_order(tensor: torch.Tensor) -> torch.Tensor | None:
    """The same elements as a contiguous view, dims in the order in which they lie in memory; None: there are gaps."""
    order = memory_order(tensor)
    return None if order is None else tensor.detach().permute(order) if order else tensor.detach()


def refuse_unprotectable(name: str, tensor: torch.Tensor, world: int) -> None:
    """`world`: ranks of the job."""
    import torch
    if sharded.is_dtensor(tensor):
        sharded.refuse_mesh(name, tensor.device_mesh, world)
        tensor = sharded.memory_of(tensor)
    if sharded.is_other_kind(tensor):
        raise Refused(f"{name} is a {type(tensor).__name__}, a kind of tensor whose bytes pawl doesn't know: it can't "
                      f"be protected")
    refuse_device(name, tensor.device)
    if tensor.layout != torch.strided:
        raise Refused(f"{name} is stored as {tensor.layout}: only dense tensors can be protected")
    if _is_seen_otherwise(tensor):
        raise Refused(f"{name}: {_SEEN_OTHERWISE}")
    if dtype_number(tensor) is None:
        raise Refused(f"{name} is of {tensor.dtype}, which pawl doesn't know yet")
    if storage_order(tensor) is None:
        raise Refused(f"{name} has gaps or overlaps in memory (shape {list(tensor.shape)}, strides "
                      f"{list(tensor.stride())}): make it contiguous()")


def refuse_device(name: str, device: torch.device) -> None:
    """Fails: Refused, unless it is the host or the job's GPU."""
    own = devices.of_job()
    if device.type == "cpu" or device == own:
        return
    if device.type != "cuda":
        raise Refused(f"{name} lies on {device}: pawl captures from host memory and NVIDIA's GPUs: keep the model "
                      f"there, or start without pawl")
    if own.type != "cuda":
        raise Refused(f"{name} lies on {device}, and this job trains on CPUs: put the model on job.device. PAWL_GPU=1 "
                      f"trains on GPUs, where few faults were tried yet (docs/user/protect.md, On GPUs)")
    raise Refused(f"{name} lies on {device}, and this process's GPU is {own}: a process has all of its state on one "
                  f"GPU (job.device), so start one for each GPU")


# What is wrapped in what ------------------------------------------------------------------------------------------

def _gives_a_ranks_samples(thing: Any) -> bool:
    """A sampler or a loader that knows its own place."""
    if isinstance(thing, ElasticSampler):
        return False
    if callable(getattr(thing, "next_batch", None)) or callable(getattr(thing, "__next__", None)):
        return True
    return callable(getattr(thing, "__iter__", None)) and callable(getattr(thing, "state_dict", None))


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


def _named_parameters(module: torch.nn.Module, shards: list[Any]) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Shards, also where a step has gathered them."""
    from pawl.torch.module_names import own_name
    gathered = sharded.gathered(shards)
    for name, parameter in module.named_parameters():
        yield own_name(module, name), gathered.get(id(parameter), parameter)


def named_in(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a checkpoint has of it, each tensor under each of its names. Modules of FSDP2 have their shards."""
    from pawl.torch.module_names import module_prefixes
    for path, each in module_prefixes(module):
        kept = [(key, buffer) for key, buffer in each._buffers.items() if key not in each._non_persistent_buffers_set]
        for key, tensor in [*each._parameters.items(), *kept]:
            if tensor is not None:
                yield path + key, tensor


def _buffers(module: torch.nn.Module) -> list[tuple[str, torch.Tensor, str]]:
    """Each once, with its role. One of several names has that by which a checkpoint has it, if one does."""
    from pawl.torch.module_names import own_name
    found: dict[int, tuple[str, torch.Tensor, str]] = {}
    for path, each in module.named_modules():
        for key, buffer in each._buffers.items():
            if buffer is None:
                continue
            role = NONPERSISTENT_BUFFER if key in each._non_persistent_buffers_set else BUFFER
            if id(buffer) not in found or (found[id(buffer)][2], role) == (NONPERSISTENT_BUFFER, BUFFER):
                found[id(buffer)] = own_name(module, f"{path}.{key}" if path else key), buffer, role
    return list(found.values())


def _placement_of(tensor: torch.Tensor) -> Placement:
    return Placement.UNIQUE if sharded.is_dtensor(tensor) else Placement.REPLICATE


def refuse_sharded(module: torch.nn.Module) -> None:
    """FSDP1, whose flat parameters have places that pawl doesn't declare, and pipelines."""
    fsdp = sys.modules.get("torch.distributed.fsdp")
    first = getattr(fsdp, "FullyShardedDataParallel", None)
    for path, each in module.named_modules():
        if first is not None and isinstance(each, first):
            raise Refused(f"{path or type(module).__name__} is sharded by FSDP1 (FullyShardedDataParallel), which "
                          f"can't be protected: use FSDP2, torch.distributed.fsdp.fully_shard()")
        if type(each).__module__.startswith("torch.distributed.pipelining"):
            raise Refused(f"{path or type(module).__name__} is a pipeline stage, which can't be protected yet")


def _lone_schedulers(optimizers: list[Any], known: list[Any]) -> dict[int, str]:
    """The kind of a living scheduler that isn't one of these, by its optimizer."""
    from torch.optim.lr_scheduler import LRScheduler
    gc.collect()
    known_ids, wanted = {id(each) for each in known}, {id(each) for each in optimizers}
    living = [each for each in gc.get_objects() if issubclass(type(each), LRScheduler) and id(each) not in known_ids]
    return {id(vars(each)["optimizer"]): type(each).__name__ for each in living
            if id(vars(each).get("optimizer")) in wanted}


def _article(noun: str) -> str:
    return ("an " if noun[0] in "AEIOU" else "a ") + noun


def _is_tensor(value: Any) -> bool:
    import torch
    return isinstance(value, torch.Tensor)


def no_optimizer(name: str, others: int = 0) -> str:
    more = f", and {others} more" if others else ""
    return (f"{name} is trainable, but no protected optimizer has it{more}: pass its optimizer to job.protect() too, "
            f"or switch it off with requires_grad_(False)")


def modes(module: torch.nn.Module) -> list[bool]:
    """Training or evaluation, of each module inside."""
    return [each.training for each in module.modules()]


def put_modes_back(module: torch.nn.Module, training: list[bool]) -> None:
    for each, was in zip(module.modules(), training, strict=False):
        each.training = was


def modes_part(name: str, module: torch.nn.Module) -> volatile_state.Part:
    """train() and eval() of each module, and which parameters are frozen."""
    def save() -> dict[str, str]:
        return {"training": "".join("01"[each] for each in modes(module)),
                "requires_grad": "".join("01"[each.requires_grad] for each in module.parameters())}

    def load(saved: dict[str, str]) -> None:
        put_modes_back(module, [each == "1" for each in saved["training"]])
        for parameter, each in zip(module.parameters(), saved["requires_grad"], strict=False):
            if parameter.requires_grad != (each == "1"):
                parameter.requires_grad_(each == "1")
    return volatile_state.Part(name, save, load)


def _switches_part(name: str, shards: list[Any]) -> volatile_state.Part:
    """How FSDP2 exchanges gradients, and when it gathers: a step that was lost may have left it as no other rank has
    it."""
    sharded.switches(shards)  # remembers what the script may switch away before the first save
    return volatile_state.Part(name, lambda: sharded.switches(shards),
                               lambda saved: sharded.put_switches_back(shards, saved))


def _scaler_part(name: str, scaler: Any) -> volatile_state.Part:
    def load(saved: dict[str, Any]) -> None:
        if saved:  # a disabled one has no state
            scaler.load_state_dict(saved)
    return volatile_state.Part(name, scaler.state_dict, load)

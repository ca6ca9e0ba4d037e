"""What a rank of a DeepSpeed engine holds for its optimizer: which elements of which parameters lie where.

DeepSpeed's optimizers join parameters into flat tensors, cut these over the ranks, and give the inner optimizer a
rank's part instead of the parameters. All of its forms come to one here: a `Partition` is a tensor that the inner
optimizer updates, and its fragments say which elements of which parameters it holds.

    plain, fp16 and bf16 without ZeRO   a partition for each parameter, or (fused) one for each param group, whole
    ZeRO-1, ZeRO-2, BF16_Optimizer      one for each param group, cut over the ranks wherever it falls
    ZeRO-3                              one for each sub-group: of each of its parameters 1/ranks, padded at the end

What always holds: every offset is checked against DeepSpeed's own second record of it, where it has one; an engine
that pawl does not understand is an error. Only attributes are read: no communication, and DeepSpeed isn't imported.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
import torch.distributed as dist

from pawl.errors import Refused
from pawl.torch.boxes import Box, boxes_of_interval, whole

TRIED = "0.19.8"


@dataclass(frozen=True)
class Fragment:
    """Elements of one parameter, counted flat."""

    name: str
    shape: tuple[int, ...]  # of the whole parameter
    begin: int
    count: int
    offset: int  # where they lie in the partition

    def boxes_in(self, tensor: torch.Tensor) -> Iterator[tuple[Box, torch.Tensor]]:
        """The boxes that they are, each with its memory in a tensor that lies as the partition does."""
        if tuple(tensor.shape) == self.shape and self.count == prod(self.shape):
            yield whole(self.shape), tensor
            return
        for box, first in boxes_of_interval(self.shape, self.begin, self.begin + self.count):
            at = self.offset + first - self.begin
            yield box, tensor[at:at + box.count].view(box.size)


@dataclass(eq=False)
class Partition:
    """A tensor that the inner optimizer updates."""

    tensor: torch.Tensor
    group: int             # of the inner optimizer's param groups
    parameters: list[str]  # all that have a part in it on any rank: what it counts, it counts for them together
    fragments: list[Fragment] = field(default_factory=list)


@dataclass(eq=False)
class Partitions:
    """Those of an engine, in the order of its param groups."""

    optimizer: torch.optim.Optimizer  # the inner one, which has the state
    partitions: list[Partition]
    separate: bool                    # they are copies: the model has its weights elsewhere
    refresh: Callable[[], None]       # the model's weights become what the partitions hold. All ranks call it.

    def names_of_group(self, group: int) -> list[str]:
        return [name for each in self.partitions if each.group == group for name in each.parameters]


def check_engine(engine: Any) -> None:
    """Fails: Refused where the engine is of a kind whose state isn't understood, or is in the middle of a step."""
    for name in ("module", "optimizer", "global_steps", "global_samples", "micro_steps", "skipped_steps",
                 "zero_optimization_stage", "gradient_accumulation_steps", "lr_scheduler"):
        if not hasattr(engine, name):
            raise Refused(f"{type(engine).__name__} is not a DeepSpeed engine that pawl knows: it has no {name} (pawl "
                          f"was tried with DeepSpeed {TRIED}); pass what deepspeed.initialize() gave first")
    for kind, has in (
            ("pipeline parallelism", getattr(engine, "pipeline_parallelism", False)),
            ("experts of its own (MoE)", getattr(engine, "has_moe_layers", False)),
            ("tensor parallelism", getattr(engine, "mp_world_size", 1) > 1 or _asked(engine, "autotp_size", 1) > 1),
            ("DeepCompile", getattr(engine, "_deepcompile_active", False)),
            ("optimizer state on NVMe", _asked(engine, "zero_nvme_offload_optimizer", False)),
            ("random-LTD", _asked(engine, "random_ltd_enabled", False)),
            ("a curriculum's data sampler", _asked(engine, "curriculum_learning_enabled", False)
             and getattr(engine, "training_dataloader", None) is not None)):
        if has:
            raise Refused(f"an engine with {kind} can't be saved or loaded by pawl yet: use DeepSpeed's own "
                          f"save_checkpoint and load_checkpoint")
    pending = (engine.micro_steps % engine.gradient_accumulation_steps() if is_managed(engine)
               else getattr(engine, "_unmanaged_backward_count", 0))
    if pending:
        raise Refused(f"gradients of {pending} micro batches are accumulated for the next step, and gradients aren't "
                      f"saved or loaded: call this between steps")


def is_managed(engine: Any) -> bool:
    """Whether the engine counts micro batches itself, or the program says when a step is due."""
    return bool(_asked(engine, "managed_gradient_accumulation", True))


def _asked(engine: Any, name: str, otherwise: Any) -> Any:
    question = getattr(engine, name, None)
    return otherwise if question is None else question()


def partitions_of(engine: Any, name_of: Mapping[int, str]) -> Partitions | None:
    """`name_of`: a parameter's name by its id. None: the engine has no optimizer. Fails: Refused."""
    optimizer = engine.optimizer
    kind = type(optimizer).__name__
    if optimizer is None or kind == "DummyOptim":
        return None
    reader = _READERS.get(kind) if type(optimizer).__module__.startswith("deepspeed.runtime.") else (
        _plain if isinstance(optimizer, torch.optim.Optimizer) else None)
    if reader is None:
        raise Refused(f"{kind} of {type(optimizer).__module__}: pawl doesn't know how it keeps its state (it knows "
                      f"torch's optimizers and {', '.join(sorted(_READERS))})")
    try:
        _check_optimizer(optimizer)
        found = reader(optimizer, _Names(name_of))
    except AttributeError as error:
        raise Refused(f"{kind} isn't as pawl knows it from DeepSpeed {TRIED} ({error}): use DeepSpeed's own "
                      f"save_checkpoint and load_checkpoint") from error
    if any(group.get("use_muon") for group in found.optimizer.param_groups):
        raise Refused("Muon's state under DeepSpeed can't be saved or loaded by pawl yet")
    return found


def _check_optimizer(optimizer: Any) -> None:
    if getattr(optimizer, "offloaded_states", None):
        raise Refused("states of the engine are offloaded: call engine.reload_states() first")
    if getattr(optimizer, "zenflow", False):
        raise Refused("ZenFlow updates its state outside of the steps: that can't be saved or loaded by pawl yet")
    if getattr(optimizer, "swap_optimizer", False) or getattr(optimizer, "params_in_nvme_and_cpu", False):
        raise Refused("parameters or optimizer state on NVMe can't be saved or loaded by pawl yet")
    if getattr(optimizer, "backup_optimizer", None) is not None:
        raise Refused("an optimizer that is offloaded in part (offload_optimizer.ratio) keeps its state in two places: "
                      "that can't be saved or loaded by pawl yet")
    if getattr(optimizer, "torch_autocast_gradscaler", None) is not None:
        raise Refused("torch_autocast with float16 has a gradient scaler whose state pawl doesn't know")


class _Names:
    """Names of parameters, by the parameter."""

    def __init__(self, name_of: Mapping[int, str]) -> None:
        self._name_of = name_of

    def __call__(self, parameter: torch.Tensor) -> str:
        name = self._name_of.get(id(parameter))
        if name is None:
            raise Refused(f"the optimizer has a parameter of shape "
                          f"{list(getattr(parameter, 'ds_shape', parameter.shape))} that the engine's module lacks")
        return name


# Without ZeRO -----------------------------------------------------------------------------------------------------

def _plain(optimizer: torch.optim.Optimizer, name: _Names) -> Partitions:
    """The inner optimizer has the model's own parameters."""
    partitions = [_whole(parameter, parameter, group, name(parameter))
                  for group, each in enumerate(optimizer.param_groups) for parameter in each["params"]]
    return Partitions(optimizer, partitions, False, lambda: None)


def _whole(tensor: torch.Tensor, parameter: torch.Tensor, group: int, name: str) -> Partition:
    shape = tuple(parameter.shape)
    if tuple(tensor.shape) != shape:
        raise Refused(f"{name} has shape {list(shape)}, and what the optimizer has of it {list(tensor.shape)}")
    return Partition(tensor, group, [name], [Fragment(name, shape, 0, prod(shape), 0)])


def _unfused(optimizer: Any, name: _Names) -> Partitions:
    pairs = [(group, half, full) for group, (halves, fulls) in
             enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True))
             for half, full in zip(halves, fulls, strict=True)]

    def refresh() -> None:
        for _, half, full in pairs:
            half.data.copy_(full.data)

    return Partitions(optimizer.optimizer, [_whole(full, half, group, name(half)) for group, half, full in pairs],
                      True, refresh)


def _fused(optimizer: Any, name: _Names) -> Partitions:
    partitions = []
    for group, (halves, flat) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True)):
        partition = Partition(flat, group, [name(half) for half in halves])
        offset = 0
        for half in halves:
            partition.fragments.append(Fragment(name(half), tuple(half.shape), 0, half.numel(), offset))
            offset += half.numel()
        _check_end(partition, offset)
        partitions.append(partition)

    def refresh() -> None:
        for halves, partition in zip(optimizer.fp16_groups, partitions, strict=True):
            for half, fragment in zip(halves, partition.fragments, strict=True):
                full = partition.tensor.data[fragment.offset:fragment.offset + fragment.count]
                half.data.copy_(full.view(half.shape))

    return Partitions(optimizer.optimizer, partitions, True, refresh)


def _check_end(partition: Partition, end: int) -> None:
    if end != partition.tensor.numel():
        raise Refused(f"param group {partition.group}: its parameters' parts come to {end} elements, and the flat "
                      f"tensor has {partition.tensor.numel()}: pawl stops rather than guess")


# ZeRO-1, ZeRO-2 and BF16_Optimizer --------------------------------------------------------------------------------

def _zero_1_and_2(optimizer: Any, name: _Names) -> Partitions:
    padding = [sum(each) for each in getattr(optimizer, "round_robin_bit16_padding", [])]
    return _linked(optimizer, name, optimizer.bit16_groups, optimizer.single_partition_of_fp32_groups,
                   optimizer.bit16_groups_flat, padding)


def _bf16(optimizer: Any, name: _Names) -> Partitions:
    if not optimizer.using_real_optimizer:
        raise Refused("BF16_Optimizer without an optimizer has no state: use pawl.torch.save with the engine's module")
    return _linked(optimizer, name, optimizer.bf16_groups, optimizer.fp32_groups_flat_partition,
                   optimizer.bf16_groups_flat, [])


def _linked(optimizer: Any, name: _Names, groups: Any, flats: Any, wholes: Any, padding: list[int]) -> Partitions:
    """Parameters are views of their group's flat tensor, one in `wholes`, so their memory says where they lie in it;
    `padding`: what there is between them. This rank's partition, one in `flats`, has the elements of its part."""
    partitions = []
    for group, (parameters, flat, whole_flat) in enumerate(zip(groups, flats, wholes, strict=True)):
        partition = Partition(flat, group, [name(parameter) for parameter in parameters])
        ranks = dist.get_world_size(optimizer.real_dp_process_group[group])
        alignment = optimizer.nccl_start_alignment_factor * ranks
        filled = sum(parameter.numel() for parameter in parameters) + (padding[group] if padding else 0)
        if whole_flat.numel() != -(-filled // alignment) * alignment or flat.numel() * ranks != whole_flat.numel():
            raise Refused(f"param group {group}: its parameters come to {filled} elements, and DeepSpeed's flat tensor "
                          f"of them to {whole_flat.numel()}: pawl stops rather than guess")
        begin = flat.numel() * dist.get_rank(optimizer.real_dp_process_group[group])
        for parameter in parameters:
            at = _place_in(name(parameter), parameter, whole_flat)
            first, last = max(at, begin), min(at + parameter.numel(), begin + flat.numel())
            fragment = Fragment(name(parameter), tuple(parameter.shape), first - at, max(0, last - first),
                                first - begin)
            if not getattr(optimizer, "round_robin_gradients", False):  # there DeepSpeed's links are of another order
                _check_link(fragment, parameter._hp_mapping, flat)
            if fragment.count:
                partition.fragments.append(fragment)
        partitions.append(partition)

    def refresh() -> None:
        optimizer.update_lp_params()
        optimizer._hp_optimizer_states_linked = False  # parameters are linked to state at the next need

    return Partitions(optimizer.optimizer, partitions, True, refresh)


def _place_in(name: str, parameter: torch.Tensor, flat: torch.Tensor) -> int:
    """The element of a flat tensor that a parameter, which is a view of it, begins with."""
    distance, size = parameter.data_ptr() - flat.data_ptr(), flat.element_size()
    if (parameter.dtype != flat.dtype or distance % size or distance < 0 or not parameter.is_contiguous()
            or distance // size + parameter.numel() > flat.numel()):
        raise Refused(f"{name} doesn't lie in DeepSpeed's flat tensor of its param group: was its memory replaced?")
    return distance // size


def _check_link(fragment: Fragment, link: Any, flat: torch.Tensor) -> None:
    """DeepSpeed's own record of the same."""
    if link is None:
        agreed = fragment.count == 0
    else:
        ours, theirs, linked = link.lp_fragment_address, link.hp_fragment_address, link.hp_fragment
        agreed = ((fragment.begin, fragment.count, fragment.offset) == (ours.start, theirs.numel, theirs.start)
                  and ours.numel == theirs.numel == linked.numel() and linked.dtype == flat.dtype
                  and linked.data_ptr() == flat.data_ptr() + theirs.start * flat.element_size())
    if not agreed:
        raise Refused(f"{fragment.name}: DeepSpeed's records of which part of it lies in this rank's partition don't "
                      f"agree: pawl stops rather than guess")


# ZeRO-3 -----------------------------------------------------------------------------------------------------------

def is_sharded(parameter: Any) -> bool:
    """Whether ZeRO-3 has cut it."""
    return hasattr(parameter, "ds_id")


def shard_of(optimizer: Any, name: str, parameter: Any, offset: int = 0) -> Fragment:
    """What this rank holds of a parameter of ZeRO-3; `ds_tensor` has that, and padding behind it."""
    shard, ranks = parameter.ds_tensor, optimizer._get_param_partition_world_size(parameter)
    size = -(-parameter.ds_numel // ranks)
    if shard is None or shard.dim() != 1 or shard.numel() != size or parameter.partition_numel() != size:
        raise Refused(f"{name}: 1/{ranks} of its {parameter.ds_numel} elements should be here, and DeepSpeed has "
                      f"{'nothing' if shard is None else shard.numel()}: pawl stops rather than guess")
    if hasattr(shard, "ds_quant_scale"):
        raise Refused(f"{name} is quantized by ZeRO-3 (zero_quantized_nontrainable_weights): pawl doesn't know how")
    begin = min(parameter.ds_numel, size * optimizer._get_param_partition_rank(parameter))
    return Fragment(name, tuple(parameter.ds_shape), begin, min(size, parameter.ds_numel - begin), offset)


def _zero_3(optimizer: Any, name: _Names) -> Partitions:
    partitions = []
    for number, (parameters, flat) in enumerate(zip(optimizer.fp16_groups, optimizer.fp32_partitioned_groups_flat,
                                                    strict=True)):
        partition = Partition(flat, optimizer.sub_group_to_group_id[number], [name(each) for each in parameters])
        offset = 0
        for parameter in parameters:
            size = parameter.ds_tensor.numel()
            known = optimizer.grad_position[optimizer.get_param_id(parameter)]
            if tuple(known) != (number, offset, size):
                raise Refused(f"{name(parameter)}: DeepSpeed's records of where it lies in sub-group {number} don't "
                              f"agree: pawl stops rather than guess")
            partition.fragments.append(shard_of(optimizer, name(parameter), parameter, offset))
            offset += size
        _check_end(partition, offset)
        partitions.append(partition)

    def refresh() -> None:
        optimizer.checkpoint_event_prologue()  # what is gathered of the old weights is let go
        for number in range(len(partitions)):
            optimizer._reassign_or_swap_out_partitioned_parameters(number)
        for parameter in optimizer.module.parameters():  # within a node; DeepSpeed keeps those that aren't trained
            if getattr(parameter, "ds_secondary_tensor", None) is not None:
                parameter.ds_secondary_tensor = None
        optimizer.checkpoint_event_epilogue()  # what stays gathered is gathered again

    return Partitions(optimizer.optimizer, partitions, True, refresh)


_READERS: dict[str, Callable[[Any, _Names], Partitions]] = {
    "FP16_UnfusedOptimizer": _unfused, "FP16_Optimizer": _fused, "BF16_Optimizer": _bf16,
    "DeepSpeedZeroOptimizer": _zero_1_and_2, "DeepSpeedZeroOptimizer_Stage3": _zero_3,
}

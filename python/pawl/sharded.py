"""What FSDP2 (fully_shard) and tensor parallelism have made of a model: its shards, where each lies, and what a step
that was cut short leaves.

A DTensor is state by its local tensor, and by the box of it that this rank has. Between steps a module of FSDP2 has
shards as parameters, DTensors, which pawl knows; a step puts gathered ones in their place for a while, and gathers the
root's no more before the next backward, so that what is restored would not be seen. reshard() puts the shards back.
Tensor parallelism leaves nothing in modules. All that is private to torch about both is here, from torch 2.6 on. No
communication, but for what torch waits for in reset(). The training thread's.
"""
from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from pawl.errors import Refused

Axes = tuple[tuple[str, int], ...]  # of a mesh of all ranks: names and sizes


@dataclass(frozen=True)
class Region:
    """Which box of a tensor this rank holds, in elements, and the mesh of all ranks that the tensor's is cut from."""

    shape: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]
    axes: Axes


# Tensors ----------------------------------------------------------------------------------------------------------

def is_dtensor(tensor: Any) -> bool:
    return type(tensor).__name__ == "DTensor" and hasattr(tensor, "device_mesh")


def is_other_kind(tensor: Any) -> bool:
    """A subclass with ways of its own, whose elements may lie anywhere (quantized ones, for example)."""
    import torch
    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def memory_of(tensor: Any) -> Any:
    """What this rank holds: of a DTensor its local tensor, else the tensor itself."""
    return tensor._local_tensor if is_dtensor(tensor) else tensor


def writes_of(tensor: Any) -> tuple[int, int]:
    """Torch's counts of the writes in place: by whoever has the tensor, and by whoever has its local one."""
    return tensor._version, memory_of(tensor)._version


def region_of(name: str, tensor: Any) -> Region | None:
    """Of a DTensor. Fails: Refused, by name, where it can't be said for sure."""
    if not is_dtensor(tensor):
        return None
    from pawl.torch.placement import place
    placed = place(name, tensor)
    if placed is None:
        raise Refused(f"{name} lies on a mesh that this rank isn't in, so it can't be protected")
    shape, box, _ = placed
    return Region(shape, box.begin, box.size, axes_of(tensor))


def placements_of(gradient: Any, parameter: Any) -> list[str] | None:
    """As words, where a gradient lies otherwise than its parameter: as parts of a sum that is not made yet."""
    if not is_dtensor(gradient) or not is_dtensor(parameter) or gradient.placements == parameter.placements:
        return None
    return [_word_of(each) for each in gradient.placements]


def _word_of(placement: Any) -> str:
    kind = type(placement).__name__
    if kind not in ("Partial", "Shard", "Replicate"):
        raise Refused(f"a gradient is placed as {placement}, otherwise than its parameter: pawl can't bring that back")
    return {"Partial": "partial {0.reduce_op}", "Shard": "shard {0.dim}"}.get(kind, "replicate").format(placement)


def zero_gradient(parameter: Any, words: list[str] | None) -> Any:
    """Like the parameter, or placed as the words of placements_of() say."""
    import torch
    if words is None:
        return torch.zeros_like(parameter)
    from torch.distributed.tensor import Partial, Replicate, Shard, zeros
    kinds = {"partial": Partial, "shard": lambda axis: Shard(int(axis)), "replicate": Replicate}
    placements = [kinds[kind](*rest) for kind, *rest in (word.split() for word in words)]
    return zeros(parameter.shape, dtype=parameter.dtype, device_mesh=parameter.device_mesh, placements=placements)


def _root_of(mesh: Any) -> Any:
    """What this mesh is a part of, or itself."""
    if hasattr(mesh, "_get_root_mesh"):
        return mesh._get_root_mesh()
    return sys.modules["torch.distributed.device_mesh"]._mesh_resources.get_root_mesh(mesh)  # until torch 2.8


def axes_of(tensor: Any) -> Axes:
    """Of the mesh of all ranks that a DTensor's is cut from."""
    return _axes(_root_of(tensor.device_mesh))


def replica_axis(tensor: Any) -> int:
    """Of a DTensor under HSDP: the bit of the axis of axes_of() along which its replicas lie, 0 if it has none."""
    mesh = tensor.device_mesh
    if not tensor.placements[0].is_replicate():
        return 0
    names = [name for name, _ in axes_of(tensor)]
    name = _axes(mesh)[0][0]
    return 1 << names.index(name) if name in names else 0


def _axes(mesh: Any) -> Axes:
    names = mesh.mesh_dim_names or [f"axis{axis}" for axis in range(mesh.ndim)]
    return tuple((str(name), int(mesh.size(axis))) for axis, name in enumerate(names))


def forget_meshes() -> None:
    """What torch keeps of meshes by their sizes would lead the next ones of this process to groups that are gone. Of
    the calling thread."""
    dtensor = sys.modules.get("torch.distributed.tensor")
    if dtensor is None:
        return
    import torch
    redistribute = sys.modules.get("torch.distributed.tensor._redistribute")
    for kept in (dtensor.DTensor._op_dispatcher.sharding_propagator.propagate_op_sharding,
                 getattr(redistribute, "_gen_transform_infos", None)):
        for each in (kept, getattr(kept, "cache", None)):  # PyTorch 2.6 to 2.8 have theirs one level below
            clear = getattr(each, "cache_clear", None)
            if clear is not None:
                clear()
    planners = getattr(redistribute, "clear_redistribute_planner_cache", None)
    if planners is not None:
        planners()
    native = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if native is not None:
        native()
    known = getattr(sys.modules.get("torch.distributed.device_mesh"), "_mesh_resources", None)
    for name in ("root_to_flatten_mapping", "flatten_name_to_root_dims", "child_to_root_mapping"):  # until torch 2.8
        getattr(known, name, {}).clear()


# Modules ----------------------------------------------------------------------------------------------------------

def modules_in(module: Any) -> list[Any]:
    """Those that fully_shard() was called on, outer ones first."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    return [each for each in module.modules() if isinstance(each, kind)] if kind is not None else []


def living_modules() -> list[Any]:
    """Of the whole process."""
    gc.collect()
    from torch.nn import Module
    return [each for each in gc.get_objects() if issubclass(type(each), Module)]


def reshard(modules: list[Any]) -> None:
    for module in modules:
        module.reshard()


def reset(modules: list[Any]) -> None:
    """After a step that was lost, perhaps by an exception amid of it: nothing of it is left, gradients included."""
    for root in _roots(modules):
        _reset_root(root)
    for group in _groups(modules):
        group._partial_reduce_output = None
        for parameter in group.fsdp_params:
            parameter.unsharded_accumulated_grad = None
            if hasattr(parameter, "_unsharded_param"):
                parameter._unsharded_param.grad = None
    reshard(modules)


def has_replicas(modules: list[Any]) -> bool:
    """Whether all of them are HSDP's: the first dimension of their meshes is that of the replicas."""
    infos = [group.mesh_info for group in _groups(modules)]
    return bool(infos) and all(getattr(each, "replicate_mesh_dim", None) == 0 and
                               getattr(each, "shard_mesh_dim", None) is not None for each in infos)


def _roots(modules: list[Any]) -> list[Any]:
    """The states of the outermost modules, which the first step finds; those may be around the ones given here."""
    contexts = {id(context): context for context in (each._get_fsdp_state()._state_ctx for each in modules)}
    return [context.all_states[0] for context in contexts.values() if context.all_states]


def _reset_root(state: Any) -> None:
    if hasattr(state, "_reset_iter_state"):
        state._reset_iter_state()
        return
    import torch
    context, communication = state._state_ctx, state._comm_ctx  # before torch 2.13 nobody else does it
    idle = type(state._training_state).IDLE
    for each in context.all_states:
        each._modules_to_run_forward.clear()
        each._training_state = idle
        for group in _groups_of(each):
            work = getattr(group._all_gather_result, "all_gather_work", None)
            if isinstance(work, torch.distributed.Work):
                work.wait()
            group._all_gather_result = group._post_reduce_event = group._all_reduce_state = None
            group._reshard_after_forward_event = None
            group._post_forward_indices.clear()
            group._training_state = idle
    for name in ("all_gather_state", "reduce_scatter_state"):
        if hasattr(communication, name):
            setattr(communication, name, None)
    getattr(communication, "reduce_scatter_states", []).clear()
    communication.post_forward_order.clear()
    context.iter_forward_root, context.post_backward_final_callback_queued = None, False


# What a script may switch between two backward passes, for each group of parameters that is exchanged together.
_SWITCHES = ("reduce_grads", "all_reduce_grads", "reshard_after_backward", "gradient_divide_factor",
             "force_sum_reduction_for_comms", "reduce_scatter_unused_params", "unshard_in_backward")


# Of groups for which fully_shard() was given a number as reshard_after_forward: the mesh of so many ranks over which
# they are cut after a forward pass, which set_reshard_after_forward() can't bring back.
_smaller: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def _after_forward(group: Any) -> str:
    """What becomes of its parameters after a forward pass. Remembers a smaller mesh."""
    info = group.post_forward_mesh_info
    if info is None or info is group.mesh_info:
        return "gathered" if info is None else "sharded"
    _smaller[group] = info
    return "cut over fewer"


def _put_after_forward_back(state: Any, group: Any, saved: str) -> None:
    if saved == _after_forward(group):
        return
    # With its first forward pass a root decides to stay gathered, once in a process. If that is undone where the pass
    # had been, ranks that are new do it again, and the others do not.
    if saved == "sharded" and getattr(state, "_is_root", None) and getattr(state, "_auto_reshard_after_forward", False):
        return
    if saved == "cut over fewer" and group not in _smaller:
        raise Refused(f"{_name_of(group.fsdp_params[0])} was cut over fewer ranks after each forward pass "
                      f"(reshard_after_forward=N), and is not in this process: call fully_shard() with N on every rank")
    group.post_forward_mesh_info = {"gathered": None, "sharded": group.mesh_info,
                                    "cut over fewer": _smaller.get(group)}[saved]


def switches(modules: list[Any]) -> dict[str, Any]:
    """As set_requires_gradient_sync() and its like have set them, all of which each rank must have alike."""
    return {"groups": [[getattr(group, name, None) for name in _SWITCHES] for group in _groups(modules)],
            "auto": [getattr(module._get_fsdp_state(), "_auto_reshard_after_forward", None) for module in modules],
            "after_forward": [_after_forward(group) for group in _groups(modules)],
            "last_backward": [module._get_fsdp_state()._state_ctx.is_last_backward for module in modules]}


def put_switches_back(modules: list[Any], saved: dict[str, Any]) -> None:
    states = [module._get_fsdp_state() for module in modules]
    for state, value in zip(states, saved["auto"], strict=True):
        if hasattr(state, "_auto_reshard_after_forward"):
            state._auto_reshard_after_forward = value
    owners = [(state, group) for state in states for group in _groups_of(state)]
    for (state, group), values, after in zip(owners, saved["groups"], saved["after_forward"], strict=True):
        for name, value in zip(_SWITCHES, values, strict=True):
            if hasattr(group, name):
                setattr(group, name, value)
        _put_after_forward_back(state, group, after)
    for module, value in zip(modules, saved["last_backward"], strict=True):
        module._get_fsdp_state()._state_ctx.is_last_backward = value


def gathered(modules: list[Any]) -> dict[int, Any]:
    """The shard of each gathered parameter, by the latter's id."""
    found = {}
    for parameter in _parameters(modules):
        for name in ("_unsharded_param", "_sharded_post_forward_param"):
            if getattr(parameter, name, None) is not None:
                found[id(getattr(parameter, name))] = parameter.sharded_param
    return found


def parameters_of(modules: list[Any]) -> list[Any]:
    """All shards."""
    return [each.sharded_param for each in _parameters(modules)]


def kept_gradient(modules: list[Any]) -> str | None:
    """A parameter for which FSDP2 keeps a gradient that it has not exchanged yet (set_requires_gradient_sync(False), or
    set_requires_all_reduce(False)): the next exchange adds it, and no optimizer has seen it."""
    for group in _groups(modules):
        for parameter in group.fsdp_params:
            kept = (parameter.unsharded_accumulated_grad, group._partial_reduce_output,
                    getattr(getattr(parameter, "_unsharded_param", None), "grad", None))
            if any(each is not None for each in kept):
                return _name_of(parameter)
    return None


def _name_of(parameter: Any) -> str:
    return str(parameter._param_fqn or parameter._module_info.param_name)


def _groups_of(state: Any) -> list[Any]:
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # older torch has one at most
        groups = [state._fsdp_param_group]
    return [each for each in groups if each is not None]


def _groups(modules: list[Any]) -> Iterator[Any]:
    for module in modules:
        yield from _groups_of(module._get_fsdp_state())


def _parameters(modules: list[Any]) -> Iterator[Any]:
    for group in _groups(modules):
        yield from group.fsdp_params


# What can't be protected ------------------------------------------------------------------------------------------

def refuse_unprovable(prefix: str, wrapper: Any, module: Any, world: int) -> None:
    """Of a module with such in it, as it was handed over and unwrapped. Fails: Refused, by name."""
    shards = modules_in(module)
    _refuse_old_torch(shards)
    _refuse_mixtures(wrapper, module)
    for group in _groups(shards):
        _refuse_group(prefix, group, world)
    known = {id(each) for each in parameters_of(shards)} | gathered(shards).keys()
    for name, parameter in module.named_parameters():
        if id(parameter) not in known and not is_dtensor(parameter) and parameter.requires_grad:
            raise Refused(f"{prefix}{name} is trained, and FSDP2 has not sharded it, as it has others: each rank would "
                          f"train its own. Call fully_shard() on the whole model, too, after its parts, and don't "
                          f"ignore it")


def refuse_outside(parameters: Iterable[tuple[str, Any]], modules: list[Any]) -> None:
    """Each module of FSDP2 that has a protected parameter must be among those that pawl knows of, the `modules`: it may
    keep the parameter gathered, or a gradient that is not exchanged yet. Fails: Refused, by name."""
    kind = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if kind is None or not kind.__subclasses__():
        return
    names = {id(parameter): name for name, parameter in parameters}
    known = {id(each) for each in modules}
    for module in living_modules():
        if not isinstance(module, kind) or id(module) in known:
            continue
        for parameter in _parameters([module]):
            forms = (getattr(parameter, form, None)
                     for form in ("sharded_param", "_unsharded_param", "_sharded_post_forward_param"))
            name = next((names[id(each)] for each in forms if id(each) in names), None)
            if name is not None:
                raise Refused(f"{name} was sharded by fully_shard() on a {type(module).__name__} that is not "
                              f"protected, and only there it is known what is gathered and which gradients are not "
                              f"exchanged yet: "
                              f"give that module, or the outermost one around it, to job.protect()")


def _refuse_old_torch(shards: list[Any]) -> None:
    import torch
    on_host = any(group.mesh_info.mesh.device_type == "cpu" for group in _groups(shards))
    if on_host and not hasattr(torch.cpu.Stream, "record_event"):
        raise Refused(f"FSDP2 of PyTorch {torch.__version__} can't compute on CPUs: use PyTorch 2.7 or later, or a "
                      f"mesh of type cuda")


def _refuse_mixtures(wrapper: Any, module: Any) -> None:
    from torch.nn.parallel import DataParallel, DistributedDataParallel
    outside, inside = wrapper, list(module.named_modules())
    while outside is not module:
        if isinstance(outside, (DistributedDataParallel, DataParallel)):
            raise Refused(f"{type(outside).__name__} around modules of FSDP2 can't be protected: FSDP2 exchanges "
                          f"gradients itself; for replicas give fully_shard() a mesh of two dimensions (HSDP)")
        compiled = getattr(outside, "_orig_mod", None)
        outside = outside.module if compiled is None else compiled
    for path, each in inside:
        if isinstance(each, (DistributedDataParallel, DataParallel)):
            raise Refused(f"{path} is wrapped in {type(each).__name__} inside of a model of FSDP2, which can't be "
                          f"protected: use fully_shard() for all of it")


def _refuse_group(prefix: str, group: Any, world: int) -> None:
    about = prefix + (_name_of(group.fsdp_params[0]) if group.fsdp_params else "a module of FSDP2")
    info = group.mesh_info
    if not hasattr(info, "shard_mesh_size"):
        raise Refused(f"{about} lies whole on each rank, as replicate() has it, which can't be protected yet: use "
                      f"fully_shard(), or DDP")
    refuse_mesh(about, info.mesh, world)
    if getattr(group, "_all_reduce_hook", None) is not None:
        raise Refused(f"{about} has a hook by set_all_reduce_hook(), whose state pawl doesn't know: leave it out")
    for name in ("_all_gather_comm", "_reduce_scatter_comm"):
        own = getattr(group, name, None)
        if own is not None and not type(own).__module__.startswith("torch."):
            raise Refused(f"{about} is exchanged by {type(own).__name__}, whose state pawl doesn't know: leave out "
                          f"set_custom_all_gather() and set_custom_reduce_scatter()")


def refuse_mesh(name: str, mesh: Any, world: int) -> None:
    """That what `name` says lies on. Fails: Refused, unless it is cut from a mesh of all ranks."""
    root = _root_of(mesh)
    if root.mesh.flatten().tolist() != list(range(world)):
        raise Refused(f"{name} lies on a mesh of {root.size()} of {world} ranks, or in another order: pawl protects "
                      f"meshes over all ranks, in their order, as init_device_mesh() makes them, and parts of these")


def refuse_parts_of_ranks(parameters: Iterable[tuple[str, Any]], world: int) -> None:
    """Of all protected parameters. Some may lie on one axis of a mesh, as a norm does that tensor parallelism has left
    alone; if all do, nothing holds the other axes' ranks together. Fails: Refused, by name."""
    first = None
    for name, parameter in parameters:
        if is_dtensor(parameter):
            if parameter.device_mesh.size() == world:
                return
            first = first or (name, parameter.device_mesh)
    if first is not None:
        raise Refused(f"{first[0]} lies on a mesh of {first[1].size()} of {world} ranks, and no other parameter on all "
                      f"of them: pawl protects one training of all ranks")


def refuse_state(name: str, parameter: Any, value: Any) -> None:
    """Of a shard's optimizer state: it lies as the shard does, or is a number, which all ranks have alike."""
    if is_dtensor(value):
        if value.device_mesh != parameter.device_mesh:
            raise Refused(f"{name} lies on another mesh than its parameter: it can't be protected yet")
    elif value.dim() > 0:
        raise Refused(f"{name} is a plain tensor of {list(value.shape)}, while its parameter is a shard: pawl "
                      f"can't tell which part of it each rank has; use an optimizer whose state is like its parameters")

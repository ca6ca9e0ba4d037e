"""The managed groups: backend `pawl` of torch.distributed, whose group objects live through the death of a peer.

Groups for which a script names gloo or NCCL are managed ones, too. Each group forwards to an inner one (gloo; NCCL for
CUDA tensors where torch has it) that `open_generation` makes anew. After a failure the open generation *drains*:
nothing raises, works complete, collectives are local no-ops, outputs that are only received are zero; `failed()` says
why, until the next generation opens. Object collectives raise `GroupsFailed` instead, since there is no object that
they could hand out. In *loopback* no peer is needed: gathers give own copies, receives zeros, object collectives the
own objects.

A group is known by its ranks and its place among groups of equal ranks: all members make and destroy groups in the same
order, as torch demands anyway. All the work is done in C++ (python/c10d); this module needs torch only when called.
Threads: any, but open_generation, close_generation, set_loopback and use_library one at a time.
"""
from __future__ import annotations

import atexit
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pawl import _extension, cut_modules, devices, made_ddp
from pawl.errors import PawlError, Refused

if TYPE_CHECKING:
    from torch.distributed import Backend, Store

BACKEND = "pawl"
_BY_SCRIPTS = ("gloo", "nccl", "cpu:gloo,cuda:nccl")  # what scripts name as the default group's
_OBJECT_COLLECTIVES = ("all_gather_object", "gather_object", "broadcast_object_list", "scatter_object_list",
                       "send_object_list", "recv_object_list")


_groups_asked_for = 0
_quiet_depth = 0  # how many calls that spread a module's state are running, one inside of the other


def groups_asked_for() -> int:
    """How often new_group() was called, also for groups in which this rank is not."""
    return _groups_asked_for


class GroupsFailed(PawlError):
    """The groups of this generation can't be used: the text says what failed first."""


@functools.cache
def register() -> None:
    """Makes backend `pawl` known to torch, and object collectives of its groups safe. Idempotent."""
    import torch.distributed as dist

    keep_default_group()
    # gloo's mesh: each rank reads what all others have set, with one request (PyTorch 2.7 and later), not one a rank.
    os.environ.setdefault("GLOO_ENABLE_STORE_V2_API", "1")
    c10d = _extension.load()
    nccl = _make_nccl if _has_nccl() else None
    c10d.set_makers(_make_device, _make_gloo, nccl, devices.of_job().index or 0)
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"] if nccl else ["cpu"])
    for name in _OBJECT_COLLECTIVES:
        _guard(name)
    _replace("new_group", _managed_new_group)
    _replace("_sync_module_states", _quiet, "torch.distributed.utils")
    _replace("_verify_param_shape_across_processes", _compared, "torch.distributed.utils")
    if hasattr(dist.distributed_c10d, "_shutdown_backend"):
        _replace("_shutdown_backend", _managed_too)
    made_ddp.watch()
    _see_meshes()
    atexit.register(c10d.close_generation)


def _see_meshes() -> None:
    """Who cuts a module's parameters needs a mesh first; DTensors take long to load, so not before."""
    import torch.distributed.device_mesh as meshes

    original = meshes.DeviceMesh.__init__

    @functools.wraps(original)
    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        _quiet_distribution()
        original(self, *args, **kwargs)

    meshes.DeviceMesh.__init__ = make


@functools.cache
def _quiet_distribution() -> None:
    _replace("distribute_module", lambda original: cut_modules.watched_module(_quiet(original)),
             "torch.distributed.tensor._api")
    _replace("distribute_tensor", cut_modules.watched_tensor, "torch.distributed.tensor._api")


def _managed_too(original: Callable[[Any], None]) -> Callable[[Any], None]:
    """Torch 2.6 shuts down NCCL alone, and leaves another group to whoever still refers to it: a spare's next groups of
    these ranks would then not be known as the survivors' are."""
    import torch

    def shut_down(group: Any) -> None:
        original(group)
        backend = group._get_backend(torch.device("cpu"))
        if isinstance(backend, _extension.load().ManagedGroup):
            backend.shutdown()

    return shut_down


@functools.cache
def keep_default_group() -> None:
    """pawl.init() makes the default group: afterwards a script's own init_process_group() does nothing. Idempotent."""
    _replace("init_process_group", _made_once)


def _made_once(original: Callable[..., Any]) -> Callable[..., Any]:
    import torch.distributed as dist

    @functools.wraps(original)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        backend = kwargs.get("backend", args[0] if args else None)
        if dist.is_initialized() and (backend is None or str(backend).lower() in _BY_SCRIPTS):
            return None
        return original(*args, **kwargs)

    return init_process_group


def use_library(path: str | None, handle: int) -> None:
    """libpawl's file and the trainer's handle: progress inside waits, the event thread, the store. (None, 0) detaches;
    afterwards the handle may be freed."""
    _extension.load().use_library(path, handle)


def PawlStore(timeout: timedelta) -> Store:
    """A c10d store over libpawl, cancelled when the generation changes; in loopback one in this process's memory."""
    return _extension.load().PawlStore(timeout)


def set_loopback(loopback: bool) -> None:
    """In loopback each collective is a local no-op of the right shape. Ends the open generation."""
    _extension.load().set_loopback(loopback)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Loopback for a moment, where no generation is open."""
    set_loopback(True)
    try:
        yield
    finally:
        set_loopback(False)


def open_generation(generation: int, store: Store, address: str, timeout: timedelta) -> None:
    """Makes the inner groups of all living groups, and lets those made later have theirs; gloo binds to `address`.

    `store` is new for this generation, or at least its keys `generation/...` are. `GroupsFailed` where they are not all
    made within `timeout`, or a recovery began; the generation is then draining.
    """
    why = _extension.load().open_generation(generation, store, address, timeout)
    if why is not None:
        raise GroupsFailed(why)


def close_generation() -> None:
    """Drops the inner groups; those of a failed generation are cut off first. A draining one goes on draining."""
    _extension.load().close_generation()


def failed() -> str | None:
    """Why the current generation is draining; None while it is not."""
    return _extension.load().failed()


def lost() -> str:
    """Hosts to which a connection was gone when the current generation failed, with blanks between."""
    return _extension.load().lost()


def fail(why: str) -> None:
    """Lets the open generation drain: whoever waits in a collective here goes on within milliseconds, and whoever waits
    for us over a connection too; a peer that waits for somebody else is freed by its own pawld."""
    _extension.load().fail(why)


def wait_all() -> None:
    """Every Work issued so far has completed, also on the device, and its error, if any, is known to `failed()`."""
    _extension.load().wait_all()


def collective_phase(before: int, waiting: int) -> None:
    """libpawl's phases from now on: `before` once, right before the next collective; `waiting` from then on."""
    _extension.load().collective_phase(before, waiting)


# What collectives gave before the first step: see build_log.py and python/c10d/build_log.h.

def record_build() -> None:
    _extension.load().record_build()


def replay_build(fetch: Callable[[str], bytes | None]) -> None:
    """`fetch`: the log of a group (as "0-3/0": its ranks, and its place among groups of these); None: nobody has it."""
    _extension.load().replay_build(fetch)


def end_build() -> None:
    """What was recorded or fetched stays."""
    _extension.load().end_build()


def settle_build() -> None:
    """After a replay: fetches logs that nothing has waited for. Raises RuntimeError, where the script did something
    else than when the job began."""
    _extension.load().settle_build()


def build_log() -> dict[str, bytes]:
    """By group, of all groups whose log this process has."""
    return dict(_extension.load().build_log())


def own_in_build() -> list[str]:
    """Collectives that were recorded and gave each rank a result of its own."""
    return list(_extension.load().own_in_build())


def differing_in_build() -> list[tuple[str, int]]:
    """Collectives whose results are too big to be kept and came out differently when replayed, and where they lie."""
    return list(_extension.load().differing_in_build())


def digests_in_build() -> dict[str, list[tuple[str, int]]]:
    """By group: its collectives in order, and a digest of what each gave here."""
    return dict(_extension.load().digests_in_build())


def trust_build() -> None:
    """What loopback gave to groups whose log nobody had is what they were given when the job began."""
    _extension.load().trust_build()


def big_in_build() -> list[tuple[str, int]]:
    """Collectives that were recorded and whose results are too big to be kept, and where those lie."""
    return list(_extension.load().big_in_build())


def left_out_of_build() -> list[str]:
    """After a replay: where the script did fewer collectives than when the job began."""
    return list(_extension.load().left_out_of_build())


def pause_build(paused: bool) -> None:
    """Collectives meanwhile are not logged."""
    _extension.load().set_build_paused(paused)


def unknown_in_build() -> list[str]:
    """Groups whose log nobody had."""
    return list(_extension.load().unknown_in_build())


def live_count() -> int:
    """Managed groups that were made and not destroyed."""
    return _extension.load().live_count()


def created_count() -> int:
    """Managed groups that were ever made."""
    return _extension.load().created_count()


def count_of_all(world: int) -> int:
    """Living groups of all ranks of the job."""
    return int(_extension.load().count_of(f"0-{world - 1}" if world > 1 else "0"))


def _has_nccl() -> bool:
    import torch.distributed as dist

    return bool(devices.of_job().type == "cuda" and dist.is_nccl_available())


def _make_group(options: Any, _backend_options: Any = None) -> Backend:
    import torch.distributed as dist

    if dist.get_debug_level() == dist.DebugLevel.DETAIL:
        raise Refused("TORCH_DISTRIBUTED_DEBUG=DETAIL wraps each group in a gloo group of torch's own, which could "
                      "not survive a recovery: unset it, or set it to INFO")
    return _extension.load().ManagedGroup(
        rank=options.group_rank, size=options.group_size, ranks=list(options.global_ranks_in_group),
        timeout=options.timeout)


def _make_device(address: str) -> Any:
    from torch.distributed import ProcessGroupGloo

    return ProcessGroupGloo.create_device(hostname=address)


def _make_gloo(device: Any, store: Store, rank: int, size: int, seconds: float) -> Backend:
    from torch.distributed import ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._devices = [device]
    options._timeout = timedelta(seconds=seconds)
    return ProcessGroupGloo(store, rank, size, options)


def _make_nccl(store: Store, rank: int, size: int, seconds: float) -> Backend:
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=seconds)
    return ProcessGroupNCCL(store, rank, size, options)


def _guard(name: str) -> None:
    """Puts our check around torch's object collective `name`."""
    _replace(name, _guarded)


def _replace(name: str, wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
             module_name: str = "torch.distributed.distributed_c10d") -> None:
    """Wraps torch's function `name`, wherever the name is known already."""
    import importlib

    original = getattr(importlib.import_module(module_name), name)
    guarded = wrap(original)
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, guarded)


def _guarded(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def collective(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        if not _is_managed(bound.arguments.get("group")):
            return original(*args, **kwargs)
        if _extension.load().in_loopback():
            if original.__name__ == "broadcast_object_list" and _knows_build(bound.arguments.get("group")):
                return original(*args, **kwargs)  # its broadcasts are replayed
            return _own_objects(original, bound)
        _refuse_drained(original.__name__)
        try:
            answer = original(*args, **kwargs)
        except Exception:
            _refuse_drained(original.__name__)  # it stumbled over what a failed transfer left behind
            raise
        _refuse_drained(original.__name__)
        return answer

    return collective


def _managed_new_group(original: Callable[..., Any]) -> Callable[..., Any]:
    """A group for which the script names gloo or NCCL is a managed one too: only such a one lives through a death."""
    signature = inspect.signature(original)

    @functools.wraps(original)
    def new_group(*args: Any, **kwargs: Any) -> Any:
        global _groups_asked_for
        _groups_asked_for += 1
        bound = signature.bind(*args, **kwargs)
        named = bound.arguments.get("backend")
        if named is not None and _is_managed(None):
            kinds = {each.rpartition(":")[2].strip() for each in str(named).lower().split(",")}
            if not kinds <= {BACKEND, "gloo", "nccl"}:
                raise Refused(f"new_group(backend={str(named)!r}): pawl can bring back groups over gloo and NCCL only: "
                              f"leave out the backend, or choose one of these")
            bound.arguments["backend"] = BACKEND
            bound.arguments.pop("pg_options", None)
        return original(*bound.args, **bound.kwargs)

    return new_group


def _quiet(original: Callable[..., Any]) -> Callable[..., Any]:
    """DDP, FSDP and tensor parallelism give ranks the module's state with it: a restore does that anyway."""
    @functools.wraps(original)
    def spread(*args: Any, **kwargs: Any) -> Any:
        global _quiet_depth
        _quiet_depth += 1
        _extension.load().set_build_quiet(True)
        try:
            return original(*args, **kwargs)
        finally:
            _quiet_depth -= 1
            _extension.load().set_build_quiet(_quiet_depth > 0)

    return spread


def _compared(original: Callable[..., Any]) -> Callable[..., Any]:
    """DDP finds out with it whether all ranks have the same parameters."""
    @functools.wraps(original)
    def verify(*args: Any, **kwargs: Any) -> Any:
        _extension.load().set_build_compared(True)
        try:
            return original(*args, **kwargs)
        finally:
            _extension.load().set_build_compared(False)

    return verify


def _knows_build(group: Any) -> bool:
    return bool(_extension.load().knows_build(_backend_of(group).key))


def _refuse_drained(name: str) -> None:
    why = failed()
    if why is not None:
        raise GroupsFailed(f"{name}: the groups of this generation have failed: {why}")


def _is_managed(group: Any) -> bool:
    """Whether the object collectives of `group` (None: all ranks) run on a managed group."""
    import torch.distributed as dist

    if not dist.is_initialized() or group == dist.GroupMember.NON_GROUP_MEMBER:
        return False
    return isinstance(_backend_of(group), _extension.load().ManagedGroup)


def _backend_of(group: Any) -> Any:
    """That object collectives of `group` (None: all ranks) run on."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_object_coll_device

    group = group or dist.group.WORLD
    return group._get_backend(torch.device(_get_object_coll_device(group)))


def _own_objects(original: Callable[..., Any], bound: inspect.BoundArguments) -> Any:
    """What an object collective gives in loopback: every rank's object is our own."""
    name, given = original.__name__, bound.arguments
    if name in ("all_gather_object", "gather_object"):
        return original(*bound.args, **bound.kwargs)  # torch's own, over gathers that give own copies
    if name == "scatter_object_list" and given.get("scatter_object_input_list"):
        import torch.distributed as dist

        given["scatter_object_output_list"][0] = given["scatter_object_input_list"][dist.get_rank(given.get("group"))]
    if name == "recv_object_list":
        source = given.get("src") if given.get("src") is not None else given.get("group_src")
        return source if source is not None else 0
    return None

"""The device of this process's job, and what of CUDA has to be known to train on it under pawl.

A process has one GPU, that of its local rank, which a spare has from its start, too. All that pawl captures lies there
or in host memory. Without pawl nothing here is in use but choose(). The training thread's.
"""
from __future__ import annotations

import functools
import os
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pawl.errors import Refused

if TYPE_CHECKING:
    import torch

    from pawl._library import Trainer

_NO = ("", "0", "n", "no", "f", "false", "off")

# What torch's NCCL backend reads when a group is made, and how it must be: a lost peer, or a pause that is longer than
# usual, must not end this process. pawl notices hangs by itself.
_NCCL_SETTINGS = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": ("0", "torch then ends each process whose peer has died"),
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": ("0", "torch then ends the process out of a thread of its own"),
    "TORCH_NCCL_ENABLE_MONITORING": ("0", "torch then ends the process when its watchdog has waited for long"),
    "TORCH_NCCL_DESYNC_DEBUG": ("0", "torch then ends each process whose peer has died"),
    "TORCH_NCCL_USE_COMM_NONBLOCKING": ("0", "an abort then waits for what it should end"),
}
# Their values do no harm to the process, only to the time that a recovery takes: while torch's watchdog writes reports,
# a group of a lost generation can't be freed.
_NCCL_DEFAULTS = {"TORCH_NCCL_DUMP_ON_TIMEOUT": "0", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "1"}

_device: torch.device | None = None  # of the managed job


def choose(local_rank: int) -> torch.device:
    """The GPU of that local rank, or the CPU where torch sees none. Fails: Refused, if there are fewer GPUs than
    processes here."""
    import torch
    if not torch.cuda.is_available():
        return torch.device("cpu")
    gpus = torch.cuda.device_count()
    if local_rank >= gpus:
        raise Refused(f"LOCAL_RANK is {local_rank}, and torch sees {gpus} GPU{'s' * (gpus != 1)} on this machine: "
                      f"start no more processes than GPUs (torchrun --nproc-per-node {gpus}), or train on CPUs with "
                      f"CUDA_VISIBLE_DEVICES=")
    return torch.device("cuda", local_rank)


def wanted() -> bool:
    """PAWL_GPU=1: jobs train on GPUs. Not by default yet: few faults were tried there (docs/user/protect.md)."""
    return os.environ.get("PAWL_GPU", "").lower() not in _NO


def choose_managed(local_rank: int) -> torch.device:
    """The same under `pawl run`; the CPU unless GPUs are wanted. Fails: Refused, also where they are not NVIDIA's."""
    import torch
    if not wanted():
        return torch.device("cpu")
    device = choose(local_rank)
    if device.type == "cuda" and torch.version.cuda is None:
        raise Refused(f"PyTorch {torch.__version__} is not built for CUDA, and pawl captures from NVIDIA's GPUs only: "
                      f"train on CPUs with HIP_VISIBLE_DEVICES=, or start without pawl")
    return device


def use(device: torch.device, select: bool = True) -> None:
    """Of the managed job, before anything else touches CUDA. Idempotent. `select`: not yet, where it isn't needed soon,
    since it takes some of the GPU's memory. Fails: Refused, for settings of the environment under which a loss can't be
    survived."""
    global _device
    if device.type == "cuda":
        import torch
        _set_nccl_environment()
        _refuse_graphs()
        if select:
            torch.cuda.set_device(device)
    _device = device


def of_job() -> torch.device:
    """Of the managed job; the CPU where there is none."""
    import torch
    return _device if _device is not None else torch.device("cpu")


def own_local_rank() -> int | None:
    """Of a process that has a GPU: which one, whether it has a seat or is a spare."""
    return int(os.environ.get("LOCAL_RANK", "0")) if of_job().type == "cuda" else None


def _set_nccl_environment() -> None:
    for name, (value, why) in _NCCL_SETTINGS.items():
        found = os.environ.setdefault(name, value)
        if found.lower() not in _NO:
            raise Refused(f"{name} is {found}: {why}. Under pawl the others go on when a process is lost: unset it, or "
                          f"set it to {value}")
    for name, value in _NCCL_DEFAULTS.items():
        os.environ.setdefault(name, value)
    # A node is a machine of its own to NCCL, also where several share a machine and its GPUs (pawl drill, or
    # --standalone): it refuses two ranks of a machine on one GPU.
    node = " ".join(os.environ.get(name, "") for name in ("PAWL_JOB", "PAWL_NODE_ADDRESS", "PAWL_SOCKET"))
    os.environ.setdefault("NCCL_HOSTID", f"pawl-{zlib.crc32(node.encode()):08x}")


# At the edges of a step -------------------------------------------------------------------------------------------

def tell_stream(trainer: Trainer) -> None:
    """Before pawl copies from the device or to it: it comes after what the script has enqueued."""
    device = of_job()
    if device.type == "cuda":
        import torch
        trainer.use_stream(torch.cuda.current_stream(device).cuda_stream)


def error_that_stays() -> str | None:
    """After a loss, when all groups are aborted: why no state can be restored on this device in this process, where an
    error (an illegal access, broken memory) has ended its use. Waits for what is enqueued."""
    device = of_job()
    if device.type != "cuda":
        return None
    import torch
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as error:
        return str(error).strip().partition("\n")[0]
    return None


def free_unused() -> None:
    """What torch keeps for the next tensors goes back to the GPU: a parked spare needs none of it."""
    if of_job().type == "cuda":
        import torch
        torch.cuda.empty_cache()


# Graphs -----------------------------------------------------------------------------------------------------------

_GRAPHS = ("what a graph does when it is replayed goes past pawl: weights would be written while they are captured, "
           "and collectives would be those of groups that are gone after a loss. Leave out torch.cuda.graph() and "
           "make_graphed_callables(), and compile without mode=\"reduce-overhead\" and "
           "torch._inductor.config.triton.cudagraphs")


def refuse_capturing() -> None:
    """At the edges of a step and before an update. Cheap. Fails: Refused, where it is captured into a CUDA graph."""
    if of_job().type == "cuda":
        import torch
        if torch.cuda.is_current_stream_capturing():
            raise Refused(f"a step is captured into a CUDA graph, which can't be protected: {_GRAPHS}")


@functools.cache
def _refuse_graphs() -> None:
    """From now on, where one is begun: by the script, or by what torch.compile() has made."""
    import torch
    graph: Any = getattr(torch.cuda, "CUDAGraph", None)
    if graph is None or not hasattr(graph, "capture_begin"):
        return
    original: Callable[..., Any] = graph.capture_begin

    @functools.wraps(original)
    def begin(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if of_job().type == "cuda":
            raise Refused(f"CUDA graphs can't be protected: {_GRAPHS}")
        return original(self, *arguments, **keywords)

    graph.capture_begin = begin

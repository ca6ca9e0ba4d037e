"""pawl.init() and @pawl.resilient: how a script gets its job, and how a framework's loop is entered again."""
from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from pawl import devices, same_script, script_exit, volatile_state
from pawl.build_extension import TORCH_MIN, release
from pawl.errors import Recover, Refused, StepLost, Stop, Unreachable
from pawl.job import Job, current_job, set_current_job

if TYPE_CHECKING:
    import torch

GROUP_TIMEOUT_S = 60.0  # for making groups; past it the generation is given up

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_resilient_depth = 0  # how many functions under @resilient the training thread is in


def init(*, rehearse: bool = True, state_bytes: int = volatile_state.BLOB_BYTES,
         group_timeout_s: float = GROUP_TIMEOUT_S, on_mismatch: str = "error") -> Job:
    """This process's job, with its default process group. Later calls return the same job.

    Under `pawl run` it waits for a seat; a spare meanwhile rehearses the script, unless `rehearse` is False. Without
    `pawl run`, or with PAWL=off, it is plain training: with the ranks of torchrun's environment, or alone.
    `state_bytes`: room for schedulers, generators, samplers and `state` objects together. `on_mismatch`: what happens
    when a step that is done again gets other inputs than before: "error" ends the job, "warn" says it and goes on.
    """
    known = current_job()
    if known is not None:
        return known
    script_exit.show_sentences()
    if on_mismatch not in ("error", "warn"):
        raise Refused(f'pawl.init(on_mismatch={on_mismatch!r}): it is "error" or "warn"')
    _check_torch()
    if os.environ.get("PAWL") == "off" or not os.environ.get("PAWL_SOCKET"):
        job = _init_plain()
    else:
        job = _init_managed(rehearse, state_bytes, timedelta(seconds=group_timeout_s), on_mismatch)
    set_current_job(job)
    _tell_job()
    return job


def _check_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise Refused("PyTorch is not installed in this interpreter: python -m pip install -U 'torch>=2.6'")
    import torch
    if release(str(torch.__version__)) < TORCH_MIN:
        raise Refused(f"PyTorch {torch.__version__} is too old: pawl needs {'.'.join(map(str, TORCH_MIN))} or "
                      f"later (python -m pip install -U 'torch>=2.6')")
    if not torch.distributed.is_available():
        raise Refused(f"PyTorch {torch.__version__} was built without torch.distributed, which pawl needs")


def _device_and_backend(local_rank: int) -> tuple[torch.device, str]:
    """Of plain training. Fails: Refused, if there are fewer GPUs than processes here."""
    device = devices.choose(local_rank)
    return device, "nccl" if device.type == "cuda" else "gloo"


def _init_plain() -> Job:
    import torch
    import torch.distributed as dist

    from pawl import groups
    world, local_rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("LOCAL_RANK", "0"))
    device, backend = _device_and_backend(local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        if "MASTER_ADDR" in os.environ:
            dist.init_process_group(backend)
        elif world == 1:
            dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        else:
            raise Refused(f"WORLD_SIZE is {world}, but MASTER_ADDR is not set and pawl is off: start with torchrun, or "
                          f"with `pawl run` and without PAWL=off")
        groups.keep_default_group()
    return Job(dist.get_rank(), dist.get_world_size(), local_rank, device)


def refuse_made_group() -> None:
    """Fails: Refused, if the script has made the default group."""
    import torch.distributed as dist
    if dist.is_initialized():
        raise Refused("the script has called init_process_group() before pawl.init(), which makes the default process "
                      "group: call pawl.init() first. RANK, LOCAL_RANK and WORLD_SIZE are set after it")


def _init_managed(rehearse: bool, state_bytes: int, timeout: timedelta, on_mismatch: str) -> Job:
    from pawl import _extension, groups
    from pawl._library import Trainer
    from pawl.managed import ManagedJob
    from pawl.rehearsal import wait_for_seat
    _extension.load()  # may have to be built: nobody waits for this process before it is attached
    refuse_made_group()
    device = devices.choose_managed(int(os.environ.get("LOCAL_RANK", "0")))
    devices.use(device, select=rehearse)
    try:
        trainer = Trainer()
    except Unreachable as nobody:
        raise Refused(f"no pawld answers ({nobody}): start the script with `pawl run`, or unset PAWL_SOCKET to train "
                      f"without pawl") from None
    same_script.digest()  # of the file as this process has loaded it: a spare may be seated long after it was changed
    try:
        groups.register()  # what takes long, or can't be, shows before there is a seat
        seat, rehearsed = wait_for_seat(trainer, rehearse, timeout)
        devices.use(device)
        while True:
            try:
                job = ManagedJob(trainer, seat, state_bytes=state_bytes, timeout=timeout, on_mismatch=on_mismatch,
                                 rehearsed=rehearsed)
                break
            except (Recover, groups.GroupsFailed):  # before the script has built anything: simply once more
                groups.close_generation()
                seat = trainer.recover_join()
    except Stop as stop:
        _end_before_seated(str(stop))
    _set_environment(job)
    script_exit.watch(job)
    return job


def _end_before_seated(why: str) -> None:
    """The job has ended, and this trainer (usually a spare) was never needed."""
    script_exit.say(why)
    raise SystemExit(0)


def _set_environment(job: Job) -> None:
    """For scripts that read the environment, not the job: a spare was started without knowing its seat."""
    from pawl.rehearsal import set_master
    os.environ.update(RANK=str(job.rank), WORLD_SIZE=str(job.world_size), LOCAL_RANK=str(job.local_rank))
    set_master()


def resilient(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """For loops that a framework owns: calls `function` again after a lost step.

    Inside, a lost step raises StepLost at the step's end, which unwinds the framework's loop. In the next call,
    job.steps() continues from the step that all seats were restored to. Make what is protected outside of `function`.
    """
    @functools.wraps(function)
    def entered(*arguments: Parameters.args, **keywords: Parameters.kwargs) -> Result:
        global _resilient_depth
        _resilient_depth += 1
        _tell_job()
        try:
            while True:
                try:
                    result = function(*arguments, **keywords)
                    if _finished():
                        return result
                except StepLost:
                    pass
                except Exception:
                    if not _loss_pending():
                        raise
        finally:
            _resilient_depth -= 1
            _tell_job()
    return entered


def _tell_job() -> None:
    job = current_job()
    if job is not None:
        job.raises_lost = _resilient_depth > 0


def _finished() -> bool:
    """The function has returned: the job ends here, if it isn't lost right now."""
    job: Any = current_job()
    return job is None or job.finish_loop()


def _loss_pending() -> bool:
    job: Any = current_job()
    return job is not None and job.loss_pending()

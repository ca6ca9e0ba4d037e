"""Rehearsal: a process warms up on the user's own loop before it is needed.

A parked spare runs the whole script once inside its outer pawl.init(), as the last seat for the time being, with
loopback groups, until the lazy state of the first steps exists. Then it unwinds out of steps() and stays parked, with
everything imported. When it gets a seat, the outer init returns and the script runs for real, in the same process.
The output of a rehearsal is dropped, or goes to the file that $PAWL_REHEARSAL_LOG names. What it must not touch is
rehearsal_guard.py's affair. A rehearsal can't hurt the job: if it fails, it says so, and the spare stays cold.
"""
from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

from pawl import (
    checkpoint_values,
    compiling,
    cut_modules,
    devices,
    drill_record,
    groups,
    script_exit,
    second_step,
    sharded,
)
from pawl._library import Phase, Role, Seat, Trainer
from pawl.errors import Refused
from pawl.job import Job, Step, set_current_job
from pawl.loaders import Place
from pawl.protect import STEPS_BEFORE_SEAL, OptimizerWatch, Protected
from pawl.rehearsal_guard import RehearsalGuard, RehearsalStopped
from pawl.volatile_state import load_random, save_random
from pawl.windows import Sentinel

FORMING_POLL_S = 0.02
COLLECTIONS_MAX = 4
STOPPED = "pawl: the rehearsal was stopped before it touched: "  # in $PAWL_REHEARSAL_LOG, before a path


class RehearsalEnded(BaseException):
    """Unwinds the script out of its loop. No Exception, so that scripts don't catch it."""


def rehearsal_steps(job: Job, protected: Protected, enough: Callable[[], bool] = lambda: False) -> Iterator[Step]:
    """Steps that don't count, as many as the others have done before they made the layout; fewer, if one of them was
    `enough`."""
    for number in range(1, STEPS_BEFORE_SEAL + 1):
        step = Step(number, job, rehearsal=True)
        yield step
        if not step._entered:
            raise Refused(f"step {number} has no block: write `with step:` in the loop")
        if number < STEPS_BEFORE_SEAL and enough():
            return


class RehearsalJob(Job):
    """The job as the rehearsing script sees it. Nothing here talks to libpawl but to see whether a seat has come."""

    def __init__(self, world: int, joining: Joining) -> None:
        super().__init__(world - 1, world, _local_rank(), devices.of_job())
        self._joining = joining
        self._protected = Protected(world - 1, world)
        self._watch = OptimizerWatch(self._protected, self._end_window)
        self._sentinel, self._writes_early = Sentinel(), False
        self.made: second_step.Made | None = None  # once the steps are done

    @property
    def rehearsal(self) -> bool:
        return True

    def protect(self, *things: Any, state: Any = None) -> None:
        self._protected.add(things, state)
        self._watch.see_compiler()
        drill_record.protected(self._protected, things, state)

    def _place_in(self, loader: Any) -> Place:
        return self._protected.place_in(loader)

    def steps(self, total: int, done: int = 0) -> Iterator[Step]:
        begun_with = self._not_derived()
        self._protected.refuse_unready()
        for step in rehearsal_steps(self, self._protected):
            self._unwind_if_seated()
            self._watch.see_compiler()
            if int(step) == STEPS_BEFORE_SEAL:
                self._sentinel.begin(self._protected.stable())
                begun_with = self._not_derived()
            yield step
        self._unwind_if_seated()
        # Else a second step has to make it, and to show it.
        if not self._writes_early and self._not_derived() == begun_with:
            self.made = second_step.made_by_both(self._protected)
        raise RehearsalEnded

    def _not_derived(self) -> tuple[int, list[str]]:
        """Groups and protected parts: a second step that adds to them is rehearsed."""
        return groups.groups_asked_for(), [part.name for part in self._protected.parts]

    def stop(self) -> None:
        pass

    def checkpoint(self) -> bool:
        return checkpoint_values.are_wanted()

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._inside = None
        self._end_window()
        step.lost = True
        return False

    def _fence(self, step: Step) -> None:
        self._end_window()

    def _end_window(self) -> None:
        self._writes_early = self._sentinel.end() is not None or self._writes_early

    def _on_commit(self, step: Step, act: Any) -> None:
        pass

    def _unwind_if_seated(self) -> None:
        if self._joining.done.is_set():
            raise RehearsalEnded

    def close(self) -> None:
        self._watch.close()


class Joining(threading.Thread):
    """Waits for a seat beside the rehearsal."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(name="pawl-join", daemon=True)
        self._trainer = trainer
        self._seat: Seat | None = None
        self._error: BaseException | None = None
        self.done = threading.Event()

    def run(self) -> None:
        try:
            self._seat = self._trainer.recover_join()
        except BaseException as error:
            self._error = error
        self.done.set()

    def seat(self) -> Seat:
        """Waits for it. Raises what recover_join raised."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._seat is not None
        return self._seat


def wait_for_seat(trainer: Trainer, rehearse: bool, timeout: timedelta) -> tuple[Seat, second_step.Made | None]:
    """recover_join for the first time; a spare rehearses meanwhile, and what its steps made is answered."""
    joining = Joining(trainer)
    joining.start()
    made = None
    while not joining.done.wait(FORMING_POLL_S):
        if trainer.role() is Role.SPARE:
            if rehearse:
                trainer.progress(Phase.ASIDE)  # parked, but not warm: `pawl status` shows it
                made = _rehearse(trainer.world(), joining, timeout)
                if not joining.done.is_set():
                    trainer.progress(Phase.JOIN)
            break
    return joining.seat(), made


def _rehearse(world: int, joining: Joining, timeout: timedelta) -> second_step.Made | None:
    job = RehearsalJob(world, joining)
    guard = RehearsalGuard()
    try:
        with _process_kept(), captured_output(), guard.on():
            set_current_job(job)
            _begin_loopback(world, timeout)
            _run_script()
        _tell_failure("it ended without calling job.steps()", None)
    except RehearsalEnded:
        pass
    except RehearsalStopped as stopped:
        _tell_stopped(stopped)
    except Refused as refused:
        _tell_failure(str(refused), None)
    except SystemExit as exits:
        _tell_failure(f"it exited with code {exits.code}", exits)
    except Exception as error:
        _tell_failure(f"{type(error).__name__}: {error}", error)
    finally:
        set_current_job(None)
        job.close()
        _end_loopback()
    return job.made


def _run_script() -> None:
    """The script again, inside itself."""
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None:
        runpy.run_module(spec.name.removesuffix(".__main__"), run_name="__main__", alter_sys=True)
    elif getattr(main, "__file__", None):
        runpy.run_path(sys.argv[0], run_name="__main__")
    else:
        raise Refused("the script has no file, so it can't be run a second time")


def _begin_loopback(world: int, timeout: timedelta) -> None:
    import torch.distributed as dist

    from pawl import groups
    groups.register()
    groups.set_loopback(True)
    dist.init_process_group("pawl", store=groups.PawlStore(timeout), rank=world - 1, world_size=world)
    os.environ.update(RANK=str(world - 1), LOCAL_RANK=str(_local_rank()), WORLD_SIZE=str(world))
    set_master()


def _local_rank() -> int:
    """Not 0, since what only one process of a node or job does is mostly done by that. But with a GPU its own one, by
    which scripts choose it."""
    own = devices.own_local_rank()
    return own if own is not None else int(os.environ.get("LOCAL_WORLD_SIZE", "1")) - 1


def set_master() -> None:
    """For scripts that only read them: nothing listens there. What is set stays."""
    os.environ.setdefault("MASTER_ADDR", os.environ.get("PAWL_NODE_ADDRESS", "127.0.0.1"))
    os.environ.setdefault("MASTER_PORT", "29500")


def _end_loopback() -> None:
    """Everything of the rehearsal goes: groups, model, optimizer, and what was compiled for its rank. What was imported
    stays, which is the point."""
    import torch.distributed as dist

    from pawl import groups
    if dist.is_initialized():
        dist.destroy_process_group()
    sharded.forget_meshes()
    compiling.forget()
    cut_modules.forget()
    groups.set_loopback(False)
    for _ in range(COLLECTIONS_MAX):  # what a graph of torch's held, unseen by Python, comes in the next one
        if gc.collect() == 0:
            break
    devices.free_unused()


@contextlib.contextmanager
def _process_kept() -> Iterator[None]:
    """Random numbers, arguments, environment and folder afterwards as before."""
    random, arguments, path, hook = save_random(), list(sys.argv), list(sys.path), sys.excepthook
    environment, folder = dict(os.environ), os.getcwd()
    try:
        yield
    finally:
        load_random(random)
        sys.argv[:], sys.path[:], sys.excepthook = arguments, path, hook
        os.environ.clear()
        os.environ.update(environment)
        os.chdir(folder)


def _tell_failure(why: str, error: BaseException | None) -> None:
    script_exit.say(f"the rehearsal of this spare failed: {why}; it stays parked and starts cold when it gets a seat "
               f"(pawl.init(rehearse=False) turns rehearsals off)")
    log = os.environ.get("PAWL_REHEARSAL_LOG")
    if error is not None and log:
        with open(log, "a", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    if error is not None:
        error.__traceback__ = None  # it holds the frames, and with them the model


def _tell_stopped(stopped: RehearsalStopped) -> None:
    script_exit.say(f"the rehearsal of this spare was stopped: {stopped}; it stays "
                    f"parked and starts cold when it gets a seat (write in step.on_commit, or not while job.rehearsal "
                    f"is true; pawl.init(rehearse=False) turns rehearsals off)")
    log = os.environ.get("PAWL_REHEARSAL_LOG")
    if log:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{STOPPED}{stopped.path}\n")
    stopped.__traceback__ = None  # it holds the frames, and with them the model


# What a rehearsal prints ------------------------------------------------------------------------------------------

@contextlib.contextmanager
def captured_output() -> Iterator[None]:
    """Standard output of the whole process, also that of C code, goes to $PAWL_REHEARSAL_LOG, or nowhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
    target = os.open(os.environ.get("PAWL_REHEARSAL_LOG") or os.devnull, flags, 0o600)
    _flush()
    kept = os.dup(1)
    os.dup2(target, 1)
    os.close(target)
    try:
        yield
    finally:
        _flush()
        os.dup2(kept, 1)
        os.close(kept)


def _flush() -> None:
    if sys.stdout is not None:
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)

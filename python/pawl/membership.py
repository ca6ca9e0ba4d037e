"""This process in its seat: how it joins a generation, leaves it, and restores there.

The order is that of pawl.h: leave the lost generation (its groups are closed, so that whoever waits for this rank is
freed), join the next one, restore, make its groups once every seat is here. A process that comes in late builds in
loopback: its groups are opened only then. The training thread's.
"""
from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, NoReturn

from pawl import devices, same_script, script_exit
from pawl._library import Seat, Trainer
from pawl.build_log import BuildLog
from pawl.errors import BuildAnew, PawlError, Recover, Refused

COLD_RESTART_S = 120.0  # how long this process waits to be ended by its pawld
MEET_S = 30 * 86400.0   # for the other seats; pawld ends the wait when one can't come
BUILD_TIMEOUT = timedelta(minutes=30)  # torch's own: while scripts build, one rank may be far behind the others


class Membership:
    build: BuildLog  # since make_groups()

    def __init__(self, trainer: Trainer, seat: Seat, timeout: timedelta) -> None:
        self._trainer, self._timeout, self.seat = trainer, timeout, seat
        self.late = seat.resume_step > 0  # builds in loopback, and must rehearse
        self.running = False              # recover_done has answered in this generation
        self._store: Any = None

    def make_groups(self, rejoin: Callable[[], Seat]) -> None:
        """The default process group. `rejoin`: to the next generation, while this seat is built."""
        import torch.distributed as dist

        from pawl import groups
        groups.register()
        groups.use_library(self._trainer.path, self._trainer.handle)
        self._store = groups.PawlStore(BUILD_TIMEOUT)
        groups.set_loopback(self.late)
        self.build = BuildLog(self._trainer, self.seat, rejoin)
        if not self.late:
            self._open(BUILD_TIMEOUT, [])
        dist.init_process_group("pawl", store=self._store, rank=self.seat.rank, world_size=self.seat.world)

    def open_groups(self, gradient_order: list[str]) -> None:
        """Once every seat is here. The deadline is for making groups alone: a seat that comes in anew builds first."""
        self._open(self._timeout, gradient_order)

    def _open(self, timeout: timedelta, gradient_order: list[str]) -> None:
        from pawl import groups
        same_script.agree(self._trainer, self.seat.rank, groups.count_of_all(self.seat.world), gradient_order)
        if self._trainer.rendezvous_add("pawl/arrived", 1) == self.seat.world:
            self._trainer.rendezvous_set("pawl/all", b"here")
        self._trainer.rendezvous_get("pawl/all", MEET_S)
        groups.open_generation(self.seat.generation, self._store, os.environ.get("PAWL_NODE_ADDRESS", "127.0.0.1"),
                               timeout)

    def end_loopback(self) -> None:
        """What this seat builds late is built."""
        from pawl import groups
        groups.set_loopback(False)
        self.late = False

    def leave(self, why: str) -> Seat:
        """Waits for the seat in the next generation. Fails: Recover, Stop."""
        from pawl import groups
        if not self._trainer.interrupted():
            with contextlib.suppress(Recover):
                self._trainer.fault_report(why, groups.lost())
        groups.close_generation()
        broken = devices.error_that_stays()
        if broken is not None:
            script_exit.exit_now(f"{devices.of_job()} can't be used by this process any more ({broken}): another one "
                                 f"takes its seat")
        return self._trainer.recover_join()

    def restore(self) -> None:
        devices.tell_stream(self._trainer)
        try:
            self._trainer.restore()
        except BuildAnew as why:
            script_exit.start_anew(f"{why}, and can't be put back")
        except PawlError as error:
            if "was written while it was copied" in str(error):  # a process of this seat saw it, and is gone
                raise Refused(f"{error}. Call step.fence() right before the write, and start the job again") from None
            raise

    def await_restart(self) -> NoReturn:
        """Nothing is committed and the initial state is gone: pawld ends this process and starts it anew in its
        seat."""
        sys.stderr.flush()
        time.sleep(COLD_RESTART_S)
        os._exit(1)

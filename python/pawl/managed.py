"""The job of a seat under `pawl run`: gates, recovery, restore.

What always holds: a protected optimizer changes state only after the open window is fenced; a window opens only after
every collective of the step has completed and was checked; and a peer's death leaves the loop only at the edges of a
step. Until then a lost step drains (groups.py). Whatever it wrote is overwritten, since every seat restores.

A process that joins a running job (restarted in its seat, or a spare) builds in loopback and rehearses until the lazy
state of the first steps exists. Only then it declares its tensors, restores, and joins the others.
Everything here runs in the training thread.
"""
from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any, NoReturn

from pawl import drill_record, same_script, script_exit, volatile_state
from pawl._library import Phase, Seat, Trainer
from pawl.errors import Recover, Refused, StepLost, Stop
from pawl.job import Job, Step
from pawl.protect import SETTLE_STEPS_MAX, Held, OptimizerWatch, Protected, Unchanged, dtype_number, storage_order
from pawl.rehearsal import captured_output, rehearsal_steps

COLD_RESTART_S = 120.0  # how long this process waits to be ended by its pawld
MEET_S = 30 * 86400.0   # for the other seats; pawld ends the wait when one can't come
BUILD_TIMEOUT = timedelta(minutes=30)  # torch's own: while scripts build, one rank may be far behind the others


class ManagedJob(Job):
    """One seat. Made by pawl.init(), with the default process group."""

    def __init__(self, trainer: Trainer, seat: Seat, *, state_bytes: int, timeout: timedelta) -> None:
        import torch
        super().__init__(seat.rank, seat.world, seat.local_rank, torch.device("cpu"))
        self._trainer, self._seat = trainer, seat
        self._state_bytes, self._timeout = state_bytes, timeout
        self.generation, self._done = seat.generation, seat.resume_step
        self._late = seat.resume_step > 0  # builds in loopback, and must rehearse
        self._protected = Protected(seat.rank, seat.world)
        self._watch = OptimizerWatch(self._protected, self._before_update)
        self._held: list[Held] = []
        self._unchanged: Unchanged | None = None
        self._declared = self._sealed = False
        self._running = False        # recover_done has answered in this generation
        self._lost_by: str | None = None    # why a recovery is due
        self._stopped_by: str | None = None  # what pawl said about the end of the job
        self._updated = False        # in this block, an optimizer has been let through
        self._phase = Phase.NONE
        self._commits: list[tuple[int, Callable[[], Any]]] = []
        self._store: Any = None
        self.looped = self.finished = False
        self.cut_short = False       # since the last step's end, something of the script was
        self._make_groups()

    @property
    def rehearsal(self) -> bool:
        return self._late

    # Groups.

    def _make_groups(self) -> None:
        import torch.distributed as dist

        from pawl import groups
        groups.register()
        groups.use_library(self._trainer.path, self._trainer.handle)
        self._store = groups.PawlStore(BUILD_TIMEOUT)
        groups.set_loopback(self._late)
        if not self._late:
            self._open_groups(BUILD_TIMEOUT)
        dist.init_process_group("pawl", store=self._store, rank=self.rank, world_size=self.world_size)

    def _open_groups(self, timeout: timedelta) -> None:
        """Once every seat is here. The deadline is for making groups alone: a seat that comes in anew builds first."""
        from pawl import groups
        same_script.agree(self._trainer, self.rank)
        if self._trainer.rendezvous_add("pawl/arrived", 1) == self.world_size:
            self._trainer.rendezvous_set("pawl/all", b"here")
        self._trainer.rendezvous_get("pawl/all", MEET_S)
        groups.open_generation(self._seat.generation, self._store, os.environ.get("PAWL_NODE_ADDRESS", "127.0.0.1"),
                               timeout)

    # What the user calls.

    def protect(self, *things: Any, state: Any = None) -> None:
        if self._declared:
            raise Refused("job.protect() was called after the layout was sealed: call it before job.steps()")
        self._protected.add(things, state)
        drill_record.protected(self._protected, things, state)

    def steps(self, total: int) -> Iterator[Step]:
        self.looped = True
        total = drill_record.last_step(total)
        if self.finished:
            raise Refused("job.steps() was called a second time: a job has one loop, and it has ended")
        if self._protected.empty():
            raise Refused("nothing is protected: call job.protect(model, optimizer, ...) before job.steps()")
        try:
            if self._late:
                yield from self._rehearse()
            while True:
                step = self._next_step(total)
                if step is None:
                    return
                yield step
                self._after(step)
        except GeneratorExit:
            if not self.raises_lost and script_exit.left_by_break(sys._getframe().f_back):
                self.finish_or_exit()
            raise

    def stop(self) -> None:
        if self._late:
            return
        with contextlib.suppress(Recover, Stop):  # noticed at the step's edge; what was agreed stays
            self._trainer.stop_after(self._done + 1)

    @contextlib.contextmanager
    def aside(self, name: str = "aside") -> Iterator[None]:
        with super().aside(name):
            self._progress(Phase.COMPUTE)  # so that a hang in it is noticed
            try:
                yield
            except Exception as error:
                if not self.loss_pending():
                    raise
                self.cut_short = True
                script_exit.say(f"{name} was cut short by a loss: {type(error).__name__}: {error}")
            finally:
                self._progress(Phase.ASIDE)

    def _on_commit(self, step: Step, act: Callable[[], Any]) -> None:
        if not step.rehearsal and not step.lost:
            self._commits.append((int(step), act))

    # Between steps.

    def _next_step(self, total: int) -> Step | None:
        """The next step, begun; None at the end, when the last is committed on every seat."""
        while True:
            try:
                if not self._running or self._recovery_due():
                    self._recover()
                self._act_on_commits(self._trainer.committed_step())
                if self._done >= min(total, self._trainer.stop_step() or total):
                    self._finish()
                    return None
                self._begin(self._done + 1)
                return Step(self._done + 1, self)
            except Recover as recover:
                self._lost_by = str(recover)
            except Stop as stop:
                self._end_stopped(str(stop))

    def _recovery_due(self) -> bool:
        from pawl import groups
        self._lost_by = self._lost_by or groups.failed()
        return self._lost_by is not None

    def _begin(self, number: int) -> None:
        """The volatile state is copied here, so that whatever the loop does from here on is done again after a loss."""
        if self._sealed:
            assert self._unchanged is not None
            self._unchanged.bring_back_buffers()
            for held in self._unchanged.moved():
                raise Refused(f"{held.name} ({held.role}) was replaced between two steps: change it inside `with "
                              f"step:`")
        self._trainer.step_begin(number)
        self._progress(Phase.ASIDE)

    def _after(self, step: Step) -> None:
        """The loop has come back for the next step."""
        if not step._entered:
            raise Refused(f"step {int(step)} has no block: write `with step:` in the loop")
        if self._inside is step or (self._done < int(step) and self._lost_by is None and self._stopped_by is None):
            self._inside = None  # the script caught what left the block; the others can't know
            self._lost_by = f"an exception left the block of step {int(step)}"
        if self._stopped_by is not None:
            self._end_stopped(self._stopped_by)

    def _act_on_commits(self, committed: int) -> None:
        due = [act for step, act in self._commits if step <= committed]
        self._commits = [(step, act) for step, act in self._commits if step > committed]
        for act in due:
            act()

    # The edges of a step.

    def _enter(self, step: Step) -> None:
        from pawl import groups
        self._inside, self._updated, self.cut_short = step, False, False
        if step.rehearsal:
            return
        self._progress(Phase.COMPUTE)
        groups.collective_phase(int(Phase.ALLREDUCE), int(Phase.ALLREDUCE))

    def _before_update(self) -> None:
        """Before any protected optimizer changes anything. Never raises for a loss: an optimizer's step runs out."""
        from pawl import groups
        if self._inside is None:
            if self._running and not self._late:
                raise Refused("a protected optimizer stepped outside of `with step:`, where its state is being copied")
            return
        if self._updated or self._inside.rehearsal:
            return
        self._updated = True
        try:
            self._trainer.fence()
        except (Recover, Stop) as pending:
            groups.fail(str(pending))
            self._note(pending)
        self._progress(Phase.UPDATE)
        groups.collective_phase(int(Phase.EXCHANGE), int(Phase.ALLGATHER))

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._inside = None
        if step.rehearsal:
            step.lost = True
            return False
        why = None
        if error is None:
            why = self._complete(step)
        elif isinstance(error, (Exception, SystemExit)):  # others, as KeyboardInterrupt, leave whatever happened
            why = self._failure()
        self._progress(Phase.ASIDE)
        if why is not None:
            return self._lose(step, why, error)
        if error is not None:
            script_exit.note_failure(error)
        return False

    def _failure(self) -> str | None:
        """What has been lost or ended since the step began, as far as this seat knows."""
        from pawl import groups
        known = self._lost_by or self._stopped_by or groups.failed()
        return known or ("a recovery is pending" if self._trainer.interrupted() else None)

    def _complete(self, step: Step) -> str | None:
        """The step is done here: opens its window. Otherwise why it is lost."""
        from pawl import groups
        groups.wait_all()
        why = self._failure()
        if why is not None:
            return why
        try:
            if not self._sealed and self._settled(int(step)):
                self._seal()
            elif self._sealed:
                if not self._updated:
                    self._trainer.fence()
                self._check_unchanged()
            if self._sealed:
                self._trainer.window_open(int(step), self._protected.samples())
        except (Recover, Stop) as pending:
            self._note(pending)
            return str(pending)
        self._done = int(step)
        return None

    def _lose(self, step: Step, why: str, error: BaseException | None) -> bool:
        step.lost = True
        if self._lost_by is None and self._stopped_by is None:
            self._lost_by = why
        if error is not None:
            print(f"pawl: step {int(step)} is lost ({why}), and so is the exception that it raised: "
                  f"{type(error).__name__}: {error}",
                  file=sys.stderr)
        if self.raises_lost:
            raise StepLost(f"step {int(step)} is lost: {why}") from error
        return True

    def _note(self, pending: Recover | Stop) -> None:
        if isinstance(pending, Stop):
            self._stopped_by = str(pending)
        else:
            self._lost_by = str(pending)

    def loss_pending(self) -> bool:
        return self._failure() is not None

    # The layout.

    def _settled(self, number: int) -> bool:
        """Whether the lazy state is there. After the same step on all seats: they have done the same steps."""
        settled = number >= 2 and self._protected.settled()
        if not settled and number >= SETTLE_STEPS_MAX:
            raise Refused(f"{number} steps are done and these protected optimizers have not stepped once: "
                          f"{self._protected.unsettled()}; take them out of job.protect(), or let them step")
        return settled

    def _seal(self) -> None:
        """Idempotent: a recovery may end it halfway."""
        if not self._declared:
            self._declare()
        if not self._sealed:
            self._trainer.layout_seal()
            self._sealed = True

    def _declare(self) -> None:
        self._held = self._protected.held()
        random = volatile_state.Part("random", volatile_state.save_random, volatile_state.load_random)
        volatile = volatile_state.VolatileState([random, *self._protected.parts])
        size = len(volatile.save())
        if size * 2 > self._state_bytes:
            raise Refused(f"schedulers, samplers, generators and `state` objects take {size} bytes, more than half of "
                          f"the room for them: pawl.init(state_bytes={1 << (4 * size).bit_length()}), or keep big "
                          f"tensors as a module's buffers")
        mesh = self._trainer.mesh_add("data", [("dp", self.world_size)])
        for held in self._held:
            view = storage_order(held.tensor)
            number = dtype_number(held.tensor)
            assert view is not None and number is not None  # what has none is refused before
            held.index = self._trainer.tensor_add(held.name, held.role, number, tuple(view.shape), held.address,
                                                  mesh=mesh,
                                                  placement=held.placement, lifetime=held.lifetime)
        self._trainer.blob_add(f"volatile/rank{self.rank}", self._state_bytes, volatile.save, volatile.load)
        self._unchanged = Unchanged(self._protected, self._held)
        self._declared = True

    def _check_unchanged(self) -> None:
        """While no window is open: tensors that were replaced are told to libpawl, anything else is an error."""
        assert self._unchanged is not None
        change = self._unchanged.first_change()
        if change is not None:
            raise Refused(f"the model or its optimizer changed after it was protected: {change}")
        for held in self._unchanged.moved():
            self._trainer.tensor_rebind(held.index, held.address)

    # Recovery.

    def _rehearse(self) -> Iterator[Step]:
        """In loopback, until this process has all the state that the others have; then the real thing begins."""
        with captured_output():
            for step in rehearsal_steps(self, self._protected):
                yield step
                if self._trainer.interrupted():  # the others wait for this seat to follow
                    with self._stopping():
                        self._adopt(self._trainer.recover_join())
        from pawl import groups
        groups.set_loopback(False)
        self._late = False

    def _recover(self) -> None:
        """To the state of the resume step, in the next generation; the first time, to the start of the job."""
        from pawl import groups
        while True:
            try:
                if self._lost_by is not None:
                    self._leave_generation(self._lost_by)
                self._enter_generation()
                return
            except Recover as recover:
                self._lost_by = str(recover)
            except groups.GroupsFailed as failed:
                self._lost_by = str(failed)

    def _leave_generation(self, why: str) -> None:
        from pawl import groups
        self._running = False
        if not self._trainer.interrupted():
            with contextlib.suppress(Recover):
                self._trainer.fault_report(why, groups.lost())
        groups.close_generation()
        self._adopt(self._trainer.recover_join())
        self._lost_by = None
        if not self._seat.resume_step:
            self._await_restart()

    def _adopt(self, seat: Seat) -> None:
        self._seat, self.generation = seat, seat.generation
        self._done = seat.resume_step

    def _enter_generation(self) -> None:
        from pawl import groups
        self._protected.drop_gradients()
        resume = self._seat.resume_step
        if resume > 0:
            self._seal()
            self._check_unchanged()  # since the last window, the lost step may have put tensors elsewhere
            self._trainer.restore()
            self._open_groups(self._timeout)
        elif groups.failed():
            raise Recover(groups.failed())  # while the model was built: what others sent has not arrived
        self._commits = [(step, act) for step, act in self._commits if step <= resume]
        self._trainer.recover_done()
        self._progress(Phase.ASIDE)
        self._running = True

    def _await_restart(self) -> NoReturn:
        """Nothing is committed and the initial state is gone: pawld ends this process and starts it anew in its
        seat."""
        sys.stderr.flush()
        time.sleep(COLD_RESTART_S)
        os._exit(1)

    # The end.

    def _finish(self) -> None:
        try:
            self._trainer.finish()
        except Stop:
            if self._trainer.committed_step() < self._done:
                raise  # else the job has ended, well, before this seat was told
        self._act_on_commits(self._done)
        self.finished = True

    def finish_or_exit(self) -> None:
        """After a loop that was left early. A loss now can't be made good in this process: its loop is gone."""
        if self.finished:
            return
        if self._late:
            script_exit.exit_now("the loop was left during the rehearsal: where the script may leave it early, check "
                                 "step.rehearsal (or step.lost) first")
        try:
            self._finish()
        except Stop as stop:
            script_exit.exit_now(str(stop))
        except Recover:
            script_exit.exit_now(f"step {self._done} was lost after the loop had been left: this process restarts in "
                                 f"its seat")

    def finish_loop(self) -> bool:
        if self.finished or not self.looped:
            return True
        try:
            self._finish()
        except Recover as recover:
            self._lost_by = str(recover)
        except Stop as stop:
            self._end_stopped(str(stop))
        return self.finished

    def _end_stopped(self, why: str) -> NoReturn:
        self.finished = True
        script_exit.end_stopped(why)

    @contextlib.contextmanager
    def _stopping(self) -> Iterator[None]:
        try:
            yield
        except Stop as stop:
            self._end_stopped(str(stop))

    def _progress(self, phase: Phase) -> None:
        self._phase = phase
        self._trainer.progress(phase)

    def alive(self) -> None:
        if not self._late:
            self._trainer.progress(self._phase)

    def close(self, well: bool = True) -> None:
        """The end of this process. Not well: it dies as if it was killed, so that pawld sees a death and no
        farewell."""
        from pawl import groups
        self._watch.close()
        groups.fail("this process ends")
        groups.close_generation()  # who waits for this rank in a collective is freed now
        if well:
            groups.use_library(None, 0)
            self._trainer.detach()

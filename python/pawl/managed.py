"""The job of a seat under `pawl run`: gates, recovery, restore.

What always holds: a window opens when the loop comes for the next step, so that what the script writes between two
blocks belongs to the step before; a protected optimizer changes state only after the open window is fenced; a step is
done only after all its collectives have completed and were checked; and a peer's death leaves the loop only at the
edges of a step. Until then a lost step drains (groups.py). Whatever it wrote is overwritten, since every seat restores.

A process that joins a running job (restarted in its seat, or a spare) builds in loopback and rehearses until the lazy
state of the first steps exists. Only then it declares its tensors, restores, and joins the others.
Everything here runs in the training thread.
"""
from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

from pawl import data_position, drill_record, same_script, script_exit, script_frames, second_step, volatile_state
from pawl._library import Phase, Seat, Trainer
from pawl.build_log import BuildLog
from pawl.errors import PawlError, Recover, Refused, StepLost, Stop
from pawl.job import SECOND_LOOP, Job, Step, observe_steps
from pawl.left_gradients import Left
from pawl.loaders import Place
from pawl.look_around import LookAround
from pawl.protect import (
    STEPS_BEFORE_SEAL,
    Held,
    OptimizerWatch,
    Protected,
    Unchanged,
    dtype_number,
    modes,
    no_optimizer,
    put_modes_back,
    storage_order,
)
from pawl.rehearsal import captured_output, rehearsal_steps
from pawl.windows import Windows
from pawl.witness import CARRIED_STEP, Witness

LAG_AGAIN_S = 60.0
COLD_RESTART_S = 120.0  # how long this process waits to be ended by its pawld
MEET_S = 30 * 86400.0   # for the other seats; pawld ends the wait when one can't come
BUILD_TIMEOUT = timedelta(minutes=30)  # torch's own: while scripts build, one rank may be far behind the others


class ManagedJob(Job):
    """One seat. Made by pawl.init(), with the default process group."""

    def __init__(self, trainer: Trainer, seat: Seat, *, state_bytes: int, timeout: timedelta,
                 on_mismatch: str = "error", rehearsed: second_step.Made | None = None) -> None:
        """`rehearsed`: what two steps have made in this process, when it was a spare."""
        import torch
        super().__init__(seat.rank, seat.world, seat.local_rank, torch.device("cpu"))
        self._trainer, self._seat = trainer, seat
        self._state_room, self._timeout = state_bytes, timeout
        self.generation, self._done = seat.generation, seat.resume_step
        self._late = seat.resume_step > 0  # builds in loopback, and must rehearse
        self._rehearsed = rehearsed
        self._protected = Protected(seat.rank, seat.world)
        self._look_around: LookAround | None = None
        if self.rank == 0 and not self._late and not drill_record.recording:
            self._look_around = LookAround(self._protected, script_exit.say)
            observe_steps(self._look_around)
        self._watch = OptimizerWatch(self._protected, self._before_update)
        warns = on_mismatch == "warn" or drill_record.recording  # a drill compares by itself
        self._witness = Witness(lambda: self._failure() is None, script_exit.say if warns else None)
        self._loaders = data_position.LoaderWatch(self._protected, self._step_for_data)
        self._asides = 0
        self._held: list[Held] = []
        self._unchanged: Unchanged | None = None
        self._volatile: volatile_state.VolatileState | None = None
        self._declared = self._sealed = False
        self._running = False        # recover_done has answered in this generation
        self._lost_by: str | None = None    # why a recovery is due
        self._stopped_by: str | None = None  # what pawl said about the end of the job
        self._first_done = 0         # steps that the script's checkpoint had done
        self._steps_here = 0         # blocks that this process has completed, rehearsals apart
        self._fenced = self._updated = False  # in this block: the window is closed; an optimizer has been let through
        self._window_due = False     # the state of the last step has no window yet
        self._windows = Windows(trainer, script_exit.say)
        self._raised = False         # an exception left the lost step's block
        self._lag_due = 0.0          # when it is said again that no state is captured
        self._protected.gradients.on_carried = self._carried_after_all
        self._phase = Phase.NONE
        self._commits: list[tuple[int, Callable[[], Any]]] = []
        self._acted = 0  # the last step for which what job.on_commit() was given has been called
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
        self._build = BuildLog(self._trainer, self._seat, self._rejoin)
        if not self._late:
            self._open_groups(BUILD_TIMEOUT)
        dist.init_process_group("pawl", store=self._store, rank=self.rank, world_size=self.world_size)

    def _open_groups(self, timeout: timedelta) -> None:
        """Once every seat is here. The deadline is for making groups alone: a seat that comes in anew builds first."""
        from pawl import groups
        same_script.agree(self._trainer, self.rank, groups.count_of_all(self.world_size),
                          self._protected.gradient_order() if self._declared else [])
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
        self._witness.watch(self._protected.wrappers)
        drill_record.protected(self._protected, things, state)
        if self._look_around is not None:
            self._look_around.add(things, state)

    def steps(self, total: int, done: int = 0) -> Iterator[Step]:
        first = not self.looped
        self.looped = True
        total = drill_record.last_step(total)
        if self.finished:
            raise Refused(SECOND_LOOP)
        if first:
            self._first_done = done
            self._done = self._done or done
            self._acted = max(self._acted, done)
            self._protected.bind_variables(script_frames.above())
            if not self._late:
                self._protected.refuse_unready()
                if not done:
                    data_position.refuse_ahead(self._protected)
            self._agree_on_room()
        try:
            if self._late:
                yield from self._rehearse()
            while True:
                with script_frames.loop_waiting(script_frames.above()):
                    step = self._next_step(total)
                if step is None:
                    return
                yield step
                self._after(step)
        except GeneratorExit:
            self._leave(sys._getframe().f_back)
            raise

    def _agree_on_room(self) -> None:
        """That of the seat that needs most. A seat that is built later may find its script's state larger or smaller by
        now: it gets the room of the snapshot that it restores (pawl.h, pawl_blob_add), so nobody need tell it."""
        import torch
        import torch.distributed as dist
        room = torch.tensor([volatile_state.room_for(self._protected.parts, self._state_room)])
        with self._build.paused():
            dist.all_reduce(room, dist.ReduceOp.MAX)
        self._state_room = int(room.item())

    def _leave(self, loop: FrameType | None) -> None:
        if not self.raises_lost and script_exit.left_by_break(loop):
            with script_frames.loop_waiting(loop):
                self.finish_or_exit()

    def _place_in(self, loader: Any) -> Place:
        known = [place.loader for place in self._protected.places]
        own = loader if isinstance(loader, (tuple, list)) else [loader]
        if self._declared and not all(any(each is one for one in known) for each in own):
            raise Refused("the loop takes its batches from another loader than before: a job has one loop, over one "
                          "loader")
        return self._protected.place_in(loader)

    def stop(self) -> None:
        if self._late or self._failure() is not None:  # what a lost step says is not meant
            return
        with contextlib.suppress(Recover, Stop):  # noticed at the step's edge; what was agreed stays
            self._trainer.stop_after(self._done + 1)

    @contextlib.contextmanager
    def aside(self, name: str = "aside") -> Iterator[None]:
        before = [modes(module) for module in self._protected.wrappers]
        with super().aside(name), self._build.paused():
            self._progress(Phase.COMPUTE)  # so that a hang in it is noticed
            self._asides += 1
            try:
                yield
            except Exception as error:
                if not self.loss_pending():
                    raise
                self.cut_short = True
                for module, training in zip(self._protected.wrappers, before, strict=False):
                    put_modes_back(module, training)  # what would have done it was cut off
                script_exit.say(f"{name} was cut short by a loss: {type(error).__name__}: {error}")
            finally:
                self._asides -= 1
                self._progress(Phase.ASIDE)

    def _step_for_data(self) -> int | None:
        return None if self._late or self._asides else self._done

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
        """The state of the step before is captured from here on, so that whatever the loop does now is done again after
        a loss."""
        if not self._sealed and number - self._first_done == STEPS_BEFORE_SEAL:
            self._windows.watch(self._protected.stable())
        if not self._sealed:
            self._protected.carried_gradient(self._done)  # the next block shows whether they count
        self._open_window()
        if CARRIED_STEP - 1 <= number - self._first_done <= CARRIED_STEP:
            self._witness.carried.look(script_frames.loop(), number - self._first_done == CARRIED_STEP,
                                       self._protected.state_tensors)
        self._trainer.step_begin(number)
        if self._windows.early_writer is not None:  # it may write as soon as the loop has the step
            self._windows.fence(self._done)
        self._progress(Phase.ASIDE)

    def _open_window(self, last: bool = False) -> None:
        """Of the last step that is done, unless it has one or was restored. `last`: no step follows."""
        if not self._window_due or not self._sealed:
            return
        assert self._volatile is not None
        self._volatile.ending = last
        self._check_unchanged()
        left = None if last else self._protected.carried_gradient(self._done)
        if left is not None:
            if left.carries or left.blocks:
                self._lag(left.name)
            return
        self._window_due = False
        self._windows.open(self._done, self._protected.samples())

    def _lag(self, name: str) -> None:
        """Says once in a while what protection waits for."""
        now = time.monotonic()
        if now >= self._lag_due:
            self._lag_due = now + LAG_AGAIN_S
            script_exit.say(f"step {self._done} is not captured: gradients are added up over several steps (as of "
                            f"{name}): only the state after an optimizer's step is captured, and a loss goes back to "
                            f"it. If the next step doesn't need them, drop them at the block's end: "
                            f"optimizer.zero_grad()")

    def _carried_after_all(self, left: Left) -> None:
        """The windows since then were opened because blocks had not added to such gradients before."""
        for step in range(left.step, self._done + 1):
            self._windows.torn[step] = (f"gradients of {left.name} that it left were added to, which no step had done "
                                        f"before. Zero them when the block ends")

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
        for step in range(self._acted + 1, committed + 1):
            for each in self._after_commit:
                each(step)
            self._acted = step

    def _load_acted(self, saved: int) -> None:
        """The restored step itself is committed, and nobody knows whether the seat's last process has acted on it."""
        self._acted = max(self._acted, saved)

    # The edges of a step.

    def _enter(self, step: Step) -> None:
        from pawl import groups
        self._build.end()
        self._inside, self._updated, self._fenced, self.cut_short = step, False, False, False
        if step.rehearsal:
            return
        self._witness.begin(int(step))
        self._progress(Phase.COMPUTE)
        groups.collective_phase(int(Phase.ALLREDUCE), int(Phase.ALLREDUCE))

    def _before_update(self) -> None:
        """Before any protected optimizer changes anything. Never raises for a loss: an optimizer's step runs out."""
        from pawl import groups
        if self._inside is None:
            if self._running and not self._late:
                raise Refused("a protected optimizer stepped outside of `with step:`: what may be undone belongs into "
                              "the block")
            return
        if self._updated:
            return
        self._updated = True
        self._close_window()
        if self._inside.rehearsal:
            return
        self._progress(Phase.UPDATE)
        groups.collective_phase(int(Phase.EXCHANGE), int(Phase.ALLGATHER))

    def _fence(self, step: Step) -> None:
        if self._inside is not step:
            raise Refused("step.fence() was called outside of its block")
        self._close_window()
        if not step.rehearsal and not self._updated:
            self._progress(Phase.COMPUTE)

    def _close_window(self) -> None:
        """Afterwards stable state may change. Once in a block; never raises for a loss."""
        from pawl import groups
        if self._fenced:
            return
        self._fenced = True
        if self._inside is not None and self._inside.rehearsal:
            self._end_window()
            return
        try:
            self._windows.fence(self._done)
        except (Recover, Stop) as pending:
            groups.fail(str(pending))
            self._note(pending)

    def _end_window(self) -> None:
        self._windows.end(self._done if self._sealed else None, quiet=self.rehearsal)

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._inside = None
        self._witness.end()
        if step.rehearsal:
            self._end_window()
            step.lost = True
            return False
        why = None
        self._raised = error is not None
        if error is None:
            why = self._complete(step)
        elif isinstance(error, (Exception, SystemExit)):  # others, as KeyboardInterrupt, leave whatever happened
            self._end_window()
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
        self._close_window()
        why = self._failure()
        if why is not None:
            return why
        if self._protected.trained_without is not None:
            raise Refused(no_optimizer(self._protected.trained_without))
        self._steps_here += 1
        try:
            if not self._sealed and self._steps_here >= STEPS_BEFORE_SEAL:
                self._seal()
        except (Recover, Stop) as pending:
            self._note(pending)
            return str(pending)
        self._done, self._window_due = int(step), True
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

    def _seal(self) -> None:
        """Idempotent: a recovery may end it halfway."""
        if not self._declared:
            self._declare()
            self._build.tell_big(self._held)
        if not self._sealed:
            self._trainer.layout_seal()
            self._sealed = True

    def _declare(self) -> None:
        self._protected.refuse_hooks()  # of hooks that came later
        self._held = self._protected.held()
        self._protected.declared(self._held)
        random = volatile_state.Part("random", volatile_state.save_random, volatile_state.load_random)
        commits = volatile_state.Part("commits", lambda: self._acted, self._load_acted)
        volatile = volatile_state.VolatileState([random, self._protected.gradients_part(), self._witness.part(),
                                                 self._build.part(), commits, *self._protected.parts],
                                                script_exit.say)
        self._volatile = volatile
        mesh = self._trainer.mesh_add("data", [("dp", self.world_size)])
        for held in self._held:
            view = storage_order(held.tensor)
            number = dtype_number(held.tensor)
            assert view is not None and number is not None  # what has none is refused before
            held.index = self._trainer.tensor_add(held.name, held.role, number, tuple(view.shape), held.address,
                                                  mesh=mesh,
                                                  placement=held.placement, lifetime=held.lifetime)
        self._trainer.blob_add(f"volatile/rank{self.rank}", self._state_room, volatile.save_within, volatile.load)
        self._windows.declare(self._held)
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
            self._protected.carried_gradient()
            for step in rehearsal_steps(self, self._protected, self._is_second_derived):
                if int(step) == STEPS_BEFORE_SEAL:
                    self._windows.watch(self._protected.stable())
                yield step
                if self._trainer.interrupted():  # the others wait for this seat to follow
                    self._build.share(self._rejoin())
            second_step.lay_buckets(self._protected)
            self._build.settle()
        from pawl import groups
        groups.set_loopback(False)
        self._late = False

    def _is_second_derived(self) -> bool:
        """After the first step: what the second one would make is there, so it need not be rehearsed."""
        left = self._protected.carried_gradient(1)
        why = (f"whether gradients of {left.name} are added up over steps is not known yet" if left is not None
               else second_step.why_not_derived(self._protected, self._rehearsed))
        if why is not None:
            logging.getLogger("pawl").debug("a second step is rehearsed: %s", why)
        return why is None

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
        self._end_window()
        if not self._trainer.interrupted():
            with contextlib.suppress(Recover):
                self._trainer.fault_report(why, groups.lost())
        groups.close_generation()
        self._adopt(self._trainer.recover_join())
        self._lost_by = None
        if not self._seat.resume_step:
            self._await_restart()

    def _rejoin(self) -> Seat:
        """While this seat is built."""
        with self._stopping():
            self._adopt(self._trainer.recover_join())
        return self._seat

    def _adopt(self, seat: Seat) -> None:
        self._seat, self.generation = seat, seat.generation
        self._done, self._window_due = seat.resume_step, False

    def _enter_generation(self) -> None:
        from pawl import groups
        self._protected.drop_gradients()
        if self._raised:
            self._protected.mend_reducers()
            self._raised = False
        resume = self._seat.resume_step
        if resume > 0:
            self._build.share(self._seat)
            if resume in self._windows.torn:
                raise Refused(f"step {resume} can't be restored: {self._windows.torn[resume]}, and start the job again")
            self._seal()
            self._build.check(self._held)
            self._check_unchanged()  # since the last window, the lost step may have put tensors elsewhere
            self._restore()
            self._open_groups(self._timeout)
        elif groups.failed():
            raise Recover(groups.failed())  # while the model was built: what others sent has not arrived
        self._commits = [(step, act) for step, act in self._commits if step <= resume]
        self._trainer.recover_done()
        self._progress(Phase.ASIDE)
        self._running = True

    def _restore(self) -> None:
        try:
            self._trainer.restore()
        except PawlError as error:
            if "was written while it was copied" in str(error):  # a process of this seat saw it, and is gone
                raise Refused(f"{error}. Call step.fence() right before the write, and start the job again") from None
            raise

    def _await_restart(self) -> NoReturn:
        """Nothing is committed and the initial state is gone: pawld ends this process and starts it anew in its
        seat."""
        sys.stderr.flush()
        time.sleep(COLD_RESTART_S)
        os._exit(1)

    # The end.

    def _finish(self) -> None:
        self._open_window(last=True)
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
        except (Stop, Refused) as stop:
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
        self._loaders.close()
        groups.fail("this process ends")
        groups.close_generation()  # who waits for this rank in a collective is freed now
        if well:
            groups.use_library(None, 0)
            self._trainer.detach()

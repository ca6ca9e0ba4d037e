"""The job of a seat under `pawl run`: gates, recovery, restore.

This is the loop: the edges of a step, and what a loss makes of them. What it stands on: losses.py (what was lost),
membership.py (the seat in each generation), declared_state.py (the layout), captured_steps.py (the windows),
commit_acts.py (what runs after a commit), rehearsal.py.

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
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

from pawl import (
    checkpoint_values,
    compiling,
    data_position,
    devices,
    drill_record,
    other_world,
    reducers,
    script_exit,
    script_frames,
    second_step,
    volatile_state,
)
from pawl._library import Phase, Seat, Trainer
from pawl.captured_steps import CapturedSteps
from pawl.commit_acts import CommitActs
from pawl.declared_state import DeclaredState
from pawl.errors import Recover, Refused, StepLost, Stop
from pawl.job import SECOND_LOOP, Job, Step, observe_steps
from pawl.loaders import Place
from pawl.look_around import LookAround
from pawl.losses import Losses
from pawl.membership import Membership
from pawl.protect import STEPS_BEFORE_SEAL, OptimizerWatch, Protected, modes, no_optimizer, put_modes_back
from pawl.rehearsal import captured_output, rehearsal_steps
from pawl.replicas import Replicas
from pawl.windows import Windows
from pawl.witness import CARRIED_STEP, Witness

REPLICAS_END_S = 5.0


class ManagedJob(Job):
    """One seat. Made by pawl.init(), with the default process group."""

    def __init__(self, trainer: Trainer, seat: Seat, *, state_bytes: int, timeout: timedelta,
                 on_mismatch: str = "error", rehearsed: second_step.Made | None = None) -> None:
        """`rehearsed`: what two steps have made in this process, when it was a spare."""
        super().__init__(seat.rank, seat.world, seat.local_rank, devices.of_job())
        self._trainer = trainer
        self._protected = Protected(seat.rank, seat.world)
        self._losses = Losses(trainer)
        self._acts = CommitActs(self._after_commit)
        windows = Windows(trainer, script_exit.say)
        self._state = DeclaredState(trainer, self._protected, windows, state_bytes, self._own_parts,
                                    lambda: self._done)
        warns = on_mismatch == "warn" or drill_record.recording  # a drill compares by itself
        replicas = Replicas(self._protected, trainer, script_exit.say, warns)
        self._captured = CapturedSteps(self._protected, self._state, windows, self._losses, replicas,
                                       lambda: self._done)
        self._layouts: reducers.Layouts | None = None  # since the layout is declared
        self._rehearsed = rehearsed
        self._first_done = 0         # steps that the script's checkpoint had done
        self._steps_here = 0         # blocks that this process has completed, rehearsals apart
        self._updated = False        # in this block an optimizer has been let through
        self._phase = Phase.NONE
        self._asides = 0
        self.looped = False
        self.cut_short = False       # since the last step's end, something of the script was
        self.generation, self._done = seat.generation, seat.resume_step
        self._look_around: LookAround | None = None
        if not (seat.resume_step or drill_record.recording):
            self._look_around = LookAround(self._protected, script_exit.say)
            observe_steps(self._look_around)
        self._watch = OptimizerWatch(self._protected, self._before_update)
        self._witness = Witness(lambda: self._losses.failure() is None, script_exit.say if warns else None)
        self._loaders = data_position.LoaderWatch(self._protected, self._step_for_data)
        self._member = Membership(trainer, seat, timeout)
        self._member.make_groups(self._rejoin)

    @property
    def rehearsal(self) -> bool:
        return self._member.late

    # What the user calls.

    def protect(self, *things: Any, state: Any = None) -> None:
        if self._state.declared:
            raise Refused("job.protect() was called after the layout was sealed: call it before job.steps()")
        self._protected.add(things, state)
        self._watch.see_compiler()
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
            self._acts.skip_to(done)
            self._protected.bind_variables(script_frames.above())
            if not self._member.late:
                self._protected.refuse_unready()
                if not done:
                    data_position.refuse_ahead(self._protected)
            self._state.agree_on_room(self._member.build)
        try:
            if self._member.late:
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

    def _leave(self, loop: FrameType | None) -> None:
        if not self.raises_lost and script_exit.left_by_break(loop):
            with script_frames.loop_waiting(loop):
                self.finish_or_exit()

    def _place_in(self, loader: Any) -> Place:
        known = [place.loader for place in self._protected.places]
        own = loader if isinstance(loader, (tuple, list)) else [loader]
        if self._state.declared and not all(any(each is one for one in known) for each in own):
            raise Refused("the loop takes its batches from another loader than before: a job has one loop, over one "
                          "loader")
        return self._protected.place_in(loader)

    def stop(self) -> None:
        if self._member.late or self._losses.failure() is not None:  # what a lost step says is not meant
            return
        with contextlib.suppress(Recover, Stop):  # noticed at the step's edge; what was agreed stays
            self._trainer.stop_after(self._done + 1)

    def checkpoint(self) -> bool:
        if not checkpoint_values.are_wanted():
            return False
        if self._member.late or self._losses.failure() is not None:  # asked again when the step is done again
            return True
        with contextlib.suppress(Recover, Stop):
            self._trainer.persist()
        return True

    @property
    def stored_step(self) -> int:
        return self._trainer.stored_step()

    @contextlib.contextmanager
    def aside(self, name: str = "aside") -> Iterator[None]:
        before = [modes(module) for module in self._protected.wrappers]
        with super().aside(name), self._member.build.paused():
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
                if self._look_around is not None:
                    self._look_around.aside()
                self._progress(Phase.ASIDE)

    def _step_for_data(self) -> int | None:
        return None if self._member.late or self._asides else self._done

    def _on_commit(self, step: Step, act: Callable[[], Any]) -> None:
        if not step.rehearsal and not step.lost:
            self._acts.add(int(step), act)

    # Between steps.

    def _next_step(self, total: int) -> Step | None:
        """The next step, begun; None at the end, when the last is committed on every seat."""
        while True:
            try:
                if not self._member.running or self._losses.recovery_due():
                    self._recover()
                self._acts.act(self._trainer.committed_step())
                if self._done >= min(total, self._trainer.stop_step() or total):
                    self._finish()
                    return None
                self._begin(self._done + 1)
                return Step(self._done + 1, self)
            except Recover as recover:
                self._losses.lost_by = str(recover)
            except Stop as stop:
                self._end_stopped(str(stop))

    def _begin(self, number: int) -> None:
        self._captured.begin(number, self._first_done)
        if CARRIED_STEP - 1 <= number - self._first_done <= CARRIED_STEP:
            self._witness.carried.look(script_frames.loop(), number - self._first_done == CARRIED_STEP,
                                       self._protected.state_tensors)
        devices.tell_stream(self._trainer)
        self._trainer.step_begin(number)
        self._captured.begun()
        self._progress(Phase.ASIDE)

    def _after(self, step: Step) -> None:
        """The loop has come back for the next step."""
        if not step._entered:
            raise Refused(f"step {int(step)} has no block: write `with step:` in the loop")
        if self._inside is step or (self._done < int(step) and not self._losses.noted()):
            self._inside = None  # the script caught what left the block; the others can't know
            self._losses.lost_by = f"an exception left the block of step {int(step)}"
        if self._losses.stopped_by is not None:
            self._end_stopped(self._losses.stopped_by)

    # The edges of a step.

    def _enter(self, step: Step) -> None:
        from pawl import groups
        self._member.build.end()
        devices.refuse_capturing()
        compiling.watch.see(self.alive)
        self._watch.see_compiler()
        self._inside, self._updated, self.cut_short = step, False, False
        self._captured.enter_block()
        if step.rehearsal:
            return
        self._witness.begin(int(step))
        self._progress(Phase.COMPUTE)
        groups.collective_phase(int(Phase.ALLREDUCE), int(Phase.ALLREDUCE))

    def _before_update(self) -> None:
        """Before any protected optimizer changes anything. Never raises for a loss: an optimizer's step runs out."""
        from pawl import groups
        if self._inside is None:
            if self._member.running and not self._member.late:
                raise Refused("a protected optimizer stepped outside of `with step:`: what may be undone belongs into "
                              "the block")
            return
        if self._updated:
            return
        self._updated = True
        devices.refuse_capturing()
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
        self._captured.close(rehearsal=self._inside is not None and self._inside.rehearsal)

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._inside = None
        self._witness.end()
        if step.rehearsal:
            self._captured.end(quiet=self.rehearsal)
            step.lost = True
            return False
        why = None
        if error is None:
            why = self._complete(step)
        elif isinstance(error, (Exception, SystemExit)):  # others, as KeyboardInterrupt, leave whatever happened
            self._captured.end(quiet=self.rehearsal)
            why = self._losses.failure()
        self._progress(Phase.ASIDE)
        if why is not None:
            return self._lose(step, why, error)
        if error is not None:
            script_exit.note_failure(error)
        return False

    def _complete(self, step: Step) -> str | None:
        """The step is done here, and its window due. Otherwise why it is lost."""
        from pawl import groups
        groups.wait_all()
        self._close_window()
        why = self._losses.failure()
        if why is not None:
            return why
        if self._protected.trained_without is not None:
            raise Refused(no_optimizer(self._protected.trained_without))
        self._steps_here += 1
        try:
            if self._steps_here >= STEPS_BEFORE_SEAL:
                self._state.seal(self._member.build)
            if self._layouts is not None and not self._layouts.are_laid():
                with self._protected.gradients.put_elsewhere(each for _, each in self._protected.parameters()):
                    self._layouts.lay()  # DDP(gradient_as_bucket_view=True) has gradients in its buckets
        except (Recover, Stop) as pending:
            self._losses.note(pending)
            return str(pending)
        self._done, self._captured.due = int(step), True
        return None

    def _lose(self, step: Step, why: str, error: BaseException | None) -> bool:
        step.lost = True
        if not self._losses.noted():
            self._losses.lost_by = why
        if error is not None:
            print(f"pawl: step {int(step)} is lost ({why}), and so is the exception that it raised: "
                  f"{type(error).__name__}: {error}",
                  file=sys.stderr)
        if self.raises_lost:
            raise StepLost(f"step {int(step)} is lost: {why}") from error
        return True

    def loss_pending(self) -> bool:
        return self._losses.failure() is not None

    # Recovery.

    def _rehearse(self) -> Iterator[Step]:
        """In loopback, until this process has all the state that the others have; then the real thing begins."""
        with captured_output():
            self._protected.refuse_unready(again=True)
            self._protected.carried_gradient()
            for step in rehearsal_steps(self, self._protected, self._is_second_derived):
                if int(step) == STEPS_BEFORE_SEAL:
                    self._captured.watch()
                yield step
                if self._trainer.interrupted():  # the others wait for this seat to follow
                    self._member.build.share(self._rejoin())
            second_step.lay_buckets(self._protected)
            self._member.build.settle()
        self._member.end_loopback()

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
                if self._losses.lost_by is not None:
                    self._leave_generation(self._losses.lost_by)
                self._enter_generation()
                return
            except Recover as recover:
                self._losses.lost_by = str(recover)
            except groups.GroupsFailed as failed:
                self._losses.lost_by = str(failed)

    def _leave_generation(self, why: str) -> None:
        self._member.running = False
        self._captured.end(quiet=self.rehearsal)
        self._adopt(self._member.leave(why))
        self._losses.lost_by = None
        if not self._member.seat.resume_step:
            self._member.await_restart()

    def _rejoin(self) -> Seat:
        """While this seat is built."""
        with self._stopping():
            self._adopt(self._trainer.recover_join())
        return self._member.seat

    def _adopt(self, seat: Seat) -> None:
        self._member.seat, self.generation = seat, seat.generation
        self._done, self._captured.due = seat.resume_step, False

    def _enter_generation(self) -> None:
        from pawl import groups
        self._protected.drop_gradients()
        resume = self._member.seat.resume_step
        if resume > 0:
            self._member.build.share(self._member.seat)
            self._captured.refuse_torn(resume)
            self._state.seal(self._member.build)
            self._member.build.check(self._state.held)
            self._state.check_unchanged()  # since the last window, the lost step may have put tensors elsewhere
            self._member.restore()
            self._captured.replicas.restored(resume)
            if self._state.origin is not None:
                other_world.settle(self._trainer, self._member.seat, self._state.origin, self._state.begun_with,
                                   script_exit.say)
            if self._look_around is not None:
                self._look_around.end()
            self._member.open_groups(self._state.gradient_order())
        elif groups.failed():
            raise Recover(groups.failed())  # while the model was built: what others sent has not arrived
        self._acts.drop_after(resume)
        self._trainer.recover_done()
        self._progress(Phase.ASIDE)
        self._member.running = True

    def _own_parts(self) -> list[volatile_state.Part]:
        """Of the state, beside what the script handed over."""
        from pawl import groups
        random = volatile_state.Part("random", volatile_state.save_random, volatile_state.load_random)
        self._layouts = reducers.Layouts(self._protected.ddp_modules(), groups.alone)
        return [random, self._layouts.part(), self._protected.gradients_part(), self._witness.part(),
                self._captured.replicas.part(), self._member.build.part(), self._acts.part()]

    # The end.

    def _finish(self) -> None:
        self._captured.open(last=True)
        try:
            self._trainer.finish()
        except Stop:
            if self._trainer.committed_step() < self._done:
                raise  # else the job has ended, well, before this seat was told
        self._acts.act(self._done)
        self.finished = True

    def finish_or_exit(self) -> None:
        """After a loop that was left early. A loss now can't be made good in this process: its loop is gone."""
        if self.finished:
            return
        if self._member.late:
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
            self._losses.lost_by = str(recover)
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
        if not self._member.late:
            self._trainer.progress(self._phase)

    def close(self, well: bool = True) -> None:
        """The end of this process. Not well: it dies as if it was killed, so that pawld sees a death and no
        farewell."""
        from pawl import groups
        self._watch.close()
        self._loaders.close()
        compiling.watch.close()
        groups.fail("this process ends")
        groups.close_generation()  # who waits for this rank in a collective is freed now
        if well and self._captured.replicas.end(REPLICAS_END_S):  # nobody may be inside
            groups.use_library(None, 0)
            self._trainer.detach()

"""Job and Step: the user's loop, and what each of its edges does.

    job = pawl.init()
    job.protect(model, optimizer, scheduler, sampler)
    for step in job.steps(total):
        with step:
            ...
        if step.lost: continue

`job.batches(loader)` gives each step with its batch, and `job.loop(loader)` batches alone.

Job is the plain training: a script without `pawl run` gets it, and every method does there what its name says. The two
kinds under `pawl run` are in managed.py (a seat) and rehearsal.py (a parked spare). All calls come from the training
thread's. Importing this needs no torch.
"""
from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from pawl import loaders, script_exit, script_frames
from pawl.errors import PawlError, Refused
from pawl.tagged_values import KeptAsInt

if TYPE_CHECKING:
    import torch

SECOND_LOOP = ("job.steps() was called a second time: a job has one loop, and it has ended. It goes through all "
               "epochs: give epochs= to job.batches() or job.loop(), and the steps of all epochs to job.steps()")
_current: Job | None = None
_observer: StepObserver | None = None


def current_job() -> Job | None:
    """The job that pawl.init() has made in this process; None before that."""
    return _current


def set_current_job(job: Job | None) -> None:
    global _current
    _current = job


class StepObserver(Protocol):
    """Is told about each step's block. A drill has one (drill_record.py), and so has each other job
    (look_around.py)."""

    def entering(self, job: Job, step: Step, loop: FrameType) -> None:
        """`loop` is about to enter the step's block."""

    def finished(self, job: Job, step: Step) -> None:
        """The block has ended, and the step is not lost as far as this seat knows."""


def observe_steps(observer: StepObserver | None) -> None:
    """From now on, of all jobs of this process. None: nobody."""
    global _observer
    _observer = observer


class Step(KeptAsInt):
    """One training iteration: its number, from 1, and the block in which it happens.

    `lost`: a peer died and the step is undone; skip what comes after the block, the step will be done again.
    `rehearsal`: a spare or a new process warms up; nothing that it does counts. Both are for code inside the loop.
    """

    lost: bool
    rehearsal: bool

    def __new__(cls, number: int, job: Job, rehearsal: bool = False) -> Step:
        step = super().__new__(cls, number)
        step._job, step._entered = job, False
        step.lost, step.rehearsal = False, rehearsal
        return step

    _job: Job
    _entered: bool

    def __enter__(self) -> Step:
        self._begin(script_frames.above())
        return self

    def _begin(self, loop: FrameType | None) -> None:
        if self._entered:
            raise PawlError(f"step {int(self)} was entered before: each step has one block")
        self._entered = True
        if _observer is not None and loop is not None:
            _observer.entering(self._job, self, loop)
        self._job._enter(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 _traceback: TracebackType | None) -> bool:
        if script_exit.forked():
            return False
        swallowed = self._job._exit(self, error)
        if _observer is not None and error is None and not self.lost:
            _observer.finished(self._job, self)
        return swallowed

    def fence(self) -> None:
        """From here on protected tensors may be written in this block. An optimizer's step does this by itself; it is
        for what the script writes into weights or optimizer state before the step's first update."""
        self._job._fence(self)

    def __reduce__(self) -> tuple[type[int], tuple[int]]:
        return int, (int(self),)  # kept or sent, it is a number

    def on_commit(self, act: Callable[[], Any]) -> None:
        """Calls `act` once the step can't be lost any more: for logs and files that must not repeat.

        The call comes in the training thread, when a later step begins. It never comes for a step that was lost, in a
        rehearsal, or if this process dies before: job.on_commit() is for what must not be left out.
        """
        self._job._on_commit(self, act)


class Job:
    """A training without pawl: as torchrun's environment says, or alone."""

    def __init__(self, rank: int, world_size: int, local_rank: int, device: torch.device) -> None:
        self.rank, self.world_size, self.local_rank, self.device = rank, world_size, local_rank, device
        self.generation = 0  # version of the membership
        self.raises_lost = False  # under @pawl.resilient a lost step raises StepLost
        self._done = 0       # the last step that was finished
        self._stop_step = 0  # the last one to do; 0: as many as the loop says
        self._inside: Step | None = None
        self._after_block: list[Callable[[], Any]] = []
        self._after_commit: list[Callable[[int], Any]] = []  # of each step
        self._place: loaders.Place | None = None  # of the loop
        self._totals: dict[tuple[int | None, int | None], int] = {}  # by epochs= and steps=
        self._batches: weakref.ref[Generator[Any, None, None]] | None = None  # that loop() has given
        self.finished = False  # the loop has ended

    @property
    def step(self) -> Step | None:
        """Whose block this is; for loops that have only the batch."""
        return self._inside

    @property
    def epoch(self) -> int:
        """From 0: of the batch that batches() or loop() gave last."""
        return self._place.epoch if self._place is not None else 0

    @property
    def rehearsal(self) -> bool:
        """Nothing that is done now counts."""
        return False

    def protect(self, *things: Any, state: Any = None) -> None:
        """Declares what is protected, in any order: models, optimizers, schedulers, the scaler, samplers, generators,
        loaders, and everything that has state_dict() and load_state_dict(). `state`: ordinary variables, as a dict or
        an object; an entry with name and value of a variable of the loop stands for that.
        """

    def steps(self, total: int, done: int = 0) -> Iterator[Step]:
        """The steps 1 to `total` that are not done yet. Recovery happens in here; after it the next step is R+1.

        `done`: so many steps are done already: the script has loaded a checkpoint that was taken after them."""
        if self.finished:
            raise Refused(SECOND_LOOP)
        self._done = max(self._done, done)
        try:
            while self._done < min(total, self._stop_step or total):
                step = Step(self._done + 1, self)
                yield step
                if not step._entered:
                    raise PawlError(f"step {int(step)} has no block: write `with step:` in the loop")
        except GeneratorExit:
            self._leave(sys._getframe().f_back)
            raise
        self.finished = True

    def batches(self, loader: Any, epochs: int | None = None, *, steps: int | None = None,
                done: int = 0) -> Iterator[tuple[Step, Any]]:
        """Each step with its batch; write `with step:` in the loop. The loader's order and place are protected with it.

        Of a tuple of loaders each step gets a tuple of batches; the first loader says what an epoch is.
        `epochs`: 1 if neither is given; `steps`: at most so many, in as many epochs as it takes. set_epoch() is called.
        `done`: as for steps(). Fails: Refused for a loader whose place can't be found again."""
        given = self._give(loader, epochs, steps, done)
        for step, batch in given:
            try:
                yield step, batch
            except GeneratorExit:
                loop = script_frames.above()
                given.close()
                self._leave(loop)
                raise

    def loop(self, loader: Any, epochs: int | None = None, *, steps: int | None = None, done: int = 0) -> Iterator[Any]:
        """The batches alone: a step's block begins when the loop gets its batch and ends when it comes for the next
        one. `job.step` is the step. An exception that a loss causes in the block ends the process, which starts anew in
        its seat; job.batches() can swallow it."""
        batches = self._give_alone(self._give(loader, epochs, steps, done))
        self._batches = weakref.ref(batches)
        return batches

    def _give_alone(self, given: Generator[tuple[Step, Any], None, None]) -> Generator[Any, None, None]:
        for step, batch in given:
            drawing = script_frames.place_of(script_frames.above())
            step._begin(script_frames.loop_of(script_frames.above()))
            try:
                yield batch
            except GeneratorExit as left:
                loop = script_frames.above()
                by_exception = self._batches is not None and script_exit.left_by_exception(loop, drawing)
                step.__exit__(*((GeneratorExit, left, None) if by_exception else (None, None, None)))
                given.close()
                self._leave(loop)
                raise
            step.__exit__(None, None, None)

    def _give(self, loader: Any, epochs: int | None, steps: int | None,
              done: int) -> Generator[tuple[Step, Any], None, None]:
        first = self._place is None
        place = self._place = self._place_in(loader)
        if (epochs, steps) not in self._totals:  # when the loop is entered again, another epoch may have another length
            self._totals[epochs, steps] = loaders.steps_in(place, epochs, steps)
        total = self._totals[epochs, steps]
        if first:
            place.seek(done)
        lengths = loaders.Lengths(place) if steps is None else None
        try:
            for step in self.steps(total, done):
                if not step.rehearsal:
                    loaders.refuse_elsewhere(place, int(step))
                batch = place.next()
                if lengths is not None and not step.rehearsal and (changed := lengths.change()):
                    script_exit.say(changed)
                yield step, batch
            if lengths is not None and (rest := lengths.rest()):
                script_exit.say(rest)
        finally:
            if not script_exit.forked():  # the workers are the parent's
                place.close()

    def _place_in(self, loader: Any) -> loaders.Place:
        return self._place if self._place is not None else loaders.place_in(loader)

    def _leave(self, loop: FrameType | None) -> None:
        """The script has left the loop in this frame early."""
        self.finished = self.finished or script_exit.left_by_break(loop)

    def end_loop(self) -> None:
        """The script has ended: so has the last block of a loop() whose iterator something still holds."""
        batches = self._batches() if self._batches is not None else None
        self._batches = None
        if batches is not None:
            batches.close()

    def on_commit(self, act: Callable[[int], Any]) -> None:
        """From now on calls `act(number)` for each step once it can't be lost any more, in order, in the training
        thread between steps. At least once for each: if this process dies after the commit, whoever takes its seat
        calls it, perhaps again for the last ones."""
        self._after_commit.append(act)

    def stop(self) -> None:
        """Ends the job, on all seats after the same step: this one or the next."""
        self._stop_step = self._stop_step or self._done + 1

    def checkpoint(self) -> bool:
        """Asks that the job writes this step, or the next one that it can, to storage now; returns at once. One rank
        is enough; all may ask. False: this training writes no checkpoints of its own (`pawl run --checkpoint`)."""
        return False

    @property
    def stored_step(self) -> int:
        """The newest step that the job has in storage; 0: none. One that was asked for comes some steps later."""
        return 0

    @contextlib.contextmanager
    def aside(self, name: str = "aside") -> Iterator[None]:
        """For evaluation between steps. Random numbers drawn inside don't change the training's, and a hang is noticed.

        An exception that a peer's death causes is swallowed: the next step is then R+1, and no result is needed.
        """
        from pawl.volatile_state import load_random, save_random
        before = save_random()
        try:
            yield
        finally:
            load_random(before)

    def alive(self) -> None:
        """Restarts the clock of the hang watch. For long work without a collective, in a step or aside."""

    def loss_pending(self) -> bool:
        """Whether a peer's death has caused what just went wrong."""
        return False

    def finish_loop(self) -> bool:
        """The loop was left: the job ends after the last finished step. False: that step was lost, go on with the
        loop."""
        return True

    # What a Step calls.

    def _enter(self, step: Step) -> None:
        self._inside = step

    def _fence(self, step: Step) -> None:
        pass

    def _exit(self, step: Step, error: BaseException | None) -> bool:
        self._inside = None
        if error is not None:
            return False
        self._done = int(step)
        actions, self._after_block = self._after_block, []
        for act in actions:
            act()
        for each in self._after_commit:
            each(self._done)
        return False

    def _on_commit(self, step: Step, act: Callable[[], Any]) -> None:
        if self._inside is step:
            self._after_block.append(act)
        else:
            act()

"""How the user's script leaves its loop and how its process ends.

A mistake in the script or in how it was started ends the process with an error message and no traceback. A loop that
the script leaves with `break` or `return`, or a script that ends with exit code 0, ends the job, on all seats after the
same step. An exception, or another exit code, ends only this process: pawld starts it again in its seat.
"""
from __future__ import annotations

import atexit
import opcode
import os
import signal
import sys
from types import FrameType, TracebackType
from typing import Any, NoReturn, Protocol

from pawl.errors import Refused


class EndingJob(Protocol):
    """What the end of the process asks the job. ManagedJob is one."""

    looped: bool
    cut_short: bool

    def loss_pending(self) -> bool: ...
    def end_loop(self) -> None: ...
    def finish_or_exit(self) -> None: ...
    def close(self, well: bool = True) -> None: ...


REFUSED_CODE = 78  # under `pawl run`: a new process would be refused as well, so none is started

_failed = False  # this process ends because something went wrong
_exits_well = False  # exit code 0 was asked for
_refused = False  # and pawl has said what
_job: EndingJob | None = None
_forked = False  # by the script, out of the process whose job it is


# How it was left --------------------------------------------------------------------------------------------------

def left_by_break(frame: FrameType | None) -> bool:
    """Whether this frame drops the loop's iterator because of `break` or `return`, not because of an exception.

    An exception leaves the frame at the instruction that raised it; POP_TOP (POP_ITER) raises nothing.
    """
    if _forked or frame is None or frame.f_lasti < 0:
        return False
    return _instruction(frame) in ("POP_TOP", "POP_ITER")


def left_by_exception(frame: FrameType | None, drawing: tuple[int, Any] | None) -> bool:
    """The same, the other way round, of a loop whose iterator something else may hold, or draw from (tqdm, zip).
    `drawing`: script_frames.place_of() the frame that drew from it last.

    A frame that has returned is not there any more, nor is one that was left by an exception which was caught. What is
    let go when the process ends because of one was left by it."""
    while frame is not None and (id(frame), frame.f_code) != drawing:
        frame = frame.f_back
    if frame is None or frame.f_lasti < 0:
        return _failed
    return not _instruction(frame).startswith(("POP_TOP", "POP_ITER", "FOR_ITER", "END_FOR", "STORE_", "DELETE_",
                                               "RETURN_"))


def _instruction(frame: FrameType) -> str:
    """The one that runs, or that has called what runs."""
    code, place = frame.f_code.co_code, frame.f_lasti
    while place and opcode.opname[code[place]] == "CACHE":  # which follow it
        place -= 2
    return opcode.opname[code[place]]


def note_failure(error: BaseException) -> None:
    """Something left the loop that will most probably end the process."""
    global _failed, _exits_well
    if isinstance(error, GeneratorExit) and _exits_well:
        return  # sys.exit() in the body of a loop(), which lets its iterator go
    _exits_well = isinstance(error, SystemExit) and error.code in (None, 0)
    _failed = not _exits_well


# How it ends ------------------------------------------------------------------------------------------------------

def say(sentence: str) -> None:
    print(f"pawl: {sentence}", file=sys.stderr, flush=True)


def end_stopped(why: str) -> NoReturn:
    """The job has ended beneath the script."""
    note_failure(Refused(why))
    say(why)
    raise SystemExit(1)


def exit_now(why: str) -> NoReturn:
    """From where an exception would be lost: while the loop's iterator is being dropped, or at exit."""
    say(why)
    sys.stdout.flush()
    os._exit(1)


def start_anew(why: str) -> NoReturn:
    """After a loss: another process takes this one's seat, with the state that pawld holds."""
    say(f"{why}: this process starts anew in its seat")
    sys.stdout.flush()
    os.kill(os.getpid(), signal.SIGKILL)  # a death like the other; an exit would be the script's own failure
    raise SystemExit(1)  # not reached


def watch(job: EndingJob) -> None:
    """From now on the end of this process is seen. After init_process_group, which has a hook of its own."""
    global _job
    if _job is None:
        atexit.register(_at_exit)
        os.register_at_fork(after_in_child=_be_forked)
    _job = job
    show_sentences()
    _see_exit_codes()


def forked() -> bool:
    """Whether this process was forked by the script: the job is its parent's, and whatever it leaves is no end of a
    step or loop."""
    return _forked


def _be_forked() -> None:
    global _forked, _job
    _forked, _job = True, None
    atexit.unregister(_at_exit)


def show_sentences() -> None:
    """What is Refused is shown without a traceback. Idempotent."""
    shown = sys.excepthook
    if not getattr(shown, "shows_sentences", False) and os.environ.get("PAWL_SOCKET"):
        atexit.register(_leave_refused)  # before all others of pawl's, so it comes last

    def show(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        note_failure(error)
        if _lost_with(error):
            start_anew(f"a peer was lost, and between two steps the script failed because of it "
                       f"({kind.__name__}: {error})")
        if isinstance(error, Refused):
            global _refused
            _refused = True
            say(str(error))
        else:
            shown(kind, error, traceback)

    if not getattr(shown, "shows_sentences", False):
        show.shows_sentences = True  # type: ignore[attr-defined]
        sys.excepthook = show


def _lost_with(error: BaseException) -> bool:
    """Whether it is the groups' refusal after somebody's death (object collectives), or what came of something cut
    short."""
    if _job is None or not _job.loss_pending():
        return False
    from pawl.groups import GroupsFailed
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return _job.cut_short or any(isinstance(each, GroupsFailed) for each in chain)


def _see_exit_codes() -> None:
    """SystemExit passes by every hook, and whether its code is 0 decides what becomes of the job."""
    exits = sys.exit

    def exit_seen(code: Any = None) -> NoReturn:
        note_failure(SystemExit(code))
        exits(code)

    if not getattr(exits, "seen_by_pawl", False):
        exit_seen.seen_by_pawl = True  # type: ignore[attr-defined]
        sys.exit = exit_seen


def _leave_refused() -> None:
    if _refused:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(REFUSED_CODE)


def _at_exit() -> None:
    job = _job
    if job is None:
        return
    if not _failed:
        if not job.looped:
            say("the script has ended and never called job.steps(), so nothing was trained: write `for step in "
                "job.steps(total):` and `with step:` around the training step")
        else:
            job.end_loop()
            job.finish_or_exit()
    job.close(well=not _failed)

"""`pawl drill -- COMMAND`: proves on the user's own script that recovery is exact, or says what is different and why.

Runs the command undisturbed under `pawl run --standalone`, then with faults by seed (drill_faults.py), and compares
what the trainers wrote down (drill_record.py) bit by bit (drill_verdict.py). Where something differs, a second
undisturbed run shows whether the script differs from itself. Progress goes to standard error, the verdict to standard
output.

What a run writes through Python is put back as it was when the run has ended (drill_files.py), so that each begins with
the same files. A job that stands still is ended, with what each rank waits for (drill_stacks.py).

Exit codes: 0 equal, 1 not, 2 wrong use. Leaves no process, no memory and, without --keep, no folder behind, also after
Ctrl-C; but where a file could not be put back, the folder with its copy. A drill that was killed outright leaves it,
too: the next one in the same work folder says so, and `pawl drill --put-back FOLDER --` puts all back. Needs
no torch itself.
"""
from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from pawl import drill_blows, drill_faults, drill_files, drill_record, drill_stacks, drill_verdict
from pawl.drill_faults import Fault, FaultError, RunningJob, Striker, Struck
from pawl.drill_verdict import Run, Verdict

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
RUNS = ("first", "second", "third")
FILES = "files"  # in a run's folder: its journal and copies
CHECKPOINTS, EVERY = "pawl-checkpoints", "2"  # the job's own, and after how many steps it writes one
FOLDERS, ABOUT = "pawl-drill-", "about"  # a file in each that names the work folder; locked while its drill lives
OK, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
POLL_S = 0.1
STOP_S = 20.0
TAIL_LINES = 12
WAITING_LINES_MAX = 12  # one comes every 5 s
PATIENCE_S = 60.0       # without a step, besides thrice what the undisturbed run has needed
LOOK_S = 5.0            # how often it is looked whether it computes
COMPUTES = 0.05         # of its patience: processor time of all trainers that shows that it does something
STACKS_S = 2.0          # in which the trainers tell where they stand
_DAEMON_LINE = re.compile(r"^\d{4}-\d\d-\d\dT[\d:.]+Z ")
_STOPPED = "pawl: the rehearsal was stopped before it touched: "  # rehearsal.py's, which needs torch
_NO_LOOP = "never called job.steps()"
_REFUSED = re.compile(r"its trainer exited 78 in or after step \d+: pawl: (.+), its output is in ")


class DrillError(Exception):
    """The drill can't go on; the text names the cause and the remedy."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class StandsStill(Exception):
    """The job does no step any more; the text says what each rank waits for."""


class Interrupted(BaseException):
    """SIGINT, SIGTERM or SIGHUP came."""


@dataclass(frozen=True)
class Options:
    """As on the command line (`pawl drill --help --`)."""

    pawl: str
    command: list[str]
    nnodes: int = 2
    nproc_per_node: int = 1
    spares: int = 1
    checkpoint: str = ""   # folder of the jobs' own checkpoints; empty: none, or with `storage` one of the drill's
    faults: int = 3
    seed: int = 1
    kinds: tuple[str, ...] = drill_blows.DEFAULT_KINDS
    cold: bool = False
    steps_limit: int = 0   # 0: as many as the script wants
    keep: str = ""
    timeout_s: float = 1800.0  # of each run
    patience_s: float = 0.0    # 0: PATIENCE_S, and thrice the longest pause of the undisturbed run
    as_json: bool = False
    put_back: str = ""     # the folder of a drill that was killed

    def seats(self) -> int:
        return self.nnodes * self.nproc_per_node


# What was asked ---------------------------------------------------------------------------------------------------

def main(arguments: list[str]) -> int:
    try:
        options = read_options(arguments)
        if options.put_back:
            return put_back(options.put_back)
        check(options)
        check_folders()
        with _interruptible():
            return _report(options, Drill(options))
    except DrillError as error:
        print(f"pawl drill: {error}", file=sys.stderr)
        return error.code
    except Interrupted:
        tell("pawl drill: stopped; everything that it started has ended")
        return INTERRUPTED


def read_options(arguments: list[str]) -> Options:
    """Everything behind `--` is the command. Fails: DrillError (2)."""
    own, dashes, command = _cut(arguments)
    given = _parser().parse_args(own)
    kinds = tuple(kind for kind in given.kinds.split(",") if kind)
    for kind in kinds:
        if kind not in drill_blows.KINDS:
            raise DrillError(f"--kinds {given.kinds}: choose from {', '.join(drill_blows.KINDS)}", WRONG_USE)
    if not given.put_back and (not dashes or not command):
        raise DrillError("no command: end the line with the training to be drilled, as in `pawl drill -- python "
                         "train.py`", WRONG_USE)
    spares = given.spares if given.spares is not None else _spares_needed(kinds) or 1
    return Options(given.pawl or shutil.which("pawl") or "", command, given.nnodes, given.nproc_per_node, spares,
                   given.checkpoint, given.faults, given.seed, kinds, given.cold, given.steps_limit, given.keep,
                   given.timeout, given.patience, given.output == "json", given.put_back)


def _spares_needed(kinds: tuple[str, ...]) -> int:
    return max((drill_blows.SPARES_NEEDED.get(kind, 0) for kind in kinds), default=0)


def _cut(arguments: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in arguments:
        return arguments, False, []
    place = arguments.index("--")
    return arguments[:place], True, arguments[place + 1:]


_DESCRIPTION = """\
Runs a training script undisturbed under `pawl run --standalone`, then with faults by seed, and compares every loss and
all state bit by bit. Where something differs it says what differs first, and the likely cause; another undisturbed run
shows whether the script differs from itself.

Each run begins with the same files: what a run writes through Python is put back as it was when the run has ended, also
after Ctrl-C. If a drill was killed outright, the next one in the same work folder names the folder with the copies, and
`pawl drill --put-back FOLDER --` puts them back.

Progress goes to standard error, the verdict to standard output. Exit codes: 0 equal, 1 not, 2 wrong use."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise DrillError(f"{message}; see pawl drill --help --", WRONG_USE)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="pawl drill", usage="pawl drill [options] -- COMMAND ARGUMENTS", description=_DESCRIPTION,
                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pawl", help=argparse.SUPPRESS)
    parser.add_argument("--nnodes", type=_number(1), default=2, help="nodes that train (default 2)")
    parser.add_argument("--nproc-per-node", type=_number(1), default=1, help="trainers a node (default 1)")
    parser.add_argument("--spares", type=_number(0), help="nodes that wait (default 1; 2 with --kinds storage)")
    parser.add_argument("--faults", type=_number(0), default=3, help="how many (default 3)")
    parser.add_argument("--seed", type=int, default=1, help="of victims and instants (default 1)")
    parser.add_argument("--kinds", default=",".join(drill_blows.DEFAULT_KINDS),
                        help="the faults, in turn: node, trainer, pawld (killed; the default), link (cut), "
                        "communication (a trainer's connections shut), timed (a node stands still for some "
                        "seconds), disk (full while a trainer dies), storage (a node and those that have its copies "
                        "are killed at once, so that the job goes back to a checkpoint that it has written)")
    parser.add_argument("--checkpoint", default="", metavar="DIR", help="let the jobs write their own checkpoints, "
                        "each job in a folder of its own in DIR, which stays (default: only with --kinds storage, in "
                        "a folder that goes)")
    parser.add_argument("--cold", action="store_true", help="besides, one death before the first commit")
    parser.add_argument("--steps-limit", type=_number(0), default=0, metavar="N", help="end each run after step N")
    parser.add_argument("--keep", default="", metavar="DIR", help="leave records and logs of all runs there")
    parser.add_argument("--timeout", type=float, default=1800.0, metavar="S", help="seconds that each run may take")
    parser.add_argument("--patience", type=float, default=0.0, metavar="S", help="seconds without a step, and without "
                        "computing, after which the disturbed run stands still (default: 60, and more where the "
                        "undisturbed run pauses longer)")
    parser.add_argument("--put-back", default="", metavar="DIR",
                        help="only put back what a killed drill has left in DIR")
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return parser


def _number(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise argparse.ArgumentTypeError(f"{value}: at least {least}")
        return value
    return number


def check(options: Options) -> None:
    """What can be known before anything runs. Fails: DrillError."""
    if not options.pawl or not os.access(options.pawl, os.X_OK):
        raise DrillError("the program pawl was not found: start the drill with `pawl drill -- ...`, or put pawl into "
                         "the PATH")
    if not options.kinds and options.faults:
        raise DrillError(f"--kinds is empty: choose from {', '.join(drill_blows.KINDS)}", WRONG_USE)
    if options.faults:
        _check_kinds(options)
    interpreter = _check_command(options.command)
    if interpreter:
        _check_packages(interpreter)


def _check_kinds(options: Options) -> None:
    """Whether this cluster and this user can have such faults. Fails: DrillError."""
    def chosen(among: tuple[str, ...]) -> str:
        return ",".join(kind for kind in options.kinds if kind in among)

    if options.nnodes < 2 and chosen(drill_blows.NEED_ANOTHER_NODE):
        raise DrillError(f"--nnodes 1: nobody else has its state, and it talks to nobody: take --nnodes 2 or more, or "
                         f"leave out --kinds {chosen(drill_blows.NEED_ANOTHER_NODE)}", WRONG_USE)
    needed = _spares_needed(options.kinds)
    if options.spares < needed:
        those = tuple(kind for kind, count in drill_blows.SPARES_NEEDED.items() if count > options.spares)
        raise DrillError(f"--spares {options.spares}: nobody can take a lost node's seat: take --spares {needed} or "
                         f"more, or leave out --kinds {chosen(those)}", WRONG_USE)
    if os.geteuid() != 0 and chosen(drill_blows.NEED_ROOT):
        raise DrillError(f"--kinds {chosen(drill_blows.NEED_ROOT)}: only root may cut a link or fill a disk of its "
                         f'own: run the drill with sudo env "PATH=$PATH" pawl drill ..., or leave them out', WRONG_USE)


def _check_command(command: list[str]) -> str | None:
    """The interpreter, where one will run it. Fails: DrillError."""
    first = command[0]
    if first.endswith(".py"):
        if not os.path.isfile(first):
            raise DrillError(f"{first}: there is no such script; give its path relative to {os.getcwd()}", WRONG_USE)
        return os.environ.get("PYTHON_EXEC", "python3")
    program = shutil.which(first)
    if program is None:
        raise DrillError(f"{first}: there is no such program in PATH", WRONG_USE)
    if not os.path.basename(first).startswith("python"):
        return None
    script = next((word for word in command[1:] if not word.startswith("-")), None)
    if script is not None and not {"-m", "-c"} & set(command[1:command.index(script)]) and not os.path.isfile(script):
        raise DrillError(f"{script}: there is no such script; give its path relative to {os.getcwd()}", WRONG_USE)
    return program


def _check_packages(interpreter: str) -> None:
    """Whether that Python has torch and finds pawl."""
    look = "import importlib.util as u; print(*(name for name in ('torch', 'pawl') if u.find_spec(name) is None))"
    try:
        done = subprocess.run([interpreter, "-c", look], capture_output=True, text=True, timeout=60.0, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DrillError(f"{interpreter} can't be started: {error}") from None
    missing = done.stdout.split()
    if done.returncode != 0:
        raise DrillError(f"{interpreter} doesn't work: {done.stderr.strip()}")
    if "torch" in missing:
        raise DrillError(f"{interpreter} has no PyTorch: install it there (pip install torch), or name the Python that "
                         f"has it, as in `pawl drill -- .venv/bin/python train.py`")
    if "pawl" in missing:
        raise DrillError(f"{interpreter} can't find the package pawl: install it there, or set PYTHONPATH to the "
                         f"checkout's folder python/")


# What a killed drill has left -------------------------------------------------------------------------------------

def check_folders() -> None:
    """Whether an earlier drill was killed in this work folder. Fails: DrillError."""
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{FOLDERS}*/{ABOUT}")):
        with contextlib.suppress(OSError):
            folder = str(path.parent)
            if path.stat().st_uid != os.geteuid() or path.read_text(encoding="utf-8") != os.getcwd():
                continue
            if _lives(folder) or not any(drill_files.entries(files) for files in _journals(folder)):
                continue
            raise DrillError(f"an earlier drill in this folder has not put back all that its runs have changed; the "
                             f"copies are in {folder}: put them back with `pawl drill --put-back {folder} --`, or "
                             f"delete that folder if the files are to stay as they are", WRONG_USE)


def put_back(folder: str) -> int:
    """Fails: DrillError."""
    if not os.path.isfile(os.path.join(folder, ABOUT)):
        raise DrillError(f"--put-back {folder}: no drill has left anything there", WRONG_USE)
    if _lives(folder):
        raise DrillError(f"--put-back {folder}: its drill is still running, and puts back itself", WRONG_USE)
    for files in _journals(folder):
        for failed in drill_files.restore(files):
            tell(f"could not be put back as it was: {failed}")
    if any(drill_files.entries(files) for files in _journals(folder)):
        return FAILED
    shutil.rmtree(folder, ignore_errors=True)
    tell("everything is as it was before that drill")
    return OK


def _journals(folder: str) -> list[str]:
    """In the order in which they are put back: the last run's first."""
    return [os.path.join(folder, run, FILES) for run in reversed(RUNS)]


def _lives(folder: str) -> bool:
    with open(os.path.join(folder, ABOUT), "rb") as about:
        try:
            fcntl.flock(about, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return True  # or there are no locks
    return False


# The runs ---------------------------------------------------------------------------------------------------------

@dataclass
class Outcome:
    verdict: Verdict
    reference: Run
    disturbed: Run
    struck: list[Struck]
    plan: list[Fault]
    runs: int


class Drill:
    """All runs of one drill, in a folder of its own."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._folder = tempfile.mkdtemp(prefix=FOLDERS)
        self._about = open(os.path.join(self._folder, ABOUT), "w", encoding="utf-8")  # noqa: SIM115
        self._about.write(os.getcwd())
        self._about.flush()
        with contextlib.suppress(OSError):
            fcntl.flock(self._about, fcntl.LOCK_EX)
        self._jobs: list[DrilledJob] = []

    def run(self) -> Outcome:
        options = self._options
        tell("the script runs two or three times in this folder; what a run writes from Python is put back as it was "
             "when it has ended" + (f", and kept in {options.keep}" if options.keep else " (--keep DIR keeps it)")
             + f"; meanwhile, copies are in {self._folder}")
        tell(f"first run: {shown(options.command)} on {options.nnodes} node(s), undisturbed")
        reference = self._undisturbed("first")
        plan = self._plan(reference)
        tell(f"second run: the same with {len(plan)} fault(s), seed {options.seed}")
        job, struck = self._disturbed(plan, reference)
        disturbed, rehearsed, runs = job.record(), job.rehearsed(), 2
        again = None
        if drill_verdict.needs_another_run(reference, disturbed):
            tell("something differs; third run: undisturbed once more, to see whether the script differs from itself")
            again, runs = self._undisturbed("third"), 3
        verdict = drill_verdict.judge(reference, disturbed, again, rehearsed,
                                      [each.lines_written for each in self._jobs], job.read_back)
        return Outcome(verdict, reference, disturbed, struck, plan, runs)

    def close(self) -> None:
        """Not to be interrupted. The last run's files are put back first: it began with what was left of the others."""
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        for job in reversed(self._jobs):
            job.end()
            job.put_files_back()
        left = [path for job in self._jobs for path in job.copies_left()]
        try:
            if self._options.keep:
                shutil.copytree(self._folder, self._options.keep, dirs_exist_ok=True, ignore=_not_copyable)
        except OSError as error:  # copytree's own has a list of all
            tell(f"not all could be kept in {self._options.keep}: {error.strerror or error}")
        finally:
            for job in self._jobs:
                job.give_back_disk()
            self._about.close()
            if left:
                tell(f"{self._folder} stays, with copies of {', '.join(left)}: when nothing is in their way, put them "
                     f"back with `pawl drill --put-back {self._folder} --`")
            else:
                shutil.rmtree(self._folder, ignore_errors=True)

    def _plan(self, reference: Run) -> list[Fault]:
        options = self._options
        try:
            return drill_faults.plan_faults(options.seed, options.faults, options.kinds, options.cold,
                                            reference.steps())
        except FaultError as error:
            raise DrillError(str(error)) from None

    def _undisturbed(self, name: str) -> Run:
        job = self._start(name, {"PAWL_COMPARED_WINDOWS": str(2**32 - 1),  # so that all of its writes are seen
                                 drill_record.BEGINS: "1"})
        code = job.wait(self._options.timeout_s)
        job.put_files_back()
        run = job.record()
        if code != 0 or run.steps() == 0:
            raise DrillError(self._why_ended(job, code, run))
        tell(f"  {run.steps()} steps on {len(run.seats())} seats, {run.step_s() * 1000:.0f} ms each")
        return run

    def _disturbed(self, plan: list[Fault], reference: Run) -> tuple[DrilledJob, list[Struck]]:
        options = self._options
        job = self._start(RUNS[1])
        job.patience_s = options.patience_s or PATIENCE_S + 3.0 * self._jobs[0].longest_pause_s
        striker = Striker(job.running, options.nnodes, options.seats(), options.seed, reference.step_s(), job.ended,
                          tell, options.timeout_s, job.look_after)
        try:
            struck = striker.run(plan, reference.steps())
            code = job.wait(options.timeout_s)
        except (FaultError, StandsStill) as error:
            raise DrillError(self._not_recovered(job, reference, str(error))) from None
        if code != 0:
            raise DrillError(self._not_recovered(job, reference, f"the job ended with exit code {code}"))
        job.put_files_back()
        return job, struck

    def _start(self, name: str, environment: dict[str, str] | None = None) -> DrilledJob:
        job = DrilledJob(self._options, os.path.join(self._folder, name), environment or {})
        self._jobs.append(job)
        job.start()
        return job

    # When it doesn't end well.

    def _why_ended(self, job: DrilledJob, code: int, run: Run) -> str:
        said = job.said()
        if code == 0 or "exited 0" in job.output() or _NO_LOOP in said:
            return (f"{shown(self._options.command)} never did a step of pawl's: a script that is drilled needs "
                    f"pawl.init(), job.protect(...) and `for step in job.steps(total):` with its `with step:` "
                    f"(docs/user/protect.md){job.tail()}")
        where = f"after step {run.steps()}" if run.done else "before its first step"
        refusal = refused(job.output(), said)
        if refusal:
            return f"pawl refuses {shown(self._options.command)} ({where}): {refusal}"
        return (f"{shown(self._options.command)} fails without any fault ({where}; exit code {code}): let it run "
                f"through under `pawl run` first{job.tail()}")

    def _not_recovered(self, job: DrilledJob, reference: Run, why: str) -> str:
        run = job.record()
        difference = drill_verdict.first_difference(reference, run)
        before = "" if difference is None or difference.what == "missing" else (
            f"\nbefore that, the first difference was in {difference.shown()}")
        suspects = drill_verdict.suspects_of_standstill(reference, run)
        if suspects:
            before += "\nlikely cause: {}\nremedy: {}".format(*drill_verdict.unprotected_sentence(suspects))
        return f"not recovered: {why}{before}{job.tail()}"


def _not_copyable(folder: str, names: list[str]) -> list[str]:
    """Sockets and the like; and checkpoints, which are no records."""
    return [name for name in names if name == CHECKPOINTS or not (
        Path(folder, name).is_file() or Path(folder, name).is_dir())]


class DrilledJob:
    """One `pawl run --standalone` of the command."""

    def __init__(self, options: Options, folder: str, environment: dict[str, str]) -> None:
        self._options, self._folder, self._environment = options, folder, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._mounted = False
        self._run_root = os.path.join(folder, "r")
        self._files = os.path.join(folder, FILES)
        self._recorded = (0, time.monotonic())  # bytes of records, and since when
        self._spent: dict[int, float] = {}  # processor time by pid
        self._looked, self._spent_then = 0.0, 0.0
        self.patience_s = 0.0          # how long it may be without a step or computing; 0: for ever
        self.longest_pause_s = 0.0     # before its first step, or between two
        self.lines_written: dict[str, int] = {}
        self.read_back: list[str] = []  # files that it had written
        self.running = RunningJob(options.pawl, self._run_root, f"drill-{secrets.token_hex(3)}")

    def start(self) -> None:
        options = self._options
        os.makedirs(self._run_root, mode=0o700)
        if "disk" in options.kinds:
            try:
                drill_blows.mount_disk(self._run_root)
            except drill_blows.BlowError as error:
                raise DrillError(str(error)) from None
            self._mounted = True
        flags = ["--standalone", "--nnodes", str(options.nnodes), "--nproc-per-node", str(options.nproc_per_node),
                 "--spares", str(options.spares), "--test-hooks", "--keep", *self._checkpoint_flags()]
        environment = {"OMP_NUM_THREADS": "1", **os.environ, "PAWL_RUN_DIR": self._run_root,
                       drill_record.RECORD: os.path.join(self._folder, "record"),
                       drill_files.FOLDER: self._files,
                       "PAWL_REHEARSAL_LOG": os.path.join(self._folder, "rehearsal.log"), **self._environment}
        environment.pop("PAWL", None)  # "off" would leave nothing to drill
        if options.steps_limit:
            environment[drill_record.STEPS] = str(options.steps_limit)
        with open(os.path.join(self._folder, "output"), "wb") as output:
            self._process = subprocess.Popen(
                [options.pawl, "run", "--job", self.running.name, *flags, "--", *options.command], env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=_end_with_parent)
        self._recorded = (0, time.monotonic())

    def _checkpoint_flags(self) -> list[str]:
        """In every run, so that the script finds the same. Of a job that is ended the last step is worth nothing."""
        options = self._options
        if not options.checkpoint and "storage" not in options.kinds:
            return []
        folder = (f"{options.checkpoint.rstrip('/')}/{self.running.name}" if options.checkpoint
                  else os.path.join(self._folder, CHECKPOINTS))
        return ["--checkpoint", folder, "--every", EVERY, "--keep-last", "2", "--grace", "3s"]

    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def wait(self, timeout_s: float) -> int:
        """To the end: the exit code. A script that never trains would start again and again: that is an end, too."""
        assert self._process is not None
        deadline = time.monotonic() + timeout_s
        while not self.ended():
            if not self._records() and _NO_LOOP in self.said():
                self.end()
                return FAILED
            if self._waits_in_vain():
                self.end()
                raise DrillError(f"not recovered: the job has waited for a spare for a minute, and none comes: a "
                                 f"seat's trainer ended again and again, or more died than --spares can replace"
                                 f"{self.tail()}")
            if time.monotonic() > deadline:
                where = f"step {self.record().steps()}{_listed(self.places())}"
                self.end()
                raise DrillError(f"the run was not over after {timeout_s:.0f} s, at {where}: give it more time "
                                 f"(--timeout), or end it earlier (--steps-limit){self.tail()}")
            self.look_after(held=False)
            time.sleep(POLL_S)
        self.longest_pause_s = max(self.longest_pause_s, time.monotonic() - self._recorded[1])
        return self._process.returncode

    def look_after(self, held: bool) -> None:
        """To be called again and again. `held`: the drill itself holds trainers now. Fails: StandsStill."""
        size, since = self._recorded
        now, found = time.monotonic(), self._record_bytes()
        if found != size or held:
            self.longest_pause_s = max(self.longest_pause_s, now - since)
            self._recorded = (found, now)
        elif self.patience_s and found and now - self._looked > LOOK_S:  # before its first step it is only just started
            self._looked = now
            if self._computes():
                self._recorded = (found, now)
            elif now - since > self.patience_s:
                raise StandsStill(f"the job stands still: no step for {now - since:.0f} s, after step "
                                  f"{self.record().steps()}{_listed(self.places())}\n")

    def _computes(self) -> bool:
        """Since this was last true. A process that is just built does, however long that takes."""
        for status in self.running.nodes().values():
            for pid in [trainer["pid"] for trainer in status.get("trainers", []) if trainer.get("pid")]:
                self._spent[pid] = max(self._spent.get(pid, 0.0), drill_blows.processor_s(pid))
        spent = sum(self._spent.values())
        if spent < self._spent_then + COMPUTES * self.patience_s:
            return False
        self._spent_then = spent
        return True

    def places(self) -> list[str]:
        """Where the trainers of all seats stand, and who has not come to what the others wait for."""
        trainers = [trainer for status in drill_faults.members(self.running.nodes()).values()
                    for trainer in status.get("trainers", []) if trainer.get("seat") is not None and trainer.get("pid")]
        paths = {trainer["seat"]: drill_stacks.path_of(self._files, trainer["pid"]) for trainer in trainers}
        known = [trainer for trainer in trainers if os.path.exists(paths[trainer["seat"]])]  # they have a handler
        with drill_blows.Victims((trainer["pid"], trainer.get("start_time")) for trainer in known) as victims:
            victims.send(drill_stacks.SIGNAL)
        time.sleep(STACKS_S if known else 0.0)
        return drill_stacks.sentences({seat: drill_stacks.where_is(_read(path)) for seat, path in paths.items()})

    def put_files_back(self) -> None:
        """When it has ended. Idempotent."""
        self.lines_written.update(drill_files.lines_written(self._files))
        self.read_back += drill_files.read_back(self._files)
        keep = os.path.join(self._folder, "written") if self._options.keep else ""
        for failed in drill_files.restore(self._files, keep):
            tell(f"could not be put back as it was: {failed}")

    def copies_left(self) -> list[str]:
        """Files that are not as they were."""
        return drill_files.copies_left(self._files)

    def _record_bytes(self) -> int:
        folder, found = os.path.join(self._folder, "record"), 0
        for name in self._records():
            with contextlib.suppress(OSError):
                found += os.path.getsize(os.path.join(folder, name))
        return found

    def end(self) -> None:
        """Whatever state it is in. Its processes go with the launcher."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def give_back_disk(self) -> None:
        if self._mounted:
            drill_blows.unmount_disk(self._run_root)
            self._mounted = False

    def record(self) -> Run:
        return drill_verdict.read_run(os.path.join(self._folder, "record"))

    def rehearsed(self) -> list[str]:
        """Files before which rehearsing spares were stopped."""
        lines = _read(os.path.join(self._folder, "rehearsal.log")).splitlines()
        return sorted({line.removeprefix(_STOPPED) for line in lines if line.startswith(_STOPPED)})

    def output(self) -> str:
        """What `pawl run` said."""
        return _read(os.path.join(self._folder, "output"))

    def said(self) -> str:
        """What the trainers said, of all nodes."""
        return "\n".join(line for path in self._logs() for line in _read(path).splitlines()
                         if not _DAEMON_LINE.match(line))

    def tail(self) -> str:
        """The end of all that, for a sentence to be followed by."""
        launcher = [line for line in self.output().splitlines() if line.strip() and "logs are kept in" not in line]
        trainers = [line for line in self.said().splitlines() if line.strip()]
        lines = [*_once(trainers)[-TAIL_LINES:], *_once(launcher)[-TAIL_LINES // 2:]]
        kept = self._options.keep or "(lost without --keep DIR)"
        return "".join(f"\n  | {line.replace(os.path.dirname(self._folder), kept)}" for line in lines)

    def _waits_in_vain(self) -> bool:
        """`pawl run` says every few seconds what it waits for."""
        last = self.output().splitlines()[-WAITING_LINES_MAX:]
        return len(last) == WAITING_LINES_MAX and all("waiting for a spare" in line for line in last)

    def _records(self) -> list[str]:
        with contextlib.suppress(OSError):
            return os.listdir(os.path.join(self._folder, "record"))
        return []

    def _logs(self) -> list[str]:
        return sorted(str(path) for path in Path(self._run_root).glob("*/node-*/log"))


def _end_with_parent() -> None:
    """In the child, before it becomes `pawl run`: a drill that is killed leaves no job behind."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def refused(output: str, said: str) -> str:
    """Why pawl has ended the job, of what `pawl run` said, which may be cut, and the trainers; empty: it hasn't."""
    found = _REFUSED.search(output)
    if found is None:
        return ""
    whole = (line for line in said.splitlines() if line.startswith(f"pawl: {found[1]}"))
    return next(whole, f"pawl: {found[1]}").removeprefix("pawl: ")


def _once(lines: list[str]) -> list[str]:
    """The last of those that are equal: each rank says the same."""
    return list(dict.fromkeys(reversed(lines)))[::-1]


def _listed(lines: list[str]) -> str:
    return "".join(f"\n  {line}" for line in lines)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """SIGINT, SIGTERM and SIGHUP (if it isn't ignored, as under nohup) become an exception, once; further ones are
    ignored while everything is being ended."""
    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for each in ENDING:
            signal.signal(each, signal.SIG_IGN)
        raise Interrupted

    before = {each: signal.signal(each, interrupt) for each in ENDING
              if each != signal.SIGHUP or signal.getsignal(each) != signal.SIG_IGN}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


# What is said -----------------------------------------------------------------------------------------------------

def _report(options: Options, drill: Drill) -> int:
    try:
        outcome = drill.run()
    except DrillError as error:
        if options.as_json and error.code == FAILED:
            print(json.dumps({"verdict": "failed", "why": str(error)}), flush=True)
        raise
    finally:
        drill.close()
    print(json.dumps(document(options, outcome)) if options.as_json else sentence(outcome), flush=True)
    return OK if outcome.verdict.sound() else FAILED


def document(options: Options, outcome: Outcome) -> dict[str, Any]:
    verdict = outcome.verdict
    return {"verdict": {"equal": "equal", "differs": "differs", "state": "unprotected state differs",
                        "itself": "differs from itself"}[verdict.kind],
            "first_difference": verdict.first or None, "cause": verdict.cause or None, "remedy": verdict.remedy or None,
            "notes": list(verdict.notes), "seed": options.seed, "runs": outcome.runs,
            "steps": outcome.reference.steps(),
            "seats": len(outcome.reference.seats()), "steps_redone": outcome.disturbed.redone(),
            "faults": [asdict(blow) for blow in outcome.struck], "command": options.command}


def sentence(outcome: Outcome) -> str:
    verdict = outcome.verdict
    notes = "".join(f"\nnote: {note}" for note in verdict.notes)
    if verdict.sound():
        return (f"bitwise equal: {len(outcome.struck)} faults, {outcome.disturbed.redone()} steps redone, "
                f"{outcome.reference.steps()} steps on {len(outcome.reference.seats())} seats, every loss and all state"
                f"{notes}")
    title = {"differs": "NOT equal", "state": "NOT equal", "itself": "differs from itself without faults"}[verdict.kind]
    return f"{title}: {verdict.first}\nlikely cause: {verdict.cause}\nremedy: {verdict.remedy}{notes}"


def tell(line: str) -> None:
    """Progress, for people, if they are still there."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def shown(command: list[str]) -> str:
    text = " ".join(command)
    return f"`{text if len(text) <= 80 else text[:77] + '...'}`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

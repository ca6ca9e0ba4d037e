"""What the tests of the PyTorch side stand on: a real job of trainer.py, and the same script without pawl beside it."""
import atexit
import contextlib
import glob
import hashlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))

import harness  # noqa: E402
from harness import JobTest, jobs, record  # noqa: E402
from processes import Victims, identity  # noqa: E402
from reference import ReferenceFailed, free_port  # noqa: E402

TRAINER = os.path.join(HERE, "trainer.py")
PACKAGE = os.path.join(harness.ROOT, "python")
LEAN = os.path.join(HERE, "lean")
START_S = 180.0  # torch is slow to load on a machine that does other things too
END_S = 240.0


def environment(whole=False):
    """Of a trainer. Unless it is to have the whole of PyTorch, it does without what takes long to load (lean/)."""
    path = PACKAGE if whole else PACKAGE + os.pathsep + LEAN
    given = {"PYTHONPATH": path, "PYTHON_EXEC": os.environ.get("PYTHON_EXEC", sys.executable),
             "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return given | {name: os.environ[name] for name in ("PAWL_LIBRARY", "PAWL_C10D") if name in os.environ}


def flags(**options):
    """The trainer's flags by name."""
    found = []
    for name, value in options.items():
        name = "--" + name.replace("_", "-")
        found += [name] if value is True else [name, str(value)]
    return found


def reference_run(world, **options):
    """The same script without pawl, undisturbed; once for each configuration and version of the script."""
    options.pop("step_ms", None)
    with open(TRAINER, "rb") as file:
        key = hashlib.sha256(f"{sorted(options.items())} {world}".encode() + file.read()).hexdigest()[:16]
    return harness.made_once(f"torch-{key}", lambda folder: run_plain(TRAINER, folder, world, options))


class PlainRanks:
    """The process that plain ranks are forked from (plain_ranks.py); the first run starts it."""
    process = None

    @classmethod
    def run(cls, script, arguments, world, variables, output):
        """The exit codes of the ranks, and whether they had no end in time."""
        if cls.process is None:
            cls.process = subprocess.Popen(
                [environment()["PYTHON_EXEC"], "-B", os.path.join(HERE, "plain_ranks.py")], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, text=True,
                env={**without_pawl(os.environ), **without_pawl(environment()), "PYTHONPATH": LEAN})
            atexit.register(cls.end)
        run = {"script": script, "arguments": arguments, "world": world, "environment": variables, "output": output,
               "limit_s": END_S}
        cls.process.stdin.write(json.dumps(run) + "\n")
        cls.process.stdin.flush()
        if not select.select([cls.process.stdout], [], [], END_S + 30)[0]:
            raise ReferenceFailed("the process that forks plain ranks answers nothing")
        answer = json.loads(cls.process.stdout.readline() or '{"codes": [-1], "late": false}')
        return answer["codes"], answer["late"]

    @classmethod
    def end(cls):
        cls.process.stdin.close()
        cls.process.wait()


def without_pawl(variables):
    return {name: value for name, value in variables.items() if not name.startswith("PAWL")}


def run_plain(script, folder, world, options, **variables):
    """The script in plain PyTorch, over loopback, with its record in `folder`; waits for its end."""
    given = {**without_pawl(os.environ), **without_pawl(environment()), "GLOO_SOCKET_IFNAME": "lo",
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), **variables}
    os.makedirs(folder, exist_ok=True)
    output = os.path.join(folder, "output")
    for is_last in (False, True):  # plain torch that hangs says nothing about pawl: where it stands is shown
        codes, late = PlainRanks.run(script, [*flags(**options), "--record", folder], world, given, output)
        if not any(codes):
            return
        with open(output, encoding="utf-8", errors="replace") as file:
            said = file.read()
        if is_last or not late:
            raise ReferenceFailed(f"the reference failed: {said[-6000:] or codes}")
        print(f"the plain reference had no end in {END_S:.0f} s; once more. It stood here:\n{said[-6000:]}",
              file=sys.stderr)
        shutil.rmtree(folder)
        os.makedirs(folder)
        given["MASTER_PORT"] = str(free_port())


class TorchTest(JobTest):
    """A job of trainer.py with these flags: `with self.training(steps=30) as job`."""

    @contextlib.contextmanager
    def training(self, *run_flags, nodes=2, spares=0, script=TRAINER, extra_environment=None, **options):
        options = {"steps": 30, **options}
        with tempfile.TemporaryDirectory(prefix="pawl-record-") as folder:
            self.folder = folder
            command = [script, *flags(**options), "--record", os.path.join(folder, "record")]
            with self.job(*run_flags, nodes=nodes, spares=spares, command=command, wait=False,
                          environment={**environment(), **(extra_environment or {})}) as job:
                job.record_directory = os.path.join(folder, "record")
                job.options, job.world = options, nodes
                yield job

    def path(self, name):
        return os.path.join(self.folder, name)

    def marks(self, job, seat):
        found = []
        for path in glob.glob(os.path.join(job.record_directory, f"marks.{seat}.jsonl")):
            with open(path, encoding="utf-8") as file:
                found += [json.loads(line) for line in file]
        return found

    def kill_trainer(self, job, seat):
        """Only the trainer process of that seat; what was known of it."""
        trainer = job.seat(seat)
        with Victims([identity(trainer["pid"])]) as victims:
            victims.send(signal.SIGKILL)
        return trainer

    def kill_all_trainers(self, job):
        """Together; every pawld lives on."""
        nodes = job.wait_until(lambda nodes: len(jobs.seats(nodes)) == job.node_count, "every seat to answer")[1]
        with Victims([identity(each["pid"]) for each in jobs.seats(nodes).values()]) as victims:
            victims.send(signal.SIGKILL)

    def assert_like_plain(self, job, **differently):
        """To the end; everything is bit for bit what the same script gives without pawl."""
        self.assertEqual(0, job.wait_end(END_S), job.output())
        run = job.run()
        options = {**job.options, **differently}
        for name in ("once", "raise_in", "raise_after", "exit", "exit_code", "resilient", "no_rehearsal",
                     "write_in_loop", "late_s",
                     "group_timeout_s", "after_loop_s", "gather_between",
                     "fail_rehearsal"):
            options.pop(name, None)
        reference = reference_run(job.world, **options)
        compared = record.compare(run, reference, options["steps"], job.world)
        self.assertEqual([], compared.differences)
        self.assertTrue(compared.equal())
        return run

    def assert_fails(self, job, *words, code=1):
        """The job ends with that code and says these words."""
        self.assertEqual(code, job.wait_end(END_S), job.output())
        everything = job.output() + job.logs(400)
        self.assert_says(everything, *words)
        return everything

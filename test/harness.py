"""What the process tests stand on: a real job on this machine, a stranger who kills, and the undisturbed run beside it.

Programs come from build/bin, or are named by $PAWL, $CHARLM and $CHARLM_PLAIN. $PAWL_SEEDS says how often each seeded
case is run (default 1; the long lane says 20). References are kept in $PAWL_TEST_CACHE.
After each job nothing may be left: no process, no shared memory, no network device, no directory.
"""
import collections
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from xml.etree import ElementTree

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TOOLS = os.path.join(ROOT, "tools", "demo")
sys.path.insert(0, TOOLS)
sys.dont_write_bytecode = True

import job as jobs  # noqa: E402  (from tools/demo)
import record  # noqa: E402
import verdict  # noqa: E402
from processes import Victims  # noqa: E402
from reference import Reference  # noqa: E402

CACHE = os.environ.get("PAWL_TEST_CACHE", os.path.join(ROOT, "build", "reference-cache"))
PAWL, CHARLM, CHARLM_PLAIN = (
    os.path.abspath(os.environ.get(name.upper(), os.path.join(ROOT, "build", "bin", name)))
    for name in ("pawl", "charlm", "charlm_plain"))
# Beside the programs: their own build's.
LIBRARY = os.path.abspath(os.environ.get("PAWL_LIBRARY", os.path.join(os.path.dirname(PAWL), "..", "lib",
                                                                      "libpawl.so.0")))
SMALL = {"steps": 300, "batch": 16, "hidden": 64, "device_ms": 8}  # a step is slow and costs little


PATIENCE_S = 20.0  # with a node that answers late


def seeds():
    return range(1, int(os.environ.get("PAWL_SEEDS", "1")) + 1)


def trainer_flags(seed, **size):
    """size: charlm's flags by name, as steps, batch, hidden, device_ms."""
    flags = ["--seed", str(seed)]
    for name, value in size.items():
        flags += ["--" + name.replace("_", "-"), str(value)]
    return flags


def made_once(name, make):
    """The folder `name` of the cache, read as a run; `make(folder)` fills it the first time."""
    directory = os.path.join(CACHE, name)
    if not os.path.isdir(directory):
        os.makedirs(CACHE, exist_ok=True)
        fresh = tempfile.mkdtemp(prefix="making-", dir=CACHE)
        make(fresh)
        try:
            os.rename(fresh, directory)
        except OSError:  # another test was faster
            shutil.rmtree(fresh)
    return record.read_run(directory)


def reference_run(seed, world, **size):
    """The undisturbed run of this configuration; made once per build of the trainer."""
    flags = trainer_flags(seed, **{**size, "device_ms": 0})
    build = os.stat(CHARLM_PLAIN)
    key = hashlib.sha256(f"{flags} {world} {build.st_mtime_ns} {build.st_size}".encode()).hexdigest()[:16]
    return made_once(key, lambda folder: Reference([CHARLM_PLAIN, *flags], folder, world).start().wait(120))


def shows_held(status):
    return (any(hold.get("held") for hold in status.get("holds", []))
            or any(trainer.get("held") for trainer in status.get("trainers", [])))


class TestedJob(jobs.Job):
    """A job with a record, and what a test asks about it."""

    def __init__(self, run_root, name, flags, command, node_count, environment=None):
        super().__init__(PAWL, run_root, name, flags, command, environment)
        self.node_count = node_count
        self.record_directory = os.path.join(run_root, "record")
        self.kills_path = os.path.join(run_root, "kills.jsonl")

    def run(self):
        return record.read_run(self.record_directory)

    def hold_end(self, step):
        """Parks the trainers of now before this late step, so that a slow machine cannot end the job under a test."""
        for trainer in jobs.seats(self.nodes()).values():
            self.hold(trainer["node"], "compute", step)

    def wait_end(self, timeout_s=120.0):
        """Nobody is held any more; not by a node either that couldn't be told at first, as its pawld was dead."""
        deadline = time.monotonic() + timeout_s
        nodes, asked_at = self.node_ids(), time.monotonic()
        while not self.ended() and time.monotonic() < deadline:
            for node in nodes:
                with contextlib.suppress(OSError, jobs.JobError):
                    self.release(node, 2.0)
            while not self.ended() and time.monotonic() < min(deadline, asked_at + 2.0):
                self.remember(jobs.REMEMBER_EVERY_S)
                time.sleep(0.05)
            nodes, asked_at = [node for node, status in self.nodes().items() if shows_held(status)], time.monotonic()
        return super().wait_end(max(0.0, deadline - time.monotonic()))

    def wait_running(self, generation_above=-1, timeout_s=30.0):
        """All seats at work in a later generation than that; the nodes' status."""
        return self.wait_until(lambda nodes: jobs.running(nodes, self.node_count, generation_above)
                               and len(jobs.seats(nodes)) == self.node_count,
                               f"the job to run in a generation after {generation_above}", timeout_s)[1]

    def wait_step(self, step, timeout_s=30.0):
        return self.wait_whole(lambda nodes: jobs.committed(nodes) >= step, f"step {step} to be committed", timeout_s)

    def wait_spare(self, count=1, timeout_s=30.0):
        return self.wait_whole(lambda nodes: len(jobs.spares(nodes)) >= count, f"{count} spare(s)", timeout_s)

    def wait_whole(self, condition, what, timeout_s, patience_s=3.0):
        """The nodes' status with every seat in it, as a slow node may miss a look; without, if that doesn't come."""
        met_at = []

        def met(nodes):
            if not condition(nodes):
                return False
            met_at.append(time.monotonic())
            return len(jobs.seats(nodes)) >= self.node_count or met_at[-1] > met_at[0] + patience_s
        return self.wait_until(met, what, timeout_s)[1]

    def node(self, number):
        """Its status, once it answers."""
        return self.wait_until(lambda nodes: nodes.get(number), f"node {number} to answer")[0]

    def node_of_seat(self, seat):
        return self.seat(seat)["node"]

    def seat(self, number):
        """Its trainer, once its node answers: a slow one may miss a look."""
        return self.wait_until(lambda nodes: jobs.seats(nodes).get(number), f"seat {number} to answer")[0]

    def hold(self, node, phase, step=None):
        self.ask(node, {"ask": "hold", "phase": phase} | ({} if step is None else {"local_index": 0, "step": step}),
                 PATIENCE_S)

    def release(self, node, timeout_s=PATIENCE_S):
        self.ask(node, {"ask": "release"}, timeout_s)

    def wait_held(self, node, phase, timeout_s=30.0):
        def held(nodes):
            return jobs.is_held(nodes.get(node, {}), phase)
        return self.wait_until(held, f"node {node} to be held in {phase}", timeout_s, 0.01)[1]

    def kill_node(self, *nodes):
        """Whole nodes, all at once, by the pids that `pawl status` gives to anyone; answers when (monotonic ns)."""
        self.remember()
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = [status for status in self.status()["nodes"] if status["node"] in nodes and "role" in status]
            if len(found) == len(nodes):
                break
            if self.ended() or time.monotonic() > deadline:
                raise AssertionError(f"of the nodes {nodes} only {[status['node'] for status in found]} answer")
            time.sleep(0.1)
        with Victims([who for status in found for who in jobs.node_processes(status)]) as victims:
            at_ns = victims.send()
            if not victims.wait_ended():
                raise AssertionError(f"of the nodes {nodes} not all died")
        return at_ns

    def events(self):
        return [json.loads(line) for line in self.command("events", "-o", "json")[1].splitlines()]

    def stranger(self, seed, phase, kills=1, node="any"):
        """killer.py, a process of its own that knows the job's name; (kills, what was seen after them)."""
        done = subprocess.run(
            [sys.executable, os.path.join(TOOLS, "killer.py"), "--pawl", PAWL, "--job", self.name, "--run-dir",
             self.run_root, "--seed", str(seed), "--kills", str(kills), "--node", node, "--phase", phase,
             "--steps", str(SMALL["steps"]), "--nodes", str(self.node_count), "--out", self.kills_path],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=180, check=False)
        self.remember()
        if done.returncode != 0:
            raise AssertionError(f"{done.stdout}{done.stderr}\n{self.tail()}\n{self.logs()}")
        return verdict.read_kills(self.kills_path)

    def logs(self, lines=12):
        """The end of each node's log, for a failure's message."""
        found = []
        for node in self.node_ids():
            with contextlib.suppress(OSError), open(os.path.join(self.directory, f"node-{node}", "log"),
                                                    encoding="utf-8", errors="replace") as file:
                found.append(f"--- node {node}\n" + "".join(file.readlines()[-lines:]))
        return "\n".join(found)


class JobTest(unittest.TestCase):
    maxDiff = None

    @contextlib.contextmanager
    def job(self, *flags, nodes=4, spares=1, seed=1, size=None, command=None, wait=True, environment=None, hooks=True,
            hold_end=True):
        """A standalone job of charlm, running (unless `wait` is False); ended, and its leftovers looked for, at the
        end."""
        run_root = tempfile.mkdtemp(prefix="pawl-test-")
        devices, shared = os.listdir("/sys/class/net"), set(os.listdir("/dev/shm"))
        size = {**SMALL, **(size or {})}
        command = command or [CHARLM, *trainer_flags(seed, **size), "--record", os.path.join(run_root, "record")]
        all_flags = ["--standalone", "--nnodes", str(nodes), "--spares", str(spares), *flags]
        if hooks:
            all_flags.append("--test-hooks")
        job = TestedJob(run_root, "test-" + os.path.basename(run_root)[10:], all_flags, command, nodes, environment)
        job.seed, job.size = seed, size
        try:
            job.start()
            if wait:
                job.wait_running()
                if hooks and hold_end:
                    job.hold_end(size["steps"] - 5)
            yield job
            job.stop()
            self.assert_nothing_left(job, devices, shared)
        except BaseException:
            print(f"\n{self.id()}: {job.name}\n{job.tail()}\n{job.logs()}", file=sys.stderr)
            raise
        finally:
            job.end_now()
            if os.environ.get("PAWL_TEST_KEEP"):
                print(f"kept: {run_root}", file=sys.stderr)
            else:
                shutil.rmtree(run_root, ignore_errors=True)

    def assert_nothing_left(self, job, devices, shared):
        deadline = time.monotonic() + 3.0
        while job.left_over() and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([], sorted(who.pid for who in job.left_over()), "processes were left over")
        self.assertEqual(sorted(devices), sorted(os.listdir("/sys/class/net")), "network devices were left over")
        self.assertEqual([], [name for name in set(os.listdir("/dev/shm")) - shared if job.name in name],
                         "shared memory was left over")

    def scratch(self):
        """A folder of the test's own."""
        folder = tempfile.mkdtemp(prefix="pawl-test-")
        self.addCleanup(shutil.rmtree, folder, True)
        return folder

    def finish(self, job, recoveries=0, timeout_s=120.0):
        """To the end; then everything must be bit for bit what the undisturbed run has."""
        self.assertEqual(0, job.wait_end(timeout_s), job.tail())
        run = job.run()
        compared = record.compare(run, reference_run(job.seed, job.node_count, **job.size), job.size["steps"],
                                  job.node_count)
        self.assertEqual([], compared.differences)
        self.assertTrue(compared.equal())
        self.assertEqual([], record.updates_accounted(run, recoveries))
        return run

    def assert_survivors(self, before, after, but=()):
        """Every seat that did not sit on the nodes `but` is served by the same process as before."""
        for seat, was in jobs.seats(before).items():
            if was["node"] in but:
                continue
            now = jobs.seats(after)[seat]
            for key in ("node", "pid", "start_time", "nonce"):
                self.assertEqual(was[key], now[key], f"seat {seat}: {key}")
            self.assertGreaterEqual(now["updates"], was["updates"], f"seat {seat}: updates")

    def assert_refused(self, job, *seats, after_ns, timeout_s=60.0):
        """The job stops with exit code 1, names the lost shards, and after that instant each seat has finished one step
        at most: to the one that was in flight the dead may have given all that others needed."""
        self.assertEqual(1, job.wait_end(timeout_s), job.tail())
        for seat in seats:
            self.assertIn(f"seat {seat}", job.output())
        late = collections.Counter(line["seat"] for line in job.run().lines if line["t_ns"] > after_ns)
        self.assertLessEqual(max(late.values(), default=0), 1, f"trained on after a loss: {late}")
        self.assertEqual({}, job.run().finals)

    def assert_says(self, text, *words):
        for word in words:
            self.assertIn(word.lower(), text.lower())


def communication_alone(events):
    """The generations in which no other fault was told than that of a connection. On a busy machine one may time
    out, and then there is a generation more than a test's deaths make."""
    faults = {}
    for event in events:
        if event["kind"] == "fault_detected":
            faults.setdefault(event["generation"], set()).add(event["fault"])
    return [generation for generation, kinds in sorted(faults.items()) if kinds == {"communication"}]


def run_pawl(*arguments, timeout_s=30.0, environment=None):
    """One command to its end: (exit code, everything it said)."""
    done = subprocess.run([PAWL, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                          timeout=timeout_s, env={**os.environ, **(environment or {})})
    return done.returncode, done.stdout + done.stderr


def load(text):
    return json.loads(text)


def main():
    """As unittest.main(); where GTEST_OUTPUT names a folder, also writes a report there as our other tests do."""
    program = unittest.main(module="__main__", exit=False, verbosity=2, testRunner=unittest.TextTestRunner(
        stream=sys.stdout, resultclass=Counted, verbosity=2))
    folder = os.environ.get("GTEST_OUTPUT", "").removeprefix("xml:")
    if folder:
        name = os.environ.get("PAWL_TEST_NAME", os.path.splitext(os.path.basename(sys.argv[0]))[0])
        program.result.write(os.path.join(folder, name + ".xml"))
    sys.exit(0 if program.result.wasSuccessful() else 1)


class Counted(unittest.TextTestResult):
    """Remembers every test with what became of it."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.cases = {}  # id -> None, ("failure", text) or ("skipped", text)

    def stopTest(self, test):
        self.cases.setdefault(test.id(), None)
        super().stopTest(test)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.cases[test.id()] = ("failure", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.cases[test.id()] = ("failure", self.errors[-1][1])

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.cases[test.id()] = ("failure", str(err[1]))

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.cases[test.id()] = ("skipped", "\n" + reason)

    def write(self, path):
        suite = ElementTree.Element("testsuite")
        for test, outcome in self.cases.items():
            case = ElementTree.SubElement(suite, "testcase", name=test.rsplit(".", 1)[-1],
                                          classname=test.split(".", 1)[-1].rsplit(".", 1)[0], status="run")
            if outcome:
                ElementTree.SubElement(case, outcome[0], message=outcome[1])
        ElementTree.ElementTree(suite).write(path)

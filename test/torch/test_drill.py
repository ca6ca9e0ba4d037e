"""`pawl drill -- COMMAND`: a sound script is equal; unsound ones are told what they forgot; wrong use is told, too."""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job  # noqa: E402  (finds the others)
from torch_job import HERE, PACKAGE, harness  # noqa: E402

# isort: split
from processes import command_line, pids  # noqa: E402

sys.path.insert(0, PACKAGE)
from pawl import digest, drill, drill_blows, drill_faults, drill_verdict, unprotected_state  # noqa: E402

DRILLED = os.path.join(HERE, "drilled.py")
PYTHON = os.environ.get("PYTHON_EXEC", sys.executable)
LIMIT_S = 400.0


def environment(folder):
    return {**os.environ, **torch_job.environment(), "TMPDIR": folder}


def run_drill(*arguments, command=None, folder=None, limit_s=LIMIT_S):
    """(exit code, standard output, standard error); asserts that nothing is left."""
    with tempfile.TemporaryDirectory(prefix="pawl-test-") as fresh:
        command = [harness.PAWL, "drill", *arguments, *(["--", *command] if command is not None else [])]
        done = subprocess.run(command, env=environment(folder or fresh), stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=limit_s, check=False)
        left = [name for name in os.listdir(fresh) if name.startswith("pawl-drill-")]
        assert not left, f"left over: {left}"
    return done.returncode, done.stdout, done.stderr


def drilled(*flags):
    return [PYTHON, DRILLED, *flags]


class RealDrills(unittest.TestCase):
    """Real jobs, really killed."""

    maxDiff = None

    def drill(self, *arguments, command):
        code, out, err = run_drill(*arguments, command=command)
        print(err + out, flush=True)
        return code, out, err

    def test_a_sound_script_is_equal(self):
        code, out, err = self.drill("--seed", "2", "-o", "json",
                                    command=drilled("--ema", "protected", "--own-sampler", "protected"))
        self.assertEqual(0, code, out + err)
        report = json.loads(out)
        self.assertEqual("equal", report["verdict"])
        self.assertEqual({"node", "trainer", "pawld"}, {struck["fault"]["kind"] for struck in report["faults"]})
        self.assertTrue(all(struck["committed"] >= 1 for struck in report["faults"]))
        self.assertEqual((30, 2), (report["steps"], report["seats"]))
        for struck in report["faults"]:
            self.assertEqual(struck["fault"]["kind"] == "pawld", struck["resume"] is None)

    @unittest.skipUnless(os.geteuid() == 0, "privilege: only root may cut links and mount a small disk")
    def test_links_connections_pauses_and_full_disks(self):
        kinds = list(drill_blows.KINDS[len(drill_blows.DEFAULT_KINDS):])
        code, out, err = self.drill("--seed", "5", "--faults", "4", "--kinds", ",".join(kinds), "-o", "json",
                                    command=drilled("--ema", "protected", "--own-sampler", "protected"))
        self.assertEqual(0, code, out + err)
        report = json.loads(out)
        self.assertEqual("equal", report["verdict"])
        self.assertEqual(sorted(kinds), sorted(struck["fault"]["kind"] for struck in report["faults"]))
        for struck in report["faults"]:
            if struck["fault"]["kind"] != "timed":
                self.assertIsNotNone(struck["resume"], struck)

    def test_an_unprotected_average_is_named(self):
        code, out, err = self.drill("--kinds", "node", "--faults", "1", command=drilled("--ema", "unprotected"))
        self.assertEqual(1, code, out + err)
        for words in ("NOT equal", "`ema['", "isn't protected", 'job.protect(state={"ema": ema})'):
            self.assertIn(words, out)

    def test_a_sampler_that_is_not_restored_is_named(self):
        code, out, err = self.drill("--kinds", "node", "--faults", "1", command=drilled("--own-sampler", "unprotected"))
        self.assertEqual(1, code, out + err)
        for words in ("NOT equal", "a sampler that isn't restored", "`order.position` of OwnOrder",
                      "job.protect(..., order)", "pawl.ElasticSampler"):
            self.assertIn(words, out)

    def test_a_script_that_differs_from_itself_is_told_so(self):
        code, out, err = self.drill("--kinds", "pawld", "--faults", "1", command=drilled("--noise"))
        self.assertEqual(1, code, out + err)
        self.assertIn("differs from itself without faults", out)
        self.assertIn("third run", err)

    def test_interrupted_it_leaves_nothing(self):
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            process = subprocess.Popen([harness.PAWL, "drill", "--", *drilled("--steps", "4000")],
                                       env=environment(folder),
                                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       text=True,
                                       start_new_session=True)
            self.wait_until(lambda: self.record_in(folder), "the first run to train")
            process.send_signal(signal.SIGINT)
            said = process.communicate(timeout=60.0)[0]
            self.assertEqual(130, process.returncode, said)
            self.assertEqual([], [name for name in os.listdir(folder) if "pawl" in name])  # torch leaves a cache
            self.wait_until(lambda: not [pid for pid in pids() if "4000" in command_line(pid)
                                         and DRILLED in command_line(pid)],
                            "the trainers to end")

    def record_in(self, folder):
        for root, _, files in os.walk(folder):
            if os.path.basename(root) == "record" and files:
                return True
        return False

    def wait_until(self, condition, what, timeout_s=120.0):
        deadline = time.monotonic() + timeout_s
        while not condition():
            self.assertLess(time.monotonic(), deadline, what)
            time.sleep(0.1)


class WrongUse(unittest.TestCase):
    """Each a sentence with cause and remedy, no traceback."""

    def refused(self, code, *words, arguments=(), command=None):
        found, out, err = run_drill(*arguments, command=command)
        self.assertEqual(code, found, out + err)
        self.assertNotIn("Traceback (most recent call last)", err)
        for word in words:
            self.assertIn(word, err)

    def test_no_command(self):
        self.refused(2, "no command", "pawl drill -- python train.py", command=[])

    def test_no_such_script(self):
        self.refused(2, "nowhere.py", "no such script", command=[PYTHON, "nowhere.py"])
        self.refused(2, "nowhere.py", "no such script", command=["nowhere.py"])
        self.refused(2, "no-such-program", command=["no-such-program", "x"])

    def test_options_that_make_no_sense(self):
        self.refused(2, "--kinds gpu", "node, trainer, pawld", arguments=["--kinds", "gpu"], command=drilled())
        self.refused(2, "--spares 0", arguments=["--spares", "0"], command=drilled())
        self.refused(2, "--nnodes 1", arguments=["--nnodes", "1"], command=drilled())
        self.refused(2, "--frobnicate", arguments=["--frobnicate"], command=drilled())

    def test_no_torch(self):
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            python = os.path.join(folder, "python3")
            with open(python, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\nexec {PYTHON} -S \"$@\"\n")
            os.chmod(python, 0o755)
            self.refused(1, "has no PyTorch", "pip install torch", command=[python, DRILLED])

    def test_a_script_without_pawl(self):
        with tempfile.NamedTemporaryFile("w", suffix=".py", prefix="pawl-test-") as script:
            script.write("print('trained')\n")
            script.flush()
            self.refused(1, "never did a step of pawl's", "job.steps", command=[PYTHON, script.name])

    def test_too_few_steps(self):
        self.refused(1, "5 steps", "at least", "--faults", command=drilled("--steps", "5"))


def execution(step, seat=0, pid=1, t_ns=None, **what):
    given = {"losses": [{"bits": f"{step:08x}", "value": float(step)}], "inputs": [f"i{step}"], "samples": [],
             "tensors": {"w (weight)": f"w{step}"}, "volatile": {"random": f"r{step}"}, "unprotected": {}}
    return drill_verdict.Execution(step, seat, pid, 1, step if t_ns is None else t_ns, **{**given, **what})


def run_of(*executions, steps=8, seats=2):
    """All steps as they should be, but those given; several of one place stand for a step done again."""
    run = drill_verdict.Run()
    for seat in range(seats):
        for step in range(1, steps + 1):
            given = [each for each in executions if (each.step, each.seat) == (step, seat)]
            run.done[step, seat] = given or [execution(step, seat)]
    return run


class Verdicts(unittest.TestCase):
    """On records made here."""

    def test_equal(self):
        again = run_of(execution(5), execution(5, pid=2, t_ns=50))
        self.assertTrue(drill_verdict.judge(run_of(), again, None).sound())
        self.assertEqual(1, again.redone())
        self.assertFalse(drill_verdict.needs_another_run(run_of(), again))

    def test_every_execution_counts(self):
        disturbed = run_of(execution(5), execution(5, pid=2, t_ns=50, losses=[{"bits": "0", "value": 0.5}]))
        found = drill_verdict.first_difference(run_of(), disturbed)
        self.assertEqual((5, 0, "loss", True), (found.step, found.seat, found.what, found.again))
        self.assertIn("done again", found.shown())
        self.assertIn("0.5, undisturbed 5.0", found.shown())

    def test_the_first_step_counts_then_the_order_within_it(self):
        disturbed = run_of(execution(6, tensors={"w (weight)": "x"}, inputs=["x"]),
                           execution(4, 1, volatile={"random": "x"}))
        found = drill_verdict.first_difference(run_of(), disturbed)
        self.assertEqual((4, 1, "volatile"), (found.step, found.seat, found.what))
        del disturbed.done[4, 1]
        disturbed.done[4, 1] = [execution(4, 1)]
        self.assertEqual("inputs", drill_verdict.first_difference(run_of(), disturbed).what)

    def test_a_missing_step_is_a_difference(self):
        disturbed = run_of()
        del disturbed.done[8, 1]
        self.assertEqual((8, 1, "missing"), astuple(drill_verdict.first_difference(run_of(), disturbed)))

    def test_the_sampler_is_named_where_inputs_differ(self):
        reference = run_of(execution(5, unprotected={"feed.position": ("value", "1", "80", "Feed")}))
        disturbed = run_of(execution(5, inputs=["x"], unprotected={"feed.position": ("value", "2", "96", "Feed"),
                                                               "count": ("value", "3", "9", "")}))
        verdict = drill_verdict.judge(reference, disturbed, None)
        self.assertEqual("differs", verdict.kind)
        self.assertIn("`feed.position` of Feed (96)", verdict.cause)
        self.assertIn("pawl.ElasticSampler", verdict.remedy)

    def test_state_is_named_where_losses_differ(self):
        reference = run_of(execution(5, unprotected={"teacher": ("module", "1", "Net", "")}))
        disturbed = run_of(execution(5, losses=[], unprotected={"teacher": ("module", "2", "Net", "")}))
        verdict = drill_verdict.judge(reference, disturbed, None)
        self.assertIn("isn't protected: `teacher` (Net)", verdict.cause)
        self.assertIn("job.protect(..., teacher)", verdict.remedy)

    def test_remedies_name_what_is_to_be_handed_over(self):
        def remedy(path, kind, shown="7"):
            return drill_verdict._remedy(drill_verdict.Suspect(path, kind, shown, "", 1, 0))
        self.assertIn("job.protect(..., self.feed)", remedy("self.feed.seen", "value"))
        self.assertIn('job.protect(state={"counts": counts})', remedy("counts['steps']", "value"))
        self.assertIn('job.protect(state={"losses": losses})', remedy("losses", "value", "list of 7"))
        self.assertIn("job.protect(state=kept)", remedy("count", "value"))
        self.assertIn('job.protect(state={"ema": ema})', remedy("ema['0.weight']", "tensor"))
        self.assertIn("job.protect(..., chance)", remedy("chance", "generator"))

    def test_what_comes_right_by_itself_is_no_state(self):
        reference = run_of(execution(5, unprotected={"scratch": ("tensor", "1", "", "")}))
        disturbed = run_of(execution(5, unprotected={"scratch": ("tensor", "2", "", "")}))
        self.assertTrue(drill_verdict.judge(reference, disturbed, None).sound())

    def test_counters_are_notes_and_clocks_are_nothing(self):
        def last(count, clock):
            return execution(8, unprotected={"losses": ("value", count, f"list of {count}", ""),
                                             "began": ("value", clock, clock, "")})
        reference, disturbed, again = run_of(last("7", "0.1")), run_of(last("9", "0.2")), run_of(last("7", "0.3"))
        self.assertTrue(drill_verdict.needs_another_run(reference, disturbed))
        verdict = drill_verdict.judge(reference, disturbed, again)
        self.assertTrue(verdict.sound())
        self.assertEqual(1, len(verdict.notes))
        self.assertIn("`losses` (list of 9)", verdict.notes[0])

    def test_differs_from_itself(self):
        other = run_of(execution(2, losses=[{"bits": "1", "value": 1.0}]))
        verdict = drill_verdict.judge(run_of(), other, other)
        self.assertEqual("itself", verdict.kind)
        self.assertIn("without faults", verdict.cause)

    def test_files_of_a_rehearsal_are_told(self):
        verdict = drill_verdict.judge(run_of(), run_of(), None, ["/tmp/log.csv"])
        self.assertTrue(verdict.sound())
        self.assertIn("/tmp/log.csv", verdict.notes[0])

    def test_records_come_back_from_their_files(self):
        lines = [{"step": 1, "seat": 0, "pid": 7, "generation": 1, "t_ns": 1, "losses": [], "inputs": [], "samples": [],
                  "names": ["a", "b"], "tensors": "0" * 16 + "1" * 16, "volatile": {},
                  "unprotected": {"x": ["value", "1", "1", ""], "y": ["value", "1", "1", ""]}},
                 {"step": 2, "seat": 0, "pid": 7, "generation": 1, "t_ns": 2, "losses": [], "inputs": [], "samples": [],
                  "tensors": "2" * 32, "volatile": {}, "unprotected": {"x": ["value", "2", "2", ""], "y": None}}]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "seat0.7.jsonl"), "w", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "torn')
            run = drill_verdict.read_run(folder)
        self.assertEqual(2, run.steps())
        self.assertEqual({"a": "2" * 16, "b": "2" * 16}, run.done[2, 0][0].tensors)
        self.assertEqual({"x": ("value", "2", "2", "")}, run.done[2, 0][0].unprotected)


def astuple(difference):
    return difference.step, difference.seat, difference.what


class Plans(unittest.TestCase):
    def test_a_plan_is_its_seed(self):
        plan = drill_faults.plan_faults(3, 6, drill_blows.DEFAULT_KINDS, True, 100)
        self.assertEqual(plan, drill_faults.plan_faults(3, 6, drill_blows.DEFAULT_KINDS, True, 100))
        self.assertNotEqual(plan, drill_faults.plan_faults(4, 6, drill_blows.DEFAULT_KINDS, True, 100))
        self.assertTrue(plan[0].cold)
        kinds = [fault.kind for fault in plan[1:]]
        self.assertEqual([2, 2, 2], [kinds.count(kind) for kind in drill_blows.DEFAULT_KINDS])
        self.assertEqual(3, len({fault.phase for fault in plan[1:] if fault.phase}))
        self.assertEqual(3, sum(not fault.phase for fault in plan[1:]))

    def test_halts_keep_their_distance(self):
        for seed in range(200):
            for count in range(1, 6):
                steps = drill_faults.steps_needed(count) + seed % 7
                plan = drill_faults.plan_faults(seed, count, ["node"], False, steps)
                halts = [fault.step for fault in plan]
                self.assertEqual(sorted(set(halts)), halts)
                self.assertGreaterEqual(halts[0], drill_faults.SETTLE_STEPS)
                self.assertLess(halts[-1], steps - 1)

    def test_too_short(self):
        with self.assertRaisesRegex(drill_faults.FaultError, "at least 14"):
            drill_faults.plan_faults(1, 3, drill_blows.DEFAULT_KINDS, False, 13)

    def test_a_signal_hits_nobody_else(self):
        process = subprocess.Popen(["sleep", "60"])
        try:
            start_time = drill_blows.start_time_of(process.pid)
            with drill_blows.Victims([(process.pid, start_time + 1)]) as victims:
                self.assertEqual([], victims.kill())
            self.assertIsNone(process.poll())
            with drill_blows.Victims([(process.pid, start_time)]) as victims:
                self.assertEqual([process.pid], victims.kill())
            self.assertEqual(-signal.SIGKILL, process.wait(10))
        finally:
            process.kill()


class Looking(unittest.TestCase):
    """What a loop has unprotected, seen from the place where a step would begin."""

    def look(self, known=()):
        return unprotected_state.Finder(lambda thing: any(thing is each for each in known)).find(sys._getframe(1))

    def test_what_is_written_first_is_not_found(self):
        import torch
        average, total, loss, looks = torch.zeros(3), 0.0, None, []
        for step in range(3):
            looks.append(self.look())
            loss = torch.full((3,), float(step))
            average = 0.5 * average + loss
            total += float(loss.sum())
        self.assertIn("average", looks[0])
        self.assertIn("total", looks[0])
        self.assertNotIn("loss", looks[1])
        self.assertNotEqual(looks[1]["average"].digest, looks[2]["average"].digest)
        self.assertEqual(unprotected_state.TENSOR, looks[0]["average"].kind)

    def test_objects_generators_iterators_and_files(self):
        import torch

        class Feed:
            def __init__(self):
                self.position = 0

        def numbers():
            for number in range(9):  # noqa: UP028 - a generator with a variable of its own
                yield number

        feed, stream, chance = Feed(), numbers(), torch.Generator().manual_seed(1)
        known, model, looks = torch.zeros(2), torch.nn.Linear(2, 2), []
        with tempfile.NamedTemporaryFile("w") as temporary:
            file = temporary.file
            for _ in range(2):
                looks.append(self.look(known=[known]))
                feed.position += 1
                next(stream)
                torch.rand(1, generator=chance)
                with torch.no_grad():
                    model.weight += 1
                file.write("a line")
                known += 1
        kinds = {"feed.position": unprotected_state.VALUE, "stream": unprotected_state.ITERATOR,
                 "chance": unprotected_state.GENERATOR, "model": unprotected_state.MODULE,
                 "file": unprotected_state.FILE}
        for path, kind in kinds.items():
            self.assertEqual(kind, looks[1][path].kind, path)
            self.assertNotEqual(looks[0][path].digest, looks[1][path].digest, path)
        self.assertEqual("Feed", looks[1]["feed.position"].owner)
        self.assertNotIn("known", looks[1])

    def test_digests_are_of_values(self):
        import torch
        one, two = [1.0, "x", {"a": (None, b"b")}], [1.0, "x", {"a": (None, b"b")}]
        self.assertEqual(digest.digest_of(one), digest.digest_of(two))
        for other in ([1, "x"], [1.0, "y", {}], [1.0, "x", {"a": (None, b"c")}], [-0.0], [0.0]):
            self.assertNotEqual(digest.digest_of(one), digest.digest_of(other))
        self.assertNotEqual(digest.digest_of(0.0), digest.digest_of(-0.0))
        tensor = torch.arange(6.0).reshape(2, 3)
        self.assertEqual(digest.digest_of_tensor(tensor.t()), digest.digest_of_tensor(tensor.t().contiguous()))
        self.assertNotEqual(digest.digest_of_tensor(tensor), digest.digest_of_tensor(tensor.reshape(3, 2)))
        self.assertNotEqual(digest.digest_of_tensor(tensor), digest.digest_of_tensor(tensor.to(torch.bfloat16)))


class Words(unittest.TestCase):
    def test_options(self):
        options = drill.read_options(["--pawl", "/p", "--seed", "7", "--kinds", "node,pawld", "-o", "json", "--",
                                      "python",
                                      "x.py", "--", "-o"])
        self.assertEqual((7, ("node", "pawld"), True, ["python", "x.py", "--", "-o"]),
                         (options.seed, options.kinds, options.as_json, options.command))


if __name__ == "__main__":
    harness.main()

"""`pawl drill -- COMMAND`: a sound script is equal; unsound ones are told what they forgot; wrong use is told, too."""
import argparse
import contextlib
import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import types
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job  # noqa: E402  (finds the others)
from torch_job import HERE, PACKAGE, harness  # noqa: E402

# isort: split
from processes import command_line, pids  # noqa: E402

sys.path.insert(0, PACKAGE)
from pawl import (  # noqa: E402
    digest,
    drill,
    drill_blows,
    drill_faults,
    drill_files,
    drill_record,
    drill_stacks,
    drill_verdict,
    file_events,
    unprotected_state,
)

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
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            files = {"log": "earlier\n", "checkpoint.pt": "dear\n"}
            for name, text in files.items():
                with open(os.path.join(folder, name), "w", encoding="utf-8") as file:
                    file.write(text)
            code, out, err = self.drill("--seed", "2", "-o", "json", command=drilled(
                "--ema", "protected", "--own-sampler", "protected", "--out-dir", folder))
            self.assertEqual(0, code, out + err)
            self.assertEqual(sorted(files), sorted(os.listdir(folder)))
            for name, text in files.items():
                with open(os.path.join(folder, name), encoding="utf-8") as file:
                    self.assertEqual(text, file.read())
        report = json.loads(out)
        self.assertEqual("equal", report["verdict"])
        self.assertEqual({"node", "trainer", "pawld"}, {struck["fault"]["kind"] for struck in report["faults"]})
        self.assertTrue(all(struck["committed"] >= 1 for struck in report["faults"]))
        self.assertEqual((30, 2), (report["steps"], report["seats"]))
        for struck in report["faults"]:
            self.assertEqual(struck["fault"]["kind"] == "pawld", struck["resume"] is None)

    @unittest.skipUnless(os.geteuid() == 0, "privilege: only root may cut links and mount a small disk")
    def test_links_connections_pauses_and_full_disks(self):
        kinds = [kind for kind in drill_blows.KINDS if kind not in (*drill_blows.DEFAULT_KINDS, "storage")]
        code, out, err = self.drill("--seed", "5", "--faults", "4", "--kinds", ",".join(kinds), "-o", "json",
                                    command=drilled("--ema", "protected", "--own-sampler", "protected"))
        self.assertEqual(0, code, out + err)
        report = json.loads(out)
        self.assertEqual("equal", report["verdict"])
        self.assertEqual(sorted(kinds), sorted(struck["fault"]["kind"] for struck in report["faults"]))
        for struck in report["faults"]:
            if struck["fault"]["kind"] != "timed":
                self.assertIsNotNone(struck["resume"], struck)

    def test_where_all_copies_are_lost_the_job_goes_back_to_storage(self):
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            code, out, err = self.drill("--seed", "3", "--faults", "2", "--kinds", "storage", "--nnodes", "3",
                                        "--checkpoint", folder, "-o", "json",
                                        command=drilled("--ema", "protected", "--own-sampler", "protected"))
            self.assertEqual(0, code, out + err)
            report = json.loads(out)
            self.assertEqual(("equal", 2, 3), (report["verdict"], len(report["faults"]), report["seats"]))
            jobs = {os.path.join(folder, name) for name in os.listdir(folder)}
            self.assertEqual(2, len(jobs), "one of each run")
            for struck in report["faults"]:
                self.assertEqual(1, len(struck["beside"]))
                self.assertNotIn(struck["node"], struck["beside"])
                self.assertEqual(2, len(set(struck["seats"])))
                job, name = os.path.split(struck["checkpoint"])
                self.assertIn(job, jobs)
                self.assertEqual(f"step-{struck['resume']}", name)
                self.assertIn(f"in storage, {struck['checkpoint']}", err)

    def test_what_is_not_protected_is_named_after_storage_as_well(self):
        code, out, err = self.drill("--kinds", "storage", "--faults", "1", command=drilled("--ema", "unprotected"))
        self.assertEqual(1, code, out + err)
        for words in ("NOT equal", "`ema['", "isn't protected"):
            self.assertIn(words, out)
        self.assertIn("in storage, ", err)

    def test_an_unprotected_average_is_named(self):
        code, out, err = self.drill("--kinds", "node", "--faults", "1", command=drilled("--ema", "unprotected"))
        self.assertEqual(1, code, out + err)
        for words in ("NOT equal", "`ema['", "isn't protected", 'job.protect(state={"ema": ema})'):
            self.assertIn(words, out)

    def test_a_sampler_that_is_not_restored_is_named(self):
        code, out, err = self.drill("--kinds", "node", "--faults", "1",
                                    command=drilled("--own-sampler", "unprotected", "--script"))
        self.assertEqual(1, code, out + err)
        self.assertIn("the model was given other inputs: blurred, given to DistributedDataParallel", out)
        for words in ("NOT equal", "a sampler that isn't restored", "`order.position` of OwnOrder",
                      "job.protect(..., order)", "pawl.ElasticSampler"):
            self.assertIn(words, out)

    def test_what_functions_and_classes_keep_is_named(self):
        code, out, err = self.drill("--kinds", "trainer", "--faults", "1", command=drilled("--habits", "--steps", "12"))
        self.assertEqual(1, code, out + err)
        for words in ("the model was given other inputs: blurred", "`own` (torch.Generator)", "`wider().calls`",
                      "`Growing.calls` of a class", "job.protect(..., own)"):
            self.assertIn(words, out)

    def test_a_job_that_stands_still_says_who_waits_for_what(self):
        code, _, err = self.drill("--kinds", "trainer", "--faults", "1", "--seed", "3", "--patience", "20",
                                  command=drilled("--counted-barrier", "--steps", "20"))
        self.assertEqual(1, code, err)
        for words in ("the job stands still: no step for", "waits in barrier (drilled.py:", "waits in backward",
                      "they wait in different collectives", "`calls` (", 'job.protect(state={"calls": calls})'):
            self.assertIn(words, err)

    def test_a_script_that_differs_from_itself_is_told_so(self):
        code, out, err = self.drill("--kinds", "pawld", "--faults", "1", command=drilled("--noise"))
        self.assertEqual(1, code, out + err)
        self.assertIn("differs from itself without faults", out)
        self.assertIn("come from time_ns (drilled.py:", out)
        self.assertIn("step 1, seat 0: `noise` is not what", out)
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
        self.refused(2, "--nnodes 1", "storage", arguments=["--nnodes", "1", "--kinds", "storage"], command=drilled())
        self.refused(2, "--spares 1", "--spares 2", "leave out --kinds storage",
                     arguments=["--spares", "1", "--kinds", "node,storage"], command=drilled())
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

    def test_a_script_that_pawl_refuses(self):
        script = os.path.join(HERE, "traps", "unprotected_loader.py")
        code, out, err = run_drill(command=[PYTHON, script])
        self.assertEqual(1, code, out + err)
        self.assertIn("pawl refuses `", err)
        self.assertIn("train_batches gives batches to one step after the other", err)
        self.assertEqual(1, err.count("for step, batch in job.batches("), err)
        self.assertIn("`with job.aside():`", err)  # the end of the sentence
        self.assertNotIn("without any fault", err)

    def test_a_second_loop_is_told(self):
        """`pawl run` fails with it, when all steps are done."""
        from pawl import job
        self.refused(1, "(after step 16): " + job.SECOND_LOOP,
                     command=[PYTHON, os.path.join(HERE, "traps", "second_loop.py")])

    def test_too_few_steps(self):
        self.refused(1, "5 steps", "at least", "--faults", command=drilled("--steps", "5"))


def execution(step, seat=0, pid=1, t_ns=None, **what):
    given = {"losses": [{"bits": f"{step:08x}", "value": float(step)}], "inputs": [[f"i{step}", "x"]], "samples": [],
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
        disturbed = run_of(execution(6, tensors={"w (weight)": "x"}, inputs=[["x", "x"]]),
                           execution(4, 1, volatile={"random": "x"}))
        found = drill_verdict.first_difference(run_of(), disturbed)
        self.assertEqual((4, 1, "volatile"), (found.step, found.seat, found.what))
        self.assertIn("`random` differs after the step", found.detail)
        del disturbed.done[4, 1]
        disturbed.done[4, 1] = [execution(4, 1)]
        self.assertEqual("inputs", drill_verdict.first_difference(run_of(), disturbed).what)

    def test_a_missing_step_is_a_difference(self):
        disturbed = run_of()
        del disturbed.done[8, 1]
        self.assertEqual((8, 1, "missing"), astuple(drill_verdict.first_difference(run_of(), disturbed)))

    def test_the_sampler_is_named_where_inputs_differ(self):
        reference = run_of(execution(5, unprotected={"feed.position": ("value", "1", "80", "Feed")}))
        disturbed = run_of(execution(5, inputs=[["x", "x"]], unprotected={"feed.position": ("value", "2", "96", "Feed"),
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
        def remedy(path, kind, shown="7", owner=""):
            return drill_verdict._remedy(drill_verdict.Suspect(path, kind, shown, owner, 1, 0))
        self.assertIn("job.protect(..., self.feed)", remedy("self.feed.seen", "value", owner="Feed"))
        self.assertIn('job.protect(state={"counts": counts})', remedy("counts['steps']", "value"))
        self.assertIn('job.protect(state={"losses": losses})', remedy("losses", "value", "list of 7"))
        self.assertIn('job.protect(state={"count": count})', remedy("count", "value"))
        self.assertIn('job.protect(state={"ema": ema})', remedy("ema['0.weight']", "tensor"))
        self.assertIn("job.protect(..., chance)", remedy("chance", "generator"))
        self.assertIn("job.protect(..., mean)", remedy("mean.total", "tensor", owner="Mean"))
        for kind in ("value", "tensor"):
            self.assertIn("let Net hold it in get_extra_state()", remedy("net.calls", kind, owner="the module Net"))
        self.assertIn("job.protect(..., net.noise)", remedy("net.noise", "generator", owner="the module Net"))

    def test_one_remedy_for_all_that_are_named(self):
        def remedies(*found):
            return drill_verdict._remedies([drill_verdict.Suspect(path, kind, "7", "", 1, 0) for path, kind in found])
        self.assertEqual("hand them to job.protect(..., chance, dice)",
                         remedies(("chance", "generator"), ("n", "value"), ("dice", "generator")))
        self.assertEqual('job.protect(state={"ema": ema, "n": n})',
                         remedies(("ema['a']", "tensor"), ("ema['b']", "tensor"), ("n", "value")))
        self.assertEqual('job.protect(state={"ema": ema})', remedies(("ema['a']", "tensor"), ("ema['b']", "tensor")))
        self.assertEqual("hand it to job.protect(..., net)", remedies(("net", "module"), ("n", "value")))

    def test_remedies_for_what_no_variable_holds(self):
        def remedy(path, owner):
            return drill_verdict._remedy(drill_verdict.Suspect(path, "value", "7", owner, 1, 0))
        self.assertIn('kept = {"n": ...}; job.protect(state=kept)', remedy("scaled().n", "a function"))
        self.assertIn('kept = {"seen": ...}; job.protect(state=kept)', remedy("mixed(seen)", "a function"))
        self.assertIn('kept = {"count": ...}; job.protect(state=kept)', remedy("helpers.count", ""))
        self.assertIn("optimizer.state[parameter]", remedy("optimizer.slow", "the protected Lookahead"))

    def test_tensors_and_settings_are_named_with_their_class(self):
        for what, name, words in (
                ("tensors", "0.weight (weight)", "weight `0.weight` differs after the step"),
                ("tensors", "bn.running_mean (buffer)", "buffer `bn.running_mean` differs"),
                ("tensors", "bn.mask (nonpersistent_buffer)", "buffer `bn.mask` differs"),
                ("tensors", "0.weight (exp_avg)", "optimizer state `exp_avg` of `0.weight` differs"),
                ("volatile", "optimizer['groups'][0][1]['lr']", "`lr` of `optimizer` differs"),
                ("volatile", "state7['variables']['count']['value']", "`count` differs"),
                ("volatile", "state7['dict']['ema']['dict']['0.weight']['tensor']", "`ema['0.weight']` differs"),
                ("volatile", "random numbers of torch", "random numbers of torch differs")):
            disturbed = run_of(execution(5, **{what: {**getattr(execution(5), what), name: "x"}}))
            verdict = drill_verdict.judge(run_of(), disturbed, None)
            self.assertIn(f"step 5, seat 0: {words}", verdict.first)

    def test_state_that_appeared_late_is_told_so(self):
        def run(broken=None):
            return run_of(*(execution(step, tensors={"late.weight (exp_avg)": "0" if step < 7 else f"m{step}"
                                                     if step != broken else "other"}) for step in range(1, 9)), seats=1)
        verdict = drill_verdict.judge(run(), run(broken=8), None)
        self.assertIn("optimizer state `exp_avg` of `late.weight` differs after the step; it appeared at step 7",
                      verdict.first)

    def test_what_was_restored_is_compared(self):
        def begin(pid, **state):
            return drill_verdict.Begin(6, 0, pid, 1, 6, {}, {"w (weight)": "1", **state.get("tensors", {})},
                                       {"scheduler['x']": "1", **state.get("volatile", {})})
        reference, disturbed = run_of(), run_of()
        reference.begun[6, 0], disturbed.begun[6, 0] = [begin(1)], [begin(2)]
        self.assertTrue(drill_verdict.judge(reference, disturbed, None).sound())
        disturbed.begun[6, 0] = [begin(2, tensors={"w (weight)": "2"})]
        verdict = drill_verdict.judge(reference, disturbed, None)
        self.assertIn("step 6, seat 0, by the process that took over: weight `w` is not what the undisturbed run had "
                      "when the step began", verdict.first)
        self.assertIn("step.fence()", verdict.remedy)
        disturbed.begun[6, 0] = [begin(2, volatile={"scheduler['x']": "2"})]
        verdict = drill_verdict.judge(reference, disturbed, None)
        self.assertIn("`scheduler['x']` is protected, but what was saved of it doesn't bring it back", verdict.cause)

    def test_where_a_job_stands_still_what_was_not_taken_back_is_named(self):
        def begins(*values, seat=0):
            run = drill_verdict.Run()
            for t_ns, (step, value) in enumerate(values):
                unprotected = {"count": ("value", str(value), str(value), ""), "clock": ("value", f"{id(run)}", "", "")}
                begin = drill_verdict.Begin(step, seat, 1, 1, t_ns, unprotected)
                run.begun.setdefault((step, seat), []).append(begin)
            return run

        def suspects(disturbed):
            reference = begins(*((step, step - 1) for step in range(1, 9)))
            reference.begun.update(begins(*((step, step - 1) for step in range(1, 9)), seat=1).begun)
            return [suspect.path for suspect in drill_verdict.suspects_of_standstill(reference, disturbed)]
        self.assertEqual(["count"], suspects(begins((1, 0), (2, 1), (3, 2), (4, 0), (5, 1))))
        # A step that the loss has undone was begun later in the training, and as it should be.
        survivor, new = begins((1, 0), (2, 1), (3, 2), (4, 3), (2, 4)), begins((2, 0), (3, 1), seat=1)
        self.assertEqual(["count"], suspects(survivor))
        self.assertEqual(["count"], suspects(drill_verdict.Run(begun={**survivor.begun, **new.begun})))
        self.assertEqual([], suspects(begins((1, 0), (2, 1), (3, 2), (2, 1), (3, 2))))

    def test_lines_that_were_written_twice_are_told(self):
        lines = [{"log.csv": 8, "times.txt": 5, "same": 3}, {"log.csv": 9, "times.txt": 6, "same": 3},
                 {"log.csv": 8, "times.txt": 4, "same": 3}]
        verdict = drill_verdict.judge(run_of(), run_of(), run_of(), [], lines)
        self.assertTrue(verdict.sound())
        self.assertEqual(1, len(verdict.notes))
        self.assertIn("`log.csv` has 9 lines, undisturbed 8", verdict.notes[0])

    def test_a_file_that_is_read_back_is_named(self):
        disturbed = run_of(execution(5, losses=[]))
        verdict = drill_verdict.judge(run_of(), disturbed, None, [], (), ["counter.txt"])
        self.assertIn("the script reads `counter.txt`, which it has written before", verdict.cause)

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
        who = {"seat": 0, "pid": 7, "generation": 1, "t_ns": 1}
        ended = {**who, "losses": [], "inputs": [], "samples": [], "volatile": {}}
        lines = [{"begin": 1, **who, "unprotected": {"x": ["value", "1", "1", ""], "y": ["value", "1", "1", ""]},
                  "clocks": ["time (x.py:1)"], "names": ["a", "b"], "tensors": "3" * 32, "volatile": {"c": "4"}},
                 {"step": 1, **ended, "tensors": "0" * 16 + "1" * 16},
                 {"begin": 2, **who, "unprotected": {"x": ["value", "2", "2", ""], "y": None}},
                 {"step": 2, **ended, "tensors": "2" * 32},
                 {"begin": 3, **who, "unprotected": {}}]
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "seat0.7.jsonl"), "w", encoding="utf-8") as file:
                file.write("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "torn')
            run = drill_verdict.read_run(folder)
        self.assertEqual(2, run.steps())
        self.assertEqual({"a": "2" * 16, "b": "2" * 16}, run.done[2, 0][0].tensors)
        self.assertEqual({"x": ("value", "2", "2", "")}, run.done[2, 0][0].unprotected)
        self.assertEqual({"a": "3" * 16, "b": "3" * 16}, run.begun[1, 0][0].tensors)
        self.assertEqual(({"c": "4"}, ["time (x.py:1)"]), (run.begun[1, 0][0].volatile, run.clocks))
        self.assertIsNone(run.begun[3, 0][0].tensors)
        self.assertEqual({"x": ("value", "2", "2", "")}, run.begun[3, 0][0].unprotected)


def astuple(difference):
    return difference.step, difference.seat, difference.what


class Files(unittest.TestCase):
    def test_what_a_run_writes_is_put_back(self):
        script = """
import os, shutil, torch, pawl
open("log", "a").write("line\\n" * 3); open("new", "w").write("a\\nb\\n"); torch.save([1], "model.pt")
os.makedirs("out/deep", exist_ok=True); open("out/deep/x", "w").close(); os.replace("out/deep/x", "moved")
os.rename("old", "newer"); os.remove("gone"); shutil.rmtree("tree"); os.makedirs(".", exist_ok=True)
open("new").read(); open("kept").read()
os.remove("latest"); os.symlink("new", "latest"); os.symlink("log", "another")
"""
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            journal, work = os.path.join(folder, "run", "files"), os.path.join(folder, "work")
            os.makedirs(os.path.join(work, "tree", "sub"))
            for path in ("log", "kept", "old/inside", "gone", "tree/sub/leaf", "model.pt"):
                os.makedirs(os.path.dirname(os.path.join(work, path)), exist_ok=True)
                with open(os.path.join(work, path), "w", encoding="utf-8") as file:
                    file.write(path + "\n")
            os.symlink("kept", os.path.join(work, "latest"))
            before = self.contents(work)
            done = subprocess.run([sys.executable, "-c", script], cwd=work, capture_output=True, text=True, check=False,
                                  env={**os.environ, "PYTHONPATH": PACKAGE, drill_files.FOLDER: journal})
            self.assertEqual("", done.stderr)
            self.assertNotEqual(before, self.contents(work))
            lines = drill_files.lines_written(journal)
            self.assertEqual((4, 2), (lines[os.path.join(work, "log")], lines[os.path.join(work, "new")]))
            self.assertEqual([os.path.join(work, "new")], drill_files.read_back(journal))
            kept = os.path.join(folder, "kept")
            self.assertEqual([], drill_files.restore(journal, kept))
            self.assertEqual([], drill_files.restore(journal))
            self.assertEqual(before, self.contents(work))
            self.assertIn(os.path.join(work.lstrip("/"), "moved"), self.contents(kept))

    def ran(self, work, journal, script, **environment):
        """A trainer."""
        return subprocess.run([sys.executable, "-c", "import os\nimport pawl\n" + script], cwd=work, check=False,
                              capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": PACKAGE, drill_files.FOLDER: journal, **environment})

    @contextlib.contextmanager
    def place(self, *names):
        """(journal, work), with files of their names."""
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            journal, work = os.path.join(folder, "run", "files"), os.path.join(folder, "work")
            os.makedirs(work)
            for name in names:
                with open(os.path.join(work, name), "w", encoding="utf-8") as file:
                    file.write(name)
            yield journal, work

    def test_what_could_not_be_put_back_is_kept(self):
        with self.place("model", "log") as (journal, work):
            before = self.contents(work)
            done = self.ran(work, journal, "open('model', 'w').write('x'); open('log', 'w').write('y')")
            self.assertEqual("", done.stderr)
            model = os.path.join(work, "model")
            os.unlink(model)
            os.mkdir(model)
            open(os.path.join(model, "another's"), "w").close()
            said = drill_files.restore(journal)
            self.assertEqual(1, len(said), said)
            self.assertIn(f"{model}: ", said[0])
            with open(said[0].rpartition("kept in ")[2], encoding="utf-8") as copy:
                self.assertEqual("model", copy.read())
            self.assertEqual([model], drill_files.copies_left(journal))
            os.unlink(os.path.join(model, "another's"))
            self.assertEqual([], drill_files.restore(journal))
            self.assertEqual([], drill_files.copies_left(journal))
            self.assertEqual(before, self.contents(work))

    def test_a_full_disk_leaves_the_copy_and_no_piece(self):
        with self.place("model") as (journal, work):
            self.ran(work, journal, "os.remove('model')")

            def full(*_):
                open(os.path.join(work, "model.pawl-drill"), "w").close()
                raise OSError(errno.ENOSPC, "No space left on device")
            with unittest.mock.patch("shutil.copy2", full):
                self.assertIn("No space left", drill_files.restore(journal)[0])
            self.assertEqual({}, self.contents(work))
            self.assertEqual([], drill_files.restore(journal))
            self.assertEqual({"model": b"model"}, self.contents(work))

    def test_other_names_and_owners_of_a_file_stay(self):
        with self.place("best", "same", "gone") as (journal, work):
            os.link(os.path.join(work, "best"), os.path.join(work, "latest"))
            ids = {name: os.stat(os.path.join(work, name)).st_ino for name in ("best", "same")}
            if os.geteuid() == 0:
                os.chown(os.path.join(work, "gone"), 12345, 12346)
            self.ran(work, journal, "open('best', 'w').write('longer than before'); open('same', 'a').close()\n"
                                    "os.remove('gone')")
            self.assertEqual([], drill_files.restore(journal))
            self.assertEqual({name: name.encode() for name in ("best", "same", "gone")} | {"latest": b"best"},
                             self.contents(work))
            self.assertEqual(ids, {name: os.stat(os.path.join(work, name)).st_ino for name in ids})
            if os.geteuid() == 0:
                found = os.stat(os.path.join(work, "gone"))
                self.assertEqual((12345, 12346), (found.st_uid, found.st_gid))

    def test_what_the_run_has_not_made_is_left(self):
        with self.place() as (journal, work):
            done = self.ran(work, journal, "os.mkdir('out'); open('out/mine', 'w').close(); os.makedirs('t/u')\n"
                                           "os.system('touch t/u/childs'); os.rename('t', 'moved')\n"
                                           "open('moved/u/x', 'w').close()\n"
                                           "import socket; os.mkdir('s'); socket.socket(socket.AF_UNIX).bind('s/s')")
            self.assertEqual("", done.stderr)
            with open(os.path.join(work, "out", "theirs"), "w", encoding="utf-8") as file:
                file.write("theirs")
            said = drill_files.restore(journal)
            self.assertEqual({"out": None, "out/theirs": b"theirs"}, self.contents(work))
            self.assertIn(os.path.join(work, "out", "theirs"), said[0])
            self.assertEqual((1, []), (len(said), drill_files.copies_left(journal)))

    def test_an_experiment_in_a_cache_folder_is_the_users(self):
        def roots(here, **environment):
            with unittest.mock.patch.dict(os.environ, environment), unittest.mock.patch("os.getcwd", lambda: here):
                return file_events.nobodys_files(environment.get("PAWL_RUN_DIR", ""))

        for name in ("XDG_CACHE_HOME", "HF_HOME", "TORCH_HOME", "PAWL_RUN_DIR"):
            for here in ("/data", "/data/experiment"):
                self.assertNotIn("/data", roots(here, **{name: "/data"}), name)
            self.assertIn("/data", roots("/database", **{name: "/data"}), name)
        found = roots("/data/torch", XDG_CACHE_HOME="/data")
        self.assertIn("/data/huggingface", found)
        self.assertNotIn("/data/torch", found)
        found = roots("/dev/shm/experiment")
        self.assertIn("/dev/null", found)
        self.assertNotIn("/dev/shm", found)

    def test_only_torchs_own_names_are_torchs(self):
        for name, own in (("torchinductor_me/x/y", True), ("torch_123_45_0", True), ("torch_runs/log", False),
                          ("torch_123_45_0/log", False)):
            self.assertEqual(own, file_events.is_torchs_own(f"/tmp/{name}", "/tmp"), name)

    def test_saves_by_name_and_no_locks(self):
        script = """
import fcntl, torch
def no_lock(*_): raise OSError(95, "Operation not supported")
fcntl.flock = no_lock
torch.save(obj=[1], f="model")
torch.jit.save(m=torch.jit.script(torch.nn.Linear(1, 1)), f="script")
torch.jit.script(torch.nn.Linear(1, 1)).save(f="script")
"""
        with self.place("model", "script") as (journal, work):
            before = self.contents(work)
            done = self.ran(work, journal, script)
            self.assertEqual(0, done.returncode, done.stderr)
            self.assertNotEqual(before, self.contents(work))
            self.assertEqual([], drill_files.restore(journal))
            self.assertEqual(before, self.contents(work))

    def contents(self, folder):
        found = {}
        for root, folders, names in os.walk(folder):
            found.update({os.path.relpath(os.path.join(root, name), folder): None for name in folders})
            for name in names:
                with open(os.path.join(root, name), "rb") as file:
                    found[os.path.relpath(os.path.join(root, name), folder)] = file.read()
        return found


class Endings(unittest.TestCase):
    """Of a drill whose runs have changed files: without jobs."""

    @contextlib.contextmanager
    def drill(self, **options):
        """(drill, path of a file that its first run has changed, what it tells)."""
        before = {each: signal.getsignal(each) for each in drill.ENDING}
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder, unittest.mock.patch.dict(
                os.environ, {"TMPDIR": folder}), unittest.mock.patch("tempfile.tempdir", folder), (
                unittest.mock.patch("pawl.drill.tell")) as tell:
            path, given = os.path.join(folder, "model"), drill.Options("pawl", ["x"], **options)
            one = drill.Drill(given)
            with open(path, "w", encoding="utf-8") as file:
                file.write("model")
            for name in ("first", "second"):
                job = drill.DrilledJob(given, os.path.join(one._folder, name), {})
                one._jobs.append(job)
                drill_files.Journal(job._files).about_to(file_events.Change(file_events.WRITE, path))
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"of the {name} run")
            try:
                yield one, path, tell
            finally:
                one._about.close()
                for each, handler in before.items():
                    signal.signal(each, handler)

    def read(self, path):
        with open(path, encoding="utf-8") as file:
            return file.read()

    def said(self, tell):
        return "\n".join(call.args[0] for call in tell.call_args_list)

    def test_the_first_original_is_put_back(self):
        with self.drill() as (one, path, _):
            one.close()
            self.assertEqual("model", self.read(path))
            self.assertFalse(os.path.exists(one._folder))

    def test_a_full_keep_hinders_nothing(self):
        with self.drill(keep="/nowhere") as (one, path, tell), unittest.mock.patch(
                "shutil.copytree", side_effect=OSError(errno.ENOSPC, "No space left on device")):
            one.close()
            self.assertEqual("model", self.read(path))
            self.assertFalse(os.path.exists(one._folder))
            self.assertIn("No space left", self.said(tell))

    def test_copies_stay_while_they_are_needed(self):
        with self.drill() as (one, path, tell):
            os.unlink(path)
            os.mkdir(path)
            open(os.path.join(path, "another's"), "w").close()
            one.close()
            self.assertIn(f"pawl drill --put-back {one._folder} --", self.said(tell))
            os.unlink(os.path.join(path, "another's"))
            self.assertEqual(drill.OK, drill.main(["--put-back", one._folder, "--"]))
            self.assertEqual("model", self.read(path))
            self.assertFalse(os.path.exists(one._folder))

    def test_the_next_drill_tells_of_a_killed_one(self):
        with self.drill() as (one, path, _):
            drill.check_folders()  # it lives
            with self.assertRaisesRegex(drill.DrillError, "still running"):
                drill.put_back(one._folder)
            one._about.close()
            with self.assertRaisesRegex(drill.DrillError, f"pawl drill --put-back {one._folder} --"):
                drill.check_folders()
            self.assertEqual(drill.OK, drill.put_back(one._folder))
            self.assertEqual("model", self.read(path))
            drill.check_folders()

    def test_a_terminal_that_closes_ends_it(self):
        with self.assertRaises(drill.Interrupted), drill._interruptible():
            signal.raise_signal(signal.SIGHUP)
        before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            with drill._interruptible():
                signal.raise_signal(signal.SIGHUP)  # under nohup
        finally:
            signal.signal(signal.SIGHUP, before)


class Stacks(unittest.TestCase):
    """Where trainers stand."""

    def test_a_process_tells_its_line(self):
        script = "import time, sys, pawl\ndef wait():\n    print('up', flush=True)\n    time.sleep(60)\nwait()\n"
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            path = os.path.join(folder, "stands.py")
            with open(path, "w", encoding="utf-8") as file:
                file.write(script)
            process = subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True,
                                       env={**os.environ, "PYTHONPATH": PACKAGE, drill_files.FOLDER: folder})
            try:
                self.assertEqual("up\n", process.stdout.readline())
                told, place = drill_stacks.path_of(folder, process.pid), None
                while place is None or not place.where.endswith(":4"):  # it may be told before it gets there
                    self.assertIsNone(process.poll())
                    process.send_signal(drill_stacks.SIGNAL)
                    time.sleep(0.05)
                    with open(told, encoding="utf-8") as file:
                        place = drill_stacks.where_is(file.read())
            finally:
                process.kill()
                process.stdout.close()
                process.wait()
        self.assertEqual(("is there (stands.py:4)", False), (place.shown(), place.collective))

    def test_who_waits_for_whom(self):
        torch = os.path.join(sys.prefix, "lib/python3.11/site-packages/torch")

        def stack(*frames):
            return drill_stacks.where_is("Current thread 0x1 (most recent call first):\n" + "".join(
                f'  File "{file}", line {line} in {name}\n' for file, line, name in frames))
        collective = stack((f"{torch}/distributed/distributed_c10d.py", 2800, "all_reduce"),
                           (f"{torch}/distributed/c10d_logger.py", 80, "wrapper"), ("/my/train.py", 57, "mean"),
                           ("/my/train.py", 90, "<module>"))
        backward = stack((f"{torch}/autograd/graph.py", 800, "_engine_run_backward"),
                         (f"{torch}/_tensor.py", 600, "backward"), ("/my/train.py", 60, "<module>"))
        at_input = stack(("/my/train.py", 63, "ask"), ("/my/train.py", 90, "<module>"))
        said = drill_stacks.sentences({0: collective, 1: at_input})
        self.assertEqual(["seat 0 waits in all_reduce (train.py:57)", "seat 1 is there (train.py:63)",
                          "seat 1 has not come to what the others wait in"], said)
        said = drill_stacks.sentences({0: collective, 1: backward})
        self.assertIn("waits in backward", said[1])
        self.assertIn("(train.py:60)", said[1])
        self.assertIn("different collectives", said[2])
        self.assertIn("did not answer", drill_stacks.sentences({0: None})[0])


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

    def test_who_has_copies_of_a_node(self):
        self.assertEqual([1, 2], drill_faults.holders({"seats": [{"holders": [2]}, {"holders": [1, 2]}]}))
        self.assertEqual([], drill_faults.holders({}))

    def test_a_fault_of_storage_waits_for_a_checkpoint(self):
        """All are parked: where nothing comes they go on by a step, to a halt there."""
        def status(step):
            return {0: {"role": "member", "trainers": [], "checkpoint": {"published": step}}}
        halts, published = [], iter([0, 4])
        job = types.SimpleNamespace(run_root="", nodes=lambda: status(0))
        striker = drill_faults.Striker(job, 1, 1, 1, 0.1, lambda: False, lambda line: None, 5.0)

        def await_halt(fault):
            halts.append((fault.step, striker._halt[1]))
            return status(next(published, 0))
        striker._await_halt = await_halt
        with unittest.mock.patch.object(drill_faults, "STORED_WITHIN_S", 0.0):
            found, nodes = striker._await_stored(drill_faults.Fault("storage", 4), status(0), 20)
            self.assertEqual((6, status(4)), (found.step, nodes))
            self.assertEqual([(5, 5), (6, 6)], halts)
            with self.assertRaisesRegex(drill_faults.FaultError, "no checkpoint was published before step 7"):
                striker._await_stored(found, status(0), 8)

    def test_a_job_is_excused_only_where_all_of_it_is_held(self):
        def node(*held, role="member"):
            return {"role": role, "trainers": [{"seat": place, "held": each} for place, each in enumerate(held)]}
        self.assertTrue(drill_faults.all_held({0: node(True, True), 1: node(True), 2: node(False, role="spare")}))
        self.assertFalse(drill_faults.all_held({0: node(True), 1: node(False)}), "it may never come there")
        self.assertFalse(drill_faults.all_held({0: node()}))

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


class Things:
    """What is protected, as unprotected_state.Known tells it."""

    def __init__(self, things):
        self.things = things

    def __call__(self, thing):
        return any(thing is each for each in self.things)

    def is_variable(self, _name):
        return False

    def keeps_attribute(self, _module, _key, _value):
        return False

    def keeps_of_loader(self, _thing, _name):
        return False


class Looking(unittest.TestCase):
    """What a loop has unprotected, seen from the place where a step would begin."""

    def look(self, known=()):
        return unprotected_state.Finder(Things(known)).find(sys._getframe(1))

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

    def test_the_batch_that_a_step_begins_with_is_not_found(self):
        total, looks = 0, []
        for x, y in ((1, 2), (3, 4)):
            looks.append(self.look())
            total += x * y
        self.assertIn("total", looks[1])
        self.assertFalse({"x", "y"} & set(looks[1]))

    def test_what_counts_the_steps_beside_pawl_is_found(self):
        looks = []
        for number, (x, y) in enumerate(
                [(1, 2), (3, 4)]):
            looks.append(self.look())
            if number % 2 == x + y:
                break
        self.assertNotEqual(looks[0]["number"].digest, looks[1]["number"].digest)
        self.assertFalse({"x", "y"} & set(looks[1]))
        for one, two in zip(itertools.count(), [(1, 2), (3, 4)], strict=False):
            looks.append(self.look())
            if one == sum(two):
                break
        self.assertNotEqual(looks[2]["one"].digest, looks[3]["one"].digest)

    def test_workers_that_persist_go_where_their_loader_goes(self):
        from types import SimpleNamespace
        loader = SimpleNamespace(_iterator=iter([1]))
        known = unprotected_state.Known(SimpleNamespace(
            optimizers=[], modules=[], attributes=[], parameters=list, places=[
                SimpleNamespace(loader=loader, kept=lambda: SimpleNamespace(objects=[], attributes=set()))]))
        self.assertFalse(known(loader._iterator))
        known.refresh()
        self.assertTrue(known(loader._iterator))
        self.assertTrue(known(unprotected_state.flattened([])))  # a generator of pawl's
        self.assertFalse(known(each for each in ()))

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

    def test_a_bounded_look(self):
        import numpy
        import torch
        each = 200 << 10
        finder = unprotected_state.Finder(Things([]), 4 * each)
        rows = [numpy.zeros(each, dtype=numpy.uint8) for _ in range(70)]  # as a data set of files in memory
        apart = {number: numpy.zeros(each, dtype=numpy.uint8) for number in range(20)}
        tensors = [torch.zeros(each, dtype=torch.uint8) for _ in range(20)]
        many, numbers = [[float(number)] * 9 for number in range(9000)], list(range(40))
        step, looks, fed = 0, [], []
        with unittest.mock.patch.object(unprotected_state, "LOOK_BYTES", 8 * each), unittest.mock.patch.object(
                digest, "_feed", side_effect=digest._feed) as feed:
            for _ in range(2):
                looks.append(finder.find(sys._getframe()))
                fed.append(feed.call_count)
                step += 1
                tensors[-1] += 1
        first, second = looks
        self.assertNotEqual(first["step"].digest, second["step"].digest, "whatever comes before it")
        for path in ("rows", "many"):
            self.assertEqual(unprotected_state.UNREAD, first[path].digest)
        read = [path for path in first if path.startswith("apart") and first[path].digest != unprotected_state.UNREAD]
        self.assertLessEqual(len(read), 8)
        self.assertTrue(0 < len(read) < len(apart))
        self.assertNotEqual(first["tensors[19]"].digest, second["tensors[19]"].digest, "torch counts the write")
        self.assertEqual(first["tensors[18]"].digest, second["tensors[18]"].digest)
        self.assertLess(fed[0], 9 * each // digest.ELEMENT_BYTES)
        self.assertNotEqual("", self.look()["numbers"].digest)
        del rows, many, numbers

    def test_arguments_that_a_script_changes(self):
        import torch  # noqa: F401  # pylint: disable=unused-import
        arguments, more, looks = argparse.Namespace(lr=0.1, steps=0), types.SimpleNamespace(tau=1.0), []
        for _ in range(2):
            looks.append(self.look())
            arguments.lr *= 0.5
            more.tau *= 0.5
        for path in ("arguments.lr", "more.tau"):
            self.assertNotEqual(looks[0][path].digest, looks[1][path].digest, path)
        self.assertEqual(looks[0]["arguments.steps"].digest, looks[1]["arguments.steps"].digest)

    def test_what_functions_classes_and_optimizers_keep(self):
        import torch

        class Count:
            made = 0

        class Twice:
            def __init__(self):
                self.calls = 0

            def __call__(self, value):
                self.calls += 1
                return 2 * value

        class Lookahead(torch.optim.SGD):
            pass

        def counted():
            n = 0

            def count(seen=[]):  # noqa: B006 - what the test is about
                nonlocal n
                n += 1
                seen.append(n)
                count.calls = n
            return count

        count, twice, weight = counted(), Twice(), torch.zeros(2, requires_grad=True)
        optimizer = Lookahead([weight], lr=0.1)
        optimizer.slow, looks = [weight.detach().clone()], []
        for _ in range(2):
            looks.append(self.look(known=[optimizer, weight]))
            count()
            twice(1)
            Count.made += 1
            optimizer.slow[0] += 1
        for path, owner in (("count().n", "a function"), ("count(seen)", "a function"), ("count.calls", "a function"),
                            ("Count.made", "a class"), ("twice.calls", "Twice"),
                            ("optimizer.slow[0]", "the protected Lookahead")):
            self.assertIn(path, looks[1])
            self.assertEqual(owner, looks[1][path].owner)
            if path in looks[0]:
                self.assertNotEqual(looks[0][path].digest, looks[1][path].digest, path)

    def test_times_and_seeds_of_a_script_are_found(self):
        def step():
            time.sleep(0.0)
            return time.time_ns()

        def train():
            return drill_record.clocks_of(sys._getframe()), step
        found = train()[0]
        self.assertTrue(any(each.startswith("monotonic (test_drill.py:") for each in found), found)
        self.assertFalse(any("sleep" in each for each in found))

    def test_pieces_of_what_is_protected(self):
        pieces = drill_record.pieces_of("optimizer", {"groups": [[{"lr": 0.1, "betas": (0.9, 0.99)}]], "state": []})
        self.assertEqual({"optimizer['groups'][0][0]['lr']", "optimizer['groups'][0][0]['betas']",
                          "optimizer['state']"}, set(pieces))
        self.assertEqual(1, len(drill_record.pieces_of("p", list(range(1000)))))

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
        with self.assertRaisesRegex(drill.DrillError, "see pawl drill --help --"):
            drill.read_options(["--wrong", "--", "python"])

    def test_the_help_is_for_users(self):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), self.assertRaises(SystemExit):
            drill.read_options(["--help", "--"])
        self.assertIn("--steps-limit N", said.getvalue())
        self.assertNotIn(".py", said.getvalue())


if __name__ == "__main__":
    harness.main()

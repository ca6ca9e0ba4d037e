"""What a script does by itself: exceptions, exits, breaks, mistakes. The job goes on, ends, or says what is wrong."""
import os
import shutil
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job  # noqa: E402
from torch_job import START_S, TRAINER, TorchTest, harness, jobs, record  # noqa: E402


class GoesOnTest(TorchTest):
    def test_an_exception_in_one_seat_starts_that_one_anew(self):
        for where in ("raise_in", "raise_after"):
            with self.subTest(where=where):
                with self.training(steps=30, step_ms=20, **{where: "1:9"}, once=self.fresh("once")) as job:
                    run = self.assert_like_plain(job)
                    self.assertEqual(3, len(run.starts), "seat 1 has had two processes, seat 0 one")

    def test_exit_with_a_code_starts_that_seat_anew(self):
        with self.training(steps=30, step_ms=20, exit="0:9", once=self.fresh("once")) as job:
            run = self.assert_like_plain(job)
            self.assertEqual(3, len(run.starts))

    def test_a_framework_owned_loop_is_entered_again(self):
        with self.training("--test-hooks", steps=50, step_ms=50, resilient=True) as job:
            before = job.wait_step(6, START_S)
            self.kill_trainer(job, 0)
            job.wait_running(jobs.generation(before), START_S)
            self.assert_like_plain(job)

    def fresh(self, name):
        folder = tempfile.mkdtemp(prefix="pawl-once-")
        self.addCleanup(shutil.rmtree, folder)
        return os.path.join(folder, name)


class EndsTest(TorchTest):
    def test_break_on_all_seats_after_the_same_step(self):
        with self.training(steps=40, **{"break": "all:12"}) as job:
            self.ends_after(job, 12)

    def test_one_seat_stops_all(self):
        with self.training(steps=400, step_ms=10, stop="1:12") as job:
            self.ends_after(job, 13)

    def test_what_comes_after_the_loop_has_its_time(self):
        with self.training(steps=20, after_loop_s=9) as job:
            self.assert_like_plain(job)

    def ends_after(self, job, step):
        self.assertEqual(0, job.wait_end(torch_job.END_S), job.output())
        run = job.run()
        self.assertEqual({0: step, 1: step}, {seat: final["step"] for seat, final in run.finals.items()})
        for seat in (0, 1):
            self.assertEqual(list(range(1, step + 1)), [line["step"] for line in run.steps(seat)])
            committed = [mark["committed"] for mark in self.marks(job, seat) if "committed" in mark]
            self.assertEqual(list(range(1, step + 1)), committed, "all of it was committed before the end")
        reference = torch_job.reference_run(2, steps=step)
        compared = record.compare(run, reference, step, 2)
        self.assertEqual([], compared.differences)

    def test_break_at_different_steps_is_a_verdict(self):
        with self.training(steps=400, step_ms=10, **{"break": "1:12"}) as job:
            said = self.assert_fails(job, "step 12")
            self.assertNotIn("Traceback", said)

    def test_nothing_is_left_to_die_silently_when_every_seat_raises(self):
        with self.training(steps=30, raise_in="all:9") as job:
            self.assert_fails(job, "told to raise in the block")


class MistakesTest(TorchTest):
    def refused(self, *words, nodes=2, traceback=False, **options):
        with self.training(nodes=nodes, **options) as job:
            said = self.assert_fails(job, *words)
            if not traceback:
                self.assertNotIn("Traceback", said)

    def test_an_unprotected_optimizer(self):
        self.refused("first.weight is trainable, but no protected optimizer has it", unprotected=True,
                     optimizer="adam")

    def test_a_model_that_changed(self):
        self.refused("second.weight: its memory was replaced", replace="all:8")

    def test_layouts_that_differ(self):
        self.refused("module1.weight", "[64,4]", "[72,4]", wider=1)

    def test_a_script_without_a_loop(self):
        self.refused("never called job.steps()", "for step in job.steps(total)", no_loop=True)

    def test_two_scripts_in_one_job(self):
        path = self.script_that_differs()
        self.refused("two scripts in one job", "same script and arguments", script=path)

    def test_a_script_that_was_changed_while_the_job_ran(self):
        path = self.copy_of_the_trainer()
        with self.training("--test-hooks", steps=400, step_ms=60, script=path) as job:
            job.wait_step(6, START_S)
            with open(path, "a", encoding="utf-8") as file:
                file.write("# mended\n")
            self.kill_trainer(job, 1)
            job.wait_until(lambda _: "the file's text differs" in job.logs(400), "the sentence", torch_job.END_S)

    def copy_of_the_trainer(self):
        folder = tempfile.mkdtemp(prefix="pawl-script-")
        self.addCleanup(shutil.rmtree, folder)
        return shutil.copy(TRAINER, folder)

    def script_that_differs(self):
        folder = tempfile.mkdtemp(prefix="pawl-script-")
        self.addCleanup(shutil.rmtree, folder)
        path = os.path.join(folder, "train.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write("import os, runpy, sys\n"
                       "sys.argv.append(f'--seed={os.getpid()}')  # as if each node had been started by hand\n"
                       f"sys.path.insert(0, {os.path.dirname(TRAINER)!r})\n"
                       f"runpy.run_path({TRAINER!r}, run_name='__main__')\n")
        return path


if __name__ == "__main__":
    harness.main()

"""Deaths of trainers and nodes in a PyTorch training: it goes on, and nothing is different afterwards."""
import os
import re
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from torch_job import START_S, TorchTest, harness, jobs  # noqa: E402


class SwapTest(TorchTest):
    def setUp(self):
        super().setUp()
        folder = tempfile.TemporaryDirectory(prefix="pawl-rehearsals-")
        self.addCleanup(folder.cleanup)
        self.rehearsals = os.path.join(folder.name, "log")
        self.logged = {"extra_environment": {"PAWL_REHEARSAL_LOG": self.rehearsals}}

    def rehearsed(self):
        """The steps that were rehearsed, in order; the next call begins anew."""
        with open(self.rehearsals, encoding="utf-8") as file:
            steps = [int(each) for each in re.findall(r"^in step (\d+) of the rehearsal$", file.read(), re.MULTILINE)]
        os.truncate(self.rehearsals, 0)
        return steps

    def test_undisturbed(self):
        with self.training(steps=20, skip_step=1) as job:
            run = self.assert_like_plain(job)
            self.assertEqual(set(range(2)), set(run.finals))
            committed = [mark["committed"] for mark in self.marks(job, 0) if "committed" in mark]
            self.assertEqual(list(range(1, 21)), committed, "each step is told of once, when it is committed")

    def test_a_node_is_killed_and_the_spare_takes_its_seat(self):
        for optimizer in ("zero", "adam"):
            with self.subTest(optimizer=optimizer), self.training(
                    "--test-hooks", nodes=3, spares=1, steps=60, step_ms=50, optimizer=optimizer, accumulate=2,
                    evaluate_every=5, skip_step=4, **self.logged) as job:
                job.wait_spare(timeout_s=START_S)
                before = job.wait_step(8, START_S)
                spare = jobs.spares(before)[0]
                spare_pid = before[spare]["trainers"][0]["pid"]
                victim = jobs.seats(before)[1]["node"]
                job.kill_node(victim)
                after = job.wait_running(jobs.generation(before), START_S)
                self.assert_survivors(before, after, but=[victim])
                self.assertEqual(spare_pid, jobs.seats(after)[1]["pid"], "the spare trains in the process that waited")
                said = job.logs(4000)
                self.assertIn("in step 9", said)
                self.assertNotIn("of the rehearsal", said, "a rehearsal prints nothing")
                self.assert_like_plain(job)
                self.assertEqual([1, 2, 1], self.rehearsed()[:3], "once seated, the spare rehearses one step only")

    def test_a_spare_that_did_not_rehearse_takes_a_seat_all_the_same(self):
        for how, words in (("no_rehearsal", ""), ("fail_rehearsal",
                                                  "the rehearsal of this spare failed: ValueError: told")):
            with self.subTest(how=how), self.training("--test-hooks", nodes=2, spares=1, steps=60, step_ms=50,
                                                      **{how: True}) as job:
                job.wait_spare(timeout_s=START_S)
                before = job.wait_step(6, START_S)
                victim = jobs.seats(before)[0]["node"]
                job.wait_until(lambda _, words=words: words in job.logs(400), words, START_S)
                job.kill_node(victim)
                after = job.wait_running(jobs.generation(before), START_S)
                self.assertNotEqual(victim, jobs.seats(after)[0]["node"])
                self.assert_like_plain(job)

    def test_a_seat_is_given_in_the_middle_of_a_rehearsal(self):
        with self.training("--test-hooks", nodes=2, spares=1, steps=14, step_ms=700) as job:
            before = job.wait_until(lambda nodes: jobs.committed(nodes) >= 1, "a first commit", START_S, 0.02)[1]
            victim = jobs.seats(before)[1]["node"]
            job.kill_node(victim)
            job.wait_running(jobs.generation(before), START_S)
            self.assert_like_plain(job)

    def test_a_trainer_is_killed_and_started_anew_in_its_seat(self):
        with self.training("--test-hooks", steps=50, step_ms=50, **self.logged) as job:
            before = job.wait_step(6, START_S)
            was = self.kill_trainer(job, 0)
            after = job.wait_running(jobs.generation(before), START_S)
            self.assert_survivors(before, after, but=[was["node"]])
            self.assertEqual(was["node"], jobs.seats(after)[0]["node"])
            self.assertNotEqual(was["pid"], jobs.seats(after)[0]["pid"])
            self.assert_like_plain(job)
            self.assertEqual([1, 2], self.rehearsed(), "nothing has shown what a second step makes")

    def test_state_begins_with_another_size_when_all_trainers_are_killed(self):
        """The room of the snapshot counts: with nobody left that knows it, and with a survivor."""
        elements = 200_000
        with self.training("--test-hooks", steps=70, step_ms=50, carried=elements) as job:
            before = job.wait_step(6, START_S)
            self.kill_all_trainers(job)
            after = job.wait_running(jobs.generation(before), START_S)
            self.assertEqual({seat: each["node"] for seat, each in jobs.seats(before).items()},
                             {seat: each["node"] for seat, each in jobs.seats(after).items()})
            committed = jobs.committed(after)
            before = job.wait_step(committed + 4, START_S)
            self.kill_trainer(job, 0)
            job.wait_running(jobs.generation(before), START_S)
            self.assert_like_plain(job)
            carried = [mark["carried"] for seat in (0, 1) for mark in self.marks(job, seat) if "carried" in mark]
            self.assertEqual([[elements, 70.0]] * 2, carried, "the size at the loop's end is the restored one")

    def test_the_others_wait_for_one_that_takes_long_to_build(self):
        with self.training("--test-hooks", steps=40, step_ms=50, late_s=12, group_timeout_s=4) as job:
            before = job.wait_step(6, START_S)
            self.kill_trainer(job, 1)
            after = job.wait_running(jobs.generation(before), START_S)
            late = jobs.generation(before) in harness.communication_alone(job.events())  # a fault before the kill
            self.assertEqual(jobs.generation(before) + 1 + late, jobs.generation(after), "one recovery was enough")
            self.assert_like_plain(job)

    def test_a_death_before_the_first_commit_starts_everybody_anew(self):
        with self.training("--test-hooks", steps=6, step_ms=1500) as job:  # the first window opens after two steps
            before = job.wait_running(timeout_s=START_S)
            self.assertEqual(0, jobs.committed(before))
            self.kill_trainer(job, 1)
            run = self.assert_like_plain(job)
            self.assertEqual(4, len(run.starts), "both processes were started anew")

    def test_loader_and_draws_between_steps(self):
        with self.training("--test-hooks", steps=50, step_ms=40, loader=True, draw_between=True,
                           optimizer="sgd") as job:
            self.kill_one_and_compare(job)

    def test_state_that_is_another_tensor_after_each_step(self):
        with self.training("--test-hooks", steps=50, step_ms=40, optimizer="replacing") as job:
            self.kill_one_and_compare(job)

    def test_a_death_while_objects_are_gathered_between_steps(self):
        """Whoever stumbles over it starts anew too: an object that never came can't be made up."""
        with self.training("--test-hooks", steps=40, gather_between=120) as job:
            self.kill_one_and_compare(job)

    def kill_one_and_compare(self, job):
        before = job.wait_step(6, START_S)
        self.kill_trainer(job, 1)
        job.wait_running(jobs.generation(before), START_S)
        self.assert_like_plain(job)

    def test_a_lost_step_is_told_to_the_loop(self):
        with self.training("--test-hooks", nodes=2, steps=60, step_ms=60) as job:
            before = job.wait_step(6, START_S)
            self.kill_trainer(job, 1)
            job.wait_running(jobs.generation(before), START_S)
            run = self.assert_like_plain(job)
            lost = [mark["lost"] for mark in self.marks(job, 0) if "lost" in mark]
            self.assertEqual(1, len(lost), "the survivor's loop saw one lost step")
            self.assertEqual([], [step for step in lost if step not in {line["step"] for line in run.steps(0)}])
            committed = [mark["committed"] for mark in self.marks(job, 0) if "committed" in mark]
            self.assertEqual(sorted(set(committed)), committed, "nothing is told twice")


if __name__ == "__main__":
    harness.main()

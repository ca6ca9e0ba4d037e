"""DDP: what the only replica of a dead seat has wrong comes from another rank, which has the same bytes.

Where ranks differ that declared equal state, it is said which one, and in what."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from segment import SEALED, replica_slots
from torch_job import START_S, TorchTest, harness, jobs

SEAT = 1
SMALL_BUCKETS = {"PAWL_BUCKET_BYTES": "4096"}  # the model is small


class PathsTest(TorchTest):
    def flip_and_kill(self, job, share):
        """All stand still in one step; a bit flips in each slot of the seat's only replica, then its node is killed."""
        before = job.wait_spare(timeout_s=START_S)
        step = jobs.committed(job.wait_step(6, START_S)) + 8
        seats = jobs.seats(before)
        owner, holder = seats[SEAT]["node"], seats[(SEAT + 1) % job.world]["node"]
        job.hold(owner, "compute", step)
        job.wait_held(owner, "compute", START_S)
        nodes = job.wait_step(step - 1, START_S)
        slots = replica_slots(nodes[holder]["pawld_pid"], SEAT)
        self.assertEqual([SEALED, SEALED], [slot.state for slot in slots])
        try:
            for slot in slots:
                slot.flip_bit(share)
        except PermissionError:
            self.skipTest("privilege: another process's memory may not be written here (ptrace)")
        job.kill_node(owner)
        return before, owner, step

    def test_a_damaged_parameter_comes_from_another_rank(self):
        with self.training("--test-hooks", nodes=3, spares=1, steps=60, step_ms=50, optimizer="adam",
                           extra_environment=SMALL_BUCKETS) as job:
            before, owner, step = self.flip_and_kill(job, 0.005)
            after = job.wait_running(jobs.generation(before), START_S)
            self.assert_survivors(before, after, but=[owner])
            job.wait_step(step, START_S)
            self.assertIn("fetch_again", job.logs(4000), "the damaged bucket was met")
            self.assert_like_plain(job)

    def test_what_only_that_rank_had_no_other_gives_back(self):
        """Its random numbers and its place in the data: the job ends, and says so."""
        with self.training("--test-hooks", nodes=3, spares=1, steps=60, step_ms=50, optimizer="adam",
                           extra_environment=SMALL_BUCKETS) as job:
            self.flip_and_kill(job, 0.5)  # the volatile state is by far the larger part
            self.assert_fails(job, "cannot recover", f"seat {SEAT}", "other paths: only bytes 0-")

    def test_a_communication_hook_may_come_inside_the_loop(self):
        """Under one nothing is declared equal. A process that begins anew declares before its first step, so without a
        hook that the first process had when it declared; or with one that it had not."""
        for hook in ({"hook_at": 1}, {"hook_at": 3, "hook_late": True}):
            with self.subTest(**hook), self.training("--test-hooks", nodes=2, spares=1, steps=60, step_ms=50,
                                                     optimizer="adam", **hook) as job:
                job.wait_spare(timeout_s=START_S)
                before = job.wait_step(6, START_S)
                victim = jobs.seats(before)[SEAT]["node"]
                job.kill_node(victim)
                after = job.wait_running(jobs.generation(before), START_S)
                self.assert_survivors(before, after, but=[victim])
                job.wait_step(jobs.committed(after) + 4, START_S)
                self.kill_trainer(job, 0)
                job.wait_running(jobs.generation(after), START_S)
                self.assert_like_plain(job)

    def test_a_rank_whose_parameters_drift_away_is_named_with_the_parameter(self):
        with self.training(nodes=3, spares=0, steps=200, step_ms=30, optimizer="adam", drift="1:20",
                           extra_environment=SMALL_BUCKETS) as job:
            def told(kind):
                return [event for event in job.events() if event["kind"] == kind]
            job.wait_step(22, START_S)
            job.wait_until(lambda _: told("paths_differ_in"), "the parameter to be named", START_S)
            differ, where = told("paths_differ"), told("paths_differ_in")
            said = [differ[0][name] for name in ("seats", "count", "like_count", "step")]
            self.assertEqual([[1], 1, 2, 20], said)
            self.assertEqual([(1, ["second.weight (weight)"])], [(each["seat"], each["tensors"]) for each in where])
            self.assertEqual(1, len(differ))
            self.assertEqual(0, job.wait_end(), job.output())

    def test_ranks_that_are_equal_are_not_named(self):
        with self.training(nodes=3, spares=0, steps=60, step_ms=50, optimizer="adam",
                           extra_environment=SMALL_BUCKETS) as job:
            job.wait_step(40, START_S)
            self.assertNotIn("paths_differ", {event["kind"] for event in job.events()})
            self.assertEqual(0, job.wait_end(), job.output())
            self.assertNotIn("differs from", job.output())

    def spared_a_step(self, job, first):
        """Bytes that all nodes together did not send, a step, in the ten steps from then on."""
        def spared(step):
            nodes = job.wait_step(step, START_S)
            return jobs.committed(nodes), sum(node["wire_bytes"]["spared"] for node in nodes.values())
        (began, before), (ended, after) = spared(first), spared(first + 10)
        return (after - before) / (ended - began)

    def test_what_all_ranks_capture_is_not_sent_and_a_dead_one_has_it_all_the_same(self):
        with self.training(nodes=3, spares=1, steps=60, step_ms=50, optimizer="adam",
                           extra_environment=SMALL_BUCKETS) as job:
            before = job.wait_spare(timeout_s=START_S)
            self.assertGreater(self.spared_a_step(job, 6), 3 * 40000, "of each seat all whole buckets of its 70 kB")
            victim = jobs.seats(before)[SEAT]["node"]
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before), START_S)
            self.assert_survivors(before, after, but=[victim])
            self.assert_like_plain(job)

    def test_a_rank_that_drifts_away_is_sent_and_comes_back_as_it_was(self):
        """Not as the others are: its holder takes nothing of theirs for it."""
        with self.training(nodes=3, spares=1, steps=90, step_ms=50, optimizer="adam", drift="1:20",
                           extra_environment=SMALL_BUCKETS) as job:
            before = job.wait_spare(timeout_s=START_S)
            equal, drifted = self.spared_a_step(job, 6), self.spared_a_step(job, 24)
            self.assertTrue(0 < drifted < equal / 2, "two of three streams send all")
            victim = jobs.seats(before)[SEAT]["node"]
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before), START_S)
            self.assert_survivors(before, after, but=[victim])
            self.assert_like_plain(job)


if __name__ == "__main__":
    harness.main()

"""A node of a PyTorch training is drained: no step is done again, and nothing is different afterwards."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from torch_job import START_S, TorchTest, harness, jobs  # noqa: E402


class DrainTest(TorchTest):
    def test_a_spare_takes_the_seats_between_two_steps(self):
        with self.training("--test-hooks", nodes=3, spares=1, steps=60, step_ms=50, optimizer="zero", accumulate=2,
                           evaluate_every=5) as job:
            job.wait_spare(timeout_s=START_S)
            before = job.wait_step(8, START_S)
            spare_pid = before[jobs.spares(before)[0]]["trainers"][0]["pid"]
            victim = jobs.seats(before)[1]["node"]
            code, answer, said = job.command("node", "drain", str(victim), "-o", "json", timeout_s=START_S, check=False)
            self.assertEqual(0, code, said)
            self.assertEqual(0, harness.load(answer)["redone"])
            after = job.wait_running(jobs.generation(before), START_S)
            self.assert_survivors(before, after, but=[victim])
            self.assertEqual(spare_pid, jobs.seats(after)[1]["pid"])
            with contextlib.closing(jobs.Follower(job)) as follower:
                self.assert_like_plain(job)
                follower.thread.join(30)
            if not harness.communication_alone(follower.events):  # else there were more, and their steps done again
                self.assertIn("1 recovery, 0 steps done again", job.output())


if __name__ == "__main__":
    harness.main()

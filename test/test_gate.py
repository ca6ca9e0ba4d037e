"""The reuse gate: nobody overwrites what could still be the only committed step.

The holder of B's replica keeps its acknowledgements back. The others seal the step, train on and reach the next window;
then B dies. With the gate they have kept the step before, and the job goes on from there. Without it (a test-only flag)
they have overwritten it, and no common step is left.
"""
import harness
from harness import JobTest, jobs
from segment import replica_slots

SEAT = 1


class GateTest(JobTest):
    def starve_and_kill(self, job, damaged=False):
        """B's copy may be damaged besides, so that what was not acknowledged is not there either.
        (status before, the newest committed step, when B died)"""
        job.wait_step(10)
        before = job.wait_spare()
        holder = job.node_of_seat(SEAT + 1)
        job.hold(holder, "ack")
        held = job.wait_held(holder, "ack")
        kept = jobs.committed(held)
        job.wait_until(lambda nodes: jobs.members(nodes) and min(
            trainer["step"] for trainer in jobs.seats(nodes).values()) >= kept + 4, "everybody to train on", 20)
        late, kept = kept, self.settled_commit(job)  # what was acknowledged before the hold may have been told late
        self.assertLessEqual(kept, late + 1, "a step was committed without its replica")
        self.assertEqual(kept, jobs.committed(job.nodes()), "a step was committed without its replica")
        if damaged:
            newest = replica_slots(job.node(holder)["pawld_pid"], SEAT)[-1]
            self.assertEqual(kept + 1, newest.step)
            newest.flip_bit()
        at_ns = job.kill_node(job.node_of_seat(SEAT))
        job.release(holder)
        return before, kept, at_ns

    def settled_commit(self, job):
        """The newest committed step, once two looks in a row find the same one."""
        seen = []

        def same(nodes):
            seen.append(jobs.committed(nodes))
            return len(seen) > 1 and seen[-1] == seen[-2]
        job.wait_until(same, "two looks to find the same committed step", pause_s=0.3)
        return seen[-1]

    def recovered_from(self, damaged):
        """How far the job went back, counted from the newest committed step; then to the end, bit for bit."""
        with self.job() as job:
            before, kept, at_ns = self.starve_and_kill(job, damaged)
            after = job.wait_running(jobs.generation(before))
            resume, = {status["resume"] for status in jobs.members(after).values()}
            self.assertLess(resume, max(line["step"] for line in job.run().lines if line["t_ns"] < at_ns))
            self.finish(job, recoveries=3)
            return resume - kept

    def test_the_step_before_is_kept(self):
        try:
            self.assertEqual(0, self.recovered_from(damaged=True))
        except PermissionError:
            self.skipTest("privilege: another process's memory may not be written here (ptrace)")

    def test_a_step_that_lies_verified_at_the_holder_counts_though_unacknowledged(self):
        self.assertIn(self.recovered_from(damaged=False), (0, 1))

    def test_without_the_gate_it_is_lost(self):
        with self.job("--gate-off") as job:
            _, _, at_ns = self.starve_and_kill(job)
            self.assert_refused(job, SEAT, after_ns=at_ns + 2_000_000_000)


if __name__ == "__main__":
    harness.main()

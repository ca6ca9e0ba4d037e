"""Nodes that an operator takes out of service while the job runs."""
import harness
from harness import JobTest, jobs, load, run_pawl


class NodeTest(JobTest):
    def node(self, job, *arguments, code=0, timeout_s=40.0):
        """`pawl node ...` to its end; everything it said."""
        got, said = run_pawl("node", *arguments, "--job", job.name, environment=job.environment(), timeout_s=timeout_s)
        self.assertEqual(code, got, said)
        return said


class CordonTest(NodeTest):
    def test_a_cordoned_spare_is_passed_over_until_it_is_uncordoned(self):
        with self.job(spares=2) as job:
            before = job.wait_step(5)
            job.wait_spare(2)
            self.assert_says(self.node(job, "cordon", "9", code=3), "no node 9")
            answer = load(self.node(job, "cordon", "4", "-o", "json"))
            self.assertEqual((True, False), (answer["changed"], answer["has_seats"]))
            self.assertFalse(load(self.node(job, "cordon", "4", "-o", "json"))["changed"])
            self.assert_says(self.node(job, "cordon", "0"), "keeps the seats")
            status = job.status()
            self.assertEqual([0, 4], status["cordoned"])
            self.assertIn("1 of 2 spares are there", status["degraded"])

            job.kill_node(2)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual({0: 0, 1: 1, 2: 5, 3: 3}, {seat: at["node"] for seat, at in jobs.seats(after).items()})
            self.assert_says(self.node(job, "uncordon", "4"), "may get seats")
            job.wait_step(jobs.committed(after) + 1)
            job.kill_node(1)
            again = job.wait_running(jobs.generation(after))
            self.assertIn(jobs.seats(again)[1]["node"], (2, 4))  # node 2 has come back as a spare
            kinds = [load(line)["kind"] for line in
                     run_pawl("events", "--job", job.name, "-o", "json", environment=job.environment())[1].splitlines()]
            self.assertEqual((2, 1), (kinds.count("node_cordoned"), kinds.count("node_uncordoned")))
            self.finish(job, recoveries=2)


class DrainTest(NodeTest):
    def test_the_spare_takes_the_seat_and_no_step_is_done_again(self):
        with self.job(spares=2) as job:
            before = job.wait_step(20)
            job.wait_spare(2)
            self.node(job, "cordon", "4")
            self.assert_says(self.node(job, "drain", "9", code=3), "no node 9")
            answer = load(self.node(job, "drain", "2", "-o", "json").splitlines()[0])
            self.assertEqual(([{"seat": 2, "to": 5}], 0), (answer["moved"], answer["redone"]), answer)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual(jobs.generation(before) + 1, jobs.generation(after), job.tail())
            self.assert_survivors(before, after, but=[2])
            self.assertEqual({0: 0, 1: 1, 2: 5, 3: 3}, {seat: at["node"] for seat, at in jobs.seats(after).items()})

            # It comes back, and gets no seat: with no other spare left nothing is begun.
            self.assert_says(self.node(job, "drain", "1", code=1), "no spare", "uncordon")
            self.assertEqual([2, 4], job.status()["cordoned"])
            self.assert_says(self.node(job, "drain", "4"), "has no seats")
            self.node(job, "uncordon", "4")
            answer = load(self.node(job, "drain", "0", "-o", "json").splitlines()[0])  # seat 0, the root of the tree
            self.assertEqual(([{"seat": 0, "to": 4}], 0), (answer["moved"], answer["redone"]), answer)
            self.assertEqual([], job.status()["draining"])
            self.finish(job, recoveries=2)
            self.assert_says(job.output(), "node 2 is drained after step", "2 recoveries, 0 steps done again")

    def test_without_a_spare_nothing_changes(self):
        with self.job(spares=0) as job:
            job.wait_step(5)
            self.assert_says(self.node(job, "drain", "1", code=1), "no spare is free", "node 1")
            status = job.status()
            self.assertEqual(([], []), (status["cordoned"], status["draining"]))
            self.finish(job)


class InterruptedDrainTest(NodeTest):
    def pause(self, job, leaving, holder):
        """The trainers wait for a step that one holder doesn't acknowledge; what the nodes then say."""
        job.wait_spare()
        job.wait_step(10)
        job.hold(holder, "ack")
        self.node(job, "drain", str(leaving), "--no-wait")
        return job.wait_until(lambda nodes: {at["phase"] for at in jobs.seats(nodes).values()} == {"aside"},
                              "all trainers to wait")[1]

    def test_a_withdrawn_drain_costs_nothing(self):
        with self.job() as job:
            before = self.pause(job, leaving=1, holder=3)
            self.assertEqual([1], job.status()["draining"])
            self.node(job, "uncordon", "1")
            job.release(3)
            job.wait_step(jobs.committed(before) + 5)
            self.assertEqual(jobs.generation(before), jobs.generation(job.nodes()))
            self.finish(job)

    def test_its_pawld_dies_and_the_next_one_goes_on(self):
        with self.job("--nproc-per-node", "2", nodes=2, wait=False) as job:
            job.node_count, nodes = 4, 2  # seats, for the reference
            job.wait_until(lambda now: jobs.running(now, nodes) and len(jobs.seats(now)) == 4, "the job")
            job.hold_end(job.size["steps"] - 5)
            before = self.pause(job, leaving=1, holder=0)
            job.drill("kill", "daemon", "1")
            job.release(0)
            self.node(job, "drain", "1")
            after = job.wait_until(lambda now: jobs.running(now, nodes) and len(jobs.seats(now)) == 4, "the job")[1]
            self.assertEqual(jobs.generation(before) + 1, jobs.generation(after))
            self.assertEqual([0, 0, 2, 2], [jobs.seats(after)[seat]["node"] for seat in range(4)])
            self.finish(job, recoveries=1)
            self.assert_says(job.output(), "1 recovery, 0 steps done again")

    def test_the_leaving_node_dies_before_its_seats_have_moved(self):
        with self.job() as job:
            before = self.pause(job, leaving=1, holder=3)
            job.kill_node(1)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual(4, jobs.seats(after)[1]["node"])
            job.wait_until(lambda _: not job.status()["draining"], "the order to be forgotten")
            self.finish(job, recoveries=1)

    def test_the_drained_node_is_read_from_when_its_ward_dies(self):
        """Of seat 1 the node that is drained has the only copy. It lives, and keeps it until the job runs again."""
        with self.job(spares=2) as job:
            before = job.wait_spare(2)
            job.wait_step(10)
            job.hold(0, "frozen")
            self.node(job, "drain", "2", "--no-wait")
            job.wait_held(0, "frozen")
            job.kill_node(1)
            job.wait_until(lambda nodes: jobs.generation(nodes) == jobs.generation(before) + 2, "the second generation")
            job.release(0)
            after = job.wait_running(jobs.generation(before), timeout_s=60.0)
            self.assert_survivors(before, after, but=[1, 2])
            self.assertEqual({4, 5}, {jobs.seats(after)[seat]["node"] for seat in (1, 2)})
            self.finish(job, recoveries=2)


if __name__ == "__main__":
    harness.main()

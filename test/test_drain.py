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


if __name__ == "__main__":
    harness.main()

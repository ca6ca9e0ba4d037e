"""A hundred real nodes on one machine, each with a network of its own: one is killed, and nothing else differs.

For the lane "long": some three hundred processes. All links are new after a death, so this also asks whether the kernel
knows so many neighbours (src/cli/job/namespaces.cc)."""
import harness
from harness import JobTest, jobs

NODES = 100
PATIENCE_S = 600.0
SIZE = {"steps": 24, "batch": 2, "hidden": 64, "device_ms": 0}


class ManyNodesTest(JobTest):
    def test_one_of_a_hundred_is_replaced_and_nobody_else_is_lost(self):
        with self.job(nodes=NODES, spares=2, size=SIZE, wait=False, hooks=False) as job:
            job.wait_running(timeout_s=PATIENCE_S)
            before = job.wait_step(6, PATIENCE_S)
            victim = jobs.seats(before)[NODES - 3]["node"]
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before), PATIENCE_S)
            self.assert_survivors(before, after, but=[victim])
            self.finish(job, recoveries=2, timeout_s=PATIENCE_S)


if __name__ == "__main__":
    harness.main()

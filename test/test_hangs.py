"""What still lives but does not answer: stopped nodes, cut cables, hung trainers. Noticed, replaced, fenced when it
wakes."""
import os
import signal
import time

import harness
from harness import JobTest, jobs

DEADLINE_MS = 1500


class HangTest(JobTest):
    def events_of(self, job, kind):
        _, out, _ = job.command("events", "-o", "json")
        return [event for event in map(harness.load, out.splitlines()) if event["kind"] == kind]

    def replaced_and_back(self, job, seat, hurt, heal):
        """The node of the seat is hurt, replaced within the deadlines, healed, and comes back as another life."""
        job.wait_step(5)
        before = job.wait_spare()
        node = jobs.seats(before)[seat]["node"]
        hurt(node)
        began_ms = time.time() * 1e3
        after = job.wait_running(jobs.generation(before))
        self.assertNotEqual(node, jobs.seats(after)[seat]["node"])
        self.assert_survivors(before, after, but=[node])
        seen_ms = min(event["at_ms"] for event in self.events_of(job, "fault_detected"))
        self.assertLess(seen_ms - began_ms, 2 * DEADLINE_MS + 3000, "not noticed in time")
        heal(node)
        job.wait_until(lambda nodes: node in jobs.spares(nodes), f"node {node} to come back as a spare", 30)
        now = job.node(node)
        self.assertGreater(now["incarnation"], before[node]["incarnation"], "it is still the old life")
        self.finish(job, recoveries=1)

    def test_a_stopped_node(self):
        with self.job("--deadline-ms", str(DEADLINE_MS)) as job:
            self.replaced_and_back(job, 2, lambda node: job.drill("stop", "node", str(node)),
                                   lambda node: job.drill("continue", "node", str(node)))

    def test_a_cut_cable(self):
        with self.job("--deadline-ms", str(DEADLINE_MS)) as job:
            status = next(iter(job.nodes().values()))
            if os.readlink(f"/proc/{status['keeper_pid']}/ns/net") == os.readlink("/proc/self/ns/net"):
                self.skipTest("privilege: no network namespaces here, so there is no cable to cut")
            self.replaced_and_back(job, 1, lambda node: job.drill("cut", "node", str(node)),
                                   lambda node: job.drill("heal", "node", str(node)))

    def test_a_trainer_that_hangs(self):
        with self.job("--deadline-ms", str(DEADLINE_MS), "--hang-ms", "2000", size={"steps": 700},
                      hold_end=False) as job:
            before = job.wait_step(5)
            trainer = jobs.seats(before)[2]
            os.kill(trainer["pid"], signal.SIGSTOP)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual(trainer["node"], jobs.seats(after)[2]["node"], "its node is sound")
            self.assertNotEqual(trainer["pid"], jobs.seats(after)[2]["pid"])
            self.assert_survivors(before, after, but=[trainer["node"]])
            self.finish(job, recoveries=1)


if __name__ == "__main__":
    harness.main()

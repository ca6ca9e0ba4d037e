"""The rendezvous store: all seats add to it at once, from two threads each, while pawlds are killed; each counts
once."""
import time

import harness
from test_first_steps import SmallJobTest


class StoreTest(SmallJobTest):
    def test_sums_are_right_though_pawlds_are_killed(self):
        """Every step's all-reduce is additions; a second thread of each seat counts, and ends the process if one is
        lost or done twice."""
        with self.small_job(step_ms=20, steps=400, thread=True) as job:
            nodes = {seat: trainer["node"] for seat, trainer in harness.jobs.seats(self.wait_begun(job, 5)).items()}
            killed = {}
            for seat in (0, 1, 0, 3, 0, 2):  # the store is served at seat 0's node; seat 2 holds the end until then
                node = nodes[seat]
                found = job.wait_until(lambda now, node=node: now.get(node, {}).get("pawld_pid") not in (
                    None, killed.get(node)), f"a pawld on node {node}")[1]
                killed[node] = found[node]["pawld_pid"]
                job.drill("kill", "daemon", str(node))
                time.sleep(0.3)
                self.assertFalse(job.ended(), job.tail())
            self.finish_small(job, 400)
            self.assertEqual(1, self.generations(job), "killing a pawld costs no recovery")
            for seat in range(4):
                self.assertGreater(self.lines(seat)[-1]["counted"], 100)

    def test_a_node_dies_meanwhile(self):
        for seat in (0, 2):
            with self.subTest(seat=seat), self.small_job(step_ms=10, thread=True) as job:
                job.wait_step(10)
                before = job.wait_spare()
                job.kill_node(job.node_of_seat(seat))
                job.wait_running(harness.jobs.generation(before))
                self.finish_small(job, 200)


if __name__ == "__main__":
    harness.main()

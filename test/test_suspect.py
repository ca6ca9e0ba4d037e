"""A node whose training connections fail again and again, while pawl's own and all processes are sound."""
import os
import sys

import harness
from harness import JobTest, jobs, load

sys.path.insert(0, os.path.join(harness.ROOT, "python"))

from pawl.drill_blows import shut_connections  # noqa: E402

LONG = {"steps": 1500, "device_ms": 12}


class SuspectTest(JobTest):
    def shut(self, job, seat):
        """Every connection of that seat's trainer to others, from outside."""
        pid = job.seat(seat)["pid"]
        fd = os.pidfd_open(pid)
        try:
            self.assertGreater(shut_connections(pid, fd), 0)
        finally:
            os.close(fd)

    def events(self, job, kind):
        return [event for event in map(load, job.command("events", "-o", "json")[1].splitlines())
                if event["kind"] == kind]

    def test_its_node_is_replaced_the_second_time_without_progress(self):
        with self.job("--deadline-ms", "9000", size=LONG) as job:
            before = job.wait_step(5)
            job.wait_spare()
            job.hold(3, "ack")  # no further step is committed
            self.shut(job, 1)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after)
            recoveries = 1
            # Once more, or until somebody is named: who gives up at once is missed by the next one in the ring, and
            # where as many miss either, it is nobody.
            while recoveries < 6 and jobs.seats(after)[1]["node"] == 1:
                job.wait_until(lambda nodes: {at["phase"] for at in jobs.seats(nodes).values()} <= {"compute", "fence",
                               "allreduce", "update", "allgather"}, "all to train")
                self.shut(job, 1)
                after = job.wait_running(jobs.generation(after))
                recoveries += 1
            self.assertEqual({0: 0, 1: 4, 2: 2, 3: 3}, {seat: at["node"] for seat, at in jobs.seats(after).items()})
            self.assert_survivors(before, after, but=[1])
            told = [event.get("victim_node") for event in self.events(job, "fault_detected")
                    if event["fault"] == "communication"]
            self.assertEqual({1}, {node for node in told if node is not None}, told)
            job.release(3)
            job.wait_step(jobs.committed(after) + 1)
            self.finish(job, recoveries=recoveries)

    def test_with_progress_between_nobody_is_replaced(self):
        with self.job(size=LONG) as job:
            before = job.wait_step(5)
            for time in range(3):
                self.shut(job, 1)
                now = job.wait_running(jobs.generation(before) + time)
                job.wait_step(jobs.committed(now) + 3)
            self.assert_survivors(before, job.nodes())
            self.finish(job, recoveries=3)


if __name__ == "__main__":
    harness.main()

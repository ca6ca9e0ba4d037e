"""What pawl sees of nodes that are there: which may get no seats, and who holds up the others."""
import os

import harness
from harness import CHARLM, JobTest, jobs, load, trainer_flags

LONG = {"steps": 1500, "device_ms": 12}


class HealthTest(JobTest):
    def events(self, job, kind):
        return [event for event in map(load, job.command("events", "-o", "json")[1].splitlines())
                if event["kind"] == kind]

    def test_a_node_whose_check_fails_gets_no_seats_until_it_passes(self):
        marks = self.scratch()
        check = f'test "$PAWL_NODE" != 4 || ! test -e {marks}/broken'
        open(os.path.join(marks, "broken"), "w", encoding="ascii").close()
        with self.job("--health-check", check, spares=2, size=LONG) as job:
            job.wait_step(5)
            job.wait_until(lambda nodes: nodes.get(4, {}).get("unhealthy"), "node 4 to be unhealthy")
            status = job.status()
            self.assertTrue(any("node 4 gets no seats: --health-check" in why for why in status["degraded"]), status)
            before = job.wait_spare()
            job.kill_node(2)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual(5, jobs.seats(after)[2]["node"], "the other spare took the seat")
            self.assertEqual([4], [event["node"] for event in self.events(job, "node_unhealthy")])
            os.unlink(os.path.join(marks, "broken"))
            job.wait_until(lambda nodes: nodes.get(4, {}).get("unhealthy") == "", "node 4 to pass", 60)
            self.finish(job, recoveries=1)


class StragglerTest(JobTest):
    def test_a_slow_seat_is_named(self):
        run = ("exec \"$0\" \"$@\" --device-ms $(test $RANK = 2 && echo 240 || echo 15)")
        size = {"steps": 1500, "batch": 16, "hidden": 64}
        with self.job(size={**size, "device_ms": 0}, command=["bash", "-c", run, CHARLM, *trainer_flags(1, **size)],
                      spares=0) as job:
            job.wait_until(lambda _: any(node.get("stragglers") for node in job.status()["nodes"]), "a straggler", 120)
            _, out, _ = job.command("status", check=False)
            self.assert_says(out, "straggler: seat 2 computes")
            told = [event for event in map(load, job.command("events", "-o", "json")[1].splitlines())
                    if event["kind"] == "straggler"]
            self.assertEqual({(2, 2)}, {(event["seat"], event["seat_node"]) for event in told})
            self.assertGreater(told[0]["own_ms"], 1.5 * told[0]["median_ms"])


if __name__ == "__main__":
    harness.main()

"""Data-parallel paths have the same bytes: what all copies of a seat have lost comes from another path's own slot."""
import harness
from harness import jobs
from test_first_steps import SmallJobTest


class PathsTest(SmallJobTest):
    def kill_seat_and_its_holder(self, job):
        """Both nodes at once, by SIGKILL; the others learn of it when both are dead."""
        job.wait_step(8)
        before = job.wait_spare(2)
        dead = job.node_of_seat(1), job.node_of_seat(2)
        nodes = job.nodes()
        for node in nodes:  # the second to be killed as well: it may outlive the first by the time of a recovery
            job.hold(node, "suspect")
        at_ns = job.kill_node(*dead)
        for node in nodes:
            if node not in dead:
                job.release(node)
        return before, dead, at_ns

    def test_a_seat_and_all_holders_of_its_replica_die_and_another_path_has_its_bytes(self):
        with self.small_job("--replicas", "1", nodes=4, spares=2, steps=300, step_ms=20, equal=True) as job:
            before, dead, _ = self.kill_seat_and_its_holder(job)
            after = job.wait_running(jobs.generation(before), timeout_s=60)
            self.assert_survivors(before, after, but=dead)
            self.assertIn("seat 1: nothing of its own is left of step", job.output() + job.logs(4000))
            self.finish_small(job, 300)

    def test_a_seat_that_differs_is_named_and_the_job_goes_on(self):
        with self.small_job(nodes=3, spares=0, steps=200, step_ms=20, equal=True, differs=1) as job:
            def told():
                return [event for event in job.events() if event["kind"] == "paths_differ"]
            job.wait_until(lambda _: told(), "the seat that differs to be named")
            job.wait_step(100)
            event, = told()
            self.assertEqual(([1], 1, 0, 2), tuple(event[name] for name in ("seats", "count", "like", "like_count")))
            self.finish_small(job, 200)

    def test_the_same_is_the_end_where_nothing_was_declared_equal(self):
        with self.small_job("--replicas", "1", nodes=4, spares=2, steps=300, step_ms=20) as job:
            _, _, at_ns = self.kill_seat_and_its_holder(job)
            self.assert_refused(job, 1, after_ns=at_ns)


if __name__ == "__main__":
    harness.main()

"""Two nodes die in one recovery: survived where another copy is left, refused by name where none is."""
import harness
from harness import JobTest, jobs


class TwoDeathsTest(JobTest):
    def die_in_recovery(self, job, first_seat, second_seat):
        """The second is parked before it has reported what it holds, and dies there. (before, when the second died)"""
        job.wait_step(8)
        before = job.wait_spare(2)
        first, second = job.node_of_seat(first_seat), job.node_of_seat(second_seat)
        job.hold(second, "frozen")
        job.kill_node(first)
        job.wait_held(second, "frozen")
        return before, (first, second), job.kill_node(second)

    def test_a_seat_that_is_not_adjacent(self):
        with self.job(spares=2) as job:
            before, dead, _ = self.die_in_recovery(job, 0, 2)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=dead)
            self.finish(job, recoveries=2)

    def test_the_holder_before_its_ward_has_a_second_copy(self):
        with self.job(spares=2) as job:
            _, _, at_ns = self.die_in_recovery(job, 1, 2)
            self.assert_refused(job, 1, after_ns=at_ns)

    def test_the_ward_of_the_first(self):
        with self.job(spares=2) as job:
            _, _, at_ns = self.die_in_recovery(job, 2, 1)
            self.assert_refused(job, 1, after_ns=at_ns)


if __name__ == "__main__":
    harness.main()

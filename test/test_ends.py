"""How a job ends: at a step that all agree on; or with a verdict, where seats go different ways, or the script
fails."""
import time

import harness
from harness import jobs
from test_first_steps import SmallJobTest


class StopTest(SmallJobTest):
    def test_all_seats_end_after_the_agreed_step(self):
        with self.small_job(stop=[2, 10, 30]) as job:
            self.finish_small(job, 30)

    def test_the_earliest_end_is_the_step_after_the_one_that_has_begun(self):
        with self.small_job(stop=[0, 10, 1]) as job:
            self.finish_small(job, 11)

    def test_what_a_script_does_after_its_last_step_has_its_time(self):
        with self.small_job(nodes=2, spares=0, steps=20, after_ms=16_500) as job:
            self.finish_small(job, 20)

    def test_a_death_after_the_agreement(self):
        with self.small_job(stop=[1, 10, 60], step_ms=20) as job:
            job.hold_end(50)
            job.wait_step(15)
            before = job.wait_spare()
            job.kill_node(job.node_of_seat(1))  # who asked
            job.wait_running(jobs.generation(before))
            self.finish_small(job, 60)

    def test_a_death_of_who_must_agree_and_a_pawld_that_is_killed(self):
        with self.small_job(stop=[0, 30, 80], step_ms=50) as job:
            first = job.node_of_seat(0)
            job.hold(first, "compute", 25)
            before = job.wait_spare()
            job.wait_held(first, "compute")
            node = job.node_of_seat(3)
            job.drill("stop", "daemon", str(node))  # it can't agree; seat 0 waits in step 30
            job.release(first)
            job.hold(job.node_of_seat(1), "compute", 70)
            job.wait_until(lambda nodes: 0 in jobs.seats(nodes) and jobs.seats(nodes)[0]["step"] >= 30,
                           "step 30 to begin")
            job.kill_node(node)
            job.wait_running(jobs.generation(before))
            job.drill("kill", "daemon", str(job.node_of_seat(0)))
            self.finish_small(job, 80)


class ApartTest(SmallJobTest):
    def test_seats_that_end_after_different_steps(self):
        with self.small_job(end_after={"2": 20}) as job:
            began = time.monotonic()
            self.ends_with(job, "seat 2", "after step 20", "begun step 21", "job.stop()")
            self.assertLess(time.monotonic() - began, 20)
            self.assertEqual(1, self.generations(job), "a verdict, not a recovery")

    def test_the_script_fails_on_all_ranks_alike(self):
        with self.small_job(exits=[[0, 1, 2, 3], 20, 7]) as job:
            self.ends_with(job, "stopped: the trainer", "exited 7", "step 20", "log")
            self.assertLessEqual(self.generations(job), 5, job.output())

    def test_the_script_ends_early_on_all_ranks_alike(self):
        with self.small_job(exits=[[0, 1, 2, 3], 20, 0]) as job:
            self.ends_with(job, "exit 0", "without finishing", "step 20")

    def test_the_script_fails_on_one_rank_again_and_again(self):
        with self.small_job(exits=[[1], 20, 7]) as job:
            self.ends_with(job, "the trainer of seat 1 failed 2 times in the same way: exited 7 in or after step 20: "
                           "seat 1 fails on purpose", "log", "seat 1 (node 1): its trainer exited 7", "1 recovery, ",
                           timeout_s=90)
            self.assertNotIn("links", job.output())
            self.assertLessEqual(self.generations(job), 3, job.output())

    def test_the_script_fails_on_two_ranks_again_and_again(self):
        with self.small_job(exits=[[1, 2], 20, 7]) as job:
            self.ends_with(job, "exited 7", "step 20", "log", timeout_s=90)

    def test_the_script_fails_on_all_ranks_before_the_job_runs(self):
        with self.small_job(exits=[[0, 1, 2, 3], 0, 5], wait=False) as job:
            self.ends_with(job, "exited 5", "log")
            self.assertLessEqual(self.generations(job), 5, job.output())

    def test_the_script_fails_before_it_joins(self):
        with self.small_job(start_ms=-1, wait=False) as job:
            self.ends_with(job, "3 times before it had a seat", "exited 1", "log")


if __name__ == "__main__":
    harness.main()

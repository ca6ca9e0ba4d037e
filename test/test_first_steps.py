"""Before the layout is sealed, while it is, and after: the job runs unprotected, then protected, and says which. A
death before the first commit starts every trainer anew; slow starts are waited for; who starts slowly is not
accused."""
import json
import os
import re
import signal
import sys
import time

import harness
import small_trainer
from harness import JobTest, jobs
from processes import command_line


class SmallJobTest(JobTest):
    """Jobs of small_trainer.py."""

    def small_job(self, *flags, nodes=4, spares=1, wait=True, wrapper=(), hold_end=True, **options):
        self.record = os.path.join(self.scratch(), "record")
        options = {"record": self.record, "steps": 200, **options}
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small_trainer.py")
        return self.job(*flags, nodes=nodes, spares=spares, wait=wait, hold_end=hold_end,
                        size={"steps": options["steps"]},
                        command=[*wrapper, sys.executable, "-B", script, json.dumps(options)],
                        environment={"PAWL_LIBRARY": harness.LIBRARY})

    def lines(self, seat):
        with open(os.path.join(self.record, f"seat-{seat}.jsonl"), encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def wait_begun(self, job, step, timeout_s=30.0):
        """Every seat has begun the step, protected or not."""
        return job.wait_until(lambda nodes: len(jobs.seats(nodes)) == job.node_count and all(
            seat["step"] >= step for seat in jobs.seats(nodes).values()), f"step {step} to begin", timeout_s)[1]

    def finish_small(self, job, step, timeout_s=90.0):
        """To the end, after that step on all seats, with the very numbers of an undisturbed run."""
        self.assertEqual(0, job.wait_end(timeout_s), f"{job.tail()}\n{job.logs()}")
        for seat in range(job.node_count):
            with open(os.path.join(self.record, f"final-{seat}.json"), encoding="utf-8") as file:
                self.assertEqual({"step": step, "state": small_trainer.after(step, job.node_count)}, json.load(file))

    def ends_with(self, job, *words, timeout_s=60.0):
        """The job fails, and says these words."""
        self.assertEqual(1, job.wait_end(timeout_s), f"{job.tail()}\n{job.logs()}")
        self.assert_says(job.output(), *words)

    def generations(self, job):
        """How many the job has had, by its own output."""
        return max(int(number) for number in re.findall(r"generation (\d+)", job.output()))


class OneNodeTest(SmallJobTest):
    def test_one_node_alone_behind_a_wrapper_that_lives_on(self):
        """By default it needs no replica, commits and ends. What starts the trainer hides how it ends and stays."""
        wrapper = ["bash", "-c", '"$0" "$@"; sleep 1000']
        with self.small_job(nodes=1, spares=0, steps=160, step_ms=20, wrapper=wrapper) as job:
            before = job.wait_step(5)
            trainer = jobs.seats(before)[0]
            self.assertIn("small_trainer.py", " ".join(command_line(trainer["pid"])), "the wrapper is not the trainer")
            os.kill(trainer["pid"], signal.SIGKILL)
            after = job.wait_running(jobs.generation(before), timeout_s=20)
            self.assertNotEqual(trainer["pid"], jobs.seats(after)[0]["pid"])
            # And while no pawld is there to see it.
            job.wait_step(jobs.committed(after) + 5)
            os.kill(after[0]["pawld_pid"], signal.SIGKILL)
            os.kill(jobs.seats(after)[0]["pid"], signal.SIGKILL)
            job.wait_running(jobs.generation(after), timeout_s=20)
            self.finish_small(job, 160)
            self.assert_says(job.output(), "seat 0 (node 0): its trainer", "recovered in", "2 recoveries, ")


class FirstStepsTest(SmallJobTest):
    def test_sealed_while_it_runs_and_survives_a_death_afterwards(self):
        with self.small_job(seal_after=60, step_ms=20, hold_end=False) as job:
            node = job.node_of_seat(2)
            job.hold(node, "compute", 15)
            nodes = job.wait_held(node, "compute")
            self.assertEqual(0, jobs.committed(nodes))
            self.assert_says(" ".join(job.status()["degraded"]), "seat 0", "not sealed")
            job.release(node)
            job.hold_end(195)
            job.wait_step(65)
            before = job.wait_spare()
            self.assertEqual([], [why for why in job.status()["degraded"] if "sealed" in why])
            job.kill_node(job.node_of_seat(2))
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[before_node(before, 2)])
            self.finish_small(job, 200)

    def test_a_death_before_the_first_commit_starts_everybody_anew(self):
        with self.small_job(seal_after=150, step_ms=20, steps=180) as job:
            before = self.wait_begun(job, 8)
            job.wait_spare()
            job.kill_node(job.node_of_seat(1))
            after = job.wait_running(jobs.generation(before))
            for seat, was in jobs.seats(before).items():
                self.assertNotEqual(was["pid"], jobs.seats(after)[seat]["pid"], f"seat {seat} is the old process")
            self.assertNotEqual(before_node(before, 1), before_node(after, 1), "the spare has not taken the seat")
            self.finish_small(job, 180)
            self.assertEqual([1, 2], sorted({line["generation"] for line in self.lines(0)}))
            self.assertEqual(1, min(line["step"] for line in self.lines(0) if line["generation"] == 2))

    def test_a_death_when_some_have_sealed_and_others_have_not(self):
        with self.small_job(seal_after=10, step_ms=20, steps=120) as job:
            seats = jobs.seats(job.nodes())
            job.hold(seats[3]["node"], "compute", 11)  # it has sealed; nobody has committed, step 11 waits for it
            self.wait_begun(job, 11)
            job.wait_spare()
            generation = jobs.generation(job.nodes())
            job.kill_node(seats[3]["node"])
            job.wait_running(generation)
            self.finish_small(job, 120)

    def test_slow_starts_are_waited_for(self):
        """Longer than every other deadline: 10 s at this budget is the shortest that evicts."""
        with self.small_job("--deadline-ms", "1000", steps=60, build_ms=12_000, wait=False) as job:
            job.wait_running(timeout_s=60)
            before = self.wait_begun(job, 5)
            job.wait_spare()
            job.kill_node(job.node_of_seat(1))
            job.wait_running(jobs.generation(before), timeout_s=60)
            _, told, _ = job.command("events", "-o", "json")
            faults = {event["fault"] for event in map(json.loads, told.splitlines())
                      if event["kind"] == "fault_detected"}
            self.assertLessEqual(faults, {"node_lost", "node_silent", "leader_lost", "communication"},
                                 "a trainer that starts is accused")
            self.finish_small(job, 60)

    def test_a_start_that_is_stopped_is_not(self):
        with self.small_job("--deadline-ms", "500", steps=60, build_ms=4_000, wait=False) as job:
            job.wait_until(lambda nodes: len(jobs.seats(nodes)) == 4 and all(
                seat["state"] == "restoring" for seat in jobs.seats(nodes).values()), "all to have their seats")
            trainer = job.seat(2)
            os.kill(trainer["pid"], signal.SIGSTOP)
            after = job.wait_running(timeout_s=60)
            self.assertNotEqual(trainer["pid"], jobs.seats(after)[2]["pid"])
            self.finish_small(job, 60)

    def test_who_drains_a_lost_step_with_signs_of_life_keeps_its_process(self):
        """Longer than trainer_free, 5 s at this budget, and less than three times that."""
        before, after = self.killed_while_draining(drain_progress=True)
        self.assert_survivors(before, after, but=[jobs.seats(before)[1]["node"]])

    def test_who_drains_without_is_started_anew(self):
        before, after = self.killed_while_draining(drain_progress=False)
        for seat in (0, 2, 3):
            self.assertNotEqual(jobs.seats(before)[seat]["pid"], jobs.seats(after)[seat]["pid"])

    def killed_while_draining(self, **options):
        with self.small_job("--deadline-ms", "1500", steps=60, step_ms=20, drain_ms=7_000, **options) as job:
            job.wait_step(5)
            before = job.wait_spare()
            job.kill_node(job.node_of_seat(1))
            after = job.wait_running(jobs.generation(before), timeout_s=60)
            self.finish_small(job, 60)
        return before, after

    def test_a_spare_that_is_unfit_is_no_reason_to_end(self):
        with self.small_job(steps=150, step_ms=20) as job:
            for _ in range(4):
                nodes = job.wait_until(jobs.spares, "the spare to be parked", 10)[1] if not job.ended() else {}
                spare = jobs.spares(nodes)[0]
                pid = nodes[spare]["trainers"][0]["pid"]
                os.kill(pid, signal.SIGKILL)
                job.wait_until(lambda nodes, spare=spare, pid=pid: trainer_of(nodes, spare).get("pid", pid) != pid
                               or "spare_unfit" in job.logs(200), "another to be started, or none for a while")
                if "spare_unfit" in job.logs(200):
                    break
            self.assertIn("spare_unfit", job.logs(200))
            self.finish_small(job, 150)

    def test_a_start_beyond_its_budget_is_not(self):
        with self.small_job("--start-timeout", "2", nodes=2, spares=0, build_ms=30_000, wait=False) as job:
            began = time.monotonic()
            self.ends_with(job, "not ready within 2 s", "--start-timeout", timeout_s=90)
            self.assertGreater(time.monotonic() - began, 2)


def trainer_of(nodes, node):
    """The node's first; empty while it doesn't answer or has none."""
    return next(iter(nodes.get(node, {}).get("trainers", [])), {})


def before_node(nodes, seat):
    return jobs.seats(nodes)[seat]["node"]


if __name__ == "__main__":
    harness.main()

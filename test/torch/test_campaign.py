"""One training, a dozen faults and more, in every phase of a step and of a recovery: at the end it is bit for bit the
one that nothing ever happened to, in plain PyTorch without pawl."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from campaign import SMALL_GPT, Campaign  # noqa: E402
from paced_job import GPT, ORDINARY, PacedTest, harness, jobs, plain_run, record  # noqa: E402
from torch_job import END_S, START_S  # noqa: E402

# The phase in which somebody dies; whether it is the whole node or the trainer alone; the seat.
IN_A_STEP = [
    ("compute", "node", 0), ("allreduce", "trainer", 1), ("fence", "node", 2), ("update", "trainer", 3),
    ("exchange", "node", 3), ("exchange", "trainer", 0), ("allgather", "node", 1), ("allgather", "trainer", 2),
]
ORDINARY_FAULTS = [("compute", "node", 0), ("allreduce", "trainer", 1), ("update", "node", 2), ("aside", "trainer", 3)]


class CampaignTest(Campaign):
    def test_every_phase(self):
        """Between fence and optimizer is `update`; between ZeRO's own step and its first broadcast `exchange`."""
        self.campaign(IN_A_STEP)


class OrdinaryTest(Campaign):
    def test_every_phase(self):
        """Loaders with workers, an average of the weights, accumulation, evaluation: a part of the faults."""
        self.deaths = 0
        with self.paced(ORDINARY, nodes=4, spares=2, steps=120, device_ms=5) as job:
            for phase, what, seat in ORDINARY_FAULTS:
                with self.fault(phase, what, seat):
                    self.one_death(job, phase, what, seat)
            with self.fault("after a swap", "node", 1):
                self.right_after_a_swap(job, 1)
            self.finish_paced(job, recoveries=self.deaths)


class EndTest(PacedTest):
    def test_a_death_while_the_last_step_is_committed(self):
        """All steps are done, the others wait for the end: they come back from it for the one who has to do it
        again."""
        with self.paced(GPT, nodes=4, spares=1, steps=40, device_ms=5, **SMALL_GPT) as job:
            before = self.sound(job, 1)
            self.hold_seat(job, 2, "finish")
            self.die(job, 2, whole_node=False)
            run = self.finish_paced(job, recoveries=1)
            for seat in (0, 1, 3):
                self.assertEqual(jobs.seats(before)[seat]["pid"], run.finals[seat]["pid"], f"seat {seat}")


class ColdRestartTest(PacedTest):
    def test_a_death_before_the_first_commit(self):
        """Nothing is committed, the initial state is gone: everybody starts anew from step 0. Nowhere else do survivors
        change their process."""
        for what in ("trainer", "node"):
            with self.subTest(what=what), self.training(nodes=4, spares=1, script=GPT, steps=30, **SMALL_GPT) as job:
                self.hold_first_update(job)
                before = job.wait_spare(timeout_s=START_S)
                self.assertEqual(0, jobs.committed(before))
                self.die(job, 2, whole_node=what == "node")
                after = job.wait_running(jobs.generation(before), START_S)
                for seat, was in jobs.seats(before).items():
                    self.assertNotEqual(was["nonce"], jobs.seats(after)[seat]["nonce"],
                                        f"seat {seat} is the old process")
                self.assertEqual(0, job.wait_end(END_S), job.tail())
                run, options = job.run(), job.options
                compared = record.compare(run, plain_run(GPT, 4, **options), options["steps"], 4)
                self.assertEqual([], compared.differences)
                self.assertTrue(compared.equal())

    def hold_first_update(self, job):
        """Parks seat 2 in the update of step 1, before it or anybody has done one."""
        def held(nodes):
            for node, status in nodes.items():
                if any(trainer.get("seat") == 2 and not trainer.get("held") for trainer in status.get("trainers", [])):
                    job.hold(node, "update", 1)
            return any(jobs.is_held(status, "update") for status in nodes.values())
        job.wait_until(held, "seat 2 to be held in the update of step 1", START_S, 0.01)


if __name__ == "__main__":
    harness.main()

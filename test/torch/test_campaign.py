"""One training, a dozen faults and more, in every phase of a step and of a recovery: at the end it is bit for bit the
one that nothing ever happened to, in plain PyTorch without pawl."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from paced_job import GPT, ORDINARY, PacedTest, harness, jobs, plain_run, record  # noqa: E402
from torch_job import END_S, START_S  # noqa: E402

SMALL_GPT = {"layers": 2, "width": 32, "heads": 2, "context": 16, "batch": 2, "warm_up": 5}
# The phase in which somebody dies; whether it is the whole node or the trainer alone; the seat.
IN_A_STEP = [
    ("compute", "node", 0), ("allreduce", "trainer", 1), ("fence", "node", 2), ("update", "trainer", 3),
    ("exchange", "node", 3), ("exchange", "trainer", 0), ("allgather", "node", 1), ("allgather", "trainer", 2),
]
ORDINARY_FAULTS = [("compute", "node", 0), ("allreduce", "trainer", 1), ("update", "node", 2), ("aside", "trainer", 3)]
# A member dies, and in the recovery somebody else: where, and what it was.
IN_A_RECOVERY = [("frozen", "member"), ("import", "spare"), ("seated", "spare"), ("restore", "trainer")]


class CampaignTest(PacedTest):
    def test_every_phase(self):
        """Between fence and optimizer is `update`; between ZeRO's own step and its first broadcast `exchange`."""
        self.deaths = 0
        with self.paced(GPT, nodes=4, spares=2, steps=320, device_ms=5, **SMALL_GPT) as job:
            for phase, what, seat in IN_A_STEP:
                with self.fault(phase, what, seat):
                    self.one_death(job, phase, what, seat)
            with self.fault("ack", "node", 0):
                self.before_the_acknowledgement(job, 0)
            for (phase, what), seat in zip(IN_A_RECOVERY, (1, 2, 3, 0), strict=False):
                with self.fault(phase, what, seat):
                    self.two_deaths(job, phase, what, seat)
            with self.fault("after a swap", "node", 1):
                self.right_after_a_swap(job, 1)
            self.assertGreaterEqual(self.deaths, 12)
            self.finish_paced(job, recoveries=self.deaths)

    @contextlib.contextmanager
    def fault(self, phase, what, seat):
        """Names the fault in whatever fails."""
        try:
            yield
        except Exception as error:
            error.add_note(f"at the fault: {what} of seat {seat} in {phase}, after {self.deaths} deaths")
            raise

    def one_death(self, job, phase, what, seat):
        before = self.sound(job, 1)
        self.hold_seat(job, seat, phase)
        self.die(job, seat, what == "node")
        self.deaths += 1
        after = self.runs_again(job, before, [seat])
        was, now = jobs.seats(before)[seat], jobs.seats(after)[seat]
        self.assertEqual(what == "trainer", was["node"] == now["node"],
                         "a trainer is restarted in place, a node replaced")
        self.assertNotEqual(was["pid"], now["pid"])

    def before_the_acknowledgement(self, job, seat):
        """The holder of another seat's replica has it whole, and dies before it says so."""
        before = self.sound(job, 1)
        node = job.node_of_seat(seat)
        self.unpace(job)
        job.hold(node, "ack")
        job.wait_held(node, "ack", START_S)
        job.kill_node(node)
        self.deaths += 1
        self.runs_again(job, before, [seat])

    def two_deaths(self, job, phase, what, seat):
        """The second is no neighbour of the first on the ring, so that both at once are within the policy."""
        before = self.sound(job, 2)
        other = (seat + 2) % 4
        candidates = jobs.spares(before) if what == "spare" else [job.node_of_seat(other)]
        self.unpace(job)
        for node in candidates:
            job.hold(node, phase, *([0] if what == "trainer" else []))
        self.die(job, seat, whole_node=True)
        held = job.wait_until(lambda nodes: [node for node in candidates if jobs.is_held(nodes.get(node, {}), phase)],
                              f"somebody to be held in {phase}", START_S, 0.01)[0][0]
        if what == "trainer":
            self.die(job, other, whole_node=False)
        else:
            job.kill_node(held)
        for node in candidates:
            if node != held:
                job.release(node)
        self.deaths += 2
        self.runs_again(job, before, [seat] if what == "spare" else [seat, other])

    def right_after_a_swap(self, job, seat):
        """The moment that the job runs again somebody dies, whose state the newcomer does not hold, nor it the
        newcomer's."""
        before = self.sound(job, 2)
        self.unpace(job)
        self.die(job, seat, whole_node=True)
        between = job.wait_running(jobs.generation(before), START_S)
        self.die(job, (seat + 2) % 4, whole_node=True)
        self.deaths += 2
        self.assert_survivors(before, between, but=[jobs.seats(before)[seat]["node"]])
        self.runs_again(job, between, [(seat + 2) % 4])


class OrdinaryTest(CampaignTest):
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

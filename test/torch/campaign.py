"""A training of the GPT with a death in each of some phases of a step, and in every phase of a recovery: at the end it
is bit for bit the one that nothing ever happened to, in plain PyTorch without pawl."""
import contextlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from paced_job import GPT, PacedTest, harness, jobs  # noqa: E402, F401
from torch_job import START_S  # noqa: E402

SMALL_GPT = {"layers": 2, "width": 32, "heads": 2, "context": 16, "batch": 2, "warm_up": 5}
# A member dies, and in the recovery somebody else: where, and what it was.
IN_A_RECOVERY = [("frozen", "member"), ("import", "spare"), ("seated", "spare"), ("restore", "trainer")]


class Campaign(PacedTest):
    def campaign(self, in_a_step, nodes=4, **options):
        """A dozen deaths at least. `in_a_step`: the phase in which somebody dies; whether it is the whole node or the
        trainer alone; the seat."""
        self.deaths = 0
        with self.paced(GPT, nodes=nodes, spares=2, steps=320, device_ms=5, **SMALL_GPT, **options) as job:
            for phase, what, seat in in_a_step:
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

    def large_campaign(self, in_a_step, at_once, nodes=8, **options):
        """A dozen as well, among them two at once of the nodes of two seats that are next to each other on the ring,
        with two replicas of each seat."""
        self.deaths = 0
        with self.paced(GPT, nodes=nodes, spares=2, steps=280, device_ms=5, flags=("--replicas", "2"), **SMALL_GPT,
                        **options) as job:
            for phase, what, seat in in_a_step:
                with self.fault(phase, what, seat):
                    self.one_death(job, phase, what, seat)
            for phase, *seats in at_once:
                with self.fault(phase, "nodes", seats):
                    self.two_at_once(job, phase, seats)
            with self.fault("import", "spare", 2):
                self.two_deaths(job, "import", "spare", 2)
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
        other = (seat + 2) % job.world
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

    def two_at_once(self, job, phase, seats):
        """The nodes of both seats, the first of them parked in the phase."""
        before = self.sound(job, 2)
        self.hold_seat(job, seats[0], phase)
        job.kill_node(*(job.node_of_seat(seat) for seat in seats))
        self.deaths += 2
        self.runs_again(job, before, seats)

    def right_after_a_swap(self, job, seat):
        """The moment that the job runs again somebody dies, whose state the newcomer does not hold, nor it the
        newcomer's."""
        before = self.sound(job, 2)
        self.unpace(job)
        self.die(job, seat, whole_node=True)
        between = job.wait_running(jobs.generation(before), START_S)
        self.die(job, (seat + 2) % job.world, whole_node=True)
        self.deaths += 2
        self.assert_survivors(before, between, but=[jobs.seats(before)[seat]["node"]])
        self.runs_again(job, between, [(seat + 2) % job.world])

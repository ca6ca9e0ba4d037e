"""Two nodes die at once, or in one recovery: survived where another copy is left, refused by name where none is."""
import random

import harness
from harness import JobTest, jobs, seeds

SHORT = {"steps": 150}
NODES = 5


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

    def test_both_at_once_with_one_replica(self):
        with self.job("--replicas", "1", nodes=NODES, spares=2, size=SHORT) as job:
            job.wait_step(8)
            dead = job.node_of_seat(1), job.node_of_seat(2)
            others = [node for node in job.nodes() if node not in dead]
            for node in others:  # else the first's recovery may be over before the second is killed
                job.hold(node, "suspect")
            at_ns = job.kill_node(*dead)
            for node in others:
                job.release(node)
            self.assert_refused(job, 1, after_ns=at_ns)


class TwoReplicasTest(JobTest):
    """`--replicas 2`: any two of five nodes may die before the next commit, whoever holds whose copies."""

    def two_die(self, distance, phase=None):
        """The nodes of two seats so far apart on the ring, drawn by the seed; the second in `phase` of the recovery of
        the first, or at once with it."""
        for seed in seeds():
            draw = random.Random(f"{seed} {distance} {phase}")
            first_seat = draw.randrange(NODES)
            second_seat = (first_seat + draw.choice((distance, -distance))) % NODES
            with self.subTest(seed=seed, seats=(first_seat, second_seat)), \
                    self.job("--replicas", "2", nodes=NODES, spares=2, seed=seed, size=SHORT) as job:
                job.wait_step(8 + draw.randrange(20))
                before = job.wait_spare(2)
                dead = job.node_of_seat(first_seat), job.node_of_seat(second_seat)
                if phase:
                    self.die_in_phase(job, before, dead, phase)
                else:
                    job.kill_node(*dead)
                after = job.wait_running(jobs.generation(before), timeout_s=60.0)
                self.assert_survivors(before, after, but=dead)
                self.finish(job, recoveries=2)

    def die_in_phase(self, job, before, dead, phase):
        """Whoever may come to that phase is parked in it; the second dies once one has."""
        if phase in ("import", "seated"):
            parked = jobs.spares(before)
        else:
            parked = [node for node in jobs.members(before) if node != dead[0]]
        for node in parked:
            job.hold(node, phase)
        job.kill_node(dead[0])
        job.wait_until(lambda nodes: any(jobs.is_held(nodes.get(node, {}), phase) for node in parked),
                       f"a node to be held in {phase}", pause_s=0.01)
        job.kill_node(dead[1])
        for node in parked:
            if node != dead[1]:
                job.release(node)

    def test_neighbours_at_once(self):
        self.two_die(1)

    def test_two_that_share_a_ward_at_once(self):
        self.two_die(2)

    def test_the_second_before_the_first_is_told(self):
        self.two_die(1, "suspect")

    def test_the_second_before_anyone_has_reported(self):
        self.two_die(1, "frozen")

    def test_the_second_before_the_leader_decides(self):
        self.two_die(2, "decide")

    def test_the_second_before_the_spare_fetches(self):
        self.two_die(1, "import")

    def test_the_second_before_the_spare_is_seated(self):
        self.two_die(2, "seated")


if __name__ == "__main__":
    harness.main()

"""What cannot be recovered is refused, with the lost shards named; wrong bytes are found and never trained on."""
import os

import harness
from harness import JobTest, jobs
from processes import Victims
from segment import SEALED, replica_slots

SEAT = 1


class RefusalTest(JobTest):
    def test_without_replicas(self):
        with self.job("--replicas", "0") as job:
            job.wait_step(5)
            job.wait_spare()
            self.assertTrue(job.exposed(), "exposure did not say beforehand what would be lost")
            self.assert_refused(job, SEAT, after_ns=job.kill_node(job.node_of_seat(SEAT)) + 1_000_000_000)

    def test_ward_and_holder_killed_together(self):
        with self.job(spares=2) as job:
            job.wait_step(5)
            nodes = job.wait_spare(2)
            both = [jobs.seats(nodes)[seat]["node"] for seat in (SEAT, SEAT + 1)]
            _, out, _ = job.command("exposure", "--if", ",".join(map(str, both)))
            self.assert_says(out, f"seat {SEAT}", "no")
            with Victims([who for node in both for who in jobs.node_processes(nodes[node])]) as victims:
                at_ns = victims.send()
            self.assert_refused(job, SEAT, after_ns=at_ns + 1_000_000_000)

    def test_all_members_killed_at_once(self):
        """The spare has seen nothing and cannot know what was committed: it says so, and does not begin anew."""
        with self.job() as job:
            job.wait_step(5)
            nodes = job.wait_spare()
            with Victims([who for node in jobs.members(nodes) for who in jobs.node_processes(nodes[node])]) as victims:
                at_ns = victims.send()
            self.assert_refused(job, after_ns=at_ns + 500_000_000)
            self.assert_says(job.output(), "cannot recover")

    def flip_and_kill(self, job, which):
        """All trainers stand still; a bit flips in slots of the only replica of the seat; then its owner dies.
        (the steps that the replica held, when it died)"""
        step = jobs.committed(job.wait_spare()) + 8
        owner, holder = job.node_of_seat(SEAT), job.node_of_seat(SEAT + 1)
        job.hold(owner, "compute", step)
        step = jobs.seats(job.wait_held(owner, "compute"))[SEAT]["step"]  # or a later one than that: it was asked late
        nodes = job.wait_step(step - 1)
        slots = replica_slots(nodes[holder]["pawld_pid"], SEAT)
        # Without a free slot a window is voided, never waited for: on a busy machine the older slot may be older yet.
        self.assertEqual([SEALED, SEALED], [slot.state for slot in slots])
        self.assertEqual(step - 1, slots[1].step)
        try:
            for slot in slots[which]:
                slot.flip_bit()
        except PermissionError:
            self.skipTest("privilege: another process's memory may not be written here (ptrace)")
        return [slot.step for slot in slots], job.kill_node(owner)

    def test_bits_flipped_in_every_slot_of_the_only_replica(self):
        with self.job() as job:
            job.wait_step(5)
            _, at_ns = self.flip_and_kill(job, slice(0, 2))
            self.assert_refused(job, SEAT, after_ns=at_ns + 1_000_000_000)

    def test_a_bit_flipped_in_the_older_slot(self):
        """Nobody needs it."""
        with self.job() as job:
            job.wait_step(5)
            before = job.nodes()
            steps, _ = self.flip_and_kill(job, slice(0, 1))
            after = job.wait_running(jobs.generation(before))
            self.assertEqual({steps[1]}, {status["resume"] for status in jobs.members(after).values()})
            self.finish(job, recoveries=1)

    def test_a_bit_flipped_in_the_newest_slot(self):
        """It is found before it is used. The step before may be whole everywhere: then it goes on from there, bit for
        bit; else it is refused."""
        with self.job() as job:
            job.wait_step(5)
            before = job.nodes()
            steps, at_ns = self.flip_and_kill(job, slice(1, 2))
            if job.wait_until(lambda nodes: jobs.running(nodes, 4, jobs.generation(before)) or job.ended(),
                              "a decision", 30)[0] and not job.ended():
                self.assertEqual({steps[0]}, {status["resume"] for status in jobs.members(job.nodes()).values()})
                self.finish(job, recoveries=3)
            else:
                self.assert_refused(job, SEAT, after_ns=at_ns + 1_000_000_000)

    def test_no_checkpoint_directory_is_made(self):
        with self.job() as job:
            self.finish(job)
            self.assertEqual(["record", job.name], sorted(name for name in os.listdir(job.run_root)
                                                if os.path.isdir(os.path.join(job.run_root, name))))


if __name__ == "__main__":
    harness.main()

"""What cannot be recovered is refused, with the lost shards named; wrong bytes are found and never trained on."""
import os

import harness
from harness import JobTest, jobs
from processes import Victims

SEAT = 1


def replica_segments(pid, seat):
    """[(begin, size)] of the mapped replicas of that seat."""
    with open(f"/proc/{pid}/maps", encoding="utf-8") as file:
        lines = [line.split() for line in file if f"replica.{seat}" in line]
    ranges = [[int(edge, 16) for edge in line[0].split("-")] for line in lines]
    return [(begin, end - begin) for begin, end in ranges]


def flip_bit(pid, address):
    """In another process's memory, as a bad memory cell would."""
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        memory.seek(address)
        byte = memory.read(1)[0]
        memory.seek(address)
        memory.write(bytes([byte ^ 0x10]))


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

    def flip_and_kill(self, job, shares):
        """All trainers stand still; bits of the only replica of the seat flip; its owner dies. (before, when)"""
        before = job.wait_spare()
        step = jobs.committed(before) + 8
        owner, holder = job.node_of_seat(SEAT), job.node_of_seat(SEAT + 1)
        job.hold(owner, "compute", step)
        job.wait_held(owner, "compute")
        nodes = job.wait_step(step - 1)
        segments = replica_segments(nodes[holder]["pawld_pid"], SEAT)
        self.assertEqual(1, len(segments), segments)
        begin, size = segments[0]
        try:
            for share in shares:
                flip_bit(nodes[holder]["pawld_pid"], begin + int(size * share))
        except PermissionError:
            self.skipTest("privilege: another process's memory may not be written here (ptrace)")
        return nodes, job.kill_node(owner)

    def test_bits_flipped_in_every_slot_of_the_only_replica(self):
        with self.job() as job:
            job.wait_step(5)
            _, at_ns = self.flip_and_kill(job, (0.25, 0.75))
            self.assert_refused(job, SEAT, after_ns=at_ns + 1_000_000_000)

    def test_a_bit_flipped_in_one_slot(self):
        """The other slot may still hold a step that all have: then it goes on from there, and bit for bit."""
        for share in (0.25, 0.75):
            with self.subTest(share=share), self.job() as job:
                job.wait_step(5)
                _, at_ns = self.flip_and_kill(job, (share,))
                if job.wait_end() == 0:
                    self.finish(job, recoveries=3)
                else:
                    self.assert_refused(job, SEAT, after_ns=at_ns + 1_000_000_000)

    def test_no_checkpoint_directory_is_made(self):
        with self.job() as job:
            self.finish(job)
            self.assertEqual(["record"], sorted(name for name in os.listdir(job.run_root)
                                                if os.path.isdir(os.path.join(job.run_root, name))))


if __name__ == "__main__":
    harness.main()

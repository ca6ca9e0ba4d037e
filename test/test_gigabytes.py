"""A gigabyte of state a seat, on default deadlines: every step is captured, no pawld is killed while it makes arenas,
a killed node's seat goes on bit for bit and the node comes back as a spare; so it does where a pawld dies in the middle
of that. Where both nodes die at once it goes back to storage. And four gigabytes in one seat alone.

The trainer is statebench (examples/statebench), which checks its own bytes after each restore and at the end.
Needs 16 GiB of free memory. In the lane "long". Steps are longer than a replica of 1 GiB takes on two busy cores; with
steps of a second windows were void there ("no slot was free").
"""
import glob
import os
import re
import signal
import time

import harness
from harness import jobs, run_pawl
from state_job import StateJobTest

GIB = 1 << 30


def free_bytes():
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable:"))


class GigabytesTest(StateJobTest):
    def setUp(self):
        if free_bytes() < 16 * GIB:
            self.skipTest(f"needs 16 GiB of free memory, there are {free_bytes() / GIB:.1f}")

    def pawlds(self, job):
        return {node: status.get("pawld_pid") for node, status in job.nodes().items()}

    def assert_no_pawld_ended(self, job, but=()):
        for path in glob.glob(os.path.join(job.directory, "node-*", "log")):
            if any(path.endswith(f"node-{node}/log") for node in but):
                continue
            with open(path, encoding="utf-8", errors="replace") as file:
                ended = [line for line in file if re.search(r"\bpawld_(exited|silent)\b", line)
                         and "code=0" not in line]
            self.assertEqual([], ended, path)

    def test_every_step_is_captured_and_no_pawld_is_killed(self):
        with self.state_job(nodes=2, spares=1, steps=10, step_ms=4000) as job:
            job.wait_running(timeout_s=60)
            job.wait_step(1, 60)
            before = self.pawlds(job)
            job.wait_step(4, 60)
            self.assertEqual(before, self.pawlds(job))
            ends = self.finish_bitwise(job, 2)
            self.assert_no_pawld_ended(job)
            void = [line for line in self.lines() if line.get("why_void")]
            self.assertEqual([], [line for line in void if line["committed"] > 0 or "no slot" not in line["why_void"]])
            self.assertTrue(all(end["captured"] > 0 for end in ends.values()), ends)

    def test_a_killed_node_comes_back_as_a_spare(self):
        with self.state_job(nodes=2, spares=1, steps=90) as job:
            job.wait_running(timeout_s=60)
            job.wait_spare(timeout_s=60)
            before = job.wait_step(3, 60)
            # An own seat's arena and a ward's, two slots each, before anybody asks for them.
            spare, = job.wait_until(lambda nodes: [node for node in jobs.spares(nodes)
                                                   if nodes[node]["ready_bytes"] >= 4 * GIB],
                                    "the spare's memory to be ready", 90)[0]
            node = job.node_of_seat(1)
            at_ns = job.kill_node(node)
            after = job.wait_running(jobs.generation(before), 90)
            self.assertEqual(spare, jobs.seats(after)[1]["node"])
            self.assertLess(after[spare]["ready_bytes"], 4 * GIB, "its arena is not of what was ready")
            job.wait_until(lambda nodes: node in jobs.spares(nodes), f"node {node} to come back as a spare", 90)
            back_s = (time.monotonic_ns() - at_ns) / 1e9
            step = jobs.committed(job.nodes())
            job.wait_step(step + 2, 60)
            ends = self.finish_bitwise(job, 2)
            self.assertEqual([1, 1], [ends[seat]["restores"] for seat in (0, 1)])
            self.assert_no_pawld_ended(job, but=[node])
            late = [line["t_ns"] for line in self.lines() if "t_ns" in line and line["generation"] > 1]
            print(f"kill to the next step: {(min(late) - at_ns) / 1e9:.2f} s; back as a spare after {back_s:.1f} s",
                  flush=True)

    def test_every_pawld_dies_in_every_phase_of_a_recovery(self):
        """A member's node is killed; while the recovery stands in a phase, or its bytes are on their way, the pawld of
        the survivor (who leads and is the source) or of the spare is killed. That costs a restart of it and no more."""
        with self.state_job(nodes=2, spares=1, steps=80, hooks=True, hold_end=False) as job:
            job.wait_running(timeout_s=60)
            cases = [(phase, whom) for phase in ("frozen", "decide", "import", "fetch", "seated")
                     for whom in ("survivor", "spare")]
            for index, (phase, whom) in enumerate(cases):
                self.recover_without_a_pawld(job, phase, whom, dying_seat=(index + 1) % 2)
            ends = self.finish_bitwise(job, 2, 600)
            self.assertTrue(all(end["restores"] > 0 for end in ends.values()), ends)

    def recover_without_a_pawld(self, job, phase, whom, dying_seat):
        def protected(nodes):
            return (jobs.running(nodes, 2) and len(jobs.seats(nodes)) == 2 and jobs.spares(nodes)
                    and jobs.committed(nodes) > max(status["resume"] for status in nodes.values())
                    and not any(status["exposed"] for status in nodes.values()))

        before = job.wait_until(protected, "two copies of both seats, and a spare", 120)[1]
        dying, survivor = (jobs.seats(before)[seat]["node"] for seat in (dying_seat, 1 - dying_seat))
        spare = jobs.spares(before)[0]
        struck = survivor if whom == "survivor" else spare
        # The spare has no part in the first two phases.
        held = survivor if phase in ("frozen", "decide") else struck
        held_in = "import" if phase == "fetch" else phase
        job.hold(held, held_in)
        began = time.monotonic()
        job.kill_node(dying)
        job.wait_held(held, held_in, 60)
        if phase == "fetch":
            job.release(held)
            time.sleep(0.3)
        pawld = before[struck]["pawld_pid"]
        os.kill(pawld, 9)
        job.wait_until(lambda nodes: nodes.get(struck, {}).get("pawld_pid", pawld) != pawld, "another pawld", 60)
        job.release(held)
        after = job.wait_running(jobs.generation(before), 120)
        print(f"{phase}, pawld of the {whom}: {time.monotonic() - began:.1f} s, "
              f"{jobs.generation(after) - jobs.generation(before)} generation(s), "
              f"from step {max(status['resume'] for status in after.values())}, "
              f"committed was {jobs.committed(before)}", flush=True)
        self.assertEqual({dying_seat: spare, 1 - dying_seat: survivor},
                         {seat: trainer["node"] for seat, trainer in jobs.seats(after).items()})
        self.assert_survivors(before, after, but=[dying])
        for node in (survivor, spare):
            self.assertEqual(before[node]["incarnation"], after[node]["incarnation"], f"node {node}: another life")
        self.assertGreaterEqual(max(status["resume"] for status in after.values()), jobs.committed(before),
                                "a committed step was lost")

    def test_both_nodes_die_and_the_job_goes_back_to_storage(self):
        folder = os.path.join(self.scratch(), "checkpoints")
        with self.state_job("--checkpoint", folder, "--every", "10", "--keep-last", "2", nodes=2, spares=2,
                            size="512M", steps=2000) as job:
            job.wait_running(timeout_s=90)
            # Three slots of an own seat and two of a ward, before anybody asks for them.
            job.wait_until(lambda nodes: sum(nodes[node]["ready_bytes"] >= 5 * GIB // 2 for node in jobs.spares(nodes))
                           == 2, "the spares' memory to be ready", 240)
            job.wait_until(lambda nodes: (jobs.published(nodes) or 0) >= 10, "a checkpoint", 120)
            before = job.nodes()
            ready = [before[node]["ready_bytes"] for node in jobs.spares(before)]
            self.assertLess(max(ready), 5 * GIB // 2 + (8 << 20), "a ward has no third slot")
            at_ns = job.kill_node(*jobs.members(before))
            job.wait_running(jobs.generation(before), 120)
            resume = max(status["resume"] for status in job.nodes().values())
            job.wait_step(resume + 1, 60)
            restored = job.wait_until(lambda _: self.restored_from_storage(job, 2), "both seats to tell it", 20)[0]
            self.assertEqual({f"step-{resume}"}, {os.path.basename(event["path"]) for event in restored})
            last = jobs.published(job.nodes())
            job.wait_until(lambda nodes: jobs.published(nodes) > last, "another checkpoint", 120)
            job.process.send_signal(signal.SIGTERM)
            self.assertEqual(130, job.wait_end(120), f"{job.tail()}\n{job.logs()}")
            for node in jobs.spares(before):
                with open(os.path.join(job.directory, f"node-{node}", "log"), encoding="utf-8") as log:
                    waited = log.read().rpartition("phase=restoring")[0]
                self.assertIn("spare_memory_made", waited)
                self.assertNotIn("spare_memory_let_go", waited, "it gets a seat")
            stopped = re.search(r"step (\d+) is in (\S+)", job.output())
        late = [line["t_ns"] for line in self.lines() if "t_ns" in line and line["generation"] > 1]
        print(f"kill to the next step: {(min(late) - at_ns) / 1e9:.2f} s; read from storage in "
              f"{max(event['ms'] for event in restored):.0f} ms", flush=True)
        self.assertEqual(os.path.join(folder, f"step-{stopped[1]}"), stopped[2])
        code, said = run_pawl("verify", stopped[2], timeout_s=120)
        self.assertEqual(0, code, said)
        code, said = run_pawl("ls", folder)
        self.assertEqual((0, 3), (code, said.count("whole")), said)

    def restored_from_storage(self, job, count):
        found = [event for event in job.events() if event["kind"] == "seat_restored" and event["source"] == "storage"]
        return found if len(found) == count else None

    def test_four_gigabytes_in_one_seat_without_replicas(self):
        with self.state_job("--replicas", "0", nodes=1, spares=0, size="4G", steps=6, step_ms=2000) as job:
            job.wait_running(timeout_s=90)
            job.wait_step(2, 90)
            before = job.seat(0)
            os.kill(before["pid"], 9)
            # The node lives and holds the state: a new trainer takes the seat.
            job.wait_until(lambda nodes: jobs.running(nodes, 1)
                           and jobs.seats(nodes).get(0, before)["pid"] != before["pid"],
                           "a new trainer in seat 0", 120)
            ends = self.finish_bitwise(job, 1)
            self.assertEqual(1, ends[0]["restores"])
            self.assert_no_pawld_ended(job)


if __name__ == "__main__":
    harness.main()

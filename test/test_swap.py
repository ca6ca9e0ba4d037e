"""A whole node is killed by a stranger, in every phase; a parked spare takes its seat; nothing is different
afterwards."""
import glob
import os
import subprocess
import sys

import harness
from harness import JobTest, jobs, seeds, verdict
from processes import maps, resident_bytes

STRANGER = """
import json, os, signal, subprocess, sys, time
pawl, job = sys.argv[1:3]
time.sleep(float(sys.argv[3]))
members = []
while len(members) < 4:  # a slow node may not answer the first time
    said = subprocess.run([pawl, "status", "--job", job, "-o", "json"], stdout=subprocess.PIPE).stdout
    members = [node for node in json.loads(said)["nodes"] if node.get("role") == "member"]
victim = members[2]
for pid in [victim["keeper_pid"], victim["pawld_pid"]] + [trainer["pid"] for trainer in victim["trainers"]]:
    try: os.kill(pid, signal.SIGKILL)
    except ProcessLookupError: pass
print(victim["node"])
"""


class SwapTest(JobTest):
    def swap(self, phase, spares=1, kills=1):
        for seed in seeds():
            with self.subTest(phase=phase, seed=seed), self.job(seed=seed, spares=spares) as job:
                job.wait_spare(spares)
                done, afters = job.stranger(seed, phase, kills)
                run = self.finish(job, recoveries=2 * len(done))
                self.assertEqual([], verdict.survivor_faults(done, afters, run))
                self.assertEqual([], verdict.spare_faults(done, afters, run))
                if phase in ("compute", "allreduce", "fence", "update", "allgather"):
                    self.assertEqual([phase], [kill["phase"] for kill in done])

    def test_at_a_random_instant(self):
        self.swap("random", kills=2)

    def test_in_compute(self):
        self.swap("compute")

    def test_in_the_allreduce(self):
        self.swap("allreduce")

    def test_between_fence_and_update(self):
        self.swap("fence")

    def test_in_the_update_while_others_have_finished(self):
        self.swap("update")

    def test_in_the_allgather(self):
        self.swap("allgather")

    def test_the_holder_before_it_acknowledges(self):
        self.swap("ack")

    def test_the_joining_spare_before_it_fetches(self):
        self.swap("import", spares=2)

    def test_the_joining_spare_when_it_has_fetched(self):
        self.swap("seated", spares=2)

    def test_the_leader_before_it_decides(self):
        self.swap("decide", spares=2)

    def test_right_after_a_swap(self):
        self.swap("after-swap", spares=2)

    def test_one_of_so_many_that_their_topology_is_a_key_of_its_own(self):
        with self.job("--deadline-ms", "15000", nodes=10) as job:
            before = job.wait_spare()
            victim = job.node_of_seat(3)
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before), timeout_s=60)
            self.assert_survivors(before, after, but=[victim])
            self.finish(job, recoveries=1)

    def test_while_a_drill_holds_another_in_a_step(self):
        """That one comes back like the others, and is held again."""
        with self.job() as job:
            job.wait_step(8)
            before = job.wait_spare()
            held, victim = job.node_of_seat(0), job.node_of_seat(2)
            job.hold(held, "compute", 0)
            job.wait_held(held, "compute")
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[victim])
            job.wait_held(held, "compute")
            job.release(held)
            self.finish(job, recoveries=1)


class StrangerTest(JobTest):
    def test_a_strangers_script_at_its_own_time(self):
        with self.job() as job:
            before = job.wait_step(5)
            job.wait_spare()
            generation = jobs.generation(before)
            script = subprocess.run([sys.executable, "-c", STRANGER, harness.PAWL, job.name, "0.1"], text=True,
                                    env=job.environment(), capture_output=True, timeout=30, check=True)
            after = job.wait_running(generation)
            self.assert_survivors(before, after, but=[int(script.stdout)])
            self.finish(job, recoveries=1)

    def test_the_spare_had_nothing_and_nothing_is_shared_between_nodes(self):
        with self.job() as job:
            job.wait_step(5)
            nodes = job.wait_spare()
            spare = jobs.spares(nodes)[0]
            self.assertEqual([], [path for who in jobs.node_processes(nodes[spare]) for _, _, _, path in maps(who.pid)
                                  if "own" in path or "replica" in path], "the spare has memory of the job")
            self.assertEqual([], shared_between(nodes))
            generation = jobs.generation(nodes)
            job.kill_node(job.node_of_seat(1))
            after = job.wait_running(generation)
            self.assertEqual(spare, jobs.seats(after)[1]["node"])
            self.assertEqual([], shared_between(after))
            self.assertLess(resident_bytes(job.process.pid), 64 << 20, "the launcher is no place for state")
            for directory in (job.run_root, os.path.dirname(job.record_directory)):
                self.assertEqual([], glob.glob(os.path.join(directory, "**", "*checkpoint*"), recursive=True))
            self.finish(job, recoveries=1)


def shared_between(nodes):
    """Writable memory segments that processes of two different nodes have mapped."""
    owner, shared = {}, []
    for node, status in nodes.items():
        for who in jobs.node_processes(status):
            for _, device, inode, path in maps(who.pid):
                if "memfd:" in path or path.startswith("/dev/shm"):
                    if owner.setdefault((device, inode), node) != node:
                        shared.append((path, owner[device, inode], node))
    return shared


if __name__ == "__main__":
    harness.main()

"""A job under a real etcd of three members, one of which is killed in a recovery, or stopped; and all of them stopped.

Nobody sound is evicted, no committed step is lost, and at the end every step is what the undisturbed run has.
"""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request

import cluster
import harness
from harness import JobTest, jobs, record, reference_run
from reference import free_port


class Etcd:
    """Three members on this machine."""

    def __init__(self, folder):
        self.folder = folder
        self.clients = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        self.peers = [f"http://127.0.0.1:{free_port()}" for _ in range(3)]
        self.processes = [None] * 3

    @property
    def addresses(self):
        return ",".join(self.clients)

    def start(self, member):
        client = f"http://{self.clients[member]}"
        with open(os.path.join(self.folder, f"etcd-{member}.out"), "ab") as output:
            self.processes[member] = subprocess.Popen(
                ["etcd", "--name", str(member), "--data-dir", os.path.join(self.folder, f"etcd-{member}"),
                 "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", self.peers[member], "--initial-advertise-peer-urls", self.peers[member],
                 "--initial-cluster", ",".join(f"{name}={peer}" for name, peer in enumerate(self.peers)),
                 "--log-level", "error"], stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def send(self, number, *members):
        for member in members:
            self.processes[member].send_signal(number)

    def kill(self, member):
        self.processes[member].kill()
        self.processes[member].wait()

    def leader(self, timeout_s=15.0):
        """Once every member that runs follows it."""
        deadline = time.monotonic() + timeout_s
        while True:
            with contextlib.suppress(OSError, ValueError, KeyError, StopIteration):
                said = {member: self.status(member) for member, process in enumerate(self.processes)
                        if process.poll() is None}
                leader, = {answer["leader"] for answer in said.values()}
                return next(member for member, answer in said.items() if answer["header"]["member_id"] == leader)
            if time.monotonic() > deadline:
                raise AssertionError("etcd has no leader")
            time.sleep(0.1)

    def status(self, member):
        request = urllib.request.Request(f"http://{self.clients[member]}/v3/maintenance/status", b"{}",
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=2) as answer:
            return json.load(answer)

    def close(self):
        for process in self.processes:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


class EtcdTest(JobTest):
    @contextlib.contextmanager
    def cluster(self, **options):
        with cluster.token_file() as (folder, token), contextlib.closing(Etcd(folder)) as etcd:
            for member in range(3):
                etcd.start(member)
            etcd.leader()
            machines = cluster.Cluster(folder, etcd.addresses, token, **options)
            try:
                yield machines, etcd
            finally:
                machines.close()
                left = [who.pid for machine in machines.machines.values() for who in machine.left_over()]
                self.assertEqual([], left)

    def assert_undisturbed(self, machines, before, for_s):
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            now = machines.nodes()
            self.assertEqual(jobs.generation(before), jobs.generation(now))
            time.sleep(0.5)
        now = machines.wait_running(jobs.generation(before) - 1)
        self.assertEqual(jobs.generation(before), jobs.generation(now))
        self.assert_survivors(before, now)
        return now

    def test_members_of_etcd_die_and_stop(self):
        if shutil.which("etcd") is None:
            self.fail("etcd is not installed; tools/setup installs etcd-server")
        with self.cluster(node_count=3, spares=1, size={"steps": 1800, "device_ms": 20}) as (machines, etcd):
            for rank in range(4):
                machines.start(rank, "--test-hooks")
            before = machines.wait_until(lambda nodes: jobs.running(nodes, 3) and jobs.spares(nodes)
                                         and jobs.committed(nodes) > 5, "a running job with a spare")

            # The leader of etcd dies when the leader of a recovery is about to decide.
            dead = jobs.seats(before)[1]["node"]
            members = [node for node in jobs.members(before) if node != dead]
            for node in members:
                machines.machines[node].hold(node, "decide")
            machines.machines[dead].remember()
            machines.machines[dead].end_now()
            machines.wait_until(lambda nodes: any(jobs.is_held(nodes.get(node, {}), "decide") for node in members),
                                "a leader that is about to decide")
            first = etcd.leader()
            etcd.kill(first)
            for node in members:
                machines.machines[node].release(node)
            after = machines.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[dead])
            self.assertGreaterEqual(max(status["resume"] for status in after.values()), jobs.committed(before))
            etcd.start(first)
            leader = etcd.leader()

            # One that follows stops; then all do, for longer than any lease.
            follower = next(member for member in range(3) if member != leader)
            etcd.send(signal.SIGSTOP, follower)
            self.assert_undisturbed(machines, after, 6)
            etcd.send(signal.SIGCONT, follower)
            committed = jobs.committed(machines.nodes())
            etcd.send(signal.SIGSTOP, 0, 1, 2)
            self.assert_undisturbed(machines, after, 20)
            machines.wait_until(lambda nodes: jobs.committed(nodes) > committed + 50, "training to go on", 60)
            self.assert_undisturbed(machines, after, 0)
            etcd.send(signal.SIGCONT, 0, 1, 2)
            self.assert_undisturbed(machines, after, 8)

            machines.start(4, "--test-hooks")  # the control works: a node may join
            machines.wait_until(lambda nodes: 4 in jobs.spares(nodes), "another spare")
            left = [rank for rank in range(5) if rank != dead]
            self.assertEqual([0] * len(left), [machines.machines[rank].wait_end(300) for rank in left])
            run = record.read_run(machines.record_directory)
            compared = record.compare(run, reference_run(1, 3, **machines.size), machines.size["steps"], 3)
            self.assertEqual([], compared.differences)
            self.assertEqual([], record.updates_accounted(run, 1))


if __name__ == "__main__":
    harness.main()

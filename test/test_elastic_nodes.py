"""Nodes that come late, or not at all: waiting for a spare, one `pawl run` a machine, over our own control and over
etcd."""
import contextlib
import shutil

import cluster
import harness
from harness import JobTest, jobs, record, reference_run


class WaitingTest(JobTest):
    def test_without_a_spare_it_waits_and_goes_on_when_one_joins(self):
        """The dead node itself comes back as the spare that the job waits for."""
        with self.job(spares=0) as job:
            before = job.wait_step(10)
            node = job.node_of_seat(2)
            job.kill_node(node)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[node])
            self.assert_says(job.output(), "spare")
            self.finish(job, recoveries=2)

    def test_without_a_spare_it_stops_if_told_not_to_wait(self):
        with self.job("--no-wait", "--no-restart-dead-nodes", spares=0) as job:
            job.wait_step(10)
            at_ns = job.kill_node(job.node_of_seat(2))
            self.assert_refused(job, after_ns=at_ns + 1_000_000_000)
            self.assert_says(job.output(), "spare")


class MachinesTest(JobTest):
    @contextlib.contextmanager
    def cluster(self, server, **options):
        with cluster.token_file() as (folder, token), server(folder, token) as address:
            found = cluster.Cluster(folder, address, token, **options)
            try:
                yield found
            finally:
                found.close()
                left = [who.pid for machine in found.machines.values() for who in machine.left_over()]
                self.assertEqual([], left)

    def swap(self, server):
        with self.cluster(server, node_count=3, spares=1) as machines:
            machines.start(0)
            machines.wait_said(0, "1 of 3")
            machines.start(1)
            machines.start(2)
            before = machines.wait_running()
            machines.start(3)
            machines.wait_until(lambda nodes: 3 in jobs.spares(nodes) and jobs.committed(nodes) > 5, "a spare")
            machines.machines[1].remember()
            machines.machines[1].end_now()
            after = machines.wait_running(jobs.generation(before))
            self.assertEqual(3, jobs.seats(after)[1]["node"])
            self.assert_survivors(before, after, but=[1])
            self.assertEqual([0, 0, 0], [machines.machines[rank].wait_end() for rank in (0, 2, 3)])
            run = record.read_run(machines.record_directory)
            compared = record.compare(run, reference_run(1, 3, **machines.size), machines.size["steps"], 3)
            self.assertEqual([], compared.differences)

    def test_over_the_control_of_pawl(self):
        self.swap(cluster.control)

    def test_over_etcd(self):
        if shutil.which("etcd") is None:
            self.fail("etcd is not installed; tools/setup installs etcd-server")
        self.swap(cluster.etcd)

    def test_a_job_without_a_spare_goes_on_when_one_joins(self):
        with self.cluster(cluster.control, node_count=2, spares=0) as machines:
            machines.start(0)
            machines.start(1)
            before = machines.wait_running()
            machines.wait_until(lambda nodes: jobs.committed(nodes) > 5, "a commit")
            machines.machines[1].end_now()
            machines.wait_said(0, "waiting for", "spare")
            machines.start(2)
            after = machines.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[1])
            self.assertEqual([0, 0], [machines.machines[rank].wait_end() for rank in (0, 2)])
            run = record.read_run(machines.record_directory)
            compared = record.compare(run, reference_run(1, 2, **machines.size), machines.size["steps"], 2)
            self.assertEqual([], compared.differences)

    def test_what_does_not_belong_together_is_told(self):
        with self.cluster(cluster.etcd, node_count=2) as machines, \
                cluster.token_file("another") as (_, other_token):
            machines.start(0)
            machines.wait_said(0, "1 of 2")
            for rank, flags, words in ((1, ["--deadline-ms", "5000"], ["--deadline-ms", "5000", "3000"]),
                                       (2, ["--replicas", "0"], ["--replicas"])):
                machine = machines.start(rank, *flags)
                self.assertIn(machine.wait_end(20), (1, 2))
                self.assert_says(machine.output(), "not the same", *words)
            stranger = machines.start(3, token=other_token)
            self.assertIn(stranger.wait_end(20), (1, 2))
            self.assert_says(stranger.output(), "token")

    def test_another_version_is_told(self):
        with self.cluster(cluster.etcd, node_count=1) as machines:
            cluster.put(machines.control, f"/pawl/{machines.name}/spec", '{"version": 99, "shape": "unknown"}')
            machine = machines.start(0)
            self.assertIn(machine.wait_end(20), (1, 2))
            self.assert_says(machine.output(), "version")


if __name__ == "__main__":
    harness.main()

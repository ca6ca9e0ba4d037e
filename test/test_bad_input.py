"""Wrong flags, things that are missing or taken, rights that are not there: each a sentence with cause and remedy, and
nothing left behind."""
import os
import shutil
import socket
import subprocess
import tempfile
import time

import cluster
import harness
from harness import CHARLM, PAWL, JobTest, run_pawl, trainer_flags
from processes import command_line, pids

NO_NAMESPACES = ["setpriv", "--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]


class BadInputTest(JobTest):
    def setUp(self):
        self.run_root = tempfile.mkdtemp(prefix="pawl-test-")
        self.addCleanup(shutil.rmtree, self.run_root, True)

    def refused(self, code, words, *arguments, prefix=()):
        done = subprocess.run([*prefix, PAWL, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=60, check=False, env={**os.environ, "PAWL_RUN_DIR": self.run_root})
        said = done.stdout + done.stderr
        self.assertIn(done.returncode, code if isinstance(code, tuple) else (code,), said)
        self.assert_says(said, *words)
        self.assertNotIn("terminate called", said)
        deadline = time.monotonic() + 10
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([], left)
        return said

    def left(self):
        return [pid for pid in pids() if any(self.run_root in part for part in command_line(pid))]

    def test_wrong_flags(self):
        for words, flags in (
                (["--nnodes"], ["--nnodes", "many", "--", "true"]),
                (["--nnodes 0"], ["--nnodes", "0", "--", "true"]),
                (["--no-such-flag"], ["--no-such-flag", "--", "true"]),
                (["trainer"], ["--standalone", "--nnodes", "2"]),
                (["--gate-off", "--test-hooks"], ["--standalone", "--gate-off", "--", "true"]),
                (["--replicas", "at most"], ["--standalone", "--nnodes", "2", "--replicas", "2", "--", "true"]),
                *(([flag, value, "such as 512MiB"], ["--standalone", flag, value, "--", "true"])
                  for flag in ("--memory", "--replica-bandwidth")
                  for value in ("much", "0", "-1", "1.5GiB", "99999999999TiB")),
                (["--control"], ["--node-rank", "1", "--", "true"]),
                (["--node-rank"], ["--control", "127.0.0.1:1", "--", "true"]),
                (["--standalone"], ["--standalone", "--control", "127.0.0.1:1", "--", "true"]),
                (["job name"], ["--standalone", "--job", "../x", "--", "true"]),
                (["--deadline-ms"], ["--standalone", "--deadline-ms", "1", "--", "true"])):
            with self.subTest(flags=flags):
                self.refused(2, words, "run", *flags)
        self.refused(2, ["subcommand"])
        self.refused((1, 2, 3), ["no such program"], "run", "--standalone", "--", "/no/such/program")

    def test_commands_about_no_job(self):
        for command in (["status"], ["exposure"], ["events"], ["drill", "kill", "node", "0"]):
            with self.subTest(command=command):
                self.refused(3, ["job"], *command)
        self.refused(3, ["nobody"], "status", "--job", "nobody")

    def test_nobody_answers_as_the_control(self):
        with cluster.token_file() as (_, token):
            self.refused(1, ["127.0.0.1:1", "pawl control"], "run", "--control", "127.0.0.1:1", "--node-rank", "0",
                         "--nnodes",
                         "2", "--job", "x", "--token-file", token, "--", "true")
            os.chmod(token, 0o644)
            self.refused((1, 2), ["token"], "run", "--control", "127.0.0.1:1", "--node-rank", "0", "--nnodes", "2",
                         "--job", "x", "--token-file", token, "--", "true")
        self.refused(2, ["--token-file"], "run", "--control", "127.0.0.1:1", "--node-rank", "0", "--job", "x", "--",
                     "true")

    def test_a_port_that_is_taken(self):
        with socket.socket() as taken, cluster.token_file() as (folder, token), cluster.control(folder,
                                                                                                token) as address:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            self.refused(1, [f"127.0.0.1:{port}"], "control", "--listen", f"127.0.0.1:{port}", "--data-dir",
                         os.path.join(folder, "d"))
            said = self.refused((1, 2), [], "run", "--control", address, "--node-rank", "0", "--nnodes", "1",
                                "--job", "x",
                                "--token-file", token, "--listen", f"127.0.0.1:{port}", "--", "true")
            if "another process listens" not in said:
                with open(os.path.join(self.run_root, "x", "node-0", "log"), encoding="utf-8") as log:
                    self.assert_says(said + log.read(), "another process listens", "--listen")

    def test_a_second_job_of_the_same_name(self):
        with self.job() as job:
            code, said = run_pawl("run", "--standalone", "--job", job.name, "--", "true", environment=job.environment())
            self.assertIn(code, (1, 2))
            self.assert_says(said, job.name, "runs")
            self.finish(job)

    def test_two_jobs_at_once_do_not_meet(self):
        with self.job() as one, self.job(seed=2) as other:
            self.finish(one)
            self.finish(other)

    def test_too_few_nodes(self):
        with cluster.token_file() as (folder, token), cluster.control(folder, token) as address:
            machines = cluster.Cluster(folder, address, token, node_count=2)
            try:
                machines.start(0)
                machines.wait_said(0, "waiting for nodes", "1 of 2")
            finally:
                machines.close()
            self.assertEqual(130, machines.machines[0].process.returncode)

    def test_empty_or_missing_data(self):
        empty = os.path.join(self.run_root, "empty")
        open(empty, "wb").close()
        for data in (empty, os.path.join(self.run_root, "missing")):
            with self.subTest(data=data), self.job(
                    nodes=2, spares=0, wait=False,
                    command=[CHARLM, *trainer_flags(1, **harness.SMALL), "--data", data]) as job:
                self.assertEqual(1, job.wait_end(60))
                self.assert_says(job.output() + job.logs(200), data)

    def test_without_the_right_to_namespaces(self):
        if subprocess.run([*NO_NAMESPACES, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("privilege: capabilities cannot be dropped here")
        self.refused(1, ["namespaces are required", "can't be had"], "run", "--standalone", "--nnodes", "2",
                     "--namespaces", "require", "--", "true", prefix=NO_NAMESPACES)

    def test_loopback_addresses_where_namespaces_are_off(self):
        with self.job("--namespaces", "off") as job:
            job.wait_step(5)
            generation = harness.jobs.generation(job.wait_spare())
            job.kill_node(job.node_of_seat(0))
            job.wait_running(generation)
            self.assert_says(job.output(), "no namespaces", "127.0.1.10")
            self.finish(job, recoveries=1)

    def test_too_little_memory(self):
        """The limit on the size of files counts for memory segments as well; here it is less than an arena."""
        daemon = os.path.join(self.run_root, "daemon")
        with open(os.open(daemon, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\ntrap "" XFSZ\nulimit -f 1000\nexec {PAWL} daemon "$@"\n')
        with self.job("--daemon-command", daemon, nodes=2, spares=0, wait=False) as job:
            self.assertEqual(1, job.wait_end(60))
            self.assert_says(job.output() + job.logs(400), "MiB of memory", "free memory")

    def test_more_state_than_the_budget(self):
        with self.job("--memory", "1MiB", nodes=2, spares=0, wait=False) as job:
            self.assertEqual(1, job.wait_end(60))
            self.assert_says(job.output() + job.logs(400), "1.0 MiB are allowed", "--memory", "--replicas 0")
        with self.job("--memory", "1GiB", nodes=2, spares=0) as job:
            self.assertEqual({1 << 30}, {node["memory_budget_bytes"] for node in job.nodes().values()})

    def test_too_little_memory_for_anything(self):
        """The nodes are tried before they get seats, and the terminal says why they get none."""
        daemon = os.path.join(self.run_root, "daemon")
        with open(os.open(daemon, os.O_WRONLY | os.O_CREAT, 0o700), "w", encoding="utf-8") as file:
            file.write(f'#!/bin/sh\ntrap "" XFSZ\nulimit -f 100\nexec {PAWL} daemon "$@"\n')
        with self.job("--daemon-command", daemon, nodes=2, spares=0, wait=False) as job:
            job.wait_until(lambda _: "gets no seat: its shared memory" in job.output(), "the reason to be said")


if __name__ == "__main__":
    harness.main()

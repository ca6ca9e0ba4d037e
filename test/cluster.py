"""Several `pawl run`s that meet at a control, as on several machines; here all on loopback."""
import base64
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.request

from harness import CHARLM, PAWL, SMALL, TestedJob, jobs, run_pawl, trainer_flags
from processes import environment_has
from reference import free_port


@contextlib.contextmanager
def control(folder, token_file):
    """`pawl control` on a port of its own; its address."""
    address = f"127.0.0.1:{free_port()}"
    with serving([PAWL, "control", "--listen", address, "--data-dir", os.path.join(folder, "control"),
                  "--token-file", token_file], address, folder):
        yield address


@contextlib.contextmanager
def etcd(folder, _):
    """A real etcd of one member; its address."""
    address, peer = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    with serving([shutil.which("etcd"), "--name", "a", "--data-dir", os.path.join(folder, "etcd"),
                  "--listen-client-urls", f"http://{address}", "--advertise-client-urls", f"http://{address}",
                  "--listen-peer-urls", f"http://{peer}", "--initial-advertise-peer-urls", f"http://{peer}",
                  "--initial-cluster", f"a=http://{peer}", "--log-level", "error"], address, folder):
        yield address


def put(etcd_address, key, value):
    """Through etcd's own JSON gateway."""

    body = {"key": base64.b64encode(key.encode()).decode(), "value": base64.b64encode(value.encode()).decode()}
    request = urllib.request.Request(f"http://{etcd_address}/v3/kv/put", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    urllib.request.urlopen(request, timeout=10).close()


@contextlib.contextmanager
def serving(command, address, folder):
    with open(os.path.join(folder, "server.out"), "ab") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        wait_listening(address)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_listening(address, timeout_s=15.0):
    host, port = address.split(":")
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            socket.create_connection((host, int(port)), 1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


@contextlib.contextmanager
def token_file(text="0123456789abcdef0123456789abcdef"):
    folder = tempfile.mkdtemp(prefix="pawl-test-")
    path = os.path.join(folder, "token")
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write(text + "\n")
    try:
        yield folder, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Machine(TestedJob):
    """One machine's part of a job; the others carry the same name, so what is ours is told by the run directory."""

    def left_over(self):
        return {who for who in super().left_over() if environment_has(who.pid, f"PAWL_RUN_DIR={self.run_root}")}


class Cluster:
    """Machines of one job, each with a run directory of its own."""

    def __init__(self, folder, control_address, token, node_count, spares=0, name=None, size=None):
        self.folder, self.control, self.token = folder, control_address, token
        self.node_count, self.spares, self.name = node_count, spares, name or f"cluster-{secrets.token_hex(4)}"
        self.size = {**SMALL, **(size or {})}
        self.record_directory = os.path.join(folder, "record")
        self.machines = {}

    def start(self, rank, *flags, token=None, command=None):
        command = command or [CHARLM, *trainer_flags(1, **self.size), "--record", self.record_directory]
        machine = Machine(os.path.join(self.folder, f"machine-{rank}"), self.name,
                          ["--control", self.control, "--node-rank", str(rank), "--nnodes", str(self.node_count),
                           "--spares", str(self.spares), "--token-file", token or self.token, *flags],
                          command, self.node_count)
        machine.record_directory = self.record_directory
        self.machines[rank] = machine.start()
        return machine

    def nodes(self):
        return {node: status for machine in self.machines.values() for node, status in machine.nodes().items()}

    def wait_until(self, condition, what, timeout_s=40.0):
        deadline = time.monotonic() + timeout_s
        while True:
            nodes = self.nodes()
            if condition(nodes):
                return nodes
            if time.monotonic() > deadline:
                said = "\n".join(f"--- machine {rank}\n{machine.tail()}\n{machine.logs()}"
                                 for rank, machine in self.machines.items())
                raise jobs.JobError(f"waited in vain for {what}\n{said}")
            time.sleep(0.05)

    def wait_running(self, generation_above=-1):
        return self.wait_until(lambda nodes: jobs.running(nodes, self.node_count, generation_above),
                               "the job to run")

    def wait_said(self, rank, *words, timeout_s=20.0):
        machine = self.machines[rank]
        deadline = time.monotonic() + timeout_s
        while not all(word.lower() in machine.output().lower() for word in words):
            if time.monotonic() > deadline:
                raise AssertionError(f"machine {rank} did not say {words}:\n{machine.output()}")
            time.sleep(0.05)

    def command(self, *arguments):
        return run_pawl(*arguments, "--job", self.name, "--control", self.control, "--token-file", self.token)

    def close(self):
        for machine in self.machines.values():
            if not machine.ended():
                machine.process.send_signal(signal.SIGINT)
        for machine in self.machines.values():
            machine.stop()

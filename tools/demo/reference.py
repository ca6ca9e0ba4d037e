"""The undisturbed run: the same trainer without pawl, one process a seat on this machine."""
import os
import random
import socket
import subprocess
import time

from processes import Identity, Victims, identity, maps
from record import read_run


class ReferenceFailed(Exception):
    """The reference itself failed: nothing can be said about the other run."""


FIRST_PORT = 15_000
held_ports = []  # until this process ends


def free_port():
    """One that nobody else is given as long as this process lives: it lies below those that the kernel gives to
    connections, and who asks here marks it by a name of its own."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as file:
        end = int(file.read().split()[0])
    ports = list(range(min(FIRST_PORT, end // 2), end))
    random.SystemRandom().shuffle(ports)
    for port in ports:
        mark = socket.socket(socket.AF_UNIX)
        try:
            mark.bind(f"\0pawl-test-port-{port}")  # a name without a file
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            mark.close()
            continue
        held_ports.append(mark)
        return port
    raise OSError("no port is free")


class Reference:
    """`command` is the plain trainer with its flags; --record is added, and `environment` to what torchrun would
    set."""

    def __init__(self, command, directory, world=4, environment=None):
        self.command, self.directory, self.world = list(command), directory, world
        self.environment = environment or {}
        self.processes = []
        self.pawl_mapped = None  # whether any process had libpawl in its maps; None: not looked at yet

    def start(self):
        os.makedirs(self.directory, exist_ok=True)
        port = free_port()
        output = open(os.path.join(self.directory, "output"), "ab")
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PAWL")} | self.environment
        for rank in range(self.world):
            self.processes.append(subprocess.Popen(
                [*self.command, "--record", self.directory], stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT,
                env={**environment, "RANK": str(rank), "WORLD_SIZE": str(self.world), "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": str(port)}))
        output.close()
        return self

    def wait(self, timeout_s=300.0, each_second=None):
        deadline = time.monotonic() + timeout_s
        while any(process.poll() is None for process in self.processes):
            self.look_at_maps()
            if time.monotonic() > deadline or any(process.poll() not in (None, 0) for process in self.processes):
                break
            if each_second:
                each_second()
            time.sleep(0.05 if self.pawl_mapped is None else 0.25)
        failed = [process.returncode for process in self.processes if process.poll() != 0]
        self.stop()
        if failed:
            with open(os.path.join(self.directory, "output"), encoding="utf-8", errors="replace") as file:
                raise ReferenceFailed(f"the reference failed: {file.read()[-2000:] or failed}")
        return read_run(self.directory)

    def look_at_maps(self):
        """While they train: a process that has recorded a step has loaded all that it ever loads."""
        names = os.listdir(self.directory)
        trained = [process.pid for process in self.processes
                   if process.poll() is None and any(name.endswith(f".{process.pid}.jsonl") for name in names)]
        if len(trained) == self.world and self.pawl_mapped is None:
            seen = [path for pid in trained for _, _, _, path in maps(pid)]
            if seen:
                self.pawl_mapped = any("libpawl" in path or "pawl_c10d" in path for path in seen)

    def stop(self):
        living = [identity(process.pid) or Identity(process.pid, 0) for process in self.processes
                  if process.poll() is None]
        with Victims(living) as victims:
            victims.send()
        for process in self.processes:
            process.wait()

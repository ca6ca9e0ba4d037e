"""Network: cuts between the nodes of a standalone job, silent ones: packets are lost, and nobody is told.

In the network of the sender, the address of the receiver gets the hardware address of a machine that does not exist.
Its packets leave, and nobody takes them: no reset, no refusal, nothing that the sender's kernel could say of them.
Each direction by itself; connections that stand are cut, too. That needs `ip` and `nsenter` alone, and no module of the
kernel. Nodes are numbers; the machine of the control is CONTROL.
"""
import os
import subprocess

CONTROL = -1
NOBODY = "02:00:00:00:00:99"


class Network:
    """Of a job that runs with namespaces of its own: `Network.of(job)`; None if it has none."""

    def __init__(self, namespaces):
        self.namespaces = namespaces  # {node: descriptor}
        self.dropped = set()          # (sender, receiver)

    @classmethod
    def of(cls, job):
        pids = {node: status["keeper_pid"] for node, status in job.nodes().items()} | {CONTROL: job.process.pid}
        links = {node: f"/proc/{pid}/ns/net" for node, pid in pids.items()}
        if any(os.readlink(link) == os.readlink("/proc/self/ns/net") for link in links.values()):
            return None
        return cls({node: os.open(link, os.O_RDONLY) for node, link in links.items()})

    def nodes(self):
        return [node for node in self.namespaces if node != CONTROL]

    def drop(self, senders, receivers):
        """From now on no packet of these senders reaches these receivers."""
        self._set(self.dropped | {(a, b) for a in senders for b in receivers if a != b})

    def cut(self, some, others):
        """Both directions."""
        pairs = {(a, b) for a in some for b in others if a != b}
        self._set(self.dropped | pairs | {(b, a) for a, b in pairs})

    def cut_data(self, some):
        """Between these nodes and all others; the control hears them all."""
        self.cut(some, [node for node in self.nodes() if node not in some])

    def heal(self):
        self._set(set())

    def close(self):
        for namespace in self.namespaces.values():
            os.close(namespace)
        self.namespaces = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _set(self, dropped):
        lines = {}
        for sender, receiver in dropped - self.dropped:
            lines.setdefault(sender, []).append(
                f"neigh replace {address(receiver)} lladdr {NOBODY} dev {device(sender)} nud permanent")
        for sender, receiver in self.dropped - dropped:
            lines.setdefault(sender, []).append(f"neigh del {address(receiver)} dev {device(sender)}")
        started = [self._ip(sender, batch) for sender, batch in lines.items()]  # all at once
        for process, batch in started:
            _, said = process.communicate(batch, timeout=30)
            if process.returncode != 0:
                raise RuntimeError(f"ip: {said}")
        self.dropped = dropped

    def _ip(self, node, lines):
        namespace = self.namespaces[node]
        return subprocess.Popen(["nsenter", f"--net=/proc/self/fd/{namespace}", "ip", "-batch", "-"],
                                pass_fds=[namespace], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
                                stderr=subprocess.PIPE, text=True), "\n".join(lines) + "\n"


def address(node):
    """As src/cli/job/namespaces.cc gives them."""
    return "10.77.0.1" if node == CONTROL else f"10.77.0.{10 + node}"


def device(node):
    return "pawl0" if node == CONTROL else "eth0"

"""A job under `pawl run`, as a bystander sees it: started, asked, followed, ended.

Whatever is known of the job comes from its faces: `pawl status`, `pawl exposure`, `pawl events -f`, and the questions
of docs/protocol.md on a node's socket. Nothing here reads the job's own memory or files.
"""
import json
import os
import signal
import socket
import struct
import subprocess
import threading
import time

from processes import Identity, Victims, command_line, descendants, environment_has, identity, lives, pids

FRAME = struct.Struct("<IHHQII")  # length, kind, zero, id, two checksums (0: left out, as a local socket allows)
KIND_ASK, KIND_ANSWER = 100, 101
REMEMBER_EVERY_S = 0.3  # while a job is waited for: it looks at every process of the machine


class JobError(Exception):
    """The job, or a command about it, did not do what was asked; the text says what it said."""


def ask(socket_path, question, timeout_s=2.0):
    """One question to a pawld. Raises OSError if nobody answers, JobError if it refuses."""
    payload = json.dumps(question).encode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout_s)
        connection.connect(socket_path)
        connection.sendall(FRAME.pack(len(payload), KIND_ASK, 0, 1, 0, 0) + payload)
        length, kind, *_ = FRAME.unpack(receive(connection, FRAME.size))
        answer = json.loads(receive(connection, length))
    if kind != KIND_ANSWER or "error" in answer:
        raise JobError(f"{socket_path}: {answer.get('error', 'an answer of another kind')}")
    return answer


def receive(connection, size):
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return data


class View:
    """A running job, known by its name and run directory alone: all that a stranger has."""

    def __init__(self, pawl, run_root, name):
        self.pawl, self.run_root, self.name = pawl, run_root, name
        self.directory = os.path.join(run_root, name)

    def environment(self):
        return {**os.environ, "PAWL_RUN_DIR": self.run_root}

    def command(self, *arguments, timeout_s=30.0, check=True):
        """`pawl <arguments> --job NAME`: (exit code, stdout, stderr)."""
        done = subprocess.run([self.pawl, arguments[0], "--job", self.name, *arguments[1:]], env=self.environment(),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False)
        if check and done.returncode not in (0, 4):
            raise JobError(f"pawl {' '.join(arguments)}: exit {done.returncode}: "
                           f"{(done.stderr or done.stdout).strip()}")
        return done.returncode, done.stdout, done.stderr

    def status(self):
        """`pawl status -o json`."""
        return json.loads(self.command("status", "-o", "json")[1])

    def nodes(self):
        """Every node that answers on its socket: {node: status}. Cheaper than a command of its own."""
        found = {}
        for node in self.node_ids():
            try:
                found[node] = ask(self.socket_of(node), {"ask": "status"}, 1.0)
            except (OSError, ValueError, JobError):
                continue
        return found

    def node_ids(self):
        try:
            names = os.listdir(self.directory)
        except OSError:
            return []
        return sorted(int(name[5:]) for name in names if name.startswith("node-") and name[5:].isdigit())

    def socket_of(self, node):
        return os.path.join(self.directory, f"node-{node}", "pawld.sock")

    def ask(self, node, question, timeout_s=2.0):
        return ask(self.socket_of(node), question, timeout_s)

    def exposed(self):
        """What `pawl exposure` says would be lost if any one node died now; empty: nothing."""
        answer = json.loads(self.command("exposure", "-o", "json")[1])
        return [lost for case in answer["cases"] if not case["recoverable"] for lost in case["lost"] or ["everything"]]

    def drill(self, *arguments, timeout_s=60.0):
        return self.command("drill", *arguments, timeout_s=timeout_s)


# What a status says ------------------------------------------------------------------------------------------------

def members(nodes):
    return {node: status for node, status in nodes.items() if status.get("role") == "member"}


def spares(nodes):
    """Nodes that wait for a seat with a parked trainer that is ready for it."""
    return [node for node, trainer in parked(nodes) if trainer.get("phase") != "aside"]


def rehearsing(nodes):
    """Nodes that wait for a seat while their trainer still warms up."""
    return [node for node, trainer in parked(nodes) if trainer.get("phase") == "aside"]


def parked(nodes):
    return [(node, trainer) for node, status in nodes.items() if status.get("role") == "spare"
            for trainer in status.get("trainers", [])[:1] if trainer.get("state") == "parked"]


def seats(nodes):
    """{seat: its living trainer, with "node" added}."""
    found = {}
    for node, status in members(nodes).items():
        for trainer in status.get("trainers", []):
            if trainer.get("state") not in ("parked", "dead") and trainer.get("seat") is not None:
                found[trainer["seat"]] = {**trainer, "node": node}
    return found


def committed(nodes):
    return max((status.get("committed", 0) for status in members(nodes).values()), default=0)


def published(nodes):
    """The step of the newest checkpoint that the job has written; 0: none yet; None: it writes none."""
    told = [status["checkpoint"]["published"] for status in nodes.values() if status.get("checkpoint")]
    return max(told, default=None)


def generation(nodes):
    return max((status.get("generation", 0) for status in nodes.values()), default=0)


def running(nodes, node_count, generation_above=-1):
    """Every seat is in its place, in one generation later than that, at work. Nodes are asked one by one: a spare may
    be in the next generation already."""
    inside = members(nodes).values()
    return (len(inside) == node_count and len({status.get("generation") for status in inside}) == 1
            and generation(members(nodes)) > generation_above
            and all(status.get("phase") == "running" for status in inside))


def node_processes(status):
    """Keeper first, then pawld, then the trainers: identities, the trainers' start times as the status gave them."""
    found = [identity(status[key]) for key in ("keeper_pid", "pawld_pid") if status.get(key)]
    found += [Identity(trainer["pid"], trainer["start_time"]) for trainer in status.get("trainers", [])
              if trainer.get("pid") and trainer.get("state") != "dead"]
    return [who for who in found if who is not None]


def is_held(status, phase):
    """A node that a test hook has parked in the phase: its daemon, or one of its trainers."""
    return (any(hold.get("phase") == phase and hold.get("held") for hold in status.get("holds", []))
            or any(trainer.get("held") and trainer.get("phase") == phase for trainer in status.get("trainers", [])))


# A job of our own --------------------------------------------------------------------------------------------------

class Job(View):
    """`pawl run` as our child. `flags` go before the `--`, `command` after it."""

    def __init__(self, pawl, run_root, name, flags, command, environment=None, output_path=None):
        super().__init__(pawl, run_root, name)
        self.flags, self.trainer_command = list(flags), list(command)
        self.extra_environment = environment or {}
        self.process = None
        self.output_path = output_path or os.path.join(run_root, f"{name}.out")
        self.seen = set()  # identities of everything that ever belonged to it
        self.remembered_at = 0.0  # monotonic

    def start(self):
        os.makedirs(self.run_root, mode=0o700, exist_ok=True)
        with open(self.output_path, "ab") as output:
            self.process = subprocess.Popen(
                [self.pawl, "run", "--job", self.name, *self.flags, "--", *self.trainer_command],
                env={**self.environment(), **self.extra_environment}, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True)
        return self

    def output(self):
        try:
            with open(self.output_path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    def remember(self, pause_s=0.0):
        """Notes who belongs to the job now, for the leftover check; unless that was done less than pause_s ago."""
        if time.monotonic() < self.remembered_at + pause_s:
            return
        self.remembered_at = time.monotonic()
        if self.process and self.process.poll() is None:
            self.seen.update(who for who in map(identity, descendants(self.process.pid)) if who)

    def ended(self):
        return self.process.poll() is not None

    def wait_until(self, condition, what, timeout_s=30.0, pause_s=0.05):
        """Polls the nodes' status until condition(nodes) is truthy; answers (its value, nodes)."""
        deadline = time.monotonic() + timeout_s
        while True:
            ended = self.ended()  # before the look, so that one is of the end itself
            nodes = self.nodes()
            value = condition(nodes)
            self.remember(0.0 if value else REMEMBER_EVERY_S)
            if value:
                return value, nodes
            if ended:
                raise JobError(f"the job ended (exit {self.process.returncode}) before: {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise JobError(f"waited {timeout_s:.0f} s in vain for: {what}\n{json.dumps(nodes)}\n{self.tail()}")
            time.sleep(pause_s)

    def wait_end(self, timeout_s=120.0):
        """The exit code of `pawl run`."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:
            self.remember(REMEMBER_EVERY_S)
            if time.monotonic() > deadline:
                raise JobError(f"still running after {timeout_s:.0f} s\n{json.dumps(self.nodes())}\n{self.tail()}")
            time.sleep(0.05)
        return self.process.returncode

    def tail(self, lines=25):
        return "\n".join(self.output().splitlines()[-lines:])

    def stop(self, timeout_s=15.0):
        """Ends it, whatever state it is in: a polite request, then an order to everyone who belongs to it."""
        if self.process is None:
            return
        self.remember()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                pass
        self.end_now()

    def end_now(self):
        if self.process is None:
            return
        self.remember()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        with Victims(self.left_over()) as victims:
            victims.send(signal.SIGKILL)
            victims.wait_ended(5.0)

    def left_over(self):
        """Who of the job still lives: those seen before, and every pawl and trainer that carries its name."""
        found = {who for who in self.seen if lives(who)}
        for pid in pids():
            if self.name in command_line(pid)[1:] or environment_has(pid, f"PAWL_JOB={self.name}"):
                who = identity(pid)
                if who:
                    found.add(who)
        return found


class Follower:
    """`pawl events -f -o json` in a process of its own; the events so far in `events`."""

    def __init__(self, view, on_event=None):
        self.events = []
        self.on_event = on_event
        self.process = subprocess.Popen([view.pawl, "events", "--job", view.name, "-f", "-o", "json"],
                                        env=view.environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.DEVNULL, text=True, start_new_session=True)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            self.events.append(event)
            if self.on_event:
                self.on_event(event)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.thread.join(5)
        self.process.stdout.close()

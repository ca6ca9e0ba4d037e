"""The faults of a drill: which, when, and how a running job gets them. How each kind comes about: drill_blows.py.

plan_faults() draws them from a seed. Each fault has a *halt*: a step in which a test hook parks every trainer, so that
a job of quick steps can't end before the fault is due. At the halt the drill waits until a death would cost nothing: a
step is committed, nothing is exposed, a spare waits if a node may be replaced; where all copies are to be lost, until a
checkpoint is published, and two spares wait. Then all trainers go on, and the victim is struck at a random instant of
the next steps, or while it is parked in a named phase of the step. Pids come from `pawl status -o json`. Linux,
standard library only.
"""
from __future__ import annotations

import json
import os
import random
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from pawl.drill_blows import SPARES_NEEDED, WHOLE_NODE, Blow, BlowError, Process

PHASES = ("compute", "allreduce", "fence", "update")  # each of them comes in every data-parallel step
HALTS = ("aside", "compute")  # they take turns, so that asking for the next one lets go of the one before
SETTLE_STEPS, FAULT_STEPS = 4, 3  # before the first halt; between two halts at least
STAND_STILL_S = (0.3, 6.0)  # of a timed fault: shorter and longer than a node's silence may last by default
POLL_S = 0.03
HELD_WITHIN_S = 20.0
STORED_WITHIN_S = 2.0  # a checkpoint is, as long as all trainers are parked
TOLD_WITHIN_S = 10.0   # a restore is, once the job runs again
_FRAME = struct.Struct("<IHHQII")  # docs/protocol.md: length, kind, zero, id, two checksums that may be left out
_ASK, _ANSWER = 100, 101

Status = dict[str, Any]


class FaultError(Exception):
    """The job did not come to where a fault is due, or did not come back; the text says what was waited for."""


@dataclass(frozen=True)
class Fault:
    """`phase`: where in the step it strikes; empty: at a random instant. `cold`: before the first commit."""

    kind: str
    step: int   # the halt's
    phase: str = ""
    cold: bool = False
    delay: float = 0.0  # of the random instant, in steps
    seconds: float = 0.0  # that a timed one lasts

    def shown(self) -> str:
        where = f"held in {self.phase}" if self.phase else "at a random instant"
        if self.kind == "timed":
            where += f" for {self.seconds:.1f} s"
        if self.cold:
            where = "before the first commit"
        return f"{self.kind}, {where}, from step {self.step} on"


@dataclass(frozen=True)
class Struck:
    """A fault that has happened, and what became of it."""

    fault: Fault
    node: int
    seats: list[int]
    pids: list[int]
    phase: str        # that the victim was seen in right before
    committed: int
    generation: int
    recovered_s: float = 0.0
    resume: int | None = None  # None: nobody had to go back
    beside: list[int] = field(default_factory=list)  # nodes that died with it
    checkpoint: str | None = None  # to which the job went back; None: it had the state in memory


def steps_needed(count: int) -> int:
    return SETTLE_STEPS + FAULT_STEPS * count + 1


def plan_faults(seed: int, count: int, kinds: Iterable[str], cold: bool, steps: int) -> list[Fault]:
    """`count` faults over a training of `steps` steps, in the order in which they strike; besides, with `cold`, one
    before the first commit. Kinds take turns, the first of them drawn; every second fault is at a random instant, the
    others each in another phase as long as there are any."""
    chance = random.Random(seed)
    kinds = list(kinds)
    first = chance.randrange(len(kinds)) if kinds else 0
    phases = chance.sample(PHASES, len(PHASES))
    faults = [Fault("trainer", 1, "compute", cold=True)] if cold else []
    room = (steps - SETTLE_STEPS - 1) / max(count, 1)
    if count and room < FAULT_STEPS:
        raise FaultError(f"the script does {steps} steps, and {count} faults need at least {steps_needed(count)}: let "
                         f"it train longer, or ask for fewer faults (--faults)")
    for number in range(count):
        begin = SETTLE_STEPS + number * room
        step = int(begin + chance.random() * (room - FAULT_STEPS))
        kind = kinds[(first + number) % len(kinds)]
        phase = phases[number // 2 % len(phases)] if number % 2 == 1 else ""
        faults.append(Fault(kind, step, phase, delay=chance.uniform(0.0, 2.5),
                            seconds=chance.uniform(*STAND_STILL_S) if kind == "timed" else 0.0))
    return faults


# A running job, as a bystander sees it ----------------------------------------------------------------------------

class RunningJob:
    """By its name and its run directory."""

    def __init__(self, pawl: str, run_root: str, name: str) -> None:
        self.pawl, self.run_root, self.name = pawl, run_root, name
        self.directory = os.path.join(run_root, name)

    def command(self, *arguments: str) -> dict[str, Any]:
        return dict(json.loads(self._said(*arguments)))

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._said("events").splitlines()]

    def _said(self, *arguments: str) -> str:
        done = subprocess.run([self.pawl, *arguments, "--job", self.name, "-o", "json"], stdin=subprocess.DEVNULL,
                              env={**os.environ, "PAWL_RUN_DIR": self.run_root}, capture_output=True, text=True,
                              timeout=60.0, check=False)
        if done.returncode not in (0, 4):
            raise FaultError(f"pawl {' '.join(arguments)}: exit {done.returncode}: "
                             f"{(done.stderr or done.stdout).strip()}")
        return done.stdout

    def nodes(self) -> dict[int, Status]:
        """Every node that answers on its socket."""
        found = {}
        try:
            names = os.listdir(self.directory)
        except OSError:
            return {}
        for node in sorted(int(name[5:]) for name in names if name.startswith("node-") and name[5:].isdigit()):
            try:
                found[node] = self.ask(node, {"ask": "status"})
            except (OSError, ValueError, FaultError):
                continue
        return found

    def ask(self, node: int, question: dict[str, Any]) -> Status:
        payload = json.dumps(question).encode()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(2.0)
            connection.connect(os.path.join(self.directory, f"node-{node}", "pawld.sock"))
            connection.sendall(_FRAME.pack(len(payload), _ASK, 0, 1, 0, 0) + payload)
            length, kind, *_ = _FRAME.unpack(_receive(connection, _FRAME.size))
            answer = json.loads(_receive(connection, length))
        if kind != _ANSWER or "error" in answer:
            raise FaultError(f"node {node}: {answer.get('error', 'an answer of another kind')}")
        return dict(answer)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the other side hung up")
        data += part
    return data


def members(nodes: dict[int, Status]) -> dict[int, Status]:
    return {node: status for node, status in nodes.items() if status.get("role") == "member"}


def seats(nodes: dict[int, Status]) -> dict[int, int]:
    """{seat: node} of living trainers."""
    return {trainer["seat"]: node for node, status in members(nodes).items() for trainer in status.get("trainers", [])
            if trainer.get("seat") is not None and trainer.get("state") not in ("parked", "dead")}


def running(nodes: dict[int, Status], node_count: int) -> bool:
    inside = members(nodes).values()
    return (len(inside) == node_count and len({status["generation"] for status in inside}) == 1
            and all(status.get("phase") == "running" for status in inside))


def committed(nodes: dict[int, Status]) -> int:
    return max((status.get("committed", 0) for status in members(nodes).values()), default=0)


def generation(nodes: dict[int, Status]) -> int:
    return max((status.get("generation", 0) for status in nodes.values()), default=0)


def all_held(nodes: dict[int, Status]) -> bool:
    """By this drill. Where some are and others never come there, the job stands still all the same."""
    held = [trainer.get("held") for status in members(nodes).values() for trainer in status.get("trainers", [])]
    return bool(held) and all(held)


def spares_waiting(nodes: dict[int, Status]) -> int:
    return sum(status.get("role") == "spare" and any(trainer.get("state") == "parked" for trainer in status["trainers"])
               for status in nodes.values())


def stored(nodes: dict[int, Status]) -> bool:
    """Whether a checkpoint of the job is published."""
    return any(status.get("checkpoint", {}).get("published", 0) > 0 for status in nodes.values())


def holders(status: Status) -> list[int]:
    """The nodes that have copies of this one's seats."""
    return sorted({holder for seat in status.get("seats", []) for holder in seat["holders"]})


# Striking ---------------------------------------------------------------------------------------------------------

class Striker:
    """Carries out a plan on one job. `ended` says whether the job's launcher has ended; `tell` takes progress lines;
    `look_after` is called while the job is waited for, with whether all trainers are held, and may raise."""

    def __init__(self, job: RunningJob, node_count: int, seat_count: int, seed: int, step_s: float,
                 ended: Callable[[], bool],
                 tell: Callable[[str], None], timeout_s: float,
                 look_after: Callable[[bool], None] = lambda held: None) -> None:
        self._job, self._node_count, self._seat_count = job, node_count, seat_count
        self._random = random.Random(seed + 1)
        self._step_s, self._ended, self._tell, self._timeout_s = step_s, ended, tell, timeout_s
        self._look_after = look_after
        self._halt: tuple[str, int] | None = None
        self._told: dict[tuple[int, int], tuple[str, int]] = {}  # (node, pid): the hold that this trainer was given
        self._passed = 0  # halts so far

    def run(self, faults: list[Fault], steps: int) -> list[Struck]:
        """`steps`: of the whole training, before whose end everybody waits for the last recovery."""
        struck = []
        for number, fault in enumerate(faults):
            following = faults[number + 1].step if number + 1 < len(faults) else max(steps - 1, fault.step + 1)
            self._set_halt(fault)
            nodes = self._await_halt(fault)
            if fault.kind == "storage":
                fault, nodes = self._await_stored(fault, nodes, steps)
                following = max(following, fault.step + 1)
            self._tell(f"fault {number + 1} of {len(faults)}: {fault.shown()}")
            try:
                struck.append(self._strike(fault, following, nodes))
            except BlowError as error:
                raise FaultError(str(error)) from None
        self._let_go()
        return struck

    def _strike(self, fault: Fault, following: int, nodes: dict[int, Status]) -> Struck:
        """The victim is named, and held by its pidfds, before anybody is let go."""
        node = self._random.choice(sorted(members(nodes)))
        status = self._status_of(node)
        hurt, processes = self._choose(fault, status)
        beside = holders(status) if fault.kind == "storage" else []
        for other in beside:
            more, others = self._choose(fault, self._status_of(other))
            hurt, processes = hurt + more, processes + others
        with Blow(fault.kind, node, processes, fault.seconds, self._job.command, self._job.run_root) as blow:
            if fault.phase and not (fault.cold or self._halt == (fault.phase, fault.step)):
                self._hold_in(node, fault.phase, fault.step, nodes)
                self._open_for(following, but=node)
                self._await_held(node, fault.phase)
            elif fault.phase:
                self._open_for(following, but=node)
            else:
                blow.prepare()
                self._open_for(following)
                time.sleep(fault.delay * self._step_s)
            seen = self._last_seen(node, status)
            if fault.phase:
                blow.prepare()
            hit = blow.strike()
            if not hit:
                raise FaultError(f"{fault.kind}: what was to be struck on node {node} had ended before")
            phases = [each.get("phase", "") for each in seen["trainers"] if each.get("seat") == hurt[0]]
            struck = Struck(fault, node, hurt, hit, "".join(phases[:1]), seen["committed"], seen["generation"],
                            beside=beside)
            if fault.phase:
                self._free(node)
            struck = self._recover(struck)
            blow.mend()
        return struck

    def _status_of(self, node: int) -> Status:
        """As `pawl status -o json` tells anybody."""
        for status in self._job.command("status")["nodes"]:
            if status["node"] == node and "role" in status:
                return dict(status)
        raise FaultError(f"node {node} does not answer, so nothing of it can be killed")

    def _choose(self, fault: Fault, status: Status) -> tuple[list[int], list[Process]]:
        """The seats that are hurt; the processes that are, the parent first."""
        trainers = [each for each in status["trainers"] if each.get("pid") and each.get("state") != "dead"]
        if not trainers:
            raise FaultError(f"node {status['node']} has no trainer that could be killed")
        own = [(each["pid"], each["start_time"]) for each in trainers]
        if fault.kind not in WHOLE_NODE and fault.kind != "pawld":
            chosen = self._random.randrange(len(trainers))
            return [trainers[chosen]["seat"]], [own[chosen]]
        daemon = (status["pawld_pid"], None)
        return [each["seat"] for each in trainers], [daemon] if fault.kind == "pawld" else [
            (status["keeper_pid"], None), daemon, *own]

    def _last_seen(self, node: int, before: Status) -> Status:
        try:
            return self._job.ask(node, {"ask": "status"})
        except (OSError, ValueError, FaultError):
            return before

    def _recover(self, blow: Struck) -> Struck:
        began = time.monotonic()
        seats_hurt = ", ".join(str(seat) for seat in blow.seats)
        self._tell(f"  {blow.fault.kind}: struck node {', '.join(map(str, [blow.node, *blow.beside]))} (seat "
                   f"{seats_hurt}, in {blow.phase or 'no phase'}, step {blow.committed} committed)")

        def back(nodes: dict[int, Status]) -> bool:
            if not running(nodes, self._node_count) or len(seats(nodes)) != self._seat_count:
                return False
            if blow.fault.kind == "pawld":
                return blow.node in nodes and nodes[blow.node]["pawld_pid"] not in blow.pids
            if generation(nodes) > blow.generation:
                return True
            # Nobody may have missed a node that stood still for a moment.
            return blow.fault.kind == "timed" and blow.node in members(nodes) and committed(nodes) > blow.committed

        nodes = self._wait(back, f"the job to run again after the {blow.fault.kind} fault of node {blow.node}")
        seconds = time.monotonic() - began
        resume = None
        if generation(nodes) > blow.generation:
            resume = max(status.get("resume", 0) for status in members(nodes).values())
        checkpoint = self._checkpoint_of(blow) if blow.fault.kind == "storage" else None
        self._tell(f"  runs again after {seconds:.1f} s" + ("" if resume is None else f", from step {resume}")
                   + (f" in storage, {checkpoint}" if checkpoint else ""))
        return replace(blow, recovered_s=round(seconds, 3), resume=resume, checkpoint=checkpoint)

    def _checkpoint_of(self, blow: Struck) -> str:
        deadline = time.monotonic() + TOLD_WITHIN_S
        while time.monotonic() < deadline and not self._ended():
            for event in reversed(self._job.events()):
                restored = event["kind"] == "seat_restored" and event["generation"] > blow.generation
                if restored and event["source"] == "storage":
                    return str(event["path"])
            time.sleep(POLL_S)
        raise FaultError(f"{blow.fault.kind}: the job runs again, and nobody says that it went back to a checkpoint: "
                         f"something of nodes {[blow.node, *blow.beside]} was left in memory, or the job is over")

    # Gates.

    def _set_halt(self, fault: Fault) -> None:
        if self._halt is None or self._halt[1] != fault.step:
            phase = "compute" if fault.cold else HALTS[self._passed % 2]
            self._passed += 1 + fault.cold  # so that the first halt after a cold one is another
            self._halt = (phase, fault.step)
        self._tell_halt(self._job.nodes())

    def _open_for(self, following: int, but: int | None = None) -> None:
        """Everybody goes on to the halt in step `following`; `but` this node, which stays as it is."""
        self._halt = (HALTS[self._passed % 2], following)
        self._passed += 1
        self._tell_halt({node: status for node, status in self._job.nodes().items() if node != but})

    def _await_halt(self, fault: Fault) -> dict[int, Status]:
        def parked(nodes: dict[int, Status]) -> bool:
            held = running(nodes, self._node_count) and all_held(nodes)
            return held and len(seats(nodes)) == self._seat_count and (fault.cold or self._sound(fault, nodes))
        count = SPARES_NEEDED.get(fault.kind, 0)
        spare = ("", ", and a spare waiting")[count] if count < 2 else f", and {count} spares waiting"
        what = f"step {fault.step}, with a step committed, nothing exposed{spare}"
        return self._wait(parked, what)

    def _await_stored(self, fault: Fault, nodes: dict[int, Status], steps: int) -> tuple[Fault, dict[int, Status]]:
        """All trainers are parked. A step is published when a later one is committed: so they go on one by one."""
        while True:
            deadline = time.monotonic() + STORED_WITHIN_S
            while not stored(nodes) and time.monotonic() < deadline:
                time.sleep(POLL_S)
                nodes = self._job.nodes()
            if stored(nodes):
                return fault, nodes
            fault = replace(fault, step=fault.step + 1)
            if fault.step >= steps - 1:
                raise FaultError(f"storage: no checkpoint was published before step {fault.step}: let the script train "
                                 f"longer; `pawl run` said why, where one could not be written")
            self._open_for(fault.step)
            nodes = self._await_halt(fault)

    def _sound(self, fault: Fault, nodes: dict[int, Status]) -> bool:
        if committed(nodes) < 1 or spares_waiting(nodes) < SPARES_NEEDED.get(fault.kind, 0):
            return False
        if any(status.get("exposed") for status in members(nodes).values()):
            return False
        return all(case["recoverable"] for case in self._job.command("exposure")["cases"])

    def _tell_halt(self, nodes: dict[int, Status]) -> None:
        """To every trainer that doesn't know it yet: new ones come with each recovery."""
        if self._halt is None:
            return
        for node, status in nodes.items():
            for trainer in status.get("trainers", []):
                who = (node, trainer.get("pid", 0))
                if "phase" not in trainer or self._told.get(who) == self._halt:
                    continue
                if self._ask_hold(node, trainer, *self._halt):
                    self._told[who] = self._halt

    def _hold_in(self, node: int, phase: str, step: int, nodes: dict[int, Status]) -> None:
        for trainer in nodes[node]["trainers"]:
            self._ask_hold(node, trainer, phase, step)

    def _ask_hold(self, node: int, trainer: dict[str, Any], phase: str, step: int) -> bool:
        try:
            self._job.ask(node, {"ask": "hold", "phase": phase, "local_index": trainer["local_index"], "step": step})
            return True
        except (OSError, ValueError, FaultError):
            return False  # it is just being started or has died: asked again

    def _await_held(self, node: int, phase: str) -> None:
        """Gives up quietly: a step that has no such phase is then struck wherever it is."""
        deadline = time.monotonic() + HELD_WITHIN_S
        while time.monotonic() < deadline and not self._ended():
            try:
                trainers = self._job.ask(node, {"ask": "status"})["trainers"]
            except (OSError, ValueError, FaultError):
                trainers = []
            if any(each.get("held") and each.get("phase") == phase for each in trainers):
                return
            time.sleep(POLL_S / 3)

    def _release(self, node: int) -> None:
        try:
            self._job.ask(node, {"ask": "release"})
        except (OSError, ValueError, FaultError):
            pass  # it has just died, and with it what held it

    def _free(self, node: int) -> None:
        """Who was held beside the victim goes on, to the halt like all the others."""
        self._release(node)
        for who in [who for who in self._told if who[0] == node]:
            del self._told[who]

    def _let_go(self) -> None:
        self._halt = None
        for node in self._job.nodes():
            self._release(node)

    def _wait(self, condition: Callable[[dict[int, Status]], bool], what: str) -> dict[int, Status]:
        deadline = time.monotonic() + self._timeout_s
        while True:
            nodes = self._job.nodes()
            self._tell_halt(nodes)
            if condition(nodes):
                return nodes
            if self._ended():
                raise FaultError(f"the job ended while the drill waited for {what}")
            self._look_after(all_held(nodes))
            if time.monotonic() > deadline:
                raise FaultError(f"waited {self._timeout_s:.0f} s for {what}, and it did not happen (--timeout)")
            time.sleep(POLL_S)

"""The killer: a process that is no part of the job and knows only its name.

Victim, instant and phase come from the seed. Pids come from `pawl status -o json`, deaths from SIGKILL to a whole node:
keeper, pawld and trainers at once. Where a phase is named, a test hook parks the victim in it (`pawl drill`, or a hold
set on a daemon); where none is, the instant is random and the phase is the one that was observed right before.
Before each kill the job must have committed a step, nothing may be exposed, and a spare must wait. With --at-once
several nodes die in one moment, each next to the other on the ring, so that copies of seats die with them: then the job
must have published a checkpoint as well, and as many spares must wait. Writes one JSON line per killed node to --out.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import time

import job as jobs
from processes import Victims

STEP_PHASES = ("compute", "allreduce", "fence", "update", "allgather")  # of a trainer
DAEMON_PHASES = ("ack",)                                              # of the holder of somebody's replica
RECOVERY_PHASES = ("import", "seated", "decide", "frozen")            # need a first death
PHASES = ("random", *STEP_PHASES, *DAEMON_PHASES, *RECOVERY_PHASES, "after-swap")
SILENT_S = 10.0  # without any node, after which there is no job any more
TORCH_PHASES = ("exchange",)  # of a trainer in PyTorch alone: its own part is updated, nothing of it shared yet


class Killer:
    def __init__(self, view, options, out):
        self.view, self.options, self.out = view, options, out
        self.random = random.Random(options.seed)
        self.count = 0               # kills so far
        self.seat_count = 0
        self.generation_before = 0   # of the last kill

    def run(self):
        for index in range(self.options.kills):
            begun = self.count
            phase = self.options.phase
            if phase == "any":
                phase = self.random.choice(PHASES)
            if index > 0 or phase != "after-swap":
                self.wait_sound(after_swap=phase == "after-swap" and index > 0)
            self.wait_share(index)
            if phase in RECOVERY_PHASES:
                self.kill_in_recovery(phase)
            elif phase in STEP_PHASES + TORCH_PHASES + DAEMON_PHASES:
                self.kill_held(phase)
            elif phase == "after-swap":
                self.kill_after_swap()
            else:
                self.kill_at_random()
            self.look_afterwards(begun)

    def look_afterwards(self, begun):
        """Who sits where once the job runs again: survivors must be who they were."""
        generation = self.generation_before
        self.wait(lambda nodes: jobs.running(nodes, self.options.nodes, generation)
                  and len(jobs.seats(nodes)) == self.seat_count,
                  "the job to run again")
        asked_ns = time.monotonic_ns()
        nodes = self.view.nodes()
        self.write({"after": list(range(begun, self.count)), "asked_ns": asked_ns, "answered_ns": time.monotonic_ns(),
                    "seats": {str(seat): survivor(trainer) for seat, trainer in jobs.seats(nodes).items()}})

    # When ----------------------------------------------------------------------------------------------------------

    def wait_sound(self, after_swap=False):
        """A step is committed, every seat sits, nothing is exposed, a spare waits. Right after a swap the first two
        do."""
        def sound(nodes):
            if not jobs.running(nodes, self.options.nodes) or jobs.committed(nodes) < 1:
                return False
            return after_swap or (len(jobs.spares(nodes)) >= self.options.at_once and self.is_stored()
                                  and not any(status["exposed"] for status in nodes.values())
                                  and not self.view.exposed())
        what = "a committed step with nothing exposed and a spare waiting" if self.options.at_once == 1 else \
            f"a published checkpoint, nothing exposed and {self.options.at_once} spares waiting"
        return self.wait(sound, what, pause_s=0.1)

    def is_stored(self):
        """Whether the job has published a checkpoint, where it needs one."""
        return self.options.at_once == 1 or '"checkpoint_published"' in self.view.command("events", "-o", "json")[1]

    def wait_share(self, index):
        """Kills share the run between them: each waits for a step of its own part of it."""
        first, last = 0.12, 0.8
        part = (last - first) / self.options.kills
        step = int(self.options.steps * (first + part * index + part * 0.6 * self.random.random()))
        pause_s = self.random.uniform(0.0, 0.25)
        self.wait(lambda nodes: jobs.committed(nodes) >= max(step, 1), f"step {step}")
        time.sleep(pause_s)

    def wait(self, condition, what, timeout_s=180.0, pause_s=0.05, look=None):
        answered = time.monotonic()
        deadline = answered + timeout_s
        while True:
            nodes = (look or self.view.nodes)()
            if condition(nodes):
                return nodes
            answered = time.monotonic() if nodes else answered
            if time.monotonic() > answered + SILENT_S:
                raise jobs.JobError(f"killer: the job was over before {what}: let it run longer (--steps)")
            if time.monotonic() > deadline:
                raise jobs.JobError(f"killer: waited {timeout_s:.0f} s in vain for {what}")
            time.sleep(pause_s)

    # Whom ----------------------------------------------------------------------------------------------------------

    def status(self):
        """{node: status} from `pawl status -o json`, as any stranger gets it."""
        return {status["node"]: status for status in self.view.status()["nodes"] if "role" in status}

    def whole(self):
        """The same with all members in it: on a busy machine one may miss the moment, and who is missing can't be
        chosen."""
        return self.wait(lambda nodes: len(jobs.members(nodes)) == self.options.nodes, "every member to answer",
                         look=self.status)

    def neighbours(self, node, nodes):
        """That node and the next ones on the ring, as many as die at once."""
        ring = list(dict.fromkeys(trainer["node"] for _, trainer in sorted(jobs.seats(nodes).items())))
        return [ring[(ring.index(node) + step) % len(ring)] for step in range(self.options.at_once)]

    def choose(self, nodes, but=()):
        sitting = sorted(node for node in jobs.members(nodes) if node not in but)
        if self.options.node == "leader":
            return self.leader(sitting)
        if self.options.node == "any":
            return self.random.choice(sitting)
        if int(self.options.node) in sitting:
            return int(self.options.node)
        return self.random.choice(sitting)  # it sits nowhere any more: killed before

    def leader(self, sitting):
        """Who led the job's last decision."""
        leader = self.view.status().get("leader")
        return leader if leader in sitting else sitting[0]

    # How -----------------------------------------------------------------------------------------------------------

    def kill_at_random(self):
        nodes = self.whole()
        self.kill(nodes, self.choose(nodes), "random", at_once=self.options.at_once)

    def kill_after_swap(self):
        """A first death, and at once after the swap a second, elsewhere."""
        before = self.whole()
        first = self.choose(before)
        self.kill(before, first, "random")
        generation = jobs.generation(before)
        first_seat = min(seat for seat, trainer in jobs.seats(before).items() if trainer["node"] == first)
        nodes = self.wait(lambda nodes: jobs.running(nodes, self.options.nodes, generation) and jobs.spares(nodes),
                          "the swap")
        self.kill(nodes, self.random.choice(far_from(jobs.seats(nodes)[first_seat]["node"], nodes)), "after-swap")

    def kill_held(self, phase):
        """Parks the victim in the phase, then kills its whole node."""
        nodes = self.whole()
        node = self.choose(nodes)
        hold = {"ask": "hold", "phase": phase}
        if phase in STEP_PHASES + TORCH_PHASES:
            step = jobs.committed(nodes) + self.random.randint(3, 6)
            hold |= {"local_index": 0, "step": step}
        self.view.ask(node, hold)
        self.wait(lambda nodes: jobs.is_held(nodes.get(node, {}), phase), f"node {node} to be held in {phase}",
                  pause_s=0.01)
        self.kill(self.status(), node, phase, held=True)

    def kill_in_recovery(self, phase):
        """A first node dies at random; a second is held in a phase of that recovery and dies there."""
        nodes = self.whole()
        first = self.choose(nodes)
        candidates = jobs.spares(nodes) if phase in ("import", "seated") else far_from(first, nodes)
        for node in candidates:
            self.view.ask(node, {"ask": "hold", "phase": phase})
        near = [node for node in jobs.members(nodes) if phase == "decide" and node != first and node not in candidates]
        for node in near:  # so that one of the candidates leads
            self.view.ask(node, {"ask": "hold", "phase": "suspect"})
        self.kill(nodes, first, "random")
        held = []

        def parked(nodes):
            held[:] = [node for node in candidates if jobs.is_held(nodes.get(node, {}), phase)]
            return held
        self.wait(parked, f"a node held in {phase}", pause_s=0.01)
        for node in candidates + near:
            if node != held[0]:
                try:
                    self.view.ask(node, {"ask": "release"})
                except (OSError, jobs.JobError):
                    pass
        self.kill(self.status(), held[0], phase, held=True)

    def kill(self, nodes, node, phase, held=False, at_once=1):
        """`at_once`: with so many neighbours of it, itself counted."""
        dying = [node] if at_once == 1 else self.neighbours(node, nodes)
        processes = {each: jobs.node_processes(nodes[each]) for each in dying}
        with Victims([who for each in dying for who in processes[each]]) as victims:
            began_ns = victims.send()
            pids = {each: sorted(who.pid for who in processes[each] if who in victims.fds) for each in dying}
        self.generation_before = jobs.generation(nodes)
        self.seat_count = max(self.seat_count, len(jobs.seats(nodes)))
        for each in dying:
            self.note(nodes, each, phase, held, began_ns, pids[each])

    def note(self, nodes, node, phase, held, began_ns, pids):
        status = nodes[node]
        trainers = status.get("trainers", [])
        observed = trainers[0].get("phase", "?") if trainers else "?"
        self.write({
            "kill": self.count, "node": node, "seat": trainers[0].get("seat") if trainers else None,
            "role": status.get("role"), "phase": phase if held else observed, "drawn": phase, "held": held,
            "step": trainers[0].get("step") if trainers else None, "committed": jobs.committed(nodes),
            "generation": jobs.generation(nodes), "pids": pids, "at_ns": began_ns,
            "before": {str(seat): survivor(trainer) for seat, trainer in jobs.seats(nodes).items()}})
        self.count += 1

    def write(self, entry):
        self.out.write(json.dumps(entry) + "\n")
        self.out.flush()


def far_from(node, nodes):
    """Members that are not next to `node` on the ring: they hold no copy of its state, nor it of theirs, so that losing
    both at once is within the policy of one replica."""
    ring = sorted(jobs.seats(nodes).items())
    where = [seat for seat, trainer in ring if trainer["node"] == node][0]
    return [trainer["node"] for seat, trainer in ring if (seat - where) % len(ring) not in (0, 1, len(ring) - 1)]


def survivor(trainer):
    return {key: trainer.get(key) for key in ("node", "pid", "start_time", "nonce", "updates", "step")}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pawl", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--run-dir", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True, help="of the whole run, to spread the kills over it")
    parser.add_argument("--nodes", type=int, default=4, help="members")
    parser.add_argument("--kills", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--node", default="any")
    parser.add_argument("--phase", default="random", choices=(*PHASES, *TORCH_PHASES, "any"))
    parser.add_argument("--out", required=True)
    options = parser.parse_args()
    with open(options.out, "a", encoding="utf-8") as out:
        try:
            Killer(jobs.View(options.pawl, options.run_dir, options.job), options, out).run()
        except (jobs.JobError, OSError, ValueError, KeyError, IndexError, subprocess.TimeoutExpired) as error:
            print(f"killer: {type(error).__name__}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    os.environ.pop("PAWL_RUN_DIR", None)
    sys.exit(main())

"""A PyTorch job that waits for its faults: between two of them it is parked a few steps on, so that a campaign of any
length fits into a few hundred steps, on any machine.

Faults come from outside, by the pids that the job's own status gives: a whole node (keeper, pawld, trainer) or a single
trainer, held by a test hook in the phase in which it is to die. Before each, every seat sits, nothing is exposed, and
spares wait.
"""
import contextlib
import ctypes
import hashlib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from torch_job import END_S, START_S, TorchTest, harness, jobs, record, reference_run, run_plain  # noqa: E402

# isort: split
from processes import Identity, Victims  # noqa: E402

GPT = os.path.join(harness.ROOT, "examples", "gpt", "train.py")
ORDINARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ordinary.py")  # these run without pawl, too
AHEAD = 6  # steps that the job may go on by itself after a fault: enough to be sound again


def plain_run(script, world, **options):
    """The script in plain PyTorch, where pawl can't even be imported; once for each configuration and version of it."""
    key = hashlib.sha256(f"{sorted(options.items())} {world}".encode())
    for name in sorted(os.listdir(os.path.dirname(script))):
        if name.endswith(".py"):
            with open(os.path.join(os.path.dirname(script), name), "rb") as file:
                key.update(file.read())
    run = harness.made_once(f"plain-{key.hexdigest()[:16]}",
                            lambda folder: run_plain(script, folder, world, options, PYTHONPATH=""))
    for start in run.starts.values():
        assert start["backend"] == "gloo" and not start["libpawl_mapped"], f"the reference is not plain: {start}"
    return run


class PacedTest(TorchTest):
    """`with self.paced(script, nodes=4, spares=2, steps=...) as job`, then faults, then `self.finish_paced(job)`."""

    @contextlib.contextmanager
    def paced(self, script=GPT, nodes=4, spares=2, flags=(), **options):
        with self.training(*flags, nodes=nodes, spares=spares, script=script, **options) as job:
            job.script = script
            job.pacers = set()
            job.wait_running(timeout_s=START_S)
            job.wait_step(2, START_S)
            with contextlib.closing(jobs.Follower(job)) as job.follower:
                yield job

    # Between faults.

    def pace(self, job, but=()):
        """Parks one member, and with it all others, AHEAD steps from now: the first that is there, which need not be
        the one that does so already."""
        nodes = job.nodes()
        for _seat, trainer in sorted(jobs.seats(nodes).items()):
            if trainer["node"] not in but:
                with contextlib.suppress(OSError, jobs.JobError):
                    job.hold(trainer["node"], "compute", jobs.committed(nodes) + AHEAD)
                    job.pacers.add(trainer["node"])
                    return

    def unpace(self, job):
        for node in job.pacers:
            with contextlib.suppress(OSError, jobs.JobError):
                job.release(node)
        job.pacers.clear()

    def sound(self, job, spares):
        """Every seat sits, a step is committed, nothing is exposed, and so many spares wait."""
        self.pace(job)

        def is_sound(nodes):
            return (jobs.running(nodes, job.node_count) and len(jobs.seats(nodes)) == job.node_count
                    and jobs.committed(nodes) >= 2 and len(jobs.spares(nodes)) >= spares
                    and not any(status["exposed"] for status in nodes.values()) and not job.exposed())
        return job.wait_until(is_sound, f"nothing exposed and {spares} spare(s)", START_S)[1]

    def runs_again(self, job, before, dead):
        """The job runs in a later generation, and who isn't dead is who it was."""
        self.pace(job)
        after = job.wait_running(jobs.generation(before), START_S)
        gone = [trainer["node"] for trainer in jobs.seats(before).values() if trainer["seat"] in dead]
        self.assert_survivors(before, after, but=gone)
        return after

    # Deaths.

    def hold_seat(self, job, seat, phase):
        """Parks the seat's trainer when it next comes to the phase; answers its node."""
        node = job.node_of_seat(seat)
        job.hold(node, phase, 0)  # before the others may go on: few steps are to pass
        job.pacers.discard(node)
        self.unpace(job)
        job.wait_held(node, phase, START_S)
        return node

    def die(self, job, seat, whole_node):
        """The seat's node, or its trainer alone; a held one dies where it is held."""
        trainer = job.seat(seat)
        if whole_node:
            job.kill_node(trainer["node"])
            return
        with Victims([Identity(trainer["pid"], trainer["start_time"])]) as victims:
            victims.send()
            self.assertTrue(victims.wait_ended())
        job.release(trainer["node"])  # the next process there is not to be held

    # The verdict.

    def finish_paced(self, job, recoveries):
        """To the end; then every loss, tensor and sample is that of plain PyTorch, and nothing was done again
        unsaid."""
        self.unpace(job)
        self.assertEqual(0, job.wait_end(END_S), job.tail())
        job.follower.thread.join(30)  # the last of its events come after the job's end
        run, steps = job.run(), job.options["steps"]
        plain = {name: value for name, value in job.options.items()
                 if name not in ("device_ms", "step_ms", "untraceable")}
        reference = plain_run(job.script, job.world, **plain) if job.script in (GPT, ORDINARY) else \
            reference_run(job.world, **plain)
        compared = record.compare(run, reference, steps, job.world)
        self.assertEqual([], compared.differences)
        self.assertTrue(compared.equal())
        self.assertEqual(job.world * steps, len({(line["seat"], line["step"]) for line in run.lines}))
        self.assertEqual([], record.updates_accounted(run, recoveries))
        self.assertEqual([], silent_replays(run, job.follower.events))
        return run


def silent_replays(run, events):
    """Every step of a seat follows the one before it, or the resume step of a recovery that lies between the two."""
    restarts = [(event["at_monotonic_ns"], event["resume"]) for event in events if event["kind"] == "running"]
    wrong = []
    for seat in run.seats():
        lines = run.steps(seat)
        for before, after in zip(lines, lines[1:], strict=False):
            resumed = [resume for at_ns, resume in restarts if before["t_ns"] < at_ns < after["t_ns"]]
            if after["step"] != before["step"] + 1 and after["step"] - 1 not in resumed:
                wrong.append(f"seat {seat}: step {after['step']} after step {before['step']}, resumed {resumed}")
    return wrong


def forbid_tracing():
    """For trainers: nobody may look into this process from outside, as in hardened containers."""
    pr_set_dumpable = 4
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_dumpable, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_DUMPABLE)")

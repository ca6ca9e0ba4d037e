"""From the kill to the next step done on every seat: pawl with a spare, against torchrun restarting from torch.save, or
from dcp.save where weights are cut over the ranks; beside them, if asked for, pawl with a spare that parks cold.

Both train the same GPT with the same flags on this machine. Against pawl a stranger kills a whole node: keeper, daemon
and trainer. torchrun has it easier: only one trainer dies, its agent lives and has nothing to agree on with other
nodes, and the checkpoint lies in the page cache. Rounds of either take turns; each round gives a ratio.
"""
import os
import random
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import job as jobs
import record
import verdict
from figures import figure, table, text
from harness import PAWL, TOOLS, TestedJob
from processes import Victims, descendants, identity

HERE = os.path.dirname(os.path.abspath(__file__))
STEPS = 1_000_000       # nobody gets there
STEPS_BEFORE_A_KILL = 12
PAWL_PARTS = verdict.PARTS
SAVES = {"torch": "torch.save", "dcp-sync": "dcp.save"}
TORCHRUN_PARTS = ("notice, end the others, start anew", "import, make groups", "build, load, first step")
TIMEOUT_S = 300.0


class Failed(Exception):
    """A round did not do what it should have; the text says what it said."""


def bench_kills(options, gpt, folder, parallel, device_ms, load):
    """Rounds of kills; the answer as numbers."""
    flags = [*options.size, "--steps", str(STEPS), "--device-ms", str(device_ms), "--parallel", parallel]
    runs = {"pawl": pawl_round, "torchrun": torchrun_round} | ({"cold": cold_round} if options.cold else {})
    told, ratios = {name: [] for name in runs}, []
    for index in range(options.rounds):
        load.quiet()
        found = {}
        for name in sorted(runs, reverse=index % 2 == 1):
            path = tempfile.mkdtemp(prefix=f"kills-{name}-", dir=folder)
            found[name] = runs[name](options, gpt, path, flags, seed=options.seed + index)
            shutil.rmtree(path)
        for name, kills in found.items():
            told[name] += kills
        medians = {name: statistics.median(kill["total_ms"] for kill in kills) for name, kills in found.items()}
        ratios.append(medians["torchrun"] / medians["pawl"])
        print(f"kills, {parallel}, {device_ms} ms of device, round {index + 1}/{options.rounds}: "
              + ", ".join(f"{name} {median:.0f} ms" for name, median in medians.items())
              + f": {ratios[-1]:.1f}x", file=sys.stderr, flush=True)
    return {"parallel": parallel, "device_ms": device_ms, "monitor_interval_s": options.monitor_interval,
            "save_every": options.every,
            "ratio": figure(ratios), "ratios": ratios, **{name: summary(told[name]) for name in told}}


def summary(kills):
    parts = {part: figure([kill["parts"][part] for kill in kills]) for part in kills[0]["parts"]}
    return {"total_ms": figure([kill["total_ms"] for kill in kills]), "parts_ms": parts,
            "caught_up_ms": figure([kill["caught_up_ms"] for kill in kills]),
            "steps_redone": figure([kill["redone"] for kill in kills]),
            "steps_redone_max": max(kill["redone"] for kill in kills), "kills": kills}


def markdown(told):
    pawl, peer = told["pawl"], told["torchrun"]
    where = f"cores free for {told['device_ms']} ms of each step, as with a device" if told["device_ms"] else \
        f"all four trainers computing on {os.cpu_count()} cores"
    rows = [[f"**{name}**", f"**{text(side['total_ms'], 0)}**", text(side["caught_up_ms"], 0),
             f"{text(side['steps_redone'], 0)}, at most {side['steps_redone_max']}"]
            for name, side in (("pawl, a whole node killed, spare seated", pawl),
                               (f"torchrun, one trainer killed, polled each {told['monitor_interval_s']} s, "
                                f"{SAVES[kind(told['parallel'])]} each {told['save_every']} steps", peer),
                               ("pawl, the spare had not rehearsed", told.get("cold"))) if side]
    lines = [f"### From the kill to the next step done on every seat ({told['parallel']}; {where})", "",
             f"torchrun : pawl **{text(told['ratio'])}**, {pawl['total_ms']['count']} and {peer['total_ms']['count']} "
             f"kills.", "",
             *table(["median (10 % .. 90 %)", "next step done, ms", "first step that is new, ms", "steps redone"],
                    rows)]
    lines += ["Where it goes, ms:", "", *table(["pawl", ""], [[part, text(pawl["parts_ms"][part])]
                                                              for part in PAWL_PARTS]),
              *table(["torchrun", ""], [[part, text(peer["parts_ms"][part], 0)] for part in TORCHRUN_PARTS])]
    return lines


def kind(parallel):
    """How torchrun's side saves: saving_train.py's --save."""
    return "torch" if parallel == "ddp-zero1" else "dcp-sync"


# What both have in common -----------------------------------------------------------------------------------------

def caught_up_ms(kill_ns, run, until_ns):
    """Until a step is done on every seat that nobody had done before the kill."""
    first = max(line["step"] for line in run.lines if line["t_ns"] <= kill_ns) + 1
    done = [max((line["t_ns"] for line in run.steps(seat) if line["step"] == first
                 and kill_ns < line["t_ns"] < until_ns),
                default=None) for seat in run.seats()]
    return None if None in done else (max(done) - kill_ns) / 1e6


def check_redone(run, name, apart=0.0):
    """A step that was done again must have given the same loss, or what was measured is no recovery. `apart`: by what
    part of itself it may differ. A process that torchrun has started anew adds gradients in another order at first,
    since DDP makes its buckets anew after the first step: its bits are others."""
    seen = {}
    for line in sorted(run.lines, key=lambda line: line["t_ns"]):
        key = (line["seat"], line["step"])
        first = seen.setdefault(key, line)
        if first["loss_bits"] != line["loss_bits"] and abs(first["loss"] - line["loss"]) >= apart * abs(first["loss"]):
            raise Failed(f"{name}: seat {key[0]} did step {key[1]} again: loss {line['loss']}, first {first['loss']}")


# pawl -------------------------------------------------------------------------------------------------------------

def cold_round(options, gpt, path, flags, seed):
    return pawl_round(options, gpt, path, flags, seed, script=os.path.join(HERE, "cold_train.py"))


def pawl_round(options, gpt, path, flags, seed, script=None):
    """One job in which nodes are killed one after the other."""
    command = [script or gpt.script, *flags, "--seed", str(seed), "--record", os.path.join(path, "record")]
    job_flags = ["--standalone", "--nnodes", str(options.nodes), "--spares", "1", "--test-hooks"]
    job = TestedJob(path, f"bench-{secrets.token_hex(3)}", job_flags, command, options.nodes, gpt.environment).start()
    follower = None
    try:
        job.wait_running(timeout_s=TIMEOUT_S)
        job.wait_spare(timeout_s=TIMEOUT_S)
        job.wait_step(STEPS_BEFORE_A_KILL, timeout_s=TIMEOUT_S)
        follower = jobs.Follower(job)
        for index in range(options.kills):
            job.wait_spare(timeout_s=TIMEOUT_S)  # one that has rehearsed
            kill_one(job, path, options, seed * 1000 + index)
        kills = wait_told(job, follower)
    finally:
        if follower:
            follower.close()
        job.stop()
    check_redone(job.run(), "pawl")
    return kills


def kill_one(job, path, options, seed):
    done = subprocess.run(
        [sys.executable, "-B", os.path.join(TOOLS, "killer.py"), "--pawl", PAWL, "--job", job.name, "--run-dir", path,
         "--seed", str(seed), "--kills", "1", "--steps", "1", "--nodes", str(options.nodes), "--out", job.kills_path],
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise Failed(f"{done.stderr}\n{job.tail()}\n{job.logs()}")


def wait_told(job, follower):
    """Every kill's times, once the step after the last has been done and recorded."""
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        run, kills = job.run(), verdict.read_kills(job.kills_path)[0]
        told = [tell_pawl(kill, list(follower.events), run, later["at_ns"] if later else time.monotonic_ns())
                for kill, later in zip(kills, [*kills[1:], None], strict=False)]
        if all(kill["total_ms"] is not None and kill["caught_up_ms"] is not None for kill in told):
            return told
        if time.monotonic() > deadline:
            raise Failed(f"a kill was not recovered from: {told}\n{job.tail()}\n{job.logs()}")
        time.sleep(0.5)


def tell_pawl(kill, events, run, until_ns):
    stall = verdict.stall(kill, events, run)
    return {"total_ms": stall["total_ms"], "parts": stall["stall_ms"], "phase": kill["phase"],
            "caught_up_ms": caught_up_ms(kill["at_ns"], run, until_ns),
            "redone": verdict.redone(kill, run, stall["resume"]) or 0}


# torchrun ---------------------------------------------------------------------------------------------------------

def torchrun_round(options, gpt, path, flags, seed):
    """One torchrun in which a trainer is killed, as often as nodes under pawl."""
    os.makedirs(os.path.join(path, "record"))
    command = [gpt.python, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1",
               "--nproc-per-node", str(options.nodes), "--max-restarts", "1000",
               "--monitor-interval", str(options.monitor_interval), os.path.join(HERE, "saving_train.py"),
               "--save", kind(flags[flags.index("--parallel") + 1]), "--every", str(options.every),
               "--folder", os.path.join(path, "checkpoints"),
               *flags, "--seed", str(seed), "--record", os.path.join(path, "record")]
    # Without this torch 2.13 never restarts over gloo: its store lives on, and with it the dead processes' addresses.
    environment = {**os.environ, **gpt.plain_environment, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
                   "TORCH_CPP_LOG_LEVEL": "ERROR", "PYTHONWARNINGS": "ignore"}
    with open(os.path.join(path, "output"), "wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   env=environment, start_new_session=True)
    chance, told = random.Random(seed), []
    try:
        attempt = Attempt(path, options.nodes, process)
        for _ in range(options.kills):
            attempt.wait_steps(STEPS_BEFORE_A_KILL)
            time.sleep(chance.uniform(0.0, 0.5))
            told.append(attempt.kill(chance.randrange(options.nodes), options.every))
    finally:
        end(process)
    run = record.read_run(os.path.join(path, "record"))
    check_redone(run, "torchrun", apart=0.01)
    for kill, later in zip(told, [*told[1:], None], strict=False):
        kill["caught_up_ms"] = caught_up_ms(kill["at_ns"], run, later["at_ns"] if later else time.monotonic_ns())
    return told


class Attempt:
    """The trainers that torchrun has running now, known by what they write down."""

    def __init__(self, path, seats, process):
        self.path, self.seats, self.process, self.dead = path, seats, process, set()

    def wait(self, condition, what):
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            answer = condition(record.read_run(os.path.join(self.path, "record")))
            if answer is not None:
                return answer
            if self.process.poll() is not None or time.monotonic() > deadline:
                with open(os.path.join(self.path, "output"), encoding="utf-8", errors="replace") as file:
                    raise Failed(f"torchrun: waited in vain for {what}\n{file.read()[-3000:]}")
            time.sleep(0.25)  # times come from the record; looking costs the trainers a core

    def living(self, run, seat):
        """The seat's lines by its process of now."""
        return [line for line in run.steps(seat) if line["pid"] not in self.dead]

    def wait_steps(self, count):
        return self.wait(lambda run: True if all(len(self.living(run, seat)) >= count for seat in range(self.seats))
                         else None, f"{count} steps")

    def kill(self, seat, every):
        """Kills this seat's trainer; the times until every seat has done a step again."""
        run = record.read_run(os.path.join(self.path, "record"))
        pid = self.living(run, seat)[-1]["pid"]
        with Victims([identity(pid)]) as victims:
            at_ns = victims.send()
        run = record.read_run(os.path.join(self.path, "record"))
        self.dead |= set(run.starts)
        before = max(line["step"] for line in run.lines if line["t_ns"] <= at_ns)

        def back(run):
            first = [self.living(run, seat)[:1] for seat in range(self.seats)]
            return (run, [lines[0] for lines in first]) if all(first) else None
        run, first = self.wait(back, "the next step")
        self.wait(lambda run: True if all(self.living(run, seat)[-1]["step"] > before for seat in range(self.seats))
                  else None, "a step that is new")
        starts = [run.starts[line["pid"]] for line in first]
        tick_ms = 1000 / os.sysconf("SC_CLK_TCK")
        marks = [min(start["start_time"] for start in starts) * tick_ms - at_ns / 1e6,
                 (max(start["started_ns"] for start in starts) - at_ns) / 1e6,
                 (max(line["t_ns"] for line in first) - at_ns) / 1e6]
        parts = [marks[0], marks[1] - marks[0], marks[2] - marks[1]]
        return {"at_ns": at_ns, "total_ms": marks[2], "parts": dict(zip(TORCHRUN_PARTS, parts, strict=False)),
                "redone": max(0, before - min(line["step"] for line in first) + 1)}


def end(process):
    """The agent and its trainers."""
    below = [who for who in map(identity, descendants(process.pid)) if who]
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with Victims(below) as victims:
        victims.send()
        victims.wait_ended(5.0)

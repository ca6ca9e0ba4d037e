"""What protection costs and how long a recovery takes, as ratios measured in one run on this machine.

Steps: rounds with pawl and rounds without take turns, both over loopback and with the same seed; each round gives one
ratio of medians, so that a machine that is busier for a while makes one round worse and not the answer.
Kills: a job in which whole nodes are killed at random instants (tools/demo/killer.py), one after the other.
Detection is set against its floor: how long it takes from SIGKILL until the kernel gives the death away by a pidfd, and
until a connection to the dead process's port is refused.
States of any size, seals, and cores that others want: gigabytes.py.
Prints Markdown tables; --out FILE writes them there as well.
"""
import argparse
import os
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo"))
sys.path.insert(0, os.path.join(ROOT, "test"))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import job as jobs  # noqa: E402
import record  # noqa: E402
import verdict  # noqa: E402
from figures import at, figure, text  # noqa: E402
from gigabytes import STATEBENCH, bench_crowd, bench_gigabytes, bench_seals  # noqa: E402
from harness import CHARLM, CHARLM_PLAIN, PAWL, TOOLS, TestedJob, trainer_flags  # noqa: E402
from processes import Victims, identity  # noqa: E402
from reference import Reference  # noqa: E402


def spread(values):
    return text(figure(values), 3)


def make_job(folder, flags, size, seed, nodes, spares):
    command = [CHARLM, *trainer_flags(seed, **size), "--record", os.path.join(folder, "record")]
    all_flags = ["--standalone", "--nnodes", str(nodes), "--spares", str(spares), *flags]
    return TestedJob(folder, f"bench-{secrets.token_hex(3)}", all_flags, command, nodes)


# Steps -------------------------------------------------------------------------------------------------------------

def protected_round(folder, size, nodes, extra):
    job = make_job(folder, ["--namespaces", "off", *extra], size, 1, nodes, 1)
    nodes_seen = {}
    job.start()
    try:
        while not job.ended():
            nodes_seen = job.nodes() or nodes_seen
            time.sleep(0.5)
        if job.process.returncode != 0:
            raise jobs.JobError(job.tail())
    finally:
        job.stop()
    return job.run(), nodes_seen


def plain_round(folder, size, nodes):
    return Reference([CHARLM_PLAIN, *trainer_flags(1, **size)], folder, nodes).start().wait()


def step_medians(run):
    """Median step per seat, the first ten steps left out."""
    return [statistics.median(record.step_times_ms(run, seat)[10:]) for seat in run.seats()]


def bench_steps(options, folder, device_ms):
    """device_ms > 0: each step waits so long as if a device computed, so that the cores are free meanwhile."""
    size = {"steps": options.steps, "batch": options.batch, "hidden": options.hidden, "device_ms": device_ms}
    ratios, with_ms, without_ms, waits, copies, wire, voided = [], [], [], [], [], [], []
    for index in range(options.rounds):
        order = (0, 1) if index % 2 == 0 else (1, 0)  # neither is always the one on a warm machine
        found = {}
        for which in order:
            path = os.path.join(folder, f"round-{index}-{which}")
            os.makedirs(path, mode=0o700)
            found[which] = protected_round(path, size, options.nodes, []) if which == 0 else \
                plain_round(path, size, options.nodes)
            shutil.rmtree(path)
        run, nodes = found[0]
        with_ms.append(statistics.mean(step_medians(run)))
        without_ms.append(statistics.mean(step_medians(found[1])))
        ratios.append(with_ms[-1] / without_ms[-1])
        waits += [line["fence_wait_ns"] / 1e6 for line in run.lines]
        for trainer in jobs.seats(nodes).values():
            captured = max(1, trainer["windows"]["captured"])
            copies.append(trainer["copy_ms_total"] / captured)
            voided.append(trainer["windows"]["voided"] / (captured + trainer["windows"]["voided"]))
        steps = max((trainer["step"] for trainer in jobs.seats(nodes).values()), default=1)
        wire.append(sum(status["wire_bytes"]["sent"] for status in nodes.values()) / max(1, steps))
        print(f"round {index + 1}/{options.rounds}: {with_ms[-1]:.2f} ms with, {without_ms[-1]:.2f} ms without: "
              f"{ratios[-1]:.3f}x", file=sys.stderr)
    waits.sort()
    return [
        f"### A step with pawl against one without ({options.nodes} nodes, {options.steps} steps a round, "
        f"{options.rounds} rounds each, taking turns; {os.cpu_count()} cores, "
        + (f"free for {device_ms} ms of each step, as with a device)" if device_ms else "all of them computing)"), "",
        "| | median (10 % .. 90 %) |", "|---|---|",
        f"| ratio, with : without | **{spread(ratios)}** |",
        f"| step with pawl, ms | {spread(with_ms)} |",
        f"| step without, ms | {spread(without_ms)} |", "",
        "Where it goes:", "", "| | |", "|---|---|",
        f"| wait at the fence, ms | p50 {at(waits, 0.5):.3f}, p95 {at(waits, 0.95):.3f}, max {waits[-1]:.2f} |",
        f"| capture (copy and checksum, beside the step), ms a window and seat | {spread(copies or [0])} |",
        f"| windows voided | {100 * statistics.mean(voided or [0]):.2f} % |",
        f"| sent between nodes, all together, MB a step | {spread([count / 1e6 for count in wire])} |", ""]


# Kills -------------------------------------------------------------------------------------------------------------

def bench_kills(options, folder):
    told, done = [], 0
    while done < options.kills:
        count = min(10, options.kills - done)
        told += kill_some(options, folder, count, seed=options.seed + done)
        done += count
        print(f"kills {done}/{options.kills}", file=sys.stderr)
    complete = [kill for kill in told if kill["total_ms"] is not None]
    rows = [f"### From the kill of a whole node to the next step done on every seat ({len(complete)} kills)", "",
            "| part | p50 ms | p95 ms | max ms |", "|---|---|---|---|"]
    for part in (*verdict.PARTS, "all"):
        values = sorted(kill["total_ms"] if part == "all" else kill["stall_ms"][part] for kill in complete
                        if part == "all" or kill["stall_ms"][part] is not None)
        if values:
            name = f"**{part}**" if part == "all" else part
            rows.append(f"| {name} | {at(values, 0.5):.1f} | {at(values, 0.95):.1f} | {values[-1]:.1f} |")
    phases = sorted({kill["phase"] for kill in told})
    rows += ["", "Phases observed right before the kills: "
             + ", ".join(f"{phase} {sum(kill['phase'] == phase for kill in told)}" for phase in phases) + ". "
             "Steps redone a kill: " + spread([kill["redone"] for kill in complete]) + ".", ""]
    return rows + floors(complete)


def kill_some(options, folder, count, seed):
    """One job in which `count` nodes are killed, then stopped."""
    path = tempfile.mkdtemp(dir=folder)
    size = {"steps": 1_000_000, "batch": options.batch, "hidden": options.hidden}
    job = make_job(path, ["--test-hooks"], size, seed, options.nodes, 1).start()
    follower = None
    try:
        job.wait_running()
        job.wait_spare()
        follower = jobs.Follower(job)
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(TOOLS, "killer.py"), "--pawl", PAWL, "--job", job.name,
             "--run-dir", path,
             "--seed", str(seed), "--kills", str(count), "--steps", "1", "--nodes", str(options.nodes), "--out",
             job.kills_path], capture_output=True, text=True, timeout=60 + 30 * count, check=False)
        if done.returncode != 0:
            raise jobs.JobError(done.stderr + job.tail() + job.logs())
        time.sleep(1.0)  # the last recovery's next step and its events
        events = list(follower.events)
    finally:
        if follower:
            follower.close()
        job.stop()
    run, (kills, _) = job.run(), verdict.read_kills(job.kills_path)
    shutil.rmtree(path)
    told = []
    for kill in kills:
        stall = verdict.stall(kill, events, run)
        told.append({**kill, **stall, "redone": verdict.redone(kill, run, stall["resume"])})
    return told


def floors(kills):
    """What the kernel itself needs to give a death away, on this machine, now."""
    pidfd_ms, refused_ms = [], []
    for _ in range(20):
        child = subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True)
        port = int(child.stdout.readline())
        with Victims([identity(child.pid)]) as victims:
            began = time.monotonic()
            victims.send(signal.SIGKILL)
            victims.wait_ended()
            pidfd_ms.append((time.monotonic() - began) * 1e3)
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) != 0:
                    break
        refused_ms.append((time.monotonic() - began) * 1e3)
        child.wait()
        child.stdout.close()
    detect = [kill["stall_ms"]["detect"] for kill in kills if kill["stall_ms"]["detect"] is not None]
    floor = statistics.median(refused_ms)
    return [
        "### Detection against its floor", "", "| | median (10 % .. 90 %) ms |", "|---|---|",
        f"| floor: SIGKILL until a pidfd tells | {spread(pidfd_ms)} |",
        f"| floor: SIGKILL until the port refuses | {spread(refused_ms)} |",
        f"| pawl: SIGKILL of a node until its death is written down | {spread(detect or [0])} |",
        f"| ratio to the port's floor | {statistics.median(detect or [0]) / max(floor, 1e-3):.1f} |", ""]


LISTENER = """
import socket, sys, time
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
print(listener.getsockname()[1], flush=True)
time.sleep(60)
"""


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="pairs of runs with and without; 0: none")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--device-ms", type=int, default=150, help="of the steps whose cores are free")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--kills", type=int, default=20, help="0: none; 200 for published numbers")
    parser.add_argument("--state-kills", type=int, default=3, help="of statebench's nodes, trainers, pawlds; 0: none")
    parser.add_argument("--sizes", default="4M,1G", help="of statebench's state a seat; 1G needs 16 GiB of memory")
    parser.add_argument("--step-ms", type=int, default=4000, help="of a step with a large state")
    parser.add_argument("--seals", type=int, default=3, help="runs of 1 GiB alone; 0: none")
    parser.add_argument("--minutes", type=float, default=0, help="on oversubscribed cores; 10 for published numbers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", help="also write the tables to this file")
    return parser.parse_args()


def main():
    options = parse()
    for path in (PAWL, CHARLM, CHARLM_PLAIN, STATEBENCH):
        if not os.access(path, os.X_OK):
            print(f"{path} is not there; `make build` makes it", file=sys.stderr)
            return 2
    folder = tempfile.mkdtemp(prefix="pawl-bench-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    rows = []
    try:
        if options.rounds > 0:
            for device_ms in (0, options.device_ms):
                rows += bench_steps(options, folder, device_ms)
        if options.kills > 0:
            rows += bench_kills(options, folder)
        if options.seals > 0:
            rows += bench_seals(options, folder)
        if options.state_kills > 0:
            rows += bench_gigabytes(options, folder)
        if options.minutes > 0:
            rows += bench_crowd(options, folder)
    except (jobs.JobError, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = "\n".join(rows)
    print(text)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""PyTorch on a GPU under pawl: whether a training that loses a node ends as if nothing had happened, how long the kill
costs, and what a step costs. Two seats and a spare are three nodes of this machine that share its GPU, over NCCL.

  ddp, fsdp   30 steps, one node killed at step 12, against the same script without pawl, undisturbed: bitwise equal?
  step        a step with pawl and without, at about 1 GiB of state a seat: of one seat, and of two
One line for each figure: `name value`. A part that fails says so on a line of its own, and the others are run.
"""
import argparse
import glob
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
for folder in ("tools/demo", "test"):
    sys.path.insert(0, os.path.join(ROOT, folder))

import job as jobs  # noqa: E402
from harness import TestedJob  # noqa: E402
from reference import free_port  # noqa: E402

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
KILL_AT, FIRST_STEPS = 12, 8
PARTS = ("ddp", "fsdp", "step")


def parse():
    parser = argparse.ArgumentParser(prog="bench/gpu/run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="nccl", help="that CUDA tensors go over")
    parser.add_argument("--cpu", action="store_true", help="on CPUs, over gloo: to try the bench itself")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=6, help="of ddp and fsdp; 8.4 M parameters each at that width")
    parser.add_argument("--large-blocks", type=int, default=10, help="of step")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--large-batch", type=int, default=8192)
    parser.add_argument("--part-s", type=float, default=100, help="at most, of each run")
    parser.add_argument("--keep", metavar="FOLDER", help="logs of the runs are copied there")
    return parser.parse_args()


def environment(options):
    given = {"PAWL_GPU": "1", "PYTHON_EXEC": sys.executable, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.path.join(ROOT, "python"), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1",
             "GLOO_SOCKET_IFNAME": "lo", "NCCL_DEBUG": os.environ.get("NCCL_DEBUG", "WARN")}
    if options.cpu:
        given["CUDA_VISIBLE_DEVICES"] = ""
    return given


def flags(options, parallel, steps, blocks, batch, folder):
    found = ["--parallel", parallel, "--steps", steps, "--width", options.width, "--blocks", blocks, "--batch", batch,
             "--record", os.path.join(folder, "record")]
    return [*map(str, found), *(["--over-gloo"] if options.backend == "gloo" else [])]


def run_plain(options, folder, world, arguments):
    os.makedirs(folder, exist_ok=True)
    port, ranks = str(free_port()), []
    with open(os.path.join(folder, "output"), "w", encoding="utf-8") as output:
        for rank in range(world):
            given = {**os.environ, **environment(options), "RANK": str(rank), "WORLD_SIZE": str(world),
                     "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            ranks.append(subprocess.Popen([sys.executable, "-B", TRAIN, *arguments], env=given, stdout=output,
                                          stderr=output))
        until = time.monotonic() + options.part_s
        try:
            codes = [rank.wait(max(0.1, until - time.monotonic())) for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
    if any(codes):
        raise jobs.JobError(f"the run without pawl ended with {codes}: {tail(os.path.join(folder, 'output'))}")


def tail(path, size=3000):
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()[-size:]


def start_pawl(options, folder, world, spares, arguments):
    name = f"gpu-{secrets.token_hex(3)}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    job_flags = ["--standalone", "--nnodes", str(world), "--spares", str(spares), "--namespaces", "off",
                 "--no-restart-dead-nodes", "--keep"]
    return TestedJob(folder, name, job_flags, [TRAIN, *arguments], world, environment(options)).start()


def finish(options, job):
    code = job.wait_end(options.part_s)
    if code != 0:
        raise jobs.JobError(f"the job under pawl ended with {code}: {job.output()[-3000:]}\n{job.logs(40)}")


def steps_of(folder):
    """Lines of all ranks: {"rank", "pid", ...}."""
    found = []
    for path in glob.glob(os.path.join(folder, "record", "steps.*.jsonl")):
        _, rank, pid, _ = os.path.basename(path).split(".")
        with open(path, encoding="utf-8") as file:
            found += [{"rank": int(rank), "pid": int(pid), **json.loads(line)} for line in file]
    return found


def final_of(folder, world):
    found = []
    for rank in range(world):
        with open(os.path.join(folder, "record", f"final.{rank}.json"), encoding="utf-8") as file:
            found.append(json.load(file))
    return found


def last_losses(folder):
    """Of each rank and step, as it was done at last."""
    lines = sorted(steps_of(folder), key=lambda each: each["t_ns"])
    return {(each["rank"], each["step"]): each["loss"] for each in lines}


def syncs_of(folder):
    """How often the host waits for the device in a step."""
    return statistics.median(each["syncs"] for each in steps_of(folder) if each["step"] > FIRST_STEPS)


def next_step_ms(folder, killed_ns, world):
    """From the kill until the first step that every seat has done after it."""
    done = {}
    for each in steps_of(folder):
        if each["t_ns"] > killed_ns:
            done.setdefault(each["step"], {}).setdefault(each["rank"], each["t_ns"])
    whole = [max(ranks.values()) for ranks in done.values() if len(ranks) == world]
    return (min(whole) - killed_ns) / 1e6


def part_kill(options, folder, parallel):
    world = 2
    plain, with_pawl = os.path.join(folder, "plain"), os.path.join(folder, "pawl")
    sizes = (parallel, options.steps, options.blocks, options.batch)
    began = time.monotonic()
    run_plain(options, plain, world, flags(options, *sizes, plain))
    say(f"{parallel}_plain_s", f"{time.monotonic() - began:.1f}")
    began = time.monotonic()
    gate = os.path.join(folder, "gate")
    arguments = [*flags(options, *sizes, with_pawl), "--gate", f"{KILL_AT - 1}:{gate}"]
    job = start_pawl(options, with_pawl, world, 1, arguments)
    try:
        job.wait_spare(1, options.part_s)
        with open(gate, "w", encoding="utf-8"):
            pass
        job.wait_step(KILL_AT, options.part_s)
        killed_ns = job.kill_node(job.node_of_seat(1))
        finish(options, job)
    finally:
        end(options, job)
    say(f"{parallel}_pawl_s", f"{time.monotonic() - began:.1f}")
    mine, theirs = final_of(with_pawl, world), final_of(plain, world)
    differing = sorted({name for a, b in zip(mine, theirs, strict=True) for name in a["digests"]
                        if a["digests"][name] != b["digests"].get(name)})
    losses = [place for place, loss in last_losses(plain).items() if last_losses(with_pawl).get(place) != loss]
    say(f"{parallel}_state_equal", "yes" if not differing else f"no: {len(differing)} tensors, as {differing[0]}")
    say(f"{parallel}_random_equal", "yes" if all(a["random"] == b["random"] for a, b in zip(mine, theirs, strict=True))
        else "no")
    say(f"{parallel}_losses_equal", "yes" if not losses else f"no: {len(losses)}, from (rank, step) {min(losses)} on")
    say(f"{parallel}_syncs_plain_and_pawl", f"{syncs_of(plain)} {syncs_of(with_pawl)}")
    say(f"{parallel}_kill_to_next_step_ms", f"{next_step_ms(with_pawl, killed_ns, world):.0f}")


def part_step(options, folder):
    for world, parallel, batch in ((1, "none", options.large_batch), (2, "ddp", options.large_batch)):
        sizes = (parallel, 30 if world == 1 else 24, options.large_blocks, batch)
        plain, with_pawl = os.path.join(folder, f"plain{world}"), os.path.join(folder, f"pawl{world}")
        run_plain(options, plain, world, flags(options, *sizes, plain))
        job = start_pawl(options, with_pawl, world, 0, flags(options, *sizes, with_pawl))
        try:
            finish(options, job)
        finally:
            end(options, job)
        without, under = step_ms(plain), step_ms(with_pawl)
        say(f"step_{world}_seats_plain_ms", f"{without:.1f}")
        say(f"step_{world}_seats_pawl_ms", f"{under:.1f}")
        say(f"step_{world}_seats_ratio", f"{under / without:.3f}")


def step_ms(folder):
    """From one step's end to the next one's: the median of rank 0."""
    times = [each["t_ns"] for each in sorted(steps_of(folder), key=lambda each: each["step"]) if each["rank"] == 0]
    return statistics.median(b - a for a, b in zip(times[FIRST_STEPS:], times[FIRST_STEPS + 1:], strict=False)) / 1e6


def end(options, job):
    if options.keep:
        shutil.copytree(job.directory, os.path.join(options.keep, job.name), dirs_exist_ok=True,
                        ignore=lambda folder, names: [each for each in names if not each.startswith(("node-", "log"))])
    job.stop()


def say(name, value):
    print(name, value, flush=True)


MACHINE = '''
import torch
cuda = torch.cuda.is_available()
nccl = ".".join(map(str, torch.cuda.nccl.version())) if cuda else "none"
print(f"torch {torch.__version__}, NCCL {nccl}, {torch.cuda.get_device_name(0) if cuda else 'no GPU'}")
'''


def say_machine(options):
    done = subprocess.run([sys.executable, "-c", MACHINE], env={**os.environ, **environment(options)},
                          capture_output=True, text=True, check=False)
    say("machine", f"{(done.stdout or done.stderr).strip()}, {os.cpu_count()} cores, "
                   f"{shutil.disk_usage('/dev/shm').free >> 20} MiB of shared memory free")


def main():
    options = parse()
    say_machine(options)
    ways = {"ddp": lambda folder: part_kill(options, folder, "ddp"),
            "fsdp": lambda folder: part_kill(options, folder, "fsdp"),
            "step": lambda folder: part_step(options, folder)}
    failed = 0
    for part in options.only or PARTS:
        folder = tempfile.mkdtemp(prefix=f"pawl-gpu-{part}-")
        began = time.monotonic()
        try:
            ways[part](folder)
        except (AssertionError, OSError, ValueError, subprocess.SubprocessError, jobs.JobError) as error:
            failed += 1
            say(f"{part}_failed", f"{type(error).__name__}: {error}")
        finally:
            say(f"{part}_took_s", f"{time.monotonic() - began:.1f}")
            shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

"""What a step costs with pawl, and with PyTorch's own ways to be safe at every step, against plain PyTorch.

Every round runs each of them once, one after the other in an order that turns; a ratio is to the plain run of its
round. Where a device computes, the cores are free for most of a step (--device-ms); without one all trainers share the
cores.
"""
import glob
import json
import os
import random
import secrets
import shutil
import statistics
import sys
import tempfile
import time

import job as jobs
import record
from figures import figure, table, text
from harness import TestedJob
from reference import Reference

HERE = os.path.dirname(os.path.abspath(__file__))
FIRST_STEPS = 10  # left out: first calls, the seal of the layout
TIMEOUT_S = 300.0
SAVES = {"torch.save each step, page cache": "torch", "torch.save each step, to the disk": "torch-fsync",
         "dcp.async_save each step": "dcp"}
SAVES_OF_SHARDS = {"dcp.save each step, page cache": "dcp-sync", "dcp.async_save each step": "dcp"}
PLAIN, PAWL_NAME = "plain PyTorch", "pawl, each step captured and replicated"


def bench_steps(options, gpt, folder, parallel, device_ms, load):
    flags = [*options.size, "--steps", str(options.steps), "--device-ms", str(device_ms), "--seed", str(options.seed),
             "--parallel", parallel]
    saves = SAVES if parallel == "ddp-zero1" else SAVES_OF_SHARDS
    names = [PLAIN, PAWL_NAME, *saves]
    found = {name: [] for name in names}
    for index in range(options.rounds):
        load.quiet()
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            path = tempfile.mkdtemp(prefix="steps-", dir=folder)
            found[name].append(one_run(name, saves.get(name), options, gpt, path, flags))
            shutil.rmtree(path)
        plain = found[PLAIN][-1]["step_ms"]
        print(f"steps, {parallel}, {device_ms} ms of device, round {index + 1}/{options.rounds}: plain {plain:.1f} ms; "
              + ", ".join(f"{name} {found[name][-1]['step_ms'] / plain:.3f}x" for name in names[1:]), file=sys.stderr,
              flush=True)
    told = {"parallel": parallel, "device_ms": device_ms, "steps": options.steps, "rounds": options.rounds, "ways": {}}
    for name in names:
        ratios = [run["step_ms"] / plain["step_ms"] for run, plain in zip(found[name], found[PLAIN], strict=False)]
        told["ways"][name] = {"step_ms": figure([run["step_ms"] for run in found[name]]), "ratio": figure(ratios),
                              "ratios": ratios, "lost": lost([run["lost"] for run in found[name]]),
                              "fence_wait_ms": found[name][-1].get("fence_wait_ms")}
    return told


def warnings(told):
    plain = told["ways"][PLAIN]["step_ms"]
    if plain["p90"] > 1.15 * plain["p10"]:
        return [f"{told['parallel']}, with {told['device_ms']} ms of device: plain PyTorch's own step moved between "
                f"{plain['p10']:.0f} and {plain['p90']:.0f} ms: what others did on the machine is in these ratios"]
    return []


def markdown(told):
    where = f"cores free for {told['device_ms']} ms of each step, as with a device" if told["device_ms"] else \
        f"all four trainers computing on {os.cpu_count()} cores"
    rows = []
    for name, way in told["ways"].items():
        rows.append([name, text(way["step_ms"]), "1" if name == PLAIN else f"**{text(way['ratio'], 3)}**",
                     lost_text(name, way["lost"])])
    columns = ["median (10 % .. 90 %)", "step, ms", "to plain", "finished steps that a death loses"]
    return [f"### A step, each way to be safe against plain PyTorch ({told['parallel']}; {where}; "
            f"{told['rounds']} rounds of {told['steps']} steps)", "", *table(columns, rows)]


def lost(runs):
    runs = [each for each in runs if each]
    if not runs:
        return None
    return {"mean": statistics.mean(each["mean"] for each in runs), "max": max(each["max"] for each in runs)}


def lost_text(name, found):
    if name == PLAIN:
        return "all"
    return f"{found['mean']:.2f} on average, at most {found['max']}" if found else "see the kills"


def one_run(name, save, options, gpt, path, flags):
    """{"step_ms", "lost"} of one training. `save`: saving_train.py's, of one that saves."""
    if name == PAWL_NAME:
        run, nodes = with_pawl(options, gpt, path, flags)
        found = {"fence_wait_ms": [trainer["fence_wait_ms"] for trainer in jobs.seats(nodes).values()
                                   if trainer.get("fence_wait_ms")], "lost": None}
    else:
        command = [gpt.python, os.path.join(HERE, "saving_train.py"), "--save", save, "--every", "1",
                   "--folder", os.path.join(path, "checkpoints")] if save else [gpt.python, gpt.script]
        directory = os.path.join(path, "record")
        run = without_pawl([*command, *flags], directory, options, gpt)
        found = {"lost": steps_lost(run, directory) if save else None}
    times = [record.step_times_ms(run, seat)[FIRST_STEPS:] for seat in run.seats()]
    return {"step_ms": statistics.mean(statistics.median(each) for each in times), **found}


def without_pawl(command, directory, options, gpt):
    training = Reference(command, directory, options.nodes, gpt.plain_environment)
    try:
        return training.start().wait(TIMEOUT_S)
    finally:
        training.stop()  # also where this process is told to end


def with_pawl(options, gpt, path, flags):
    """The whole training under pawl, undisturbed, over loopback as the plain one."""
    command = [gpt.script, *flags, "--record", os.path.join(path, "record")]
    job_flags = ["--standalone", "--nnodes", str(options.nodes), "--spares", "1", "--namespaces", "off"]
    job = TestedJob(path, f"bench-{secrets.token_hex(3)}", job_flags, command, options.nodes, gpt.environment).start()
    nodes, deadline = {}, time.monotonic() + TIMEOUT_S
    try:
        while not job.ended():
            if time.monotonic() > deadline:
                raise jobs.JobError(f"still running after {TIMEOUT_S:.0f} s\n{job.tail()}\n{job.logs()}")
            nodes = job.nodes() or nodes
            time.sleep(0.5)
        if job.process.returncode != 0:
            raise jobs.JobError(job.tail())
    finally:
        job.stop()
    return job.run(), nodes


def steps_lost(run, directory):
    """Finished steps that would be gone if everything died at an instant: many instants, drawn evenly over the run."""
    saved = {}
    for path in glob.glob(os.path.join(directory, "saved.*.jsonl")):
        with open(path, encoding="utf-8") as file:
            saved[path] = [json.loads(line) for line in file]
    last = min(line["t_ns"] for seat in run.seats() for line in run.steps(seat)[-1:])
    first = max(line["t_ns"] for seat in run.seats() for line in run.steps(seat)[FIRST_STEPS:FIRST_STEPS + 1])
    chance, found = random.Random(1), []
    for _ in range(500):
        at_ns = chance.uniform(first, last)
        done = max(line["step"] for line in run.lines if line["t_ns"] <= at_ns)
        safe = min(max((line["step"] for line in lines if line["t_ns"] <= at_ns), default=0)
                   for lines in saved.values())
        found.append(max(0, done - safe))
    return {"mean": statistics.mean(found), "max": max(found)}

"""The managed group against gloo, by the step of the GPT: group_train.py on every seat, pairs of steps in turn."""
import json
import os
import statistics
import subprocess
import sys

from figures import figure, table, text
from reference import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
BLOCK = 10  # pairs that give one ratio: single steps on a shared core scatter too much
TIMEOUT_S = 300.0


class Failed(Exception):
    pass


def bench_groups(options, gpt, device_ms, load):
    times = {"gloo": [], "managed": []}
    ratios = []
    for index in range(options.rounds):
        load.quiet()
        found = one_run(options, gpt, device_ms)
        for begin in range(0, len(found["gloo"]) - BLOCK + 1, BLOCK):
            blocks = {name: statistics.median(found[name][begin:begin + BLOCK]) for name in found}
            ratios.append(blocks["managed"] / blocks["gloo"])
        for name in times:
            times[name] += found[name]
        print(f"groups, {device_ms} ms of device, round {index + 1}/{options.rounds}: "
              f"{statistics.median(found['managed']) / statistics.median(found['gloo']):.3f}x", file=sys.stderr,
              flush=True)
    return {"device_ms": device_ms, "rounds": options.rounds, "ratio": figure(ratios), "ratios": ratios,
            "step_ms": {name: figure(times[name]) for name in times}}


def one_run(options, gpt, device_ms):
    command = [gpt.python, os.path.join(HERE, "group_train.py"), "--pairs", str(options.steps), "--device-ms",
               str(device_ms), *options.size]
    environment = {**os.environ, **gpt.environment, "GLOO_SOCKET_IFNAME": "lo", "WORLD_SIZE": str(options.nodes),
                   "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True,
                              env={**environment, "RANK": str(rank)}) for rank in range(options.nodes)]
    try:
        said = [process.communicate(timeout=TIMEOUT_S)[0] for process in ranks]
    finally:
        for process in ranks:
            if process.poll() is None:
                process.kill()
                process.wait()
    if any(process.returncode != 0 for process in ranks):
        raise Failed("group_train.py failed:\n" + "\n".join(said)[-3000:])
    return json.loads(next(line for line in said[0].splitlines() if line.startswith("{")))


def markdown(told):
    where = f"cores free for {told['device_ms']} ms of each step" if told["device_ms"] else \
        f"all four trainers computing on {os.cpu_count()} cores"
    step = told["step_ms"]
    return [f"### The managed group against gloo, by the step ({where})", "",
            *table(["median (10 % .. 90 %)", ""],
                   [["**ratio, managed : gloo, blocks of ten pairs**", f"**{text(told['ratio'], 3)}**"],
                    ["step over gloo, ms", text(step["gloo"])],
                    ["step over the managed group, ms", text(step["managed"])]])]

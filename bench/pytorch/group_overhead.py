"""What the managed group adds to one small all-reduce: it and plain gloo in the same processes, in turn, in one run.

    group_overhead.py [--python P] [--ranks 2] [--rounds 40] [--calls 50] [-o json|table]

Each round times `calls` all-reduces on one group and then on the other, the first of the two by turns; a round gives one
ratio, so what the machine does meanwhile hits both. Sizes: 1 KiB, 64 KiB, 4 MiB. Needs the Python that has torch
(default: the one that runs this) and pawl's extension for it.
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

from figures import figure, table, text

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
SIZES = {"1 KiB": 1 << 10, "64 KiB": 64 << 10, "4 MiB": 4 << 20}
RUN_LIMIT_S = 900


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="the Python that has torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--calls", type=int, default=50, help="per group and round; a tenth of it for 4 MiB")
    parser.add_argument("-o", dest="output", choices=("table", "json"), default="table")
    parser.add_argument("--rank", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    return parser.parse_args()


def time_calls(tensor, group, calls: int) -> float:
    """Seconds of one all-reduce."""
    import torch.distributed as dist

    dist.barrier(group=group)
    began = time.perf_counter()
    for _ in range(calls):
        dist.all_reduce(tensor, group=group)
    return (time.perf_counter() - began) / calls


def one_rank(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Seconds per all-reduce, by size and group, of each round."""
    import torch
    import torch.distributed as dist

    from pawl import groups

    store = dist.FileStore(os.path.join(options.folder, "store"), options.ranks)
    groups.register()
    groups.open_generation(1, dist.PrefixStore("inner", store), "127.0.0.1", timedelta(seconds=120))
    dist.init_process_group("pawl", store=store, rank=options.rank, world_size=options.ranks)
    both = {"managed": dist.group.WORLD, "gloo": dist.new_group(backend="gloo")}
    times: dict[str, dict[str, list[float]]] = {size: {name: [] for name in both} for size in SIZES}
    for size, size_bytes in SIZES.items():
        tensor = torch.zeros(size_bytes // 4)
        calls = max(1, options.calls // (10 if size_bytes > 1 << 20 else 1))
        for group in both.values():
            time_calls(tensor, group, calls)
        for number in range(options.rounds):
            for name in list(both) if number % 2 else reversed(both):
                times[size][name].append(time_calls(tensor, both[name], calls))
    dist.destroy_process_group()
    return times


def all_ranks(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Rank 0's times: an all-reduce ends everywhere at about the same time."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
                   "PYTHONPATH": os.path.join(ROOT, "python")}
    with tempfile.TemporaryDirectory(prefix="pawl-bench-") as folder:
        command = [options.python, "-B", os.path.abspath(__file__), "--ranks", str(options.ranks), "--rounds",
                   str(options.rounds), "--calls", str(options.calls), "--folder", folder]
        ranks = [subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE, text=True)
                 for rank in range(options.ranks)]
        try:
            said = [rank.communicate(timeout=RUN_LIMIT_S)[0] for rank in ranks]
        finally:
            for rank in ranks:
                if rank.poll() is None:
                    rank.kill()
                    rank.wait()
    if any(rank.returncode for rank in ranks):
        sys.exit("group_overhead.py: a rank failed; what it said is above")
    return json.loads(said[0].splitlines()[-1])


def told(times: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    sizes = {}
    for size, of in times.items():
        ratios = [mine / theirs for mine, theirs in zip(of["managed"], of["gloo"], strict=True)]
        added = [(mine - theirs) * 1e6 for mine, theirs in zip(of["managed"], of["gloo"], strict=True)]
        sizes[size] = {"ratio": figure(ratios), "added_us": figure(added),
                       **{f"{name}_us": figure([second * 1e6 for second in of[name]]) for name in of}}
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "sizes": sizes}


def markdown(found: dict) -> str:
    rows = [[size, text(of["gloo_us"]), text(of["managed_us"]), text(of["added_us"]), text(of["ratio"], 3)]
            for size, of in found["sizes"].items()]
    return "\n".join([f"{found['cores']} cores, load {found['load']:.1f}; median (10 % .. 90 %) over the rounds", "", *table(
        ["all-reduce of", "gloo, µs", "managed, µs", "difference, µs", "**ratio**"], rows)])


def main() -> None:
    options = parse()
    if options.rank is not None:
        print(json.dumps(one_rank(options)))
        return
    found = told(all_ranks(options))
    print(json.dumps(found, indent=1) if options.output == "json" else markdown(found))


if __name__ == "__main__":
    main()

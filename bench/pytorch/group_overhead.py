"""What the managed group adds to one small all-reduce: it and plain gloo in the same processes, in turn, in one run.

    group_overhead.py [--python P] [--ranks 2] [--rounds 40] [--calls 50] [-o json|table]

Each round makes `calls` all-reduces on either group, one call in turn on the one and on the other; their two medians
give the round's ratio, so what the machine does meanwhile hits both. Sizes: 1 KiB, 64 KiB, 4 MiB. Needs the Python that
has torch (default: the one that runs this) and pawl's extension for it.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "bench"))

from figures import figure, table, text  # noqa: E402

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


def time_round(tensor, both: dict, calls: int) -> dict[str, float]:
    """The median seconds of an all-reduce on each group, one call in turn on the one and on the other."""
    import torch.distributed as dist

    times: dict[str, list[float]] = {name: [] for name in both}
    for number in range(calls):
        for name in list(both) if number % 2 else reversed(both):
            began = time.perf_counter()
            dist.all_reduce(tensor, group=both[name])
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(of) for name, of in times.items()}


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
        for number in range(options.rounds + 1):  # the first warms up
            for name, seconds in time_round(tensor, both, calls).items():
                times[size][name] += [seconds] if number else []
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
    return "\n".join([f"{found['cores']} cores, load {found['load']:.1f}; median (10 % .. 90 %) over the rounds", "",
                      *table(
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

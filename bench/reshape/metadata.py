#!/usr/bin/env python3
"""How long it takes to open a checkpoint of 100,000 tensors: a safetensors file, and a DCP folder.

metadata.py [--tensors N] [--rounds N] [--bench PATH of open_bench] [--json]

DCP is compared with torch itself, round by round in turn: torch unpickles .metadata, pawl reads it (`metadata`), and
pawl also locates and names every tensor (`dcp`), which reads both ends of each of the items. Needs torch.
"""
import argparse
import json
import os
import pickle
import statistics
import struct
import subprocess
import tempfile
import time


def write_safetensors(path, tensors):
    header = {}
    for i in range(tensors):
        header[f"model.layers.{i // 10}.mlp.{i % 10}.weight"] = {
            "dtype": "BF16", "shape": [1, 2], "data_offsets": [4 * i, 4 * i + 4]}
    text = json.dumps(header, separators=(",", ":")).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + bytes(4 * tensors))


def write_dcp(path, tensors):
    import torch
    import torch.distributed.checkpoint as dcp
    names = [f"layers.{i // 10}.mlp.{i % 10}.weight" for i in range(tensors // 2)]
    value = torch.zeros(1, 2)
    state = {"model": {name: value for name in names},
             "optim": {"state": {name: {"exp_avg": value} for name in names}}}
    dcp.save(state, checkpoint_id=path, no_dist=True)


def torch_milliseconds(path):
    begin = time.perf_counter()
    with open(os.path.join(path, ".metadata"), "rb") as file:
        pickle.load(file)
    return (time.perf_counter() - begin) * 1000


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bench", default="build/main/bench/reshape/open_bench")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    def pawl(what, path):
        return float(subprocess.run([options.bench, what, path], check=True, capture_output=True, text=True).stdout)

    times = {"safetensors": [], "torch": [], "metadata": [], "dcp": []}
    with tempfile.TemporaryDirectory(prefix="pawl-metadata-") as folder:
        safetensors, dcp = os.path.join(folder, "model.safetensors"), os.path.join(folder, "dcp")
        write_safetensors(safetensors, options.tensors)
        write_dcp(dcp, options.tensors)
        for _ in range(options.rounds):
            times["safetensors"].append(pawl("safetensors", safetensors))
            times["torch"].append(torch_milliseconds(dcp))
            times["metadata"].append(pawl("metadata", dcp))
            times["dcp"].append(pawl("dcp", dcp))
    ratios = {what: statistics.median(t / p for t, p in zip(times["torch"], times[what], strict=False))
              for what in ("metadata", "dcp")}
    medians = {what: statistics.median(values) for what, values in times.items()}
    if options.json:
        print(json.dumps({"tensors": options.tensors, "milliseconds": medians, "faster_than_torch": ratios}))
        return
    print(f"safetensors of {options.tensors} tensors: {medians['safetensors']:.0f} ms")
    print(f"DCP of {options.tensors} tensors: torch's .metadata {medians['torch']:.0f} ms, "
          f"pawl {medians['metadata']:.0f} ms ({ratios['metadata']:.1f} times as fast), "
          f"located and named {medians['dcp']:.0f} ms ({ratios['dcp']:.1f} times as fast)")


if __name__ == "__main__":
    main()

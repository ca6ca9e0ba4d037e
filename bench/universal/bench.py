"""Universal checkpoints against this machine's own floors and against others' tools, in one run.

  universal  a 3D DeepSpeed checkpoint to DeepSpeed's universal folder, against plain copies and DeepSpeed's converter
  save       pawl.torch.save, durable, against a raw write, torch.save, safetensors and dcp.save
  load       pawl.torch.load of cold files into another layout, against raw reads and dcp.load
  bypass     what data-parallel ranks read together of a checkpoint that all of them hold
Rounds take turns in an order of their own, ratios are formed within a round, of saves and loads to the floor right
before and after them; medians [min .. max]. Files are evicted before they are read, which is checked; results are
compared outside the clock. The data are in --folder and removed at the end, also where the run is broken off. Prints
Markdown, or JSON with `-o json`.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import sys
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "bench" / "pytorch"))
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # floors and pawl have threads of their own

import conversion  # noqa: E402
import live  # noqa: E402
from load import Load  # noqa: E402
from machine import FLOORS, PAWL, Failed  # noqa: E402

PARTS = ("universal", "save", "load", "bypass")
SMALL, FULL = ("512MB", "512MB", 3), ("5GB", "2GB", 5)
_UNITS = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def bytes_of(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip())
    if found is None or found[2].upper() not in _UNITS:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: 512MB, 5GB, ...")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-universal ARGS=", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    full = (f"{FULL[0]} to convert, {FULL[1]} to save and load, {FULL[2]} rounds; otherwise {SMALL[0]}, {SMALL[1]}, "
            f"{SMALL[2]}")
    parser.add_argument("--full", action="store_true", help=full)
    parser.add_argument("--size", type=bytes_of, help="of the optimizer state to convert")
    parser.add_argument("--state", type=bytes_of, help="of the training that is saved and loaded; bypass: a quarter")
    parser.add_argument("--rounds", type=int, help="universal: at most 3")
    parser.add_argument("--peer-rounds", type=int, default=2, help="with DeepSpeed's converter; 1, 2, 4 workers first")
    parser.add_argument("--memory", default="", help="pawl convert's --memory; default: its own")
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given again")
    parser.add_argument("--folder", type=pathlib.Path, default=ROOT / "build" / "bench-universal")
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown")
    parser.add_argument("--out", metavar="FILE", help="also write it, as JSON, to this file")
    options = parser.parse_args()
    size, state, rounds = FULL if options.full else SMALL
    options.size, options.state = options.size or bytes_of(size), options.state or bytes_of(state)
    options.rounds = rounds if options.rounds is None else options.rounds
    if options.rounds < 1 or options.peer_rounds < 0:
        parser.error("--rounds must be at least 1, --peer-rounds at least 0")
    options.only = options.only or list(PARTS)
    return options


def needed(options: argparse.Namespace) -> int:
    """Bytes of disk at the worst moment: the source with its layers, two results, and what DeepSpeed writes beside."""
    universal = 4.3 * options.size if "universal" in options.only else 0
    return int(max(universal, 2.3 * options.state)) + (64 << 20)


def measure(options: argparse.Namespace, load: Load) -> dict[str, Any]:
    told: dict[str, Any] = {}
    for part in (each for each in PARTS if each in options.only):
        folder = options.folder / part
        folder.mkdir()
        load.quiet()
        if part == "universal":
            made = conversion.Conversion(folder, options.size, options.memory)
            told[part] = made.run(min(3, options.rounds), options.peer_rounds)
        elif part == "save":
            told[part] = live.save(folder, options.state, options.rounds)
        elif part == "load":
            told[part] = live.load(folder, options.state, options.rounds)
        else:
            told[part] = live.bypass(folder, options.state // 4, min(2, options.rounds))
        shutil.rmtree(folder)
    load.quiet()
    return told


def text_of(told: dict[str, Any], load: Load) -> str:
    texts = {"universal": conversion.text_of, "save": live.text_of_save, "load": live.text_of_load,
             "bypass": live.text_of_bypass}
    lines = [line for part in PARTS if part in told for line in texts[part](told[part])]
    return "\n".join([*lines, *(f"Warning: {warning}." for warning in load.warnings())])


def main() -> int:
    options = parse()
    for path, how in ((PAWL, "make build"), (FLOORS, "make bench-universal")):
        if not os.access(path, os.X_OK):
            print(f"{path} is not there; `{how}` makes it", file=sys.stderr)
            return 2
    options.folder.parent.mkdir(parents=True, exist_ok=True)
    if options.folder.exists():
        print(f"{options.folder} is there: of another run, or of one that was killed; remove it", file=sys.stderr)
        return 2
    room = shutil.disk_usage(options.folder.parent).free
    if room < needed(options):
        print(f"{options.folder.parent} has {room / 1e9:.1f} GB free, {needed(options) / 1e9:.1f} are needed: "
              f"say --size, --state or --folder", file=sys.stderr)
        return 2
    for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(each, lambda number, _: sys.exit(128 + number))
    options.folder.mkdir()
    load = Load()
    try:
        told = measure(options, load)
    except Failed as error:
        print(f"bench/universal: {error}", file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(options.folder, ignore_errors=True)
    machine = load.told()
    everything = {**told, "machine": machine, "size": options.size, "state": options.state, "rounds": options.rounds}
    print(json.dumps(everything, indent=1) if options.output == "json" else text_of(told, load))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(everything, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

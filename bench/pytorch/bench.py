"""What pawl costs a PyTorch training and how fast it recovers, against PyTorch's own means, in one run on this machine.

All train the GPT of examples/gpt on four seats. Rounds take turns, ratios are formed within a round, and what is given
is their median with the 10th and the 90th of a hundred.
  kills   from the kill to the next step done on every seat: pawl with a spare against torchrun that restarts from
          torch.save, or from dcp.save where weights are cut over the ranks (--parallel); with --cold also pawl with a
          spare that has not rehearsed
  steps   a step with pawl, with torch.save or dcp.save and with dcp.async_save each step, against plain PyTorch
  groups  a step over the managed group against one over gloo
  watching  what it costs to watch the script (watching.py)
Each of the first three (the first two by each --parallel) where the cores are free for most of a step, as with a device
(--device-ms), and where all trainers compute. Prints Markdown tables, or JSON with `-o json`. Warns where other work on
the machine makes the figures doubtful.
"""
import argparse
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tools", "demo"))
sys.path.insert(0, os.path.join(ROOT, "test"))
sys.path.insert(0, os.path.join(ROOT, "bench"))

import group_steps  # noqa: E402
import job as jobs  # noqa: E402
import kills  # noqa: E402
import steps  # noqa: E402
import trainers  # noqa: E402
import watching  # noqa: E402
from harness import PAWL  # noqa: E402
from load import Load  # noqa: E402
from reference import ReferenceFailed  # noqa: E402

SECTIONS = ("kills", "steps", "groups", "watching")


def parse():
    parser = argparse.ArgumentParser(prog="make bench-pytorch ARGS=", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="of each section")
    parser.add_argument("--kills", type=int, default=3, help="each round, of either side")
    parser.add_argument("--steps", type=int, default=70, help="of a run whose steps are timed")
    parser.add_argument("--device-ms", type=int, default=150, help="of the steps whose cores are free")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="one section; may be given again")
    parser.add_argument("--parallel", choices=trainers.PARALLEL, action="append",
                        help="how kills and steps spread the GPT; may be given again; default: ddp-zero1")
    parser.add_argument("--cold", action="store_true", help="kills: also with a spare that has not rehearsed")
    parser.add_argument("--cores", choices=("free", "busy", "both"), default="both", help="free: with --device-ms only")
    parser.add_argument("--monitor-interval", type=float, default=0.01,
                        help="torchrun's, in seconds; its default is 0.1")
    parser.add_argument("--every", type=int, default=10, help="steps between torchrun's checkpoints")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-o", "--output", choices=("markdown", "json"), default="markdown")
    parser.add_argument("--out", metavar="FILE", help="also write it to this file")
    options = parser.parse_args()
    for name in ("rounds", "kills", "nodes"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1")
    if options.steps < 2 * steps.FIRST_STEPS:
        parser.error(f"--steps must be at least {2 * steps.FIRST_STEPS}: the first {steps.FIRST_STEPS} are left out")
    options.parallel = options.parallel or trainers.PARALLEL[:1]
    options.size = [word for name in ("batch", "width", "layers")
                    for word in ("--" + name, str(getattr(options, name)))]
    return options


def measure(options, gpt, folder):
    """All that was asked for. What is done so far is in --out at any time: a run takes long."""
    load, told = Load(), {"sections": {}, "versions": versions(gpt),
                          "options": {name: value for name, value in vars(options).items() if name != "size"}}
    devices = {"free": [options.device_ms], "busy": [0], "both": [options.device_ms, 0]}[options.cores]
    run = {"kills": lambda parallel, device_ms: kills.bench_kills(options, gpt, folder, parallel, device_ms, load),
           "steps": lambda parallel, device_ms: steps.bench_steps(options, gpt, folder, parallel, device_ms, load),
           "groups": lambda _, device_ms: group_steps.bench_groups(options, gpt, device_ms, load),
           "watching": lambda *_: watching.bench_watching(options, gpt, load)}
    for section in options.only or SECTIONS:
        ways = options.parallel if section in ("kills", "steps") else options.parallel[:1]
        for parallel, device_ms in itertools.product(ways, devices[:1] if section == "watching" else devices):
            told["sections"].setdefault(section, []).append(run[section](parallel, device_ms))
            load.quiet()
            told["machine"] = load.told()
            told["warnings"] = load.warnings() + [warning for each in told["sections"].get("steps", [])
                                                  for warning in steps.warnings(each)]
            keep(options, told)
    return told


def keep(options, told):
    """Answers what is to be printed."""
    text = json.dumps(told, indent=1) if options.output == "json" else markdown(told)
    if options.out:
        with open(options.out, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return text


def versions(gpt):
    said = subprocess.run([gpt.python, "-c", "import sys, torch; print(torch.__version__, sys.version.split()[0])"],
                          capture_output=True, text=True, check=True).stdout.split()
    return {"torch": said[0], "python": said[1]}


def markdown(told):
    machine = told["machine"]
    foreign = sorted(machine["foreign_share"])
    lines = [f"PyTorch {told['versions']['torch']}, Python {told['versions']['python']}, {machine['cores']} cores; "
             f"other work took {100 * foreign[len(foreign) // 2]:.0f} % of them at the median of the looks between "
             f"rounds (most {100 * foreign[-1]:.0f} %).", ""]
    for warning in told["warnings"]:
        lines += [f"**Doubtful:** {warning}.", ""]
    write = {"kills": kills.markdown, "steps": steps.markdown, "groups": group_steps.markdown,
             "watching": watching.markdown}
    for section, found in told["sections"].items():
        for each in found:
            lines += write[section](each)
    return "\n".join(lines)


def main():
    options = parse()
    if not os.access(PAWL, os.X_OK):
        print(f"{PAWL} is not there; `make build` makes it", file=sys.stderr)
        return 2
    try:
        gpt = trainers.Gpt(os.path.dirname(PAWL))
    except trainers.TrainerMissing as missing:
        print(f"there is nothing to measure: {missing}", file=sys.stderr)
        return 2
    folder = tempfile.mkdtemp(prefix="pawl-bench-")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        told = measure(options, gpt, folder)
    except (jobs.JobError, kills.Failed, group_steps.Failed, ReferenceFailed, subprocess.SubprocessError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(keep(options, told))
    return 0


if __name__ == "__main__":
    sys.exit(main())

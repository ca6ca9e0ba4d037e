"""What it costs to watch a script: the version sentinel of an open window, the replay witness of what the model is
given, by the step of the GPT of examples/gpt. One process, one core, the very objects that a job has. The build log is
closed by a job's first block.

    watching.py --steps N --batch B --width W --layers L      prints one line of JSON; bench.py --only watching

A step is timed as a whole (forward, backward, AdamW, in one process), and each part by itself between steps, so that
caches are as a step leaves them: a part takes too little to be seen in the difference of two steps. What the witness
adds to the state that is kept counts, too.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
PARTS = ("sentinel", "witness")
GOAL = 0.003  # of a step, all parts together
TIMEOUT_S = 300.0


def bench_watching(options, gpt, load):
    """By bench.py: {"step_ms", "parts_us", "shares"} as figures over the rounds."""
    from figures import figure
    found = []
    for index in range(options.rounds):
        load.quiet()
        command = [gpt.python, os.path.abspath(__file__), "--steps", str(options.steps), *options.size]
        run = subprocess.run(command, env={**os.environ, **gpt.environment}, stdout=subprocess.PIPE, text=True,
                             timeout=TIMEOUT_S, check=True)
        found.append(json.loads(run.stdout.splitlines()[-1]))
        part = share(found[-1], found[-1]["step_ms"])
        print(f"watching, round {index + 1}/{options.rounds}: {100 * part:.3f} % of a step that computes",
              file=sys.stderr, flush=True)
    told = {"rounds": options.rounds, "tensors": found[0]["tensors"], "device_ms": options.device_ms,
            "step_ms": figure([run["step_ms"] for run in found]),
            "parts_us": {name: figure([run["parts_us"][name] for run in found]) for name in PARTS},
            "shares": {"computes": figure([100 * share(run, run["step_ms"]) for run in found]),
                       "device": figure([100 * share(run, run["step_ms"] + options.device_ms) for run in found])}}
    return told


def share(run, step_ms):
    return sum(run["parts_us"].values()) / 1000 / step_ms


def markdown(told):
    from figures import table, text
    rows = [[name, text(told["parts_us"][name])] for name in PARTS]
    rows += [["a step that computes, µs", text({key: 1000 * value if key != "count" else value
                                                for key, value in told["step_ms"].items()})],
             ["**all parts, of a step that computes, %**", f"**{text(told['shares']['computes'], 3)}**"],
             [f"**all parts, of a step with {told['device_ms']} ms of a device, %**",
              f"**{text(told['shares']['device'], 3)}**"]]
    head = (f"### What it costs to watch a script ({told['tensors']} tensors; {told['rounds']} rounds; goal "
            f"{100 * GOAL:.1f} % of a step)")
    return [head, "", *table(["µs a step, median (10 % .. 90 %)", ""], rows)]


# In the process that is measured ----------------------------------------------------------------------------------

def measure(options):
    import torch
    from torch.nn.parallel import DistributedDataParallel

    sys.path.insert(0, os.path.join(ROOT, "examples", "gpt"))
    from model import GPT

    from pawl import protect, tagged_values, windows, witness
    torch.set_num_threads(1)
    context = 64
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        model = DistributedDataParallel(GPT(options.layers, options.width, 4, context))
        optimizer = torch.optim.AdamW(model.parameters())
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        seen = witness.Witness()
        inputs = torch.randint(256, (options.batch, context))
        targets = torch.randint(256, (options.batch, context))

        def step():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
            optimizer.step()

        def kept_as(value):
            return tagged_values.dumps("witness", value)

        sentinel = windows.Sentinel()
        took = {"step": [], "sentinel": [], "witness": []}
        for number in range(1, options.steps + 1):
            if number <= 2:  # from then on the optimizer's state is there
                stable = protected.stable()
            begin = timed(sentinel.begin, stable)
            before = timed(seen.begin, number) + timed(seen.see, model, (inputs,), {})
            took["step"].append(timed(step))
            sentinel.begin(stable)  # the step has written, as an optimizer may
            took["sentinel"].append(begin + timed(sentinel.end))
            after = timed(seen.end)
            without = timed(kept_as, {})  # first: other state is written, too, and finds the caches cold
            kept = timed(lambda: kept_as(seen.part().save())) - without
            took["witness"].append(before + after + max(0.0, kept))
        median = {name: statistics.median(each[options.steps // 4:]) for name, each in took.items()}
        parts = {name: median[name] * 1e6 for name in PARTS}
        torch.distributed.destroy_process_group()
    print(json.dumps({"step_ms": median["step"] * 1000, "tensors": len(stable), "parts_us": parts}))


def timed(act, *arguments):
    began = time.perf_counter()
    act(*arguments)
    return time.perf_counter() - began


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name, default in (("steps", 70), ("batch", 4), ("width", 96), ("layers", 4)):
        parser.add_argument("--" + name, type=int, default=default)
    measure(parser.parse_args())

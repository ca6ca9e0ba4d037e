"""What trainers wrote down of a run, and whether two runs are the same.

The record's files are described in examples/charlm/record.h. Two runs are the same when every step of every seat has
the same loss and the same samples, by their bits, however often it was done; and when after the last step every tensor
of every role has the same bytes on every seat.
"""
import glob
import json
import os
from dataclasses import dataclass, field


@dataclass
class Run:
    lines: list = field(default_factory=list)   # every finished step of every process, each with "seat"
    finals: dict = field(default_factory=dict)  # seat -> final.<seat>.json
    starts: dict = field(default_factory=dict)  # pid -> start.<pid>.json
    directory: str = ""

    def steps(self, seat=0):
        """The seat's lines in the order in which they were done, over all its processes."""
        return sorted((line for line in self.lines if line["seat"] == seat), key=lambda line: line["t_ns"])

    def seats(self):
        return sorted({line["seat"] for line in self.lines})


def read_lines(path):
    """A line that a death cut short is left out: it says nothing."""
    found = []
    with open(path, encoding="utf-8") as file:
        for text in file:
            try:
                found.append(json.loads(text))
            except ValueError:
                if text.endswith("\n"):
                    raise
    return found


def last_line(directory, seat):
    """What the seat has written down last, over all its processes; None: nothing yet. Reads the files' ends only."""
    found = []
    for path in glob.glob(os.path.join(directory, f"loss.{seat}.*.jsonl")):
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - 4096))
            whole = [line for line in file.read().split(b"\n")[:-1] if line.startswith(b"{")]
        found += [json.loads(line) for line in whole[-1:]]
    return max(found, key=lambda line: line["t_ns"], default=None)


def read_run(directory):
    run = Run(directory=directory)
    for path in glob.glob(os.path.join(directory, "loss.*.jsonl")):
        seat = int(os.path.basename(path).split(".")[1])
        run.lines += [{**line, "seat": seat} for line in read_lines(path)]
    for path in glob.glob(os.path.join(directory, "final.*.json")):
        with open(path, encoding="utf-8") as file:
            final = json.load(file)
        run.finals[final["seat"]] = final
    for path in glob.glob(os.path.join(directory, "start.*.json")):
        with open(path, encoding="utf-8") as file:
            start = json.load(file)
        run.starts[start["pid"]] = start
    return run


@dataclass
class Comparison:
    losses_compared: int = 0
    tensors_compared: int = 0
    losses_equal: bool = False
    tensors_equal: bool = False
    samples_exact: bool = False
    roles: list = field(default_factory=list)
    differences: list = field(default_factory=list)  # the first few, in words

    def equal(self):
        return self.losses_equal and self.tensors_equal and self.samples_exact


def compare(run, reference, step_count, seat_count):
    result = Comparison()
    result.losses_equal, result.samples_exact = compare_losses(run, reference, step_count, seat_count, result)
    result.tensors_equal = compare_finals(run, reference, seat_count, result)
    result.samples_exact = result.samples_exact and compare_samples(run, reference, seat_count, result)
    result.differences = result.differences[:8]
    return result


def compare_losses(run, reference, step_count, seat_count, result):
    expected = {(line["seat"], line["step"]): line for line in reference.lines}
    missing = {(seat, step) for seat in range(seat_count) for step in range(1, step_count + 1)}
    losses_equal = samples_exact = True
    for line in run.lines:
        key = (line["seat"], line["step"])
        missing.discard(key)
        result.losses_compared += 1
        other = expected.get(key)
        if other is None or line["loss_bits"] != other["loss_bits"]:
            losses_equal = False
            result.differences.append(f"seat {key[0]} step {key[1]}: loss {line['loss']}, not "
                                      f"{other['loss'] if other else 'there in the reference'}")
        if other is None or line["samples_hash"] != other["samples_hash"]:
            samples_exact = False
            result.differences.append(f"seat {key[0]} step {key[1]}: other samples than the reference")
    if missing:
        seat, step = min(missing)
        result.differences.append(f"{len(missing)} finished steps are not recorded, first seat {seat} step {step}")
    return losses_equal and not missing, samples_exact and not missing


def compare_samples(run, reference, seat_count, result):
    same = True
    for seat in range(seat_count):
        mine, theirs = run.finals.get(seat), reference.finals.get(seat)
        for key in ("samples", "samples_hash", "rng_hash", "step"):
            if not mine or not theirs or mine[key] != theirs[key]:
                same = False
                result.differences.append(f"seat {seat}: final {key} differs")
    return same


def compare_finals(run, reference, seat_count, result):
    same = True
    for seat in range(seat_count):
        mine, theirs = tensors_of(run, seat), tensors_of(reference, seat)
        if not mine or set(mine) != set(theirs):
            same = False
            result.differences.append(f"seat {seat}: {len(mine)} final tensors, the reference has {len(theirs)}")
            continue
        for key, data in mine.items():
            result.tensors_compared += 1
            if key[1] not in result.roles:
                result.roles.append(key[1])
            if data != theirs[key]:
                same = False
                result.differences.append(f"seat {seat}: tensor {key[0]} ({key[1]}) differs")
    return same


def tensors_of(run, seat):
    """{(name, role): bytes} of the state after the last step; the bytes are proven by the hash beside them."""
    if seat not in run.finals:
        return {}
    with open(os.path.join(run.directory, f"final.{seat}.bin"), "rb") as file:
        content = file.read()
    return {(tensor["name"], tensor["role"]):
            content[tensor["offset_bytes"]:tensor["offset_bytes"] + tensor["size_bytes"]]
            for tensor in run.finals[seat]["tensors"]}


def steps_redone(run):
    """Steps that some seat finished more than once."""
    seen, redone = set(), set()
    for line in run.lines:
        key = (line["seat"], line["step"])
        if key in seen:
            redone.add(line["step"])
        seen.add(key)
    return sorted(redone)


def updates_accounted(run, recoveries):
    """Whether each process did the updates that it recorded and no others: at most one step in flight a recovery."""
    wrong = []
    for pid in {line["pid"] for line in run.lines}:
        lines = sorted((line for line in run.lines if line["pid"] == pid), key=lambda line: line["t_ns"])
        extra = lines[-1]["updates"] - len(lines)
        if not 0 <= extra <= recoveries:
            wrong.append(f"process {pid}: {lines[-1]['updates']} updates, {len(lines)} recorded steps")
        if any(after["updates"] <= before["updates"] for before, after in zip(lines, lines[1:], strict=False)):
            wrong.append(f"process {pid}: its count of updates went back")
    return wrong


def step_times_ms(run, seat=0, without=()):
    """Time from one finished step to the next of the seat; none that touches an interval (ns, ns) of `without`."""
    lines = run.steps(seat)
    return [(after["t_ns"] - before["t_ns"]) / 1e6 for before, after in zip(lines, lines[1:], strict=False)
            if after["step"] == before["step"] + 1
            and not any(before["t_ns"] < end and after["t_ns"] > begin for begin, end in without)]


def curve(run, seat=0):
    """[(step, loss)] as last done."""
    return sorted({line["step"]: line["loss"] for line in run.steps(seat)}.items())

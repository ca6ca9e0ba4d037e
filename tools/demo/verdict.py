"""What happened around each kill, and whether the survivors are who they were.

Kills come from the killer's own record, times of a recovery from the job's events, ends of steps from the trainers'
record: all of them in this machine's monotonic time.
"""
import json
import statistics

import record

PARTS = ("detect", "freeze", "decide", "rebuild", "restore", "resume")


def read_kills(path):
    """(kills in order, what was seen after them)."""
    with open(path, encoding="utf-8") as file:
        entries = [json.loads(line) for line in file]
    return [entry for entry in entries if "kill" in entry], [entry for entry in entries if "after" in entry]


def since_ms(kill, at_ns):
    return (at_ns - kill["at_ns"]) / 1e6


def stall(kill, events, run):
    """{"stall_ms": {part: ms}, "total_ms", "resume"} from the kill to the next step done on every seat; a part that
    left no trace is None. Parts of recoveries that run into each other are counted from each one's own kill."""
    after = sorted((event for event in events if event["at_monotonic_ns"] >= kill["at_ns"]),
                   key=lambda event: event["at_monotonic_ns"])
    running = next((event for event in after if event["kind"] == "running"), None)
    if running is None:
        return {"stall_ms": dict.fromkeys(PARTS), "total_ms": None, "resume": None}
    until = [event for event in after if event["at_monotonic_ns"] <= running["at_monotonic_ns"]]

    def times(kind, before_ns=running["at_monotonic_ns"]):
        return [event["at_monotonic_ns"] for event in until
                if event["kind"] == kind and event["at_monotonic_ns"] <= before_ns]
    decided = max(times("restore_decided"), default=None)
    done = [min((line["t_ns"] for line in run.steps(seat) if line["t_ns"] > running["at_monotonic_ns"]), default=None)
            for seat in run.seats()]
    marks = {"detect": min(times("fault_detected"), default=None),
             "freeze": max(times("frozen", decided or running["at_monotonic_ns"]), default=None),
             "decide": decided, "rebuild": max(times("seat_restored"), default=None),
             "restore": running["at_monotonic_ns"], "resume": max(done) if done and None not in done else None}
    parts, last = {}, kill["at_ns"]
    for part in PARTS:
        parts[part] = None if marks[part] is None else round(max(0, marks[part] - last) / 1e6, 2)
        last = max(last, marks[part] or 0)
    total = None if marks["resume"] is None else round(since_ms(kill, marks["resume"]), 2)
    return {"stall_ms": parts, "total_ms": total, "resume": running.get("resume"),
            "window_ns": (kill["at_ns"], marks["resume"] or running["at_monotonic_ns"])}


def volleys(kills):
    """Those that happened in one moment together."""
    found = {}
    for kill in kills:
        found.setdefault(kill["at_ns"], []).append(kill)
    return list(found.values())


def checkpoint_of(kill, events):
    """The folder of the checkpoint to which the job went back for this kill; None: it had the state in memory."""
    ran = [event for event in events if event["kind"] == "running" and event["at_monotonic_ns"] > kill["at_ns"]]
    running = min(ran, key=lambda event: event["at_monotonic_ns"], default={})
    return next((event["path"] for event in events if event["kind"] == "seat_restored"
                 and event["source"] == "storage" and event["generation"] == running.get("generation")), None)


def redone(kill, run, resume):
    """How many steps this kill made somebody do again, counted from what had been finished before it."""
    if resume is None:
        return None
    before = [line["step"] for line in run.lines if line["t_ns"] <= kill["at_ns"]]
    return max(0, max(before, default=0) - resume)


def survivor_faults(kills, afters, run):
    """Sentences about survivors that are not the same process as before, or whose updates do not add up."""
    faults = []
    for after in afters:
        of_it = [kills[index] for index in after["after"]]
        dead_pids = {pid for kill in of_it for pid in kill["pids"]}
        for seat, was in of_it[0]["before"].items():
            if was["pid"] in dead_pids:
                continue
            now = after["seats"].get(seat, {})
            for key in ("pid", "start_time", "nonce"):
                if now.get(key) != was[key]:
                    faults.append(f"seat {seat}: {key} was {was[key]}, is {now.get(key)}")
            faults += process_faults(seat, now, after, kills, run)
    return faults


def process_faults(seat, now, after, kills, run):
    start = run.starts.get(now.get("pid"))
    if start is None or start["start_time"] != now.get("start_time"):
        return [f"seat {seat}: process {now.get('pid')} did not record this start time"]
    lines = [line for line in run.lines if line["pid"] == now["pid"]]
    if any(line["nonce"] != start["nonce"] for line in lines):
        return [f"seat {seat}: the memory of process {now['pid']} is not the one it began with"]
    least, most = (sum(line["t_ns"] <= after[key] for line in lines) for key in ("asked_ns", "answered_ns"))
    if not least - 1 <= now["updates"] <= most + len(kills) + 1:
        return [f"seat {seat}: {now['updates']} updates counted from outside, {least} to {most} steps recorded by then"]
    return []


def spare_faults(kills, afters, run):
    """Whoever took a dead node's seat must be older than the kill. Where two nodes died in one recovery, one after the
    other, the second may have been the spare itself, and the seat's heir a node that came later: such kills say
    nothing."""
    faults = []
    for after in afters:
        of_it = [kills[index] for index in after["after"]]
        if len(volleys(of_it)) != 1:
            continue
        for kill in of_it:
            heir = after["seats"].get(str(kill["seat"]))
            start = run.starts.get(heir["pid"]) if heir else None
            if start is None or start["started_ns"] > kill["at_ns"]:
                faults.append(f"seat {kill['seat']}: its new process began after the kill; no parked spare took it")
    return faults


def overhead(run, reference, windows):
    """Median time of a step with pawl, outside the stalls, and without; the seats' medians are averaged."""
    mine = [record.step_times_ms(run, seat, windows) for seat in run.seats()]
    theirs = [record.step_times_ms(reference, seat) for seat in reference.seats()]
    with_ms = statistics.mean(statistics.median(times) for times in mine if times)
    without_ms = statistics.mean(statistics.median(times) for times in theirs if times)
    return {"step_ms": round(with_ms, 3), "reference_step_ms": round(without_ms, 3),
            "overhead_ratio": round(with_ms / without_ms, 4),
            "how": "median step of each run, mean over seats; the reference ran alone after it, over loopback"}


def fence_waits(run, nodes):
    """From the trainers' own records; where they keep none (a script in PyTorch) what pawld counted, without the
    spread."""
    waits = sorted(line["fence_wait_ns"] / 1e6 for line in run.lines if "fence_wait_ns" in line)
    if waits:
        return {"p50": at(waits, 0.5), "p95": at(waits, 0.95), "max": round(waits[-1], 4),
                "mean": round(statistics.mean(waits), 4)}
    told = [trainer["fence_wait_ms"] for status in nodes.values() for trainer in status.get("trainers", [])
            if trainer.get("fence_wait_ms", {}).get("count")]
    count = sum(wait["count"] for wait in told)
    return {"mean": round(sum(wait["total"] for wait in told) / count, 4) if count else None,
            "max": max((wait["max"] for wait in told), default=None)}


def at(ordered, share):
    return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4)

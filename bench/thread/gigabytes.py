"""Kills of nodes, pawlds and trainers that hold states of any size, against what this machine's loopback and memory
can do; seals against touching the same memory; and evictions of sound nodes on cores that many want.

The trainer is statebench. Floors are measured in the same run, right before the job that is set against them.
"""
import glob
import json
import mmap
import os
import re
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import job as jobs
from figures import figure, text
from harness import CHARLM, ROOT, TestedJob, trainer_flags
from processes import Identity, Victims

STATEBENCH = os.path.abspath(os.environ.get("STATEBENCH", os.path.join(ROOT, "build", "bin", "statebench")))
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
ALLOWANCE_MS = 150  # of the goal: bytes / raw TCP + bytes / copy + this
BLOCK = 1 << 20


def spread(values):
    return text(figure(values), 2)


def bytes_of(size):
    return int(size[:-1]) * UNITS[size[-1]]


def filled(count):
    """Memory whose pages are all there."""
    memory = mmap.mmap(-1, count)
    for at in range(0, count, mmap.PAGESIZE):
        memory[at] = 1
    return memory


# Floors ------------------------------------------------------------------------------------------------------------

def tcp_ms(count):
    """One stream over loopback, one thread at either end, from memory into memory."""
    source, target = filled(min(count, 64 * BLOCK)), filled(min(count, 64 * BLOCK))
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()

        def send():
            view, left = memoryview(source), count
            while left > 0:
                part = min(left, len(view))
                sender.sendall(view[:part])
                left -= part

        with receiver:
            thread = threading.Thread(target=send)
            began = time.monotonic()
            thread.start()
            view, left, at = memoryview(target), count, 0
            while left > 0:
                got = receiver.recv_into(view[at:at + min(left, BLOCK)])
                left, at = left - got, (at + got) % (len(view) - BLOCK + 1 if len(view) > BLOCK else len(view))
                if at + BLOCK > len(view):
                    at = 0
            thread.join()
    return (time.monotonic() - began) * 1e3


def copy_ms(count):
    """libc's memcpy between memory whose pages are there."""
    source, target = filled(count), filled(count)
    began = time.monotonic()
    memoryview(target)[:] = memoryview(source)
    return (time.monotonic() - began) * 1e3


# Kills -------------------------------------------------------------------------------------------------------------

class StateJob:
    """Two nodes and a spare with statebench, and what it has recorded."""

    def __init__(self, folder, size, steps, step_ms):
        self.path = tempfile.mkdtemp(dir=folder)
        self.record = os.path.join(self.path, "state")
        command = [STATEBENCH, "--bytes", size, "--tensors", "64", "--steps", str(steps), "--step-ms", str(step_ms),
                   "--timed", "--quiet", "--record", self.record, "-o", "json"]
        flags = ["--standalone", "--nnodes", "2", "--spares", "1", "--namespaces", "off"]
        self.job = TestedJob(self.path, f"bench-{secrets.token_hex(3)}", flags, command, 2)

    def __enter__(self):
        self.job.start()
        self.follower = None
        try:
            self.job.wait_running(timeout_s=120)
            self.job.wait_spare(timeout_s=60)
            self.follower = jobs.Follower(self.job)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.follower:
            self.follower.close()
        self.job.stop()
        shutil.rmtree(self.path)

    def lines(self):
        found = []
        for path in glob.glob(os.path.join(self.record, "*.jsonl")):
            with open(path, encoding="utf-8") as file:
                found += [json.loads(line) for line in file if line.endswith("\n")]
        return found

    def protected(self, ready):
        """Until two copies of both seats and a spare are there, whose memory is ready, if that is waited for."""
        def done(nodes):
            return (jobs.running(nodes, 2) and len(jobs.seats(nodes)) == 2 and jobs.spares(nodes)
                    and jobs.committed(nodes) > max(status["resume"] for status in nodes.values())
                    and not any(status["exposed"] for status in nodes.values())
                    and (not ready or all(nodes[node].get("ready_bytes", 0) > 0 for node in jobs.spares(nodes))))
        nodes = self.job.wait_until(done, "two copies of both seats, and a spare", 120)[1]
        if ready:  # all of it: nothing more has come for a while
            last, since = -1, time.monotonic()
            while time.monotonic() - since < 3:
                now = sum(status.get("ready_bytes", 0) for status in self.job.nodes().values())
                if now != last:
                    last, since = now, time.monotonic()
                time.sleep(0.2)
        return self.job.nodes() or nodes

    def seen(self, at_ns, kind, timeout_s=60):
        """When the first such event after then happened."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            times = [event["at_monotonic_ns"] for event in list(self.follower.events)
                     if event["kind"] == kind and event["at_monotonic_ns"] >= at_ns]
            if times:
                return min(times)
            time.sleep(0.02)
        raise jobs.JobError(f"no event {kind}\n{self.job.tail()}\n{self.job.logs()}")

    def next_step_ns(self, generation, timeout_s=120):
        """When both seats had done a step in a later generation."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            first = {}
            for line in self.lines():
                if "t_ns" in line and line["generation"] > generation:
                    seat = line["seat"]
                    first[seat] = min(first.get(seat, line["t_ns"]), line["t_ns"])
            if len(first) == 2:
                return max(first.values())
            time.sleep(0.02)
        raise jobs.JobError(f"no step after the kill\n{self.job.tail()}\n{self.job.logs()}")

    def kill(self, what, ready=True):
        """{"noticed_ms", "total_ms"} of one kill; a pawld's costs no step, so it has no total."""
        nodes = self.protected(ready)
        generation = jobs.generation(nodes)
        trainer = jobs.seats(nodes)[1]
        node = trainer["node"]
        if what == "pawld":
            return {"noticed_ms": self.noticed_ms(node, lambda: os.kill(nodes[node]["pawld_pid"], signal.SIGKILL),
                                                  ("pawld_died", "pawld_exited"))}
        if what == "node":
            at_ns = self.job.kill_node(node)
            told = {"noticed_ms": (self.seen(at_ns, "fault_detected") - at_ns) / 1e6}
        else:
            with Victims([Identity(trainer["pid"], trainer["start_time"])]) as victims:
                at_ns = time.monotonic_ns()
                told = {"noticed_ms": self.noticed_ms(node, lambda: victims.send(signal.SIGKILL), ("trainer_died",))}
            # Its node may be dying with it: that is waited for (Deadlines::trainer_exit_grace).
            told["acted_on_ms"] = (self.seen(at_ns, "fault_detected") - at_ns) / 1e6
        # A step waits as if a device computed; that is not what a recovery costs.
        return {**told, "total_ms": (self.next_step_ns(generation) - at_ns) / 1e6}

    def noticed_ms(self, node, kill, words):
        """From the kill to the first line of the node's log with one of these words."""
        log = os.path.join(self.job.directory, f"node-{node}", "log")
        size, wall, deadline = os.path.getsize(log), time.time(), time.monotonic() + 30
        kill()
        while time.monotonic() < deadline:
            with open(log, encoding="utf-8", errors="replace") as file:
                file.seek(size)
                for line in file:
                    if any(word in line for word in words) and line.endswith("\n"):
                        hour, minute, second = re.search(r"T(\d+):(\d+):([\d.]+)Z", line).groups()
                        noticed = int(hour) * 3600 + int(minute) * 60 + float(second)
                        return (noticed - wall % 86400) % 86400 * 1e3
            time.sleep(0.01)
        raise jobs.JobError(f"node {node} did not say {' or '.join(words)}")


def bench_gigabytes(options, folder):
    rows = ["### From the kill of a node to the next step, by bytes a seat", "",
            "| state a seat | kills | noticed ms | kill to the next step ms, less the step's wait | raw TCP ms | "
            f"copy ms | to (TCP + copy + {ALLOWANCE_MS} ms) |", "|---|---|---|---|---|---|---|"]
    others = []
    for size in options.sizes.split(","):
        count = bytes_of(size)
        wires, copies = [tcp_ms(count) for _ in range(3)], [copy_ms(count) for _ in range(3)]
        floor = statistics.median(wires) + statistics.median(copies) + ALLOWANCE_MS
        step_ms = 200 if count < 64 << 20 else options.step_ms
        with StateJob(folder, size, 1_000_000, step_ms) as state:
            told = [kill_and_say(state, "node", size, index) for index in range(options.state_kills)]
            for what in ("trainer", "pawld"):
                kills = [kill_and_say(state, what, size, index) for index in range(options.state_kills)]
                for row in ("noticed_ms", "acted_on_ms"):
                    if row in kills[0]:
                        verb = row.removesuffix("_ms").replace("_", " ")
                        others.append(f"| {what}, {size} a seat, {verb} | {spread([kill[row] for kill in kills])} |")
        totals = [kill["total_ms"] - step_ms for kill in told]
        rows.append(f"| {size} | {len(told)} | {spread([kill['noticed_ms'] for kill in told])} | "
                    f"**{spread(totals)}** | {spread(wires)} | {spread(copies)} | "
                    f"{statistics.median(totals) / floor:.2f} |")
    return [*rows, "", "Of the others:", "", "| killed | ms |", "|---|---|", *others, ""]


def kill_and_say(state, what, size, index):
    told = state.kill(what)
    print(f"{what} {index + 1} of {size}: " + ", ".join(f"{name} {value:.1f}" for name, value in told.items()),
          file=sys.stderr)
    return told


# Seals -------------------------------------------------------------------------------------------------------------

def bench_seals(options, folder):
    """One node alone: its first seal is waited for at the fence."""
    ratios, seals, touches = [], [], []
    for _ in range(options.seals):
        path = tempfile.mkdtemp(dir=folder)
        command = [STATEBENCH, "--bytes", "1G", "--tensors", "64", "--steps", "3", "--step-ms", "500", "--quiet",
                   "--record", os.path.join(path, "state"), "-o", "json"]
        job = TestedJob(path, f"bench-{secrets.token_hex(3)}",
                        ["--standalone", "--nnodes", "1", "--replicas", "0", "--namespaces", "off"], command, 1).start()
        try:
            if job.wait_end(180) != 0:
                raise jobs.JobError(job.tail())
        finally:
            job.stop()
        for name in glob.glob(os.path.join(path, "state", "*.jsonl")):
            with open(name, encoding="utf-8") as file:
                end = json.loads(file.readlines()[-1])
            ratios.append(end["first_seal_to_touch"])
            seals.append(end["first_seal_s"])
            touches.append(end["touch_s"])
        shutil.rmtree(path)
    return ["### The first seal of 1 GiB against touching it once", "", "| | median (10 % .. 90 %) |", "|---|---|",
            f"| seal, s | {spread(seals)} |", f"| touch, s | {spread(touches)} |",
            f"| ratio | **{spread(ratios)}** |", ""]


# Crowded cores -----------------------------------------------------------------------------------------------------

def bench_crowd(options, folder):
    """A job whose cores are wanted by four times as many processes that never rest."""
    path = tempfile.mkdtemp(dir=folder)
    crowd = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(4 * os.cpu_count())]
    command = [CHARLM, *trainer_flags(1, steps=1_000_000, batch=16, hidden=64, device_ms=8)]
    job = TestedJob(path, f"bench-{secrets.token_hex(3)}", ["--standalone", "--nnodes", "4", "--spares", "1"],
                    command, 4)
    follower = None
    try:
        job.start().wait_running(timeout_s=120)
        follower = jobs.Follower(job)
        begin, first = time.monotonic(), jobs.committed(job.nodes())
        while time.monotonic() - begin < options.minutes * 60:
            if job.ended():
                raise jobs.JobError(job.tail())
            time.sleep(1)
        nodes = job.nodes()
        kinds = [event["kind"] for event in follower.events if event.get("generation", 0) > 1]
        evicted, faults = kinds.count("node_evicted"), kinds.count("fault_detected")
        steps = jobs.committed(nodes) - first
    finally:
        if follower:
            follower.close()
        job.stop()
        for process in crowd:
            process.kill()
            process.wait()
        shutil.rmtree(path)
    return [f"### {options.minutes:g} minutes on cores that {len(crowd)} other processes want all the time "
            f"({os.cpu_count()} cores)", "", "| | |", "|---|---|", f"| sound nodes evicted | **{evicted}** |",
            f"| faults seen | {faults} |", f"| recoveries | {jobs.generation(nodes) - 1} |",
            f"| steps committed | {steps} |", ""]

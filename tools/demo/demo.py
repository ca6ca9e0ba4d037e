"""The demo: a training loses whole nodes and ends bit for bit as if nothing had happened.

Starts `pawl run` with four nodes and a spare, lets a stranger (killer.py) kill nodes while it trains, runs the same
training undisturbed and without pawl, and compares everything. It trains a GPT in PyTorch; where PyTorch can't be had,
or with `--trainer cpp`, a character model in C++. With `--checkpoint DIR --at-once 2` two nodes die in one moment, more
than memory covers, and the job goes back to its newest checkpoint. Exit code 0: all that was promised held; 1:
something did not; 2: usage. Ctrl-C ends it all.
"""
import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import threading
import time

import job as jobs
import killer
import record
import trainers
import verdict
from processes import namespace
from reference import Reference, ReferenceFailed
from show import bytes_text, draw_losses, event_text, line, ms_text, paint

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


def parse():
    parser = argparse.ArgumentParser(prog="make demo ARGS=", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    built = os.path.join(ROOT, "build", "bin")
    parser.add_argument("--pawl", default=os.path.join(built, "pawl"), help=argparse.SUPPRESS)
    parser.add_argument("--out", help=argparse.SUPPRESS)
    parser.add_argument("--trainer", choices=sorted(trainers.TRAINERS),
                        help="gpt: in PyTorch, the default; cpp: in C++, also where PyTorch can't be had")
    parser.add_argument("--parallel", choices=trainers.PARALLEL, default=trainers.PARALLEL[0],
                        help="how the gpt is spread over the nodes: DDP with ZeRO-1 or without, FSDP2, HSDP, or TP "
                        "within one of these")
    parser.add_argument("--seed", type=int, default=1, help="of the training and of the killer: victim, instant, phase")
    parser.add_argument("--kills", type=int, default=1, help="how many times a node is killed; 0: none")
    parser.add_argument("--node", default="any", help="any, leader, or a node's number")
    parser.add_argument("--phase", default="random", choices=(*killer.PHASES, *killer.TORCH_PHASES, "any"),
                        help="park the victim there before the kill; random: wherever it is")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--batch", type=int, help="samples per node and step")
    parser.add_argument("--width", "--hidden", type=int, help="of the model's layers")
    parser.add_argument("--data", help="a text file, or a folder of them; by default text that ships with the machine")
    parser.add_argument("--record", help="where the record goes (JSON); by default out/demo-<seed>/record.json")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--spares", type=int, help="by default as many as die at once")
    parser.add_argument("--checkpoint", metavar="DIR", help="the job writes its own checkpoints there meanwhile")
    parser.add_argument("--every", help="how often: steps, or a time such as 5s; by default 50 steps, or with "
                        "--at-once a twentieth of all")
    parser.add_argument("--at-once", type=int, default=1, metavar="N", help="how many nodes are killed in one moment, "
                        "neighbours, so that copies of a seat die with it: needs --checkpoint")
    parser.add_argument("--keep", action="store_true", help="keep what the trainers wrote down, and the job's logs")
    parser.add_argument("--reference-only", action="store_true", help="only the undisturbed run")
    options = parser.parse_args()
    if options.node not in ("any", "leader") and not options.node.isdigit():
        parser.error("--node must be any, leader, or a number")
    if not os.access(options.pawl, os.X_OK):
        parser.error(f"{options.pawl} is not there; `make build` makes it")
    try:
        options.trainer, options.notice = trainers.choose(options.trainer,
                                                          os.path.dirname(os.path.abspath(options.pawl)))
    except trainers.TrainerMissing as missing:
        parser.error(str(missing))
    if options.parallel not in options.trainer.parallel:
        parser.error(f"--parallel {options.parallel} is for the gpt: {options.notice or 'leave out --trainer'}")
    multiple = {"hsdp": 2, "tp-fsdp2": 2, "tp-hsdp": 4}.get(options.parallel, 1)
    if options.nodes % multiple:
        parser.error(f"--parallel {options.parallel} takes nodes by the {multiple}: --nodes must be a multiple of it")
    for name, value in options.trainer.defaults.items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    for name in ("steps", "batch", "width", "nodes", "at_once"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1")
    if options.at_once > 1:
        check_at_once(parser, options)
    options.spares = options.at_once if options.spares is None else options.spares
    options.every = options.every or str(50 if options.at_once == 1 else max(1, options.steps // 20))
    if options.data and not os.path.exists(options.data):
        parser.error(f"--data {options.data}: there is no such file or folder")
    return options


def check_at_once(parser, options):
    said = f"--at-once {options.at_once}"
    if not options.checkpoint:
        parser.error(f"{said}: memory covers one node at a time, so the job could only end: add --checkpoint DIR")
    if options.at_once > options.nodes:
        parser.error(f"{said}: there are only {options.nodes} nodes; see --nodes")
    if options.spares is not None and options.spares < options.at_once:
        parser.error(f"{said}: each of them needs a spare: --spares {options.at_once}, or leave --spares out")
    if options.phase != "random":
        parser.error(f"{said}: goes with --phase random alone")


class Demo:
    def __init__(self, options):
        self.options, self.trainer = options, options.trainer
        self.out = options.out or os.path.join(ROOT, "out", f"demo-{options.seed}")
        shutil.rmtree(self.out, ignore_errors=True)
        os.makedirs(self.out)
        self.run_root = os.environ.get("PAWL_RUN_DIR") or f"/tmp/pawl-{os.getuid()}"  # where `pawl status` looks
        self.job = self.follower = self.killer = self.reference = None
        self.nodes = {}
        self.kill_count = 0
        self.lock = threading.Lock()

    # The run -------------------------------------------------------------------------------------------------------

    def path(self, *parts):
        return os.path.join(self.out, *parts)

    def start_job(self):
        options = self.options
        command = [*self.trainer.with_pawl(options), "--record", self.path("pawl")]
        flags = ["--standalone", "--nnodes", str(options.nodes), "--spares", str(options.spares), "--test-hooks"]
        if options.keep:
            flags.append("--keep")
        if options.checkpoint:
            flags += ["--checkpoint", options.checkpoint, "--every", options.every]
        name = f"demo-{options.seed}-{secrets.token_hex(2)}"
        if options.notice:
            line(paint(f"Not the GPT but the C++ trainer: {options.notice}\n", "yellow"))
        if self.trainer.starting:
            line(paint(f"starting: {self.trainer.starting}", "dim"))
        self.job = jobs.Job(os.path.abspath(options.pawl), self.run_root, name, flags, command,
                            self.trainer.environment, self.path("pawl-run.out")).start()
        nodes = self.job.wait_until(lambda nodes: len(nodes) >= options.nodes and jobs.running(nodes, options.nodes),
                                    "all nodes to run", self.trainer.start_timeout_s + 3 * options.nodes)[1]
        self.follower = jobs.Follower(self.job, self.on_event)
        self.introduce(nodes)

    def introduce(self, nodes):
        own = os.readlink("/proc/self/ns/net")
        apart = {namespace(status["keeper_pid"], "net") for status in nodes.values()}
        separate = own not in apart and len(apart) == len(nodes)
        where = "each in its own network, IPC and mount namespace" if separate else \
            "NOT in namespaces of their own (not allowed here): loopback addresses"
        options = self.options
        line(paint("pawl demo", "bold") + f"  {self.trainer.title}, seed {options.seed}, {options.nodes} nodes + "
             f"{options.spares} spare{'' if options.spares == 1 else 's'}, {where}")
        if options.at_once > 1:
            line(f"{options.at_once} nodes will die at once, memory covers one: the job must go back to a checkpoint "
                 f"in {options.checkpoint}")
        line(f"job {self.job.name}; look at it from another terminal: {os.path.relpath(self.job.pawl)} status")
        line()

    def start_killer(self):
        options = self.options
        with open(self.path("killer.out"), "wb") as output:
            self.killer = subprocess.Popen(
                [sys.executable, os.path.join(HERE, "killer.py"), "--pawl", self.job.pawl, "--job", self.job.name,
                 "--run-dir", self.run_root, "--seed", str(options.seed), "--kills", str(options.kills),
                 "--at-once", str(options.at_once), "--node", options.node, "--phase", options.phase,
                 "--steps", str(options.steps),
                 "--nodes", str(options.nodes), "--out", self.path("kills.jsonl")],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)

    def watch(self):
        """One line a second until the job ends; its exit code."""
        last_step, last_at = 0, time.monotonic()
        while not self.job.ended():
            nodes = self.job.nodes()
            self.job.remember()
            self.show_kills()
            if jobs.members(nodes):
                self.nodes = nodes
            if time.monotonic() - last_at >= 1.0:
                last_step = self.show_step(nodes, last_step, time.monotonic() - last_at)
                last_at = time.monotonic()
            time.sleep(0.2)
        self.show_kills()
        return self.job.process.returncode

    def show_step(self, nodes, last_step, seconds):
        trainers = jobs.seats(nodes).values()
        if not trainers:
            return last_step
        step = max(trainer.get("step", 0) for trainer in trainers)
        waits = [trainer.get("fence_wait_ms", {}).get("last", 0.0) for trainer in trainers]
        loss = self.last_loss()
        with self.lock:
            line(f"step {step:4d}/{self.options.steps}  loss {loss}  protected {jobs.committed(nodes):4d}  "
                 f"fence wait {max(waits):.1f} ms" + paint(f"  {max(0, step - last_step) / seconds:4.1f} steps/s"
                                                           f"{stored_text(nodes)}{self.spares_text(nodes)}", "dim"))
        return step

    def spares_text(self, nodes):
        if not self.options.spares:
            return ""
        rehearsing = ", one rehearses" if jobs.rehearsing(nodes) else ""
        parked = len(jobs.spares(nodes))
        return ("  spare parked" if parked == 1 else f"  {parked or 'no'} spares parked") + rehearsing

    def last_loss(self):
        last = record.last_line(self.path("pawl"), seat=0)
        return f"{last['loss']:.4f}" if last else "   –  "

    def show_kills(self):
        path = self.path("kills.jsonl")
        kills = verdict.read_kills(path)[0] if os.path.exists(path) else []
        for kill in kills[self.kill_count:]:
            with self.lock:
                line(paint(f"  ✂ node {kill['node']} killed", "red") + f" in {kill['phase']} of step {kill['step']}"
                     f" (seat {kill['seat']}, {kill['role']}; processes {' '.join(map(str, kill['pids']))})")
        self.kill_count = len(kills)

    def on_event(self, event):
        said = event_text(event)
        self.show_kills()
        if said and self.kill_count:
            path = self.path("kills.jsonl")
            since = verdict.since_ms(verdict.read_kills(path)[0][-1], event["at_monotonic_ns"])
            with self.lock:
                line(f"    {since:+7.0f} ms  {said}")

    def run_job(self):
        self.start_job()
        if self.options.kills > 0:
            self.start_killer()
        code = self.watch()
        killer_code = self.killer.wait(30) if self.killer else 0
        time.sleep(0.1)
        self.follower.close()
        self.job.stop()
        return code, killer_code

    def run_reference(self):
        line("\nthe same training undisturbed, without pawl:")
        self.reference = Reference(self.trainer.plain(self.options), self.path("plain"), self.options.nodes,
                                   self.trainer.plain_environment).start()
        run = self.reference.wait(1200)
        times = record.step_times_ms(run)
        line(f"{self.options.steps} steps, {sum(times) / 1e3:.1f} s, last loss {run.steps(0)[-1]['loss']:.4f}")
        return run

    # The verdict ---------------------------------------------------------------------------------------------------

    def judge(self, code, killer_code, reference):
        options = self.options
        run = record.read_run(self.path("pawl"))
        kills, afters = verdict.read_kills(self.path("kills.jsonl")) if options.kills else ([], [])
        compared = record.compare(run, reference, options.steps, options.nodes)
        told = []
        for kill in kills:
            stall = verdict.stall(kill, self.follower.events, run)
            told.append({**{key: kill[key] for key in ("node", "seat", "role", "phase", "step", "held", "committed",
                                                       "pids", "at_ns")},
                         **stall, "steps_redone": verdict.redone(kill, run, stall["resume"]),
                         "checkpoint": verdict.checkpoint_of(kill, self.follower.events)})
        survivor_faults = verdict.survivor_faults(kills, afters, run)
        other_faults = verdict.spare_faults(kills, afters, run) + record.updates_accounted(run, len(kills))
        if code != 0:
            other_faults.append(f"pawl run ended with {code}")
        due = options.kills * options.at_once
        if killer_code != 0 or len(kills) < due:
            other_faults.append(f"only {len(kills)} of {due} kills: " + self.text_of("killer.out"))
        if options.at_once > 1:
            other_faults += [f"node {kill['node']} died with others, and the job went back to no checkpoint"
                             for kill in told if kill["checkpoint"] is None]
        if self.reference.pawl_mapped is not False:
            other_faults.append("the reference had libpawl in its maps, or was not seen")
        other_faults += self.trainer.start_faults(run, reference)
        left = [who.pid for who in self.job.left_over()]
        if left:
            other_faults.append(f"processes were left over: {left}")
        windows = [kill["window_ns"] for kill in told if "window_ns" in kill]
        equal = compared.equal() and not survivor_faults and not other_faults
        return {
            "verdict": "bitwise equal" if equal else "NOT AS PROMISED",
            "losses_equal": compared.losses_equal, "losses_compared": compared.losses_compared,
            "tensors_equal": compared.tensors_equal, "tensors_compared": compared.tensors_compared,
            "tensor_roles": compared.roles, "samples_exact": compared.samples_exact,
            "survivors_same_process": not survivor_faults, "steps_redone": len(record.steps_redone(run)),
            "kills": told, **verdict.overhead(run, reference, windows),
            "fence_wait_ms": verdict.fence_waits(run, self.nodes),
            "wire_bytes": sum(status.get("wire_bytes", {}).get("sent", 0) for status in self.nodes.values()),
            "faults": compared.differences + survivor_faults + other_faults,
            "trainer": self.trainer.name, "seed": options.seed, "nodes": options.nodes, "spares": options.spares,
            "steps": options.steps, "at_once": options.at_once,
            "events": self.follower.events}

    def text_of(self, name):
        try:
            with open(self.path(name), encoding="utf-8", errors="replace") as file:
                return file.read().strip()[-600:]
        except OSError:
            return ""

    def summary(self, told, pictures):
        def yes(good):
            return paint("equal", "green") if good else paint("DIFFERENT", "red")

        line("\n" + paint("what was lost and found", "bold"))
        line(f"  losses     {yes(told['losses_equal'])}   {told['losses_compared']} compared: every step of every "
             f"rank, by bits; {told['steps_redone']} finished steps done again")
        line(f"  tensors    {yes(told['tensors_equal'])}   {told['tensors_compared']} compared: "
             f"{', '.join(told['tensor_roles'])}")
        line(f"  samples    {'exact' if told['samples_exact'] else paint('NOT exact', 'red')}")
        if told["kills"]:
            same = "the same processes, before and after" if told["survivors_same_process"] else \
                paint("NOT the same processes", "red")
            line(f"  survivors  {'none' if told['at_once'] == told['nodes'] else same}")
        for kills in verdict.volleys(told["kills"]):
            kill = kills[0]
            who = f"node {kill['node']}     {kill['phase']} of step {kill['step']}" if len(kills) == 1 else \
                f"nodes      {' and '.join(str(each['node']) for each in kills)} at once, in step {kill['step']}"
            line(f"  {who}: {ms_text(kill['total_ms'])} from the kill to the next step done\n             " +
                 "  ".join(f"{part} {ms_text(kill['stall_ms'][part])}" for part in verdict.PARTS))
            if kill["checkpoint"]:
                line(f"  storage    back to step {kill['resume']}, from {kill['checkpoint']}; {kill['steps_redone']} "
                     f"finished steps done again")
        wait = told["fence_wait_ms"]
        line(f"  step       {told['step_ms']:.1f} ms with pawl, {told['reference_step_ms']:.1f} ms without: "
             f"{told['overhead_ratio']:.3f}x on {os.cpu_count()} cores (median; the reference ran after it, over "
             f"loopback)")
        if wait["mean"] is not None:
            spread = f", {wait['p50']:.3f} in the middle, {wait['p95']:.3f} at 95 %" if "p50" in wait else ""
            line(f"  fence      waited {wait['mean']:.3f} ms on average{spread}, {wait['max']:.2f} at most")
        line(f"  wire       {bytes_text(told['wire_bytes'])} between nodes for protection and recovery")
        for path in pictures:
            line(f"  see        {os.path.relpath(path)}")
        for fault in told["faults"]:
            line(paint(f"  ! {fault}", "red"))
        line()
        good = told["verdict"] == "bitwise equal"
        line(paint(f"verdict: {told['verdict']}", "green" if good else "red"))

    def run(self):
        options = self.options
        if options.reference_only:
            self.run_reference()
            return 0
        code, killer_code = self.run_job()
        if code != 0:
            line(paint(f"\npawl run ended with {code}:\n", "red") + self.job.tail())
        reference = self.run_reference()
        told = self.judge(code, killer_code, reference)
        pictures = []
        picture = self.path("loss.png")
        if draw_losses(picture, record.curve(record.read_run(self.path("pawl"))), record.curve(reference),
                       told["kills"],
                       f"{self.trainer.title}, seed {options.seed}: {len(told['kills'])} node(s) killed"):
            pictures.append(picture)
        target = options.record or self.path("record.json")
        os.makedirs(os.path.dirname(os.path.abspath(target)), exist_ok=True)
        with open(target, "w", encoding="utf-8") as file:
            json.dump(told, file, indent=1)
            file.write("\n")
        self.summary(told, [*pictures, target])
        return 0 if told["verdict"] == "bitwise equal" else 1

    def close(self):
        """Nothing stays, whatever happened."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if self.killer and self.killer.poll() is None:
            self.killer.kill()
            self.killer.wait()
        if self.follower:
            self.follower.close()
        if self.job:
            self.job.stop(5.0)
        if self.reference:
            self.reference.stop()
        if self.options.keep:
            line(f"kept: {self.job.directory if self.job else ''} {self.out}")
            return
        if self.job:
            shutil.rmtree(self.job.directory, ignore_errors=True)
        for name in ("pawl", "plain"):
            shutil.rmtree(self.path(name), ignore_errors=True)


def stored_text(nodes):
    """The newest checkpoint, in a job that writes them."""
    step = jobs.published(nodes)
    return "" if step is None else f"  step {step} stored" if step else "  nothing stored"


def main():
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    demo = Demo(options)
    try:
        return demo.run()
    except KeyboardInterrupt:
        line("\nstopped")
        return 130
    except (jobs.JobError, ReferenceFailed, OSError, subprocess.SubprocessError) as error:
        line(paint(f"\n{error}", "red"))
        return 1
    finally:
        demo.close()


if __name__ == "__main__":
    sys.exit(main())

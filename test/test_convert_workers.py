"""`pawl convert` by several workers: byte for byte what one writes, nothing that looks whole when one of them is killed
at any instant, and a clear sentence when they don't agree about what they do. Needs no PyTorch."""
import json
import os
import random
import shutil
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import harness
from harness import PAWL

OK, FAILED, USAGE = range(3)
# Each so that there is something to cut: several files, a tensor that is half of all, many small ones.
FORMATS = (("safetensors",), ("huggingface", "--max-file-size", "3MB"), ("dcp", "--max-file-size", "3MB"),
           ("universal",), ("pawl",))
LETTERS = {"F32": 4, "BF16": 2}


def run(*arguments, **environment):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([PAWL, *map(str, arguments)], capture_output=True, timeout=120, check=False, text=True,
                          env={**os.environ, **environment})
    return done.returncode, done.stdout, done.stderr


def write_source(path, megabytes, seed=1):
    """A checkpoint with all roles of Adam, of random numbers that are all finite."""
    draw = random.Random(seed)
    rows = megabytes * (1 << 20) // 2560
    shapes = {"large.weight": (rows, 256), "head.weight": (333, 1001), "layers.0.bias": (7,), "one.weight": (1, 1, 65)}
    shapes.update({f"layers.{i}.norm.weight": (97,) for i in range(40)})
    header, at, data = {}, 0, []
    for name, shape in shapes.items():
        count = 1
        for extent in shape:
            count *= extent
        for role in ("weight", "exp_avg", "exp_avg_sq", "step"):
            dtype, here = ("BF16" if role == "weight" else "F32"), ([] if role == "step" else list(shape))
            size = (1 if role == "step" else count) * LETTERS[dtype]
            block = bytes(byte & 0x3F for byte in draw.randbytes(min(size, 1 << 16)))
            data.append((block * (size // len(block) + 1))[:size])
            header[f"{name}/{role}"] = {"dtype": dtype, "shape": here, "data_offsets": [at, at + size]}
            at += size
    words = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(words)) + words + b"".join(data))
    return path


def bytes_of(path):
    """All files below a path, by their names."""
    if os.path.isfile(path):
        with open(path, "rb") as file:
            return {"": file.read()}
    found = {}
    for folder, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(folder, name), "rb") as file:
                found[os.path.relpath(os.path.join(folder, name), path)] = file.read()
    return found


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return [int(word) for word in file.read().split()]
    except OSError:
        return []


class WorkersTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pawl-workers-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        self.processes = []
        self.addCleanup(self.end_all)

    def end_all(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def start(self, *arguments, **environment):
        process = subprocess.Popen([PAWL, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True,
                                   env={**os.environ, **environment})
        self.processes.append(process)
        return process

    def ended(self, process, timeout=60):
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    def ok(self, *arguments):
        code, out, err = run(*arguments)
        self.assertEqual(OK, code, f"pawl {' '.join(map(str, arguments))}\n{out}\n{err}")
        return out

    def left(self, *expected):
        self.assertEqual(set(expected), set(os.listdir(self.folder)))

    def same(self, one, other, what):
        one, other = bytes_of(one), bytes_of(other)
        self.assertEqual(sorted(one), sorted(other), what)
        for name, data in one.items():
            self.assertTrue(data == other[name], f"{what}: {name or 'the file'} differs")

    def together(self, target, count, *arguments, sources=None, each=None, wait="20"):
        """So many processes as somebody would start them: what each ended with."""
        started = [self.start("convert", (sources or {}).get(i, self.at("source")), target, "--worker", f"{i}/{count}",
                              "--wait",
                              wait, *arguments, *(each or {}).get(i, ())) for i in range(count)]
        return [self.ended(process) for process in started]

    def test_are_equal_byte_for_byte_to_one(self):
        source = write_source(self.at("source"), 12)
        for to, *more in FORMATS:
            with self.subTest(to):
                self.ok("convert", source, self.at("alone"), "--to", to, *more)
                self.ok("convert", source, self.at("forked"), "--to", to, *more, "--workers", "3")
                self.same(self.at("alone"), self.at("forked"), f"{to}, forked")
                ends = self.together(self.at("met"), 3, "--to", to, *more)
                self.assertEqual([OK] * 3, [code for code, _, _ in ends], ends)
                self.assertIn("worker 2 of 3 wrote its share", ends[2][1])
                self.same(self.at("alone"), self.at("met"), f"{to}, started one by one")
                self.ok("verify", self.at("forked"))
                self.ok("diff", source, self.at("forked"), *(("--roles", "weight") if to == "huggingface" else
                                                           ("--roles", "exp_avg,exp_avg_sq") if to == "universal"
                                                             else ()))
                self.ok("convert", source, self.at("forked"), "--to", to, *more, "--workers", "2", "--overwrite")
                self.same(self.at("alone"), self.at("forked"), f"{to}, over another")
                self.left("source", "alone", "forked", "met")
                for name in ("alone", "forked", "met"):
                    (shutil.rmtree if os.path.isdir(self.at(name)) else os.unlink)(self.at(name))

    def test_report_counts_what_all_did(self):
        source = write_source(self.at("source"), 8)
        report = json.loads(self.ok("convert", source, self.at("out"), "--to", "dcp", "--workers", "3", "-o", "json"))
        self.assertEqual(3, report["workers"])
        self.assertGreaterEqual(report["bytes_read"], report["bytes"] * 0.95)
        # More workers than there is work, within little memory.
        self.ok("convert", source, self.at("out"), "--to", "dcp", "--workers", "19", "--memory", "8MiB", "--overwrite")
        self.ok("diff", source, self.at("out"))

    def test_a_worker_killed_at_random_instants(self):
        source = write_source(self.at("source"), 16)
        draw = random.Random(int(os.environ.get("PAWL_SEED", "1")))
        for to in ("safetensors", "universal", "pawl"):
            target = self.at("out")
            began = time.monotonic()
            self.ok("convert", source, target, "--to", to, "--workers", "3")
            usual = time.monotonic() - began
            whole = bytes_of(target)
            killed = 0
            for attempt in range(40):
                if killed == 4:
                    break
                (shutil.rmtree if os.path.isdir(target) else os.unlink)(target) if os.path.exists(target) else None
                process = self.start("convert", source, target, "--to", to, "--workers", "3")
                deadline = time.monotonic() + 30
                while not (workers := children_of(process.pid)) and process.poll() is None:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.0005)
                time.sleep(draw.uniform(0, usual / 2))
                workers = [pid for pid in workers if pid in children_of(process.pid)]
                the_command = attempt % 4 == 3
                if the_command:
                    process.kill()
                elif workers:
                    os.kill(draw.choice(workers), signal.SIGKILL)
                code, _, err = self.ended(process)
                if code == OK:
                    self.assertTrue(whole == bytes_of(target), f"{to}: not what it was")
                    continue
                killed += 1
                if the_command and os.path.exists(target):  # killed after it got its name
                    self.assertTrue(whole == bytes_of(target), f"{to}: not what it was")
                    continue
                self.assertFalse(os.path.exists(target), f"{to}: {err}")
                if the_command:  # its workers end with it: the place is free, and what is there does not look whole
                    self.assertLessEqual(set(os.listdir(self.folder)), {"source", "out.pawl-partial"})
                    partial = self.at("out.pawl-partial")
                    for name in (partial, *(os.path.join(partial, name)
                                            for name in (os.listdir(partial) if os.path.isdir(partial) else ()))):
                        if run("inspect", name)[0] == OK:  # killed just before it got its name: then it is whole
                            self.assertLessEqual(set(whole.values()), set(bytes_of(name).values()), f"{to}: {name}")
                else:
                    self.assertRegex(err, r"worker \d of 3 was killed by signal 9 \(Killed\).*you can rerun the "
                                     r"command")
                    self.left("source")
            self.assertEqual(4, killed)
            deadline = time.monotonic() + 10
            # killed ones may take a moment to end
            while run("convert", source, target, "--to", to, "--workers", "3")[0] != OK:
                self.assertLess(time.monotonic(), deadline)
                self.assertFalse(os.path.exists(target))
                time.sleep(0.1)
            self.assertTrue(whole == bytes_of(target), f"{to}: not what it was")
            self.left("source", "out")
            (shutil.rmtree if os.path.isdir(target) else os.unlink)(target)

    def test_one_of_those_that_meet_is_killed(self):
        source = write_source(self.at("source"), 16)
        target = self.at("out")
        victims, tries = [1, 0], 0
        while victims:
            victim, tries = victims[0], tries + 1
            self.assertLess(tries, 20, "always done before one is killed: the source is too small for this test")
            started = [self.start("convert", source, target, "--to", "dcp", "--worker", f"{i}/3", "--wait", "2")
                       for i in range(3)]
            deadline = time.monotonic() + 30
            go = self.at("out.pawl-partial", "workers", "go")
            while not os.path.exists(go) and time.monotonic() < deadline:
                time.sleep(0.0005)
            started[victim].kill()
            ends = [self.ended(process) for process in started]
            if ends[victim][0] == OK or os.path.exists(target):  # done before it was killed
                self.assertEqual(OK, ends[0][0] if victim != 0 else OK, ends)
                shutil.rmtree(target)
                continue
            victims.pop(0)
            self.assertFalse(os.path.exists(target))
            if victim == 1:
                self.assertEqual(FAILED, ends[0][0], ends)
                self.assertIn("worker 1 of 3 wrote nothing for 2000 ms and left no report", ends[0][2])
                self.left("source")
        # What worker 0 left when it was killed is there, with reports of that attempt. One worker alone takes none of
        # it.
        code, _, err = run("convert", source, target, "--to", "dcp", "--worker", "1/3", "--wait", "0.5")
        self.assertEqual(FAILED, code)
        self.assertIn("worker 0 did not let us begin within 500 ms", err)
        ends = self.together(target, 3, "--to", "dcp")
        self.assertEqual([OK] * 3, [code for code, _, _ in ends], ends)
        self.ok("diff", source, target)
        self.left("source", "out")

    def test_workers_that_disagree_are_refused(self):
        source = write_source(self.at("source"), 2)
        write_source(self.at("other"), 2, seed=2)  # the same names and shapes: only its bytes, and its time, are others
        to = ("--to", "safetensors")
        cases = (dict(sources={1: self.at("other")}), dict(each={1: ("--dtype", "fp32")}),
                 dict(each={1: ("--memory", "1MiB")}))
        for case in cases:
            with self.subTest(case):
                ends = self.together(self.at("out"), 2, *to, wait="10", **case)
                for code, _, err in ends:
                    self.assertEqual(FAILED, code, ends)
                    self.assertIn("worker 1 (process ", err)
                    self.assertIn("has another source, other options or another number of workers", err)
                self.left("source", "other")
        # Of another job: not seen at all. Of the same one by SLURM's word: they meet.
        ends = self.together(self.at("out"), 2, *to, wait="1", each={0: ("--job-id", "a"), 1: ("--job-id", "b")})
        self.assertIn("1 of 2 workers did not come within 1000 ms: 1", ends[0][2])
        slurm = {"SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "2"}
        started = [self.start("convert", source, self.at("out"), *to, "--worker", "slurm", "--wait", "20", **slurm,
                              SLURM_PROCID=str(i)) for i in range(2)]
        self.assertEqual([OK, OK], [self.ended(process)[0] for process in started])
        self.left("source", "other", "out")

    def test_what_is_said_wrong(self):
        source = write_source(self.at("source"), 2)
        for words, says in ((("--worker", "3/3"), "I/N"), (("--worker", "1"), "I/N"), (("--worker", "slurm"), "srun"),
                            (("--workers", "0"), "--workers"), (("--workers", "2", "--worker", "0/2"), "--worker"),
                            (("--job-id", "x"), "--worker I/N"), (("--worker", "0/2", "--job-id", "a b"), "one word")):
            code, out, err = run("convert", source, self.at("out"), "--to", "dcp", *words, SLURM_PROCID="")
            self.assertEqual(USAGE, code, words)
            self.assertIn(says, out + err)
        # A worker that fails by itself ends them all, with its reason.
        shutil.copy(source, self.at("taken"))
        code, _, err = run("convert", source, self.at("taken"), "--to", "safetensors", "--workers", "2")
        self.assertEqual(FAILED, code)
        self.assertIn("is there already", err)
        self.left("source", "taken")


if __name__ == "__main__":
    harness.main()

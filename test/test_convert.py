"""`pawl inspect, convert, diff, verify` on real checkpoints: equal to their goldens bit for bit, whole or not there at
all whenever the converter is killed, and a clear refusal of what is damaged. Needs no PyTorch.

The whole set of fixtures is $PAWL_FIXTURES or ../shared/fixtures beside the checkout; else the small one is used.
"""
import ctypes
import errno
import glob
import json
import os
import random
import re
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import unittest

import harness
from harness import PAWL, ROOT

WHOLE_SET = os.environ.get("PAWL_FIXTURES", os.path.join(ROOT, "..", "shared", "fixtures"))
FIXTURES = WHOLE_SET if os.path.isdir(WHOLE_SET) else os.path.join(ROOT, "test", "fixtures")
OK, FAILED, USAGE, NOT_FOUND, DEGRADED = range(5)
SIZES = {"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
# A conversion of DeepSpeed's own that is known to be wrong is kept in the fixture to recognise it by.
KNOWN_WRONG = {"zero2_w3_round_robin/universal"}
# The parameters of its optimizer are not in the checkpoint: their state keeps its numbers.
WITHOUT_ITS_MODEL = {"G8e_objects"}
# Tensors of a type that safetensors lacks.
WITHOUT_A_TYPE = {"G8e_objects": ["tensors.dtypes.complex128/weight"]}
# Where the program that saved gave its keys another prefix.
STORED_UNDER = {"G8f_custom_planner": "renamed/"}


def pawl(*arguments, timeout=120, **keywords):
    """(exit code, standard output, standard error)"""
    done = subprocess.run([PAWL, *map(str, arguments)], capture_output=True, timeout=timeout, check=False, **keywords)
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")


class Safetensors:
    """A file, read by a few lines that share nothing with pawl's reader."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self.bytes = file.read()
        length = struct.unpack("<Q", self.bytes[:8])[0]
        header = json.loads(self.bytes[8:8 + length])
        self.metadata = header.pop("__metadata__", {})
        self.entries = header
        self.data_at = 8 + length

    def range_of(self, key):
        begin, end = self.entries[key]["data_offsets"]
        return self.data_at + begin, self.data_at + end

    def data(self, key):
        begin, end = self.range_of(key)
        return self.bytes[begin:end]


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    words = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(words)) + words)
        for _, _, data in tensors.values():
            file.write(data)


def is_golden(name):
    return name.startswith("golden")


def sources_of(fixture):
    """Each checkpoint in a fixture's folder: (name, list of what belongs to it)."""
    names = sorted(name for name in os.listdir(fixture) if not is_golden(name))
    ranks = [name for name in names if name.startswith("rank") and name.endswith(".pt")]
    if ranks:
        yield "ranks", ranks
    if any(name.startswith("iter_") for name in names):
        yield "megatron", names
        return
    for name in names:
        if name not in ranks and not name.startswith("local_rank"):
            yield name, [name]


def copied(fixture, names, target):
    """The checkpoint alone, under a name that tells nothing. Where to open it."""
    if len(names) == 1:
        path = os.path.join(fixture, names[0])
        place = target + (os.path.splitext(names[0])[1] if os.path.isfile(path) else "")
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, place)
        return place
    os.mkdir(target)
    for name in names:
        path = os.path.join(fixture, name)
        (shutil.copytree if os.path.isdir(path) else shutil.copy)(path, os.path.join(target, name))
    return target


def golden_fixtures():
    """Those of the whole set that have both goldens; the repository's own (K_) have tests beside their readers."""
    folders = (os.path.dirname(path) for path in glob.glob(os.path.join(FIXTURES, "*", "*", "golden.safetensors")))
    return sorted(folder for folder in folders if os.path.exists(os.path.join(folder, "golden.json")))


def every_input():
    """Whatever a person might point pawl at, hostile files among it."""
    for fixture in sorted(glob.glob(os.path.join(FIXTURES, "*", "*"))):
        if not os.path.isdir(fixture):
            continue
        yield fixture
        for name in sorted(os.listdir(fixture)):
            if not is_golden(name) or name.endswith(".safetensors"):
                yield os.path.join(fixture, name)


class CommandTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pawl-convert-")
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)

    def at(self, *names):
        return os.path.join(self.folder, *names)

    def run_ok(self, *arguments, code=OK):
        got, out, err = pawl(*arguments)
        self.assertEqual(code, got, f"pawl {' '.join(map(str, arguments))}\n{out}\n{err}")
        return out

    def refused(self, *arguments, code=FAILED, says=()):
        got, out, err = pawl(*arguments)
        self.assertEqual(code, got, f"pawl {' '.join(map(str, arguments))}\n{out}\n{err}")
        for words in (says,) if isinstance(says, str) else says:
            self.assertIn(words, err)
        return err

    def assert_nothing_left(self, *kept):
        self.assertEqual(sorted(kept), sorted(os.listdir(self.folder)))

    def model(self, megabytes=1, files=3):
        """A sharded Hugging Face folder of random numbers. (folder, name -> bytes)"""
        folder = self.at("model")
        os.mkdir(folder)
        rows = 64
        per_tensor = megabytes * (1 << 20) // (files * 4)
        tensors, index = {}, {}
        for file in range(files):
            name = f"model-{file + 1:05}-of-{files:05}.safetensors"
            here = {f"layer.{file}.{i}": ("F32", [rows, per_tensor // rows // 4],
                                          os.urandom(per_tensor // rows // 4 * rows * 4))
                    for i in range(4)}
            write_safetensors(os.path.join(folder, name), here)
            index.update(dict.fromkeys(here, name))
            tensors.update({key: data for key, (_, _, data) in here.items()})
        with open(os.path.join(folder, "model.safetensors.index.json"), "w", encoding="utf-8") as out:
            json.dump({"metadata": {"total_size": sum(map(len, tensors.values()))}, "weight_map": index}, out)
        return folder, tensors

    def assert_whole(self, path, tensors):
        got = Safetensors(path)
        self.assertEqual({key + "/weight" for key in tensors}, set(got.entries))
        for key, data in tensors.items():
            self.assertEqual(data, got.data(key + "/weight"), key)


class GoldenTest(CommandTest):
    """Each fixture's checkpoint, alone and renamed, into safetensors: what the running job held, bit for bit."""

    def test_every_checkpoint_equals_its_golden(self):
        compared = 0
        for fixture in golden_fixtures():
            golden = Safetensors(os.path.join(fixture, "golden.safetensors"))
            with open(os.path.join(fixture, "golden.json"), encoding="utf-8") as file:
                facts = json.load(file)
            for number, (name, names) in enumerate(sources_of(fixture)):
                label = f"{os.path.basename(fixture)}/{name}"
                if label in KNOWN_WRONG:
                    continue
                with self.subTest(label):
                    target = self.at(f"{os.path.basename(fixture)}-{number}.out")
                    source = copied(fixture, names, self.at(f"some{random.randrange(10**9)}"))
                    given = self.given_names(source, label, facts)
                    despite = ["--despite-problems"] if label.split("/")[0] in WITHOUT_ITS_MODEL else []
                    lacking = WITHOUT_A_TYPE.get(label.split("/")[0], [])
                    skip, code = (["--skip-unsupported"], DEGRADED) if lacking else ([], OK)
                    self.run_ok("convert", source, target, "--to", "safetensors", *given, *despite, *skip, code=code)
                    self.compare(golden, facts, target, source, label, given)
                    verdict = json.loads(self.run_ok("verify", source, "-o", "json", *given))["verdict"]
                    self.assertNotEqual("damaged", verdict)
                    compared += 1
        self.assertGreater(compared, 20)

    def given_names(self, source, label, facts):
        """For optimizers that are keyed by number: the weights' names in their order. Nothing is converted without."""
        view = json.loads(pawl("inspect", source, "-o", "json")[1])
        if not view["unnamed"] and not any("--param-names" in problem for problem in view["problems"]):
            return ()
        self.refused("convert", source, self.at("unnamed"), "--to", "safetensors", says="--param-names FILE",
                     code=DEGRADED if view["problems"] else FAILED)
        if label.split("/")[0] in WITHOUT_ITS_MODEL:
            return ()
        file = self.at(f"names{random.randrange(10**9)}")
        weights = [tensor for tensor in view["tensors"] if tensor["role"] == "weight" and "float" in tensor["dtype"]
                   and "running_" not in tensor["name"]]
        trained = set(facts.get("optimizer_index_to_fqn", {}).values())
        weights = [tensor for tensor in weights if not trained or tensor["name"] in trained]
        matrices = [tensor for tensor in weights if len(tensor["shape"]) > 1]  # those that decay are often a group
        groups = [weights], [matrices, [tensor for tensor in weights if tensor not in matrices]]
        for given in groups:
            with open(file, "w", encoding="utf-8") as out:
                out.write("\n".join("".join(tensor["name"] + "\n" for tensor in group) for group in given))
            code, said, _ = pawl("inspect", source, "-o", "json", "--param-names", file)
            if code in (OK, DEGRADED) and "--param-names" not in said:
                break
        return "--param-names", file

    def compare(self, golden, facts, target, source, label, given):
        got = Safetensors(target)
        view = json.loads(self.run_ok("inspect", source, "-o", "json", *given))
        dropped = {*facts.get("golden_keys_not_in_files", []), *WITHOUT_A_TYPE.get(label.split("/")[0], [])}
        in_part = may_lack(label, facts)
        prefix = STORED_UNDER.get(label.split("/")[0], "")
        missing = []
        for key in golden.entries:
            name, role = key.rsplit("/", 1)
            found = f"{prefix}{view['aliases'].get(name, name)}/{role}"
            found = key if key in got.entries else found
            if found not in got.entries:
                if key not in dropped and not in_part(key):
                    missing.append(key)
                continue
            if in_part(key) and (golden.entries[key]["dtype"] != got.entries[found]["dtype"]
                                 or is_averaged(name, facts)):
                continue  # the mean of the masters, rounded, is not the mean of the rounded weights
            self.assertEqual(golden.entries[key]["dtype"], got.entries[found]["dtype"], key)
            self.assertEqual(golden.entries[key]["shape"], got.entries[found]["shape"], key)
            self.assertEqual(golden.data(key), got.data(found), key)
        self.assertEqual([], missing)


def is_averaged(name, facts):
    return "avg" in facts.get("params", {}).get(name, {}).get("layout", [])


def may_lack(label, facts):
    """Whether a checkpoint may lack a golden key, by what was saved into it."""
    if facts["spec"].get("exclude_frozen"):
        return lambda key: key.rsplit("/", 1)[0] in facts["frozen"]
    if label.endswith("/universal"):  # no buffers, no frozen weights, and weights in fp32 only
        return lambda key: key.endswith(("/weight", "/buffer"))
    if label.startswith("G5") and label.endswith("/full.pt"):  # the model only
        return lambda key: not key.endswith("/weight")
    return lambda key: False


def usual_s(arguments, remove, times=3):
    """How long the command takes when nothing else keeps the machine busy: the least of some runs; the last one's
    output is left."""
    took = []
    for number in range(times):
        if number > 0:
            remove()
        began = time.monotonic()
        subprocess.run(arguments, check=True, capture_output=True)
        took.append(time.monotonic() - began)
    return min(took)


class CarefulTest(CommandTest):
    """Whole, or not there."""

    def test_killed_at_random_instants(self):
        source, tensors = self.model(megabytes=256)
        target = self.at("out.safetensors")
        arguments = [PAWL, "convert", source, target, "--to", "safetensors", "--memory", "64MiB"]
        usual = usual_s(arguments, lambda: os.unlink(target))
        self.assert_whole(target, tensors)
        draw = random.Random(int(os.environ.get("PAWL_SEED", "1")))
        killed, finished = 0, 0
        while killed < 20 and finished < 60:
            if os.path.exists(target):
                os.unlink(target)
            process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(draw.uniform(0, usual))
            process.kill()
            if process.wait() == 0:
                finished += 1
                self.assert_whole(target, tensors)
                continue
            killed += 1
            if os.path.exists(target):  # killed after it got its name
                self.assert_whole(target, tensors)
                continue
            left = os.listdir(self.folder)
            self.assertLessEqual(set(left), {"model", "out.safetensors.pawl-partial"})
            for name in left[:]:
                if name != "model":
                    code, out, _ = pawl("inspect", self.at(name))
                    self.assertNotEqual(OK, code, f"what a kill left looks whole:\n{out}")
        self.assertEqual(20, killed)
        self.run_ok("convert", source, target, "--to", "safetensors", "--overwrite")
        self.assert_whole(target, tensors)
        self.assert_nothing_left("model", "out.safetensors")

    def test_a_folder_killed_at_random_instants(self):
        source, tensors = self.model(megabytes=128)
        target = self.at("out")
        arguments = [PAWL, "convert", source, target, "--to", "huggingface", "--max-file-size", "30MB"]
        usual = usual_s(arguments, lambda: shutil.rmtree(target))
        whole = sorted(os.listdir(target))
        draw = random.Random(2)
        for _ in range(20):
            shutil.rmtree(target, ignore_errors=True)
            process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(draw.uniform(0, usual))
            process.kill()
            process.wait()
            if os.path.exists(target):
                self.assertEqual(whole, sorted(os.listdir(target)))
                self.run_ok("diff", source, target)
            self.assertLessEqual(set(os.listdir(self.folder)), {"model", "out", "out.pawl-partial"})
        self.run_ok("convert", source, target, "--to", "huggingface", "--overwrite", "--max-file-size", "30MB")
        self.run_ok("diff", source, target)
        self.assert_nothing_left("model", "out")
        self.assertEqual(len(tensors), len(json.loads(self.run_ok("inspect", target, "-o", "json"))["tensors"]))

    def test_interrupted(self):
        source, _ = self.model(megabytes=256)
        for _ in range(10):  # a conversion may be done before the signal comes: then another one is interrupted
            process = subprocess.Popen([PAWL, "convert", source, self.at("out"), "--to", "safetensors", "--overwrite"],
                                       stderr=subprocess.PIPE)
            deadline = time.monotonic() + 30
            partial = self.at("out.pawl-partial")
            while not os.path.exists(partial) and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.001)
            process.send_signal(signal.SIGINT)
            error = process.communicate(timeout=30)[1].decode()
            if process.returncode != OK:
                break
            os.unlink(self.at("out"))
        self.assertEqual(FAILED, process.returncode, error)
        self.assert_nothing_left("model")

    def test_no_space_on_the_disk(self):
        source, _ = self.model(megabytes=8)
        disk = self.at("disk")
        os.mkdir(disk)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mount(b"tmpfs", disk.encode(), b"tmpfs", 0, b"size=4m") != 0:
            why = errno.errorcode[ctypes.get_errno()]
            self.skipTest(f"privilege: no tmpfs can be mounted here ({why})")
        self.addCleanup(libc.umount2, disk.encode(), 2)
        self.refused("convert", source, os.path.join(disk, "out"), "--to", "safetensors", says=("no room", "free"))
        self.assertEqual([], os.listdir(disk))

    def test_files_may_not_grow_as_large(self):
        """As a quota that no look at the disk foretells."""
        source, _ = self.model(megabytes=8)

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        code, out, err = pawl("convert", source, self.at("out"), "--to", "safetensors", preexec_fn=limit)
        self.assertEqual(FAILED, code, out + err)
        self.assertIn("out.pawl-partial", err)
        self.assert_nothing_left("model")

    def test_two_at_once(self):
        source, tensors = self.model(megabytes=128)
        arguments = [PAWL, "convert", source, self.at("out"), "--to", "safetensors"]
        both = [subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
        errors = [process.communicate(timeout=120)[1].decode() for process in both]
        self.assertIn(OK, [process.returncode for process in both], errors)
        self.assert_whole(self.at("out"), tensors)
        self.assert_nothing_left("model", "out")


class MemoryTest(CommandTest):
    def test_memory_stays_within_what_is_allowed(self):
        """64 MiB of tensors within 8 MiB for data; the process itself has some MiB more."""
        source, _ = self.model(megabytes=64)
        script = ("import resource, subprocess, sys; code = subprocess.run(sys.argv[1:], "
                  "stdout=subprocess.DEVNULL).returncode;"
                  "print(code, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)")
        for arguments in (("convert", source, self.at("out"), "--to", "safetensors"), ("diff", source, self.at("out")),
                          ("verify", source)):
            with self.subTest(arguments[0]):
                done = subprocess.run([sys.executable, "-c", script, PAWL, *arguments, "--memory", "8MiB"],
                                      capture_output=True, check=True, timeout=120)
                code, kibibytes = map(int, done.stdout.split())
                self.assertEqual(OK, code, done.stderr)
                self.assertLess(kibibytes, 40 << 10)


class RefusalTest(CommandTest):
    def test_bad_input(self):
        source, _ = self.model()
        out = self.at("out")
        with open(self.at("text"), "w", encoding="utf-8") as file:
            file.write("no checkpoint at all\n")
        os.mkdir(self.at("empty"))
        with open(self.at("taken"), "w", encoding="utf-8") as file:
            file.write("mine")
        to = ("--to", "safetensors")
        before = set(os.listdir(self.folder))
        for arguments, code, says in (
                (("convert", self.at("nowhere"), out, *to), NOT_FOUND, "nowhere"),
                (("inspect", self.at("nowhere")), NOT_FOUND, "nowhere"),
                (("verify", self.at("nowhere")), NOT_FOUND, "nowhere"),
                (("diff", source, self.at("nowhere")), NOT_FOUND, "nowhere"),
                (("convert", self.at("empty"), out, *to), None, "empty"),
                (("convert", self.at("text"), out, *to), None, "text"),
                (("convert", source, out, *to, "--roles", "momentum"), NOT_FOUND, "there are: weight"),
                (("convert", source, self.at("taken"), *to), FAILED, "--overwrite"),
                (("convert", source, self.at("empty"), *to), FAILED, "is a folder"),
                (("convert", source, self.at("taken"), "--to", "huggingface"), FAILED, "is a file"),
                (("convert", source, self.at("no", "folder", "out"), *to), NOT_FOUND, "no such folder"),
                (("convert", source, out, *to, "--dtype", "int8"), USAGE, "bfloat16"),
                (("convert", source, out, *to, "--memory", "much"), USAGE, "--memory"),
                (("convert", source, out, "--to", "paper"), USAGE, "--to"),
                (("convert", source, out), USAGE, "--to"),
                (("convert", source, out, *to, "--family", "bert"), USAGE, "gpt_neox"),
                (("convert", source, out, *to, "--trust-replica", "7"), NOT_FOUND, "--trust-replica 7"),
                (("inspect",), USAGE, "path")):
            with self.subTest(" ".join(map(str, arguments))):
                got, output, err = pawl(*arguments)
                if code is None:
                    self.assertIn(got, (FAILED, NOT_FOUND), err)
                else:
                    self.assertEqual(code, got, output + err)
                self.assertIn(says, err)
        self.assertEqual(before, set(os.listdir(self.folder)))
        with open(self.at("taken"), encoding="utf-8") as file:
            self.assertEqual("mine", file.read())

    def test_a_shard_is_cut_or_missing(self):
        source, _ = self.model()
        shard = os.path.join(source, "model-00002-of-00003.safetensors")
        os.truncate(shard, os.path.getsize(shard) // 2)
        for command in (("inspect", source), ("verify", source),
                        ("convert", source, self.at("out"), "--to", "safetensors")):
            with self.subTest(command[0]):
                code, out, err = pawl(*command)
                self.assertIn(code, (FAILED, DEGRADED))
                self.assertIn("model-00002-of-00003", out + err)
        os.unlink(shard)
        for command in (("inspect", source), ("verify", source),
                        ("convert", source, self.at("out"), "--to", "safetensors")):
            with self.subTest(command[0] + " without"):
                code, out, err = pawl(*command)
                self.assertIn(code, (FAILED, NOT_FOUND, DEGRADED))
                self.assertIn("model-00002-of-00003", out + err)
        self.assert_nothing_left("model")

    def test_what_is_there_stays_unless_told(self):
        source, tensors = self.model()
        out = self.at("out")
        self.assertIn("would write", self.run_ok("convert", source, out, "--to", "safetensors", "--dry-run"))
        self.assert_nothing_left("model")
        self.run_ok("convert", source, out, "--to", "safetensors")
        self.refused("convert", source, out, "--to", "safetensors", says="--overwrite")
        self.run_ok("convert", source, out, "--to", "safetensors", "--overwrite")
        self.assert_whole(out, tensors)

    def test_hostile_files(self):
        """Nothing crashes, hangs or is executed: each look ends with one of the documented codes."""
        looked = 0
        for path in every_input():
            for command in ("inspect", "verify"):
                with self.subTest(f"{command} {os.path.relpath(path, FIXTURES)}"):
                    code, out, err = pawl(command, path, "-o", "json", timeout=60, cwd=self.folder)
                    self.assertIn(code, (OK, FAILED, NOT_FOUND, DEGRADED), err[-2000:])
                    json.loads(out)
                    if code in (FAILED, NOT_FOUND) and "verdict" not in out:
                        self.assertTrue(err.startswith("pawl: "), err)
                    looked += 1
        self.assertGreater(looked, 300)
        self.assert_nothing_left()

    def test_copies_that_differ(self):
        fixture = os.path.join(FIXTURES, "torch", "G8k_no_collectives")
        golden = Safetensors(os.path.join(fixture, "golden.safetensors"))
        source = copied(fixture, ["ckpt"], self.at("ckpt"))
        name, data = next((key, golden.data(key)) for key in sorted(golden.entries)
                          if len(golden.data(key)) >= 16 and
                          sum(golden.data(key) in read(path) for path in glob.glob(os.path.join(source,
                                                                                                "*.distcp"))) > 1)
        path = sorted(path for path in glob.glob(os.path.join(source, "*.distcp")) if data in read(path))[-1]
        flip(path, read(path).index(data) + 4)
        plain = name.rsplit("/", 1)[0]
        self.refused("convert", source, self.at("out"), "--to", "safetensors", code=DEGRADED,
                     says=(plain, "--trust-replica", "differ"))
        code, out, _ = pawl("verify", source)
        self.assertEqual(DEGRADED, code, out)
        self.assertIn(plain, out)
        self.run_ok("convert", source, self.at("out"), "--to", "safetensors", "--trust-replica", "0")
        self.assertEqual(data, Safetensors(self.at("out")).data(name))


def read(path):
    with open(path, "rb") as file:
        return file.read()


def flip(path, at, bit=0x40):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ bit]))


class DiffTest(CommandTest):
    def test_equal_across_formats(self):
        source, _ = self.model()
        self.run_ok("convert", source, self.at("out"), "--to", "safetensors")
        self.assertIn("equal", self.run_ok("diff", source, self.at("out")))
        self.run_ok("convert", source, self.at("folder"), "--to", "huggingface", "--max-file-size", "300KB")
        report = json.loads(self.run_ok("diff", self.at("folder"), self.at("out"), "--memory", "1MiB", "-o", "json"))
        self.assertTrue(report["equal"])
        self.assertEqual(12, report["compared"])

    def test_one_flipped_bit_is_found(self):
        source, tensors = self.model()
        self.run_ok("convert", source, self.at("out"), "--to", "safetensors")
        draw = random.Random(3)
        for _ in range(10):
            shutil.copy(self.at("out"), self.at("flipped"))
            file = Safetensors(self.at("flipped"))
            key = draw.choice(sorted(file.entries))
            begin, end = file.range_of(key)
            numbers = struct.unpack(f"<{(end - begin) // 4}f", file.data(key))
            element = draw.choice([i for i, number in enumerate(numbers) if abs(number) < 1e30])
            flip(self.at("flipped"), begin + element * 4 + 2, 1 << draw.randrange(7))
            code, out, err = pawl("diff", source, self.at("flipped"), "-o", "json", "--memory", "1MiB")
            self.assertEqual(FAILED, code, out + err)
            report = json.loads(out)
            self.assertEqual([key.rsplit("/", 1)[0]], [entry["name"] for entry in report["differing"]])
            columns = file.entries[key]["shape"][1]
            self.assertEqual([element // columns, element % columns], report["differing"][0]["at"])
            self.assertEqual(1, report["differing"][0]["elements"])

    def test_missing_reshaped_and_cast(self):
        one = {"a": ("F32", [2, 2], struct.pack("<4f", 1, 2, 3, 4)), "b": ("F32", [2], struct.pack("<2f", 5, 6)),
               "only": ("I64", [1], struct.pack("<q", 7)), "nan": ("F32", [2], struct.pack("<2f", float("nan"), 1))}
        other = {"a": ("F64", [2, 2], struct.pack("<4d", 1, 2, 3, 4.5)), "b": ("F32", [1, 2], struct.pack("<2f", 5, 6)),
                 "nan": ("F32", [2], struct.pack("<2f", float("nan"), 1))}
        write_safetensors(self.at("one.safetensors"), one)
        write_safetensors(self.at("other.safetensors"), other)
        code, out, _ = pawl("diff", self.at("one.safetensors"), self.at("other.safetensors"), "-o", "json")
        self.assertEqual(FAILED, code)
        report = json.loads(out)
        self.assertEqual(["a"], [entry["name"] for entry in report["differing"]])
        self.assertEqual(0.5, report["differing"][0]["largest"])
        self.assertEqual([1, 1], report["differing"][0]["at"])
        self.assertEqual(["only"], [entry["name"] for entry in report["only_in_a"]])
        self.assertEqual(["b"], [entry["name"] for entry in report["mismatched"]])
        self.assertIn("[2] and [1,2]", report["mismatched"][0]["why"])


class HuggingFaceTest(CommandTest):
    def test_files_and_index(self):
        source, tensors = self.model()
        self.run_ok("convert", source, self.at("out"), "--to", "huggingface", "--max-file-size", "300KB")
        with open(self.at("out", "model.safetensors.index.json"), encoding="utf-8") as file:
            index = json.load(file)
        self.assertEqual(set(tensors), set(index["weight_map"]))
        self.assertEqual(sum(map(len, tensors.values())), index["metadata"]["total_size"])
        for name in set(index["weight_map"].values()):
            part = Safetensors(self.at("out", name))
            self.assertEqual("pt", part.metadata["format"])
            for key in part.entries:
                self.assertEqual(name, index["weight_map"][key])
                self.assertEqual(tensors[key], part.data(key))

    def test_cast_to_bfloat16_rounds_to_even(self):
        values = [1.0, 1.00390625, 1.01171875, float("inf"), 3.4e38, -0.0]
        write_safetensors(self.at("in.safetensors"), {"x": ("F32", [6], struct.pack("<6f", *values))})
        out = self.run_ok("convert", self.at("in.safetensors"), self.at("out"), "--to", "huggingface", "--dtype",
                          "bf16")
        self.assertIn("became infinite", out)
        got = Safetensors(self.at("out", "model.safetensors"))
        self.assertEqual("BF16", got.entries["x"]["dtype"])
        self.assertEqual([0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x7f80, 0x8000], list(struct.unpack("<6H", got.data("x"))))


class DcpTest(CommandTest):
    """Folders of torch's DCP, without torch: what torch makes of them is test/torch/test_convert_dcp.py."""

    def test_there_and_back(self):
        source, tensors = self.model()
        self.run_ok("convert", source, self.at("dcp"), "--to", "dcp", "--max-file-size", "300KB", "--memory", "1MiB",
                    "--flat")
        self.assertEqual([".metadata"] + [f"__0_{i}.distcp" for i in range(4)], sorted(os.listdir(self.at("dcp"))))
        self.assertIn("PyTorch DCP", self.run_ok("inspect", self.at("dcp")))
        self.run_ok("diff", source, self.at("dcp"))
        report = json.loads(self.run_ok("verify", self.at("dcp"), "-o", "json"))
        self.assertEqual("sound", report["verdict"])
        self.assertGreaterEqual(report["checksums"]["records"], len(tensors))

    def test_overwriting_replaces_a_checkpoint_and_nothing_else(self):
        source, tensors = self.model()
        self.run_ok("convert", source, self.at("dcp"), "--to", "dcp", "--max-file-size", "300KB")
        self.refused("convert", source, self.at("dcp"), "--to", "dcp", says="--overwrite")
        self.run_ok("convert", source, self.at("dcp"), "--to", "dcp", "--overwrite")
        self.assertEqual([".metadata", "__0_0.distcp"], sorted(os.listdir(self.at("dcp"))))
        os.mkdir(self.at("other"))
        write_safetensors(self.at("other", "model.safetensors"), {"x": ("F32", [1], b"1234")})
        self.refused("convert", source, self.at("other"), "--to", "dcp", "--overwrite", says="holds no .metadata")
        shutil.rmtree(self.at("other"))
        self.assert_nothing_left("model", "dcp")
        self.run_ok("convert", source, self.at("out"), "--to", "safetensors")
        self.assert_whole(self.at("out"), tensors)

    def test_killed_at_any_time(self):
        """What stands there is the old checkpoint or the new one, whole; the next run cleans up."""
        source, _ = self.model(megabytes=64)
        self.run_ok("convert", source, self.at("dcp"), "--to", "dcp", "--flat")
        draw = random.Random(5)
        for _ in range(5):
            with subprocess.Popen([PAWL, "convert", source, self.at("dcp"), "--to", "dcp", "--flat", "--overwrite"],
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
                time.sleep(draw.uniform(0, 0.3))
                process.kill()
            self.assertEqual("sound", json.loads(self.run_ok("verify", self.at("dcp"), "-o", "json"))["verdict"])
        self.run_ok("convert", source, self.at("dcp"), "--to", "dcp", "--flat", "--overwrite")
        self.run_ok("diff", source, self.at("dcp"))
        self.assert_nothing_left("model", "dcp")

    def test_options_of_other_formats(self):
        source, _ = self.model()
        self.refused("convert", source, self.at("out"), "--to", "safetensors", "--max-file-size", "1MB", code=USAGE,
                     says="--max-file-size")
        self.refused("convert", source, self.at("out"), "--to", "huggingface", "--flat", code=USAGE, says="--flat")
        self.assert_nothing_left("model")


class UniversalTest(CommandTest):
    """DeepSpeed's universal folder, read back by pawl: what DeepSpeed makes of it is tested where DeepSpeed is
    installed."""

    def test_of_a_training(self):
        source = os.path.join(ROOT, "test", "fixtures", "deepspeed", "zero3_w2_bf16", "ckpt")
        self.run_ok("convert", source, self.at("out"), "--to", "universal", "--memory", "1MiB")
        self.assertIn("universal", self.run_ok("inspect", self.at("out")))
        self.run_ok("diff", source, self.at("out"), "--roles", "exp_avg,exp_avg_sq,step")
        self.assertEqual("sound", json.loads(self.run_ok("verify", self.at("out"), "-o", "json"))["verdict"])
        self.run_ok("convert", source, self.at("out"), "--to", "universal", "--overwrite")
        self.assert_nothing_left("out")

    def test_of_weights_alone(self):
        source, tensors = self.model()
        self.run_ok("convert", source, self.at("out"), "--to", "universal")
        self.run_ok("convert", self.at("out"), self.at("back"), "--to", "safetensors", "--roles", "weight")
        self.assert_whole(self.at("back"), tensors)

    def test_refused(self):
        source, _ = self.model()
        self.refused("convert", source, self.at("out"), "--to", "universal", "--dtype", "bf16", code=USAGE,
                     says="float32")
        os.mkdir(self.at("other"))
        write_safetensors(self.at("other", "model.safetensors"), {"x": ("F32", [1], b"1234")})
        self.refused("convert", source, self.at("other"), "--to", "universal", "--overwrite",
                     says="holds no latest_universal")
        self.assert_nothing_left("model", "other")


class OwnStoreTest(CommandTest):
    def test_there_and_back(self):
        source = os.path.join(ROOT, "test", "fixtures", "torch", "G1b_fsdp2_tied_w3", "ckpt")
        self.run_ok("convert", source, self.at("store"), "--to", "pawl", "--memory", "256KiB")
        self.assertGreater(len(glob.glob(self.at("store", "data-*.safetensors"))), 1)
        self.run_ok("diff", source, self.at("store"))
        self.assertEqual([0.01, 0.007], [group["lr"] for group in self.values_of("store")["param_groups"]])
        self.assertEqual("sound", json.loads(self.run_ok("verify", self.at("store"), "-o", "json"))["verdict"])
        self.refused("convert", source, self.at("store"), "--to", "pawl", says="--overwrite")
        self.run_ok("convert", source, self.at("store"), "--to", "pawl", "--overwrite", "--dtype", "float64",
                    code=USAGE)
        self.run_ok("convert", source, self.at("store"), "--to", "pawl", "--overwrite", "--dtype", "bf16")
        self.run_ok("convert", source, self.at("bf16"), "--to", "safetensors", "--dtype", "bf16")
        self.run_ok("diff", self.at("bf16"), self.at("store"))
        said = self.run_ok("convert", source, self.at("weights"), "--to", "pawl", "--roles", "weight")
        self.assertIn("hyperparameters", said)
        self.assertEqual({}, self.values_of("weights"))
        self.run_ok("convert", self.at("store"), self.at("again"), "--to", "pawl")
        self.assertEqual(self.values_of("store"), self.values_of("again"))
        self.assert_nothing_left("store", "bf16", "weights", "again")

    def values_of(self, store):
        with open(self.at(store, "manifest.json")) as file:
            return json.load(file)["values"]


class DamageTest(CommandTest):
    """Every checksum that a source has is proven on the way: nothing that is damaged gets a new, sound form."""

    SOURCES = {"torch.save": ("torch/H_torch_save", "whole_module.pt"),
               "views": ("torch/H_torch_save", "views_one_storage.pt"),
               "deflated": ("torch/H_torch_save", "rezipped_deflated.pt"), "DCP": ("torch/G1b_fsdp2_tied_w3", "ckpt"),
               "zstd": ("torch/G8h_zstd", "ckpt"), "FSDP2 x TP": ("torch/G3_fsdp2_tp_2x2", "ckpt"),
               "DeepSpeed": ("deepspeed/zero2_w1_empty", "ckpt"), "Megatron": ("torch/J1_mcore_tp2_pp2", None)}
    SMALL = os.path.join(ROOT, "test", "fixtures")

    def sources(self):
        """(kind, source, a copy of it), each in a folder of its own."""
        for kind, (fixture, name) in self.SOURCES.items():
            folder = os.path.join(self.SMALL, fixture)
            names = [name] if name else next(names for _, names in sources_of(folder))
            base = self.at(kind.replace(" ", "_"))
            os.mkdir(base)
            yield kind, *(copied(folder, names, os.path.join(base, which)) for which in ("source", "sound"))

    def damaged(self, source):
        """A bit of a tensor in the middle of the largest file is flipped; says of which file."""
        files = [source] if os.path.isfile(source) else [
            os.path.join(folder, name) for folder, _, names in os.walk(source) for name in names
            if not name.endswith((".metadata", ".json"))]
        path = max(files, key=os.path.getsize)
        size = os.path.getsize(path)
        for at in sorted(range(1, size, max(1, size // 200)), key=lambda at: abs(at - size // 2)):
            flip(path, at)  # until it is a tensor's, and no padding of the archive
            said = pawl("verify", source)[1]
            if re.search(r"record \S+/data/\d+: \d+ bytes do not have the checksum", said):
                return path
            flip(path, at)
        self.fail(f"no record of {path} was hit")

    def test_a_flipped_bit_is_converted_nowhere(self):
        for kind, source, sound in self.sources():
            with self.subTest(kind):
                base = os.path.dirname(source)
                out, again = os.path.join(base, "out"), os.path.join(base, "again")
                self.run_ok("convert", source, out, "--to", "pawl")
                self.run_ok("diff", source, sound)
                path = self.damaged(source)
                for given in ([], ["--memory", "256KiB"], ["--workers", "3"]):
                    said = self.refused("convert", source, again, "--to", "pawl", *given, code=DEGRADED,
                                        says=("checksum", path, "copy the checkpoint again"))
                    self.assertIn("nothing was written", said)
                    self.assertFalse(os.path.exists(again))
                self.refused("diff", source, sound, code=DEGRADED, says=("checksum", path))
                self.refused("diff", sound, source, code=DEGRADED, says=("checksum", path))
                said = self.run_ok("convert", source, again, "--to", "pawl", "--despite-problems", code=DEGRADED)
                self.assertIn("PROBLEM: ", said)

    def test_our_own_store(self):
        source, _ = self.model()
        self.run_ok("convert", source, self.at("store"), "--to", "pawl")
        self.run_ok("convert", self.at("store"), self.at("out"), "--to", "safetensors", "--workers", "2")
        data = max(glob.glob(self.at("store", "data-*")), key=os.path.getsize)
        flip(data, os.path.getsize(data) - 9)
        self.refused("convert", self.at("store"), self.at("again"), "--to", "safetensors", code=DEGRADED,
                     says=("checksum", data))
        self.refused("diff", self.at("store"), self.at("out"), code=DEGRADED, says=("checksum", data))
        os.remove(data)
        for command in (["convert", self.at("store"), self.at("again"), "--to", "safetensors"],
                        ["diff", self.at("store"), self.at("out")], ["verify", self.at("store")],
                        ["inspect", self.at("store")]):
            self.refused(*command, code=DEGRADED, says=os.path.basename(data))
        self.refused("convert", self.at("nothing"), self.at("again"), "--to", "safetensors", code=NOT_FOUND)
        self.assert_nothing_left("model", "out", "store")

    def test_what_is_not_read_is_not_proven(self):
        source = copied(os.path.join(self.SMALL, "torch", "G1b_fsdp2_tied_w3"), ["ckpt"], self.at("ckpt"))
        names = {tensor["role"] for tensor in json.loads(self.run_ok("inspect", source, "-o", "json"))["tensors"]}
        self.assertIn("exp_avg", names)
        self.damaged(source)
        codes = [pawl("convert", source, self.at(role), "--to", "safetensors", "--roles", role)[0]
                 for role in sorted(names)]
        self.assertIn(OK, codes)
        self.assertIn(DEGRADED, codes)

    def test_cut_and_missing_files(self):
        source = copied(os.path.join(self.SMALL, "torch", "H_torch_save"), ["train_adamw.pt"], self.at("train"))
        os.truncate(source, os.path.getsize(source) // 2)
        folder = copied(os.path.join(self.SMALL, "torch", "G8c_no_dist"), ["ckpt"], self.at("ckpt"))
        os.remove(max(glob.glob(os.path.join(folder, "*.distcp")), key=os.path.getsize))
        model, _ = self.model()
        os.remove(os.path.join(model, "model-00002-of-00003.safetensors"))
        for path in (source, folder, model):
            for command in (["convert", path, self.at("out"), "--to", "safetensors"], ["diff", path, path],
                            ["verify", path]):
                self.assertEqual(DEGRADED, pawl(*command)[0], command)
        self.refused("inspect", model, code=DEGRADED, says="model-00002-of-00003.safetensors")
        self.assert_nothing_left("train.pt", "ckpt", "model")


class TargetTest(CommandTest):
    """A source is never its own target, whatever it is called."""

    def test_by_any_name(self):
        fixture = os.path.join(ROOT, "test", "fixtures", "torch", "H_torch_save")
        os.mkdir(self.at("a"))
        source = copied(fixture, ["train_adamw.pt"], self.at("a", "train"))
        before = read(source)
        os.symlink(source, self.at("link.pt"))
        os.link(source, self.at("hard.pt"))
        os.symlink(self.at("a"), self.at("b"))
        for target in (source, self.at("a", "..", "a", "train.pt"), self.at("a", ".", "train.pt"), self.at("link.pt"),
                       self.at("hard.pt"), self.at("b", "train.pt")):
            for given in (["--to", "safetensors"], ["--to", "pawl"]):
                self.refused("convert", source, target, *given, "--overwrite", says="part of the source")
        self.refused("convert", self.at("link.pt"), source, "--to", "safetensors", "--overwrite", says="of the source")
        self.refused("convert", source, self.at("a"), "--to", "dcp", "--overwrite", says="of the source")
        self.refused("convert", source, self.at("a"), "--to", "huggingface", "--overwrite", says="of the source")
        self.assertEqual(before, read(source))

    def test_folders(self):
        source, tensors = self.model()
        for target in (source, source + "/", os.path.join(source, "model-00001-of-00003.safetensors"),
                       os.path.join(source, "model.safetensors.index.json")):
            self.refused("convert", source, target, "--to", "safetensors", "--overwrite", says="of the source")
        self.run_ok("convert", source, os.path.join(source, "new"), "--to", "pawl")
        os.rename(os.path.join(source, "new"), self.at("store"))
        self.run_ok("convert", self.at("store"), self.at("store", "below"), "--to", "pawl")
        os.rename(self.at("store", "below"), self.at("moved"))
        os.rename(self.at("moved"), self.at("store.pawl-partial"))
        self.refused("convert", self.at("store.pawl-partial"), self.at("store"), "--to", "pawl", "--overwrite",
                     says="of the source")
        os.rename(self.at("store.pawl-partial"), self.at("other"))
        self.run_ok("convert", self.at("other"), self.at("store"), "--to", "pawl", "--overwrite")
        self.run_ok("convert", self.at("store"), self.at("out"), "--to", "safetensors")
        self.assert_whole(self.at("out"), tensors)


class UnsupportedTest(CommandTest):
    """What has no plain value, or none in the target, is named: never left out or half there without a word."""

    H = os.path.join(ROOT, "test", "fixtures", "torch", "H_torch_save")

    def test_tensors_that_are_not_read(self):
        for name in ("quant_per_tensor_qint8.pt", "quant_per_channel_qint8.pt", "quant_quint4x2.pt", "meta_tensor.pt",
                     "sparse_coo.pt", "sparse_csr.pt", "nested_tensor.pt", "jagged_tensor.pt"):
            with self.subTest(name):
                source = os.path.join(self.H, name)
                said = json.loads(self.run_ok("inspect", source, "-o", "json"))
                self.assertTrue(said["unsupported"])
                self.assertIn("NOT READ: ", self.run_ok("inspect", source))
                for to in ("safetensors", "dcp", "pawl", "atomic", "huggingface"):
                    self.refused("convert", source, self.at("out"), "--to", to, says="--skip-unsupported")
                self.refused("diff", source, source, code=DEGRADED, says="--skip-unsupported")
                left = {tensor["name"] for tensor in said["tensors"]}
                if left:
                    out = self.run_ok("convert", source, self.at("out"), "--to", "pawl", "--skip-unsupported",
                                      code=DEGRADED)
                    self.assertIn("LEFT OUT: ", out)
                    written = json.loads(self.run_ok("inspect", self.at("out"), "-o", "json"))["tensors"]
                    self.assertEqual(left, {tensor["name"] for tensor in written})
                    shutil.rmtree(self.at("out"))
                out = self.run_ok("diff", source, source, "--skip-unsupported", code=DEGRADED)
                self.assertIn("not compared: ", out)
                self.assertIn("equal as far as compared", out)

    def test_types_that_the_target_lacks(self):
        for name in ("dtype_complex32.pt", "dtype_complex128.pt"):
            with self.subTest(name):
                source = os.path.join(self.H, name)
                for to in ("safetensors", "huggingface", "atomic"):
                    self.refused("convert", source, self.at("out"), "--to", to,
                                 says=(name[6:-3], "--skip-unsupported", "--to dcp"))
                for to in (["dcp", "--flat"], ["pawl"]):
                    self.run_ok("convert", source, self.at("out"), "--to", *to)
                    self.assertIn("equal", self.run_ok("diff", source, self.at("out")))
                    shutil.rmtree(self.at("out"))
        self.run_ok("convert", os.path.join(self.H, "dtype_complex64.pt"), self.at("out"), "--to", "safetensors")

    def test_keys_that_are_objects(self):
        """Each entry of a dict is there, under a name of its own."""
        source = os.path.join(ROOT, "test", "fixtures", "torch", "K_keys", "keys.pt")
        said = json.loads(self.run_ok("inspect", source, "-o", "json"))
        entries = [tensor for tensor in said["tensors"]]
        self.assertEqual([], said["problems"])
        self.assertEqual(len(entries), len({tensor["name"] for tensor in entries}))
        self.assertEqual({1}, {tensor["copies"] for tensor in entries})
        self.assertEqual(3, len(said["unsupported"]), "three keys are tensors themselves")
        self.refused("convert", source, self.at("out"), "--to", "safetensors", says="is a key of the dict things")
        self.run_ok("convert", source, self.at("out"), "--to", "safetensors", "--skip-unsupported", code=DEGRADED)
        file = Safetensors(self.at("out"))
        numbers = sorted(struct.unpack("<2f", file.data(key))[0] for key in file.entries)
        self.assertEqual([-2.0, -1.0] + [float(i) for i in range(len(entries) - 2)], numbers)


class VerifyTest(CommandTest):
    def test_checksums_of_torch_files(self):
        fixture = os.path.join(FIXTURES, "torch", "G8c_no_dist")
        source = copied(fixture, ["ckpt"], self.at("ckpt"))
        report = json.loads(self.run_ok("verify", source, "-o", "json"))
        self.assertEqual("sound", report["verdict"])
        self.assertGreater(report["checksums"]["records"], 0)
        golden = Safetensors(os.path.join(fixture, "golden.safetensors"))
        key = max(golden.entries, key=lambda key: len(golden.data(key)))
        path = next(path for path in glob.glob(os.path.join(source, "*.distcp")) if golden.data(key) in read(path))
        flip(path, read(path).index(golden.data(key)) + 5)
        code, out, _ = pawl("verify", source)
        self.assertEqual(DEGRADED, code, out)
        self.assertIn("checksum", out)

    def test_safetensors_prove_no_bytes(self):
        source, _ = self.model()
        self.assertIn("structure sound, bytes unproven", self.run_ok("verify", source))

    def test_special_numbers_are_remarked(self):
        write_safetensors(self.at("in.safetensors"), {"x": ("F32", [3],
                                                            struct.pack("<3f", float("nan"), float("inf"), 1))})
        out = self.run_ok("verify", self.at("in.safetensors"))
        self.assertIn("x (weight) holds 1 NaN and 1 infinite", out)


if __name__ == "__main__":
    harness.main()

"""The wheel by itself: installed into an environment that has torch and nothing of the checkout, whose command then
checks itself, runs a training that loses a trainer, and drills one.

The extension for torch is built at first use, in a minute or two of a core. So CI gives the wheel the extension that
the checkout built of the same sources, where it would keep its own; the build at first use is tested with
PAWL_WHEEL_BUILDS=1 (tools/test-long torch), once for each torch. How a build is shared, refused and published is tested
here with compilers of our own (test_extension_build.py).
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import harness  # noqa: E402

# isort: split
import torch  # noqa: E402

BUILDS = os.environ.get("PAWL_WHEEL_BUILDS") == "1"
BACKEND = os.path.join(harness.ROOT, "python", "wheel_backend.py")
LIMIT_S = 600.0

# Rank 1's trainer dies once, in step 8; all seats print the same sum of the weights at the end.
TRAINING = """
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import pawl

torch.set_num_threads(1)
job = pawl.init()
torch.manual_seed(0)
dataset = TensorDataset(torch.randn(256, 4), torch.randn(256, 1))
loader = DataLoader(dataset, batch_size=8, sampler=DistributedSampler(dataset))
model = DistributedDataParallel(nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
job.protect(model, optimizer)
for step, (inputs, wanted) in job.batches(loader, epochs=1):
    with step:
        if len(sys.argv) > 1 and int(step) == 8 and job.rank == 1 and not os.path.exists(sys.argv[1]):
            open(sys.argv[1], "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), wanted).backward()
        optimizer.step()
if job.rank == 0:
    print("trained", pawl.__file__, float(sum(each.double().sum() for each in model.parameters())), flush=True)
dist.destroy_process_group()
"""


class WheelTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = os.path.realpath(tempfile.mkdtemp(prefix="pawl-test-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)
        build = os.path.dirname(os.path.dirname(harness.PAWL))
        out = os.path.join(cls.folder, "wheel")
        subprocess.run([sys.executable, "-B", BACKEND, "--build", build, out], check=True)
        [name] = os.listdir(out)
        cls.wheel = os.path.join(out, name)
        cls.environment = os.path.join(cls.folder, "environment")
        cls.python = os.path.join(cls.environment, "bin", "python")
        cls.pawl = os.path.join(cls.environment, "bin", "pawl")
        cls.script = os.path.join(cls.folder, "train.py")
        with open(cls.script, "w", encoding="utf-8") as file:
            file.write(TRAINING)
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", cls.environment], check=True)
        packages = cls.asked("import site; print(site.getsitepackages()[0])").strip()
        cls.package = os.path.join(packages, "pawl")
        with open(os.path.join(packages, "torch.pth"), "w", encoding="utf-8") as file:  # not downloaded again
            file.write(os.path.dirname(os.path.dirname(torch.__file__)) + "\n")
        subprocess.run([sys.executable, "-m", "pip", "--python", cls.python, "--disable-pip-version-check", "install",
                        "--quiet", "--no-index", "--no-deps", cls.wheel], check=True, env=cls.variables())
        if not BUILDS:
            cls.keep_extension()

    @classmethod
    def variables(cls, **more):
        """Nothing that leads to the checkout, and a home of its own."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PAWL", "PYTHON", "XDG_"))}
        return {**kept, "HOME": cls.folder, "PAWL_RUN_DIR": os.path.join(cls.folder, "run"), "OMP_NUM_THREADS": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                "PATH": os.path.join(cls.environment, "bin") + os.pathsep + os.environ["PATH"], **more}

    @classmethod
    def asked(cls, code):
        return subprocess.run([cls.python, "-c", code], check=True, capture_output=True, text=True, cwd=cls.folder,
                              env=cls.variables()).stdout

    @classmethod
    def keep_extension(cls):
        place = subprocess.run([cls.python, "-m", "pawl.build_extension", "--place"], check=True, capture_output=True,
                               text=True, cwd=cls.folder, env=cls.variables()).stdout.strip()
        os.makedirs(os.path.dirname(place))
        shutil.copyfile(os.environ["PAWL_C10D"], place)

    def run_pawl(self, *arguments, code=0, **more):
        done = subprocess.run(["pawl", *arguments], cwd=self.folder, env=self.variables(**more), capture_output=True,
                              text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL, check=False)
        self.assertEqual(code, done.returncode, done.stdout + done.stderr)
        return done

    def doctor(self, *arguments, code=0, **more):
        report = json.loads(self.run_pawl("doctor", "--python", *arguments, "-o", "json", code=code, **more).stdout)
        return {each["check"]: each for each in report["checks"]}

    # In the order of their names: the first run builds what the drill finds.

    def test_1_all_that_is_needed_is_in_it(self):
        for name in ("bin/pawl", "libpawl.so.0", "libpawl_checkpoint.so.0"):
            dynamic = subprocess.run(["readelf", "--dynamic", os.path.join(self.package, name)], check=True,
                                     capture_output=True, text=True).stdout
            for path in re.findall(r"(?:RPATH|RUNPATH).*\[(.*)\]", dynamic):
                self.assertRegex(path, r"^\$ORIGIN/(\.\./)?libs$")
            listed = subprocess.run(["ldd", os.path.join(self.package, name)], check=True, capture_output=True,
                                    text=True, env=self.variables()).stdout
            self.assertNotIn("not found", listed)
            for library in ("libgrpc.so", "libabsl_base.so", "libre2.so", "libzstd.so", "liburing.so", "libcrypto.so"):
                for line in listed.splitlines():
                    if line.strip().startswith(library):
                        self.assertIn(f"=> {self.package}/libs/", os.path.normpath(line).replace("bin/../", ""))
        with zipfile.ZipFile(self.wheel) as archive:
            names = archive.namelist()
            texts = b"".join(archive.read(name) for name in names if name.endswith((".py", "METADATA", "WHEEL")))
        self.assertEqual([], [name for name in names if name.endswith(".pyc")])
        self.assertIn("pawl/_c10d/module.cc", names)
        self.assertNotIn(harness.ROOT.encode(), texts)
        self.assertIn(b"Tag: py3-none-linux_", texts)
        self.assertIn(b"Needs GLIBC 2.", texts)
        self.assertIn("keeps a training job running", self.run_pawl("--help").stdout)

    def test_2_the_doctor_says_what_is_there(self):
        if BUILDS:
            found = self.doctor()
            self.assertEqual("WARN", found["extension"]["verdict"])
            self.assertIn("pawl.build_extension", found["extension"]["remedy"])
            found = self.doctor(PATH=os.path.join(self.environment, "bin"), code=1)
            self.assertIn("install g++", found["extension"]["found"])
        else:
            found = self.doctor()
            self.assertEqual({"OK"}, {each["verdict"] for each in found.values()}, found)
            self.assertIn(f"{self.folder}/.cache/pawl/c10d/", found["extension"]["found"])
        self.assertEqual(["python", "pawl", "libraries", "torch", "extension"], list(found))
        self.assertIn(self.python, found["python"]["found"])
        self.assertIn(self.package, found["pawl"]["found"])

    def test_3_a_training_loses_a_trainer(self):
        undisturbed = self.run_pawl("run", "--standalone", "--nnodes", "2", "--spares", "0", self.script)
        self.assertEqual("OK", self.doctor()["extension"]["verdict"])
        died = self.run_pawl("run", "--standalone", "--nnodes", "2", "--spares", "1", self.script,
                             os.path.join(self.folder, "died"))
        self.assertTrue(os.path.exists(os.path.join(self.folder, "died")))
        [expected] = [line for line in undisturbed.stdout.splitlines() if line.startswith("trained")]
        self.assertIn(self.package, expected)
        self.assertIn(expected, died.stdout)

    def test_4_a_drill(self):
        done = self.run_pawl("drill", "--faults", "1", "--kinds", "trainer", "-o", "json", "--", "python", self.script)
        self.assertEqual("equal", json.loads(done.stdout)["verdict"])

    def test_5_an_environment_without_it(self):
        bare = os.path.join(self.folder, "bare")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", bare], check=True)
        found = self.doctor(os.path.join(bare, "bin", "python"), code=1)
        self.assertEqual({"pawl": "FAIL"}, {name: each["verdict"] for name, each in found.items()})
        self.assertIn("-m pip install", found["pawl"]["remedy"])

    def test_6_another_version(self):
        shadow = os.path.join(self.folder, "shadow")
        shutil.copytree(self.package, os.path.join(shadow, "pawl"))
        with open(os.path.join(shadow, "pawl", "_version.py"), "w", encoding="utf-8") as file:
            file.write("__version__ = version = '9.9.9'\n")
        found = self.doctor(code=1, PYTHONPATH=shadow)
        self.assertIn("9.9.9", found["pawl"]["found"])
        self.assertIn("PYTHONPATH", found["pawl"]["remedy"])


if __name__ == "__main__":
    harness.main()

"""How the extension for torch is built where pawl was installed: once by one of many processes, whole or not at all,
by machines that share a folder but no locks, and refused with what to install. What is said where it can't be used. The
compilers here are scripts of ours; a real one builds it in test_wheel.py."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import harness  # noqa: E402

PACKAGE = os.path.join(harness.ROOT, "python")
LIMIT_S = 120.0
ASKING = """
import errno
import os
import sys
from pathlib import Path
from pawl import build_extension
from pawl.errors import Refused
folder = Path(sys.argv[1])
flock, confstr = build_extension.fcntl.flock, os.confstr
def without_locks(file, how):
    path = os.readlink(f"/proc/self/fd/{file if isinstance(file, int) else file.fileno()}")
    if path.startswith(os.environ["NO_LOCKS"]):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    flock(file, how)
if "NO_LOCKS" in os.environ:
    build_extension.fcntl.flock = without_locks
if "MACHINE" in os.environ:
    build_extension._machine = lambda: os.environ["MACHINE"]
if "C_LIBRARY" in os.environ:
    os.confstr = lambda name: os.environ["C_LIBRARY"] if name == "CS_GNU_LIBC_VERSION" else confstr(name)
facts = build_extension.Facts(sys.argv[2], True, "cpython-311", (str(folder / "torch"), str(folder / "api"),
                              str(folder / "python")), str(folder / "lib"), ("SOME=1",))
try:
    print(build_extension.ensure(facts, folder / "sources"))
except Refused as refused:
    sys.exit(f"refused: {refused}")
"""
# Writes down each call, then what it is asked for. A compilation (-c) of module.cc's unit takes until `go` is there.
COMPILER = """#!/bin/sh
echo "$*" >>"$FOLDER/calls"
case "$*" in *with_torch.cc*) until [ -e "$FOLDER/go" ]; do sleep 0.02; done ;; esac
[ -z "$FAILS" ] || { echo "x.cc:1: error: no such thing"; exit 1; }
while [ $# -gt 1 ]; do [ "$1" != -o ] || printf built >"$2"; shift; done
"""


class BuildTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="pawl-test-")
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.write("torch/torch/csrc/distributed/c10d/Backend.hpp")
        self.write("python/Python.h")
        for name in ("module.cc", "generation.cc", "interrupt.cc", "library.cc", "sockets.cc", "store.h"):
            self.write("sources/" + name)
        self.write("compiler", COMPILER)
        os.chmod(self.path("compiler"), 0o755)
        self.write("go")

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text=""):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def start(self, torch="2.13.0", **variables):
        environment = {**os.environ, "PYTHONPATH": PACKAGE, "XDG_CACHE_HOME": self.path("cache"), "FOLDER": self.folder,
                       "CXX": self.path("compiler"), **variables}
        return subprocess.Popen([sys.executable, "-B", "-c", ASKING, self.folder, torch], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def end(self, process, code=0):
        out, err = process.communicate(timeout=LIMIT_S)
        self.assertEqual(code, process.returncode, err)
        return out.strip() if code == 0 else err

    def links(self):
        with open(self.path("calls"), encoding="utf-8") as file:
            return sum("-shared" in line for line in file)

    def wait_until(self, condition):
        deadline = time.monotonic() + LIMIT_S
        while not condition():
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.02)

    def wait_for_call(self):
        self.wait_until(lambda: os.path.exists(self.path("calls")))

    def has_lock_open(self, process):
        """It has asked for the extension, and builds it or waits for it."""
        folder = f"/proc/{process.pid}/fd"
        names = []
        for number in os.listdir(folder):
            with contextlib.suppress(OSError):
                names.append(os.readlink(os.path.join(folder, number)))
        return any(name.endswith("/lock") for name in names)

    def compilations(self):
        """Of torch's part: how many processes build."""
        with contextlib.suppress(FileNotFoundError), open(self.path("calls"), encoding="utf-8") as file:
            return sum("with_torch.cc" in line for line in file)
        return 0

    def build_beside_each_other(self, *variables):
        """One process with each of them; all compile at once. What they print."""
        os.remove(self.path("go"))
        processes = []
        for each in variables:
            processes.append(self.start(**each))
            self.wait_until(lambda: self.compilations() == len(processes))
        self.write("go")
        return {self.end(process) for process in processes}

    def test_many_processes_build_it_once(self):
        os.remove(self.path("go"))
        processes = [self.start() for _ in range(4)]
        self.wait_for_call()
        self.write("go")
        [place] = {self.end(process) for process in processes}
        self.assertTrue(os.path.isfile(place))
        self.assertEqual(1, self.links())
        self.end(self.start())
        self.assertEqual(1, self.links())
        self.assertEqual(["lock", "pawl_c10d.so"], sorted(os.listdir(os.path.dirname(place))))

    def test_each_torch_and_each_source_has_its_own(self):
        places = [self.end(self.start()), self.end(self.start(torch="2.6.0"))]
        self.write("sources/store.h", "// changed\n")
        places.append(self.end(self.start()))
        self.assertEqual(3, len(set(places)), places)
        self.assertIn("torch2.6.0-", places[1])

    def test_a_killed_process_leaves_nothing_that_is_taken(self):
        os.remove(self.path("go"))
        killed = self.start()
        self.wait_for_call()
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        self.write("go")
        place = self.end(self.start())
        self.assertEqual(["lock", "pawl_c10d.so"], sorted(os.listdir(os.path.dirname(place))))

    def test_a_failure_is_shared_by_those_who_wait(self):
        os.remove(self.path("go"))
        processes = [self.start(FAILS="1") for _ in range(3)]
        self.wait_until(lambda: all(map(self.has_lock_open, processes)))
        self.write("go")
        for process in processes:
            said = self.end(process, code=1)
            self.assertIn("x.cc:1: error: no such thing", said)
            self.assertIn("all of its output: ", said)
        with open(self.path("calls"), encoding="utf-8") as file:
            self.assertEqual(6, len(file.readlines()), "one for each part")
        self.assertTrue(os.path.isfile(self.end(self.start())))  # later ones try again

    def test_what_is_missing_is_named(self):
        said = self.end(self.start(CXX="", PATH="/nowhere"), code=1)
        self.assertIn("install g++ 12 or later", said)
        self.assertIn("CXX names /no/such", self.end(self.start(CXX="/no/such"), code=1))
        os.remove(self.path("python/Python.h"))
        self.assertIn("python3-dev", self.end(self.start(), code=1))
        shutil.rmtree(self.path("torch"))
        self.assertIn("this torch has no headers", self.end(self.start(), code=1))
        self.assertFalse(os.path.exists(self.path("calls")))

    def test_a_cache_that_cannot_be_written(self):
        self.write("cache", "a file")
        self.assertIn("XDG_CACHE_HOME", self.end(self.start(), code=1))

    def test_a_cache_that_cannot_be_searched(self):
        # A name that is too long fails as a folder without the right to search it does, for root too.
        said = self.end(self.start(XDG_CACHE_HOME="/" + 300 * "x"), code=1)
        self.assertRegex(said, "refused: .*can't be kept in .*: see that it can be written, or name another folder")

    def test_a_compiler_that_cannot_be_started(self):
        self.write("compiler", "no program")
        said = self.end(self.start(), code=1)
        self.assertRegex(said, "refused: .*compiler can't be started .*CXX")
        self.assertNotIn("can't be kept", said)

    def test_machines_with_locks_of_their_own_build_beside_each_other(self):
        one, other = ({"MACHINE": name, "NO_LOCKS": self.folder, "TMPDIR": self.folder} for name in ("one", "other"))
        [place] = self.build_beside_each_other(one, other)
        self.assertEqual(["lock", "pawl_c10d.so"], sorted(os.listdir(os.path.dirname(place))))

    def test_processes_without_any_locks_build_beside_each_other(self):
        [place] = self.build_beside_each_other(*2 * [{"NO_LOCKS": self.folder, "TMPDIR": self.folder}])
        self.assertEqual(["lock", "pawl_c10d.so"], sorted(os.listdir(os.path.dirname(place))))

    def test_the_first_file_stays(self):
        os.remove(self.path("go"))
        late = self.start(MACHINE="late")
        self.wait_until(self.compilations)
        [folder] = os.listdir(self.path("cache/pawl/c10d"))
        self.write(f"cache/pawl/c10d/{folder}/pawl_c10d.so", "the first one")
        self.write("go")
        with open(self.end(late), encoding="utf-8") as file:
            self.assertEqual("the first one", file.read())

    def test_processes_of_a_machine_build_it_once_without_locks_in_the_cache(self):
        os.makedirs(self.path("temporary"))
        os.remove(self.path("go"))
        variables = {"NO_LOCKS": self.path("cache"), "TMPDIR": self.path("temporary")}
        processes = [self.start(**variables) for _ in range(3)]
        self.wait_until(lambda: all(map(self.has_temporary_lock_open, processes)))
        self.write("go")
        [place] = {self.end(process) for process in processes}
        self.assertEqual(1, self.links())
        self.assertEqual([], os.listdir(self.path("temporary")))
        self.assertEqual(["lock", "pawl_c10d.so"], sorted(os.listdir(os.path.dirname(place))))

    def has_temporary_lock_open(self, process):
        folder = f"/proc/{process.pid}/fd"
        with contextlib.suppress(OSError):
            return any(os.readlink(os.path.join(folder, number)).startswith(self.path("temporary"))
                       for number in os.listdir(folder))
        return False

    def test_only_what_is_left_is_removed(self):
        place = os.path.dirname(self.end(self.start(MACHINE="one-a")))
        os.remove(os.path.join(place, "pawl_c10d.so"))
        dead = subprocess.Popen(["true"])
        dead.wait()
        for name in (f"one-a-{dead.pid}-x", f"one-a-{os.getpid()}-x", f"other-{dead.pid}-x", "other-1-old", "unnamed"):
            os.makedirs(os.path.join(place, "building-" + name, "inside"))
        old = time.time() - 2 * 3600
        os.utime(os.path.join(place, "building-other-1-old"), (old, old))
        self.end(self.start(MACHINE="one-a"))
        self.assertEqual(sorted([f"building-one-a-{os.getpid()}-x", f"building-other-{dead.pid}-x", "building-unnamed",
                                 "lock", "pawl_c10d.so"]), sorted(os.listdir(place)))

    def test_each_c_library_has_its_own(self):
        places = [self.end(self.start(C_LIBRARY=name)) for name in ("glibc 2.35", "glibc 2.39")]
        self.assertEqual(2, len(set(places)))
        self.assertIn(f"-{os.uname().machine}-glibc2.35-", places[0])


# What asks for the extension with a torch that is only a folder; `usable_torch` is the real one in DoctorTest.
LOADING = """
import sys
from pathlib import Path
from pawl import _extension, build_extension
from pawl.errors import Refused
facts = build_extension.Facts("2.13.0", True, "cpython-311", (), "", ())
build_extension.usable_torch = lambda: None
build_extension.torch_facts = lambda torch: facts
if sys.argv[1] == "place":
    print(build_extension.place(facts, build_extension.sources()))
    sys.exit()
try:
    _extension.load()
except Refused as refused:
    print(refused)
"""


class InstalledTest(unittest.TestCase):
    """A copy of the package, with no checkout around it."""

    def setUp(self):
        self.folder = os.path.realpath(tempfile.mkdtemp(prefix="pawl-test-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.packages = os.path.join(self.folder, "site-packages")
        shutil.copytree(os.path.join(PACKAGE, "pawl"), os.path.join(self.packages, "pawl"),
                        ignore=shutil.ignore_patterns("__pycache__"))
        os.makedirs(os.path.join(self.packages, "pawl", "_c10d"))
        self.write("site-packages/pawl/_c10d/module.cc")

    def write(self, name, text=""):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)

    def asked(self, *arguments, code=0, **variables):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PAWL")}
        done = subprocess.run([sys.executable, "-B", *arguments], capture_output=True, text=True, check=False,
                              timeout=LIMIT_S, env={**kept, "PYTHONPATH": self.packages, "HOME": self.folder,
                                                    "XDG_CACHE_HOME": os.path.join(self.folder, "cache"), **variables})
        self.assertEqual(code, done.returncode, done.stderr)
        return done.stdout.strip()

    # No library: what the loader says of one that needs another C library takes the same way.
    NO_LIBRARY = "pawl_c10d built for torch=2.13.0 abi=1 python=cpython-311;"

    def test_one_that_was_kept_and_cannot_be_loaded(self):
        place = self.asked("-c", LOADING, "place")
        self.write(os.path.relpath(place, self.folder), self.NO_LIBRARY)
        said = self.asked("-c", LOADING, "load")
        self.assertIn(f"{place} can't be loaded: ", said)
        self.assertIn(f"remove {os.path.dirname(place)}, ", said)
        self.assertIn(f"{sys.executable} -m pawl.build_extension", said)
        self.assertNotIn("make build", said)

    def test_one_that_is_named_and_cannot_be_loaded(self):
        self.write("named.so", self.NO_LIBRARY)
        said = self.asked("-c", LOADING, "load", PAWL_C10D=os.path.join(self.folder, "named.so"))
        self.assertIn("unset PAWL_C10D", said)
        self.assertIn("-m pawl.build_extension", said)
        self.assertNotIn("make build", said)

    def test_a_cache_that_cannot_be_searched(self):
        said = self.asked("-c", LOADING, "load", XDG_CACHE_HOME="/" + 300 * "x", CXX="/no/such")
        self.assertIn("CXX names /no/such", said)
        said = self.asked("-c", LOADING, "load", PAWL_C10D="/" + 300 * "x")
        self.assertIn("there is no such file", said)

    def torch_found(self, text, version=""):
        """What the doctor finds of a torch whose module is `text`; installed as `version`."""
        self.write("site-packages/torch/__init__.py", text)
        self.write("site-packages/torch/distributed.py")
        if version:
            self.write(f"site-packages/torch-{version}.dist-info/METADATA",
                       f"Metadata-Version: 2.1\nName: torch\nVersion: {version}\n")
        findings = {each["check"]: each for each in json.loads(self.asked("-S", "-m", "pawl.doctor", "0"))}
        self.assertEqual("FAIL", findings["torch"]["verdict"])
        return findings["torch"]

    def test_a_torch_that_is_too_old_is_brought_up_to_date(self):
        found = self.torch_found("__version__ = '2.5.1'\n", "2.5.1")
        self.assertIn("too old", found["found"])
        self.assertEqual(f"{sys.executable} -m pip install -U 'torch>=2.6'", found["remedy"])

    def test_a_torch_that_cannot_be_loaded_is_installed_again(self):
        found = self.torch_found("raise OSError('libcudart.so.12: cannot open shared object file')\n", "2.13.0")
        self.assertIn("libcudart.so.12", found["found"])
        # -U leaves it as it is
        self.assertEqual(f"{sys.executable} -m pip install --force-reinstall 'torch>=2.6'", found["remedy"])

    def test_no_torch_is_installed(self):
        found = self.torch_found("raise ImportError('No module named torch')\n")
        self.assertEqual(f"{sys.executable} -m pip install -U 'torch>=2.6'", found["remedy"])


if __name__ == "__main__":
    harness.main()

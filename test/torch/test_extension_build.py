"""How the extension for torch is built where pawl was installed: once by one of many processes, whole or not at all,
and refused with what to install. The compilers here are scripts of ours; a real one builds it in test_wheel.py."""
import contextlib
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
import sys
from pathlib import Path
from pawl import build_extension
from pawl.errors import Refused
folder = Path(sys.argv[1])
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
            self.assertEqual(5, len(file.readlines()))
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


if __name__ == "__main__":
    harness.main()

"""Whole jobs whose tensors take the way of those on a GPU, with gloo in NCCL's place: bench/gpu, on CPUs. A node is
killed, and the training ends as without pawl, bit for bit."""
from __future__ import annotations

import os
import subprocess
import sys
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = ["--width", "64", "--blocks", "2", "--batch", "16", "--steps", "40"]
LIMIT_S = 400.0


class JobTest(unittest.TestCase):
    def assert_survives(self, parallel: str) -> None:
        done = subprocess.run(
            [sys.executable, "-B", os.path.join(ROOT, "bench", "gpu", "bench.py"), "--cpu", "--backend", "gloo",
             "--only", parallel, "--part-s", "180", *SMALL],
            capture_output=True, text=True, timeout=LIMIT_S, check=False)
        said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
        for what in ("state", "random", "losses"):
            self.assertEqual("yes", said.get(f"{parallel}_{what}_equal"), done.stdout + done.stderr)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_ddp(self) -> None:
        self.assert_survives("ddp")

    def test_fsdp2(self) -> None:
        self.assert_survives("fsdp")


if __name__ == "__main__":
    unittest.main()

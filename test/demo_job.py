"""The demo (tools/demo) as a test runs it: in a folder of the test's own, to its end."""
import contextlib
import json
import os
import subprocess
import sys
import time

import harness
from harness import JobTest, jobs


class DemoJobTest(JobTest):
    def demo(self, *arguments, environment=None, park=0, patience_s=60.0):
        """Its record, and what it said. `park`: however slow the machine is, few steps pass until so many spares are
        ready."""
        out = self.scratch()
        target, run_root = os.path.join(out, "told.json"), os.path.join(out, "jobs")
        with subprocess.Popen(
                [sys.executable, "-B", os.path.join(harness.TOOLS, "demo.py"), "--pawl", harness.PAWL, "--out",
                 os.path.join(out, "run"), "--record", target, *arguments], stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, text=True,
                env={**os.environ, **(environment or {}), "PAWL_RUN_DIR": run_root}) as process:
            try:
                if park:
                    self.park_until_spares(process, run_root, park, patience_s)
                said, _ = process.communicate(timeout=600)
            finally:
                process.kill()
        self.assertEqual(0, process.returncode, said)
        with open(target, encoding="utf-8") as file:
            return json.load(file), said

    def park_until_spares(self, process, run_root, count, patience_s):
        """Seat 1, and with it all others, in an early step of the only job there."""
        held, deadline = None, time.monotonic() + patience_s
        while process.poll() is None and time.monotonic() < deadline:
            for name in os.listdir(run_root) if os.path.isdir(run_root) else []:
                view = jobs.View(harness.PAWL, run_root, name)
                nodes = view.nodes()
                with contextlib.suppress(OSError, jobs.JobError):
                    if held is None and 1 in jobs.seats(nodes):
                        node = jobs.seats(nodes)[1]["node"]
                        view.ask(node, {"ask": "hold", "phase": "compute", "local_index": 0, "step": 8})
                        held = node
                    elif held is not None and len(jobs.spares(nodes)) >= count:
                        view.ask(held, {"ask": "release"}, harness.PATIENCE_S)
                        return
            time.sleep(0.1)

    def assert_came_back_from_storage(self, told, said, folder, count):
        """So many nodes died at once, and every step since the checkpoint was done again, bit for bit."""
        self.assertEqual(("bitwise equal", []), (told["verdict"], told["faults"]), said)
        self.assertTrue(told["survivors_same_process"] and told["samples_exact"])
        self.assertEqual(count, len(told["kills"]))
        self.assertEqual(1, len({kill["at_ns"] for kill in told["kills"]}), "they died one after the other")
        for kill in told["kills"]:
            self.assertEqual(os.path.join(folder, f"step-{kill['resume']}"), kill["checkpoint"])
            self.assertGreaterEqual(kill["total_ms"], 0)
        self.assert_says(said, f"back to step {told['kills'][0]['resume']}", "restored from storage", " stored",
                         "bitwise equal")

"""Jobs of statebench (examples/statebench), which checks its own bytes after each restore and at the end."""
import glob
import json
import os

import harness
from harness import JobTest

STATEBENCH = os.path.abspath(os.environ.get("STATEBENCH", os.path.join(harness.ROOT, "build", "bin", "statebench")))


class StateJobTest(JobTest):
    def state_job(self, *flags, size="1G", tensors=64, steps=8, step_ms=1000, trainer_flags=(), **options):
        self.record = os.path.join(self.scratch(), "record")
        command = [STATEBENCH, "--bytes", size, "--tensors", str(tensors), "--steps", str(steps),
                   "--step-ms", str(step_ms), "--record", self.record, "-o", "json", *trainer_flags]
        return self.job(*flags, "--namespaces", "off", command=command, wait=False, **{"hooks": False, **options})

    def lines(self):
        """What every process has said so far: its steps, and its end."""
        found = []
        for path in sorted(glob.glob(os.path.join(self.record, "*.jsonl"))):
            with open(path, encoding="utf-8") as file:
                found += [json.loads(line) for line in file if line.endswith("\n")]
        return found

    def ends(self):
        return {line["seat"]: line for line in self.lines() if "bitwise" in line}

    def finish_bitwise(self, job, seats, timeout_s=240.0):
        self.assertEqual(0, job.wait_end(timeout_s), f"{job.tail()}\n{job.logs()}")
        ends = self.ends()
        print(json.dumps(list(ends.values())), flush=True)  # the numbers, for whoever reads the log
        self.assertEqual(list(range(seats)), sorted(ends))
        self.assertTrue(all(end["bitwise"] for end in ends.values()), ends)
        return ends

"""Checkpoints that a job writes from memory: they hold what pawl.torch.save() writes of that step, scripts load them,
and a job goes on from them bit for bit."""
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job
from harness import JobTest, run_pawl

TRAINER = os.path.join(torch_job.HERE, "checkpoint_trainer.py")


class JobCheckpointsTest(JobTest):
    def run_job(self, folder, kind, *script, resume=()):
        command = [sys.executable, TRAINER, "--kind", kind, "--steps", "25", *script]
        with self.job("--checkpoint", folder, "--every", "10", *resume, nodes=2, command=command, wait=False,
                      hooks=False, environment=torch_job.environment(whole=True)) as job:
            self.assertEqual(0, job.wait_end(torch_job.START_S), job.output())

    def published(self, folder):
        return sorted(int(name.removeprefix("step-")) for name in os.listdir(folder) if name.startswith("step-"))

    def manifest(self, path):
        with open(os.path.join(path, "manifest.json"), encoding="utf-8") as file:
            return json.load(file)

    def assert_equal_checkpoints(self, first, second):
        code, said = run_pawl("diff", first, second)
        self.assertEqual(0, code, said)

    def check(self, kind):
        folder, saves = os.path.join(self.scratch(), "checkpoints"), self.scratch()
        self.run_job(folder, kind, "--save-to", saves)
        first, *_, last = steps = self.published(folder)
        self.assertEqual(25, last)
        self.assertIn(first, range(10, 15), "step 10, or the next one that was captured")
        written, saved = os.path.join(folder, f"step-{first}"), os.path.join(saves, str(first))
        self.assert_equal_checkpoints(written, saved)
        mine, theirs = self.manifest(written), self.manifest(saved)
        self.assertEqual(theirs["values"], mine["values"])
        self.assertEqual(theirs.get("aliases"), mine.get("aliases"))
        again = os.path.join(self.scratch(), "again")
        shutil.copytree(folder, again)
        shutil.rmtree(os.path.join(again, "step-25"))
        self.run_job(again, kind, resume=("--resume", "auto"))
        for step in {*steps[1:], last} & set(self.published(again)):
            self.assert_equal_checkpoints(os.path.join(folder, f"step-{step}"), os.path.join(again, f"step-{step}"))
        return folder

    def test_ddp(self):
        import torch

        import pawl.torch
        folder = self.check("ddp")
        module = torch.nn.Module()
        module.norm = torch.nn.BatchNorm2d(8)
        loaded = pawl.torch.load(os.path.join(folder, "step-25"), module, strict=False)
        self.assertEqual({"step": 25}, loaded.values)
        self.assertEqual(25, int(module.norm.num_batches_tracked))

    def test_zero(self):
        self.check("zero")

    def test_fsdp2(self):
        self.check("fsdp2")


if __name__ == "__main__":
    torch_job.harness.main()

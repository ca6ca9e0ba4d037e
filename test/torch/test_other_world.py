"""A job goes on from a checkpoint of a job of more or fewer ranks."""
import collections
import glob
import json
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job
from harness import JobTest, jobs, run_pawl

TRAINER = os.path.join(torch_job.HERE, "world_trainer.py")
STEPS = 25
SAMPLES = 300  # of one epoch: all that the steps take


class OtherWorldTest(JobTest):
    def begin(self, kind, nodes, *script, resume=(), spares=0, hooks=False):
        """A job, and the folder of its notes."""
        notes = self.scratch()
        command = [sys.executable, TRAINER, "--kind", kind, "--steps", str(STEPS), "--to", notes, *script]
        return self.job("--checkpoint", self.folder, "--every", "10", *resume, nodes=nodes, spares=spares,
                        command=command, wait=False, hooks=hooks,
                        environment=torch_job.environment(whole=True)), notes

    def finish(self, begun):
        with begun as job:
            self.assertEqual(0, job.wait_end(torch_job.START_S), job.output())
            return job.output()

    def source(self, kind, nodes, *script):
        """What a job leaves that has died after its first checkpoint: its step, and the notes."""
        self.folder = os.path.join(self.scratch(), "checkpoints")
        begun, notes = self.begin(kind, nodes, *script)
        self.finish(begun)
        steps = sorted(int(name.removeprefix("step-")) for name in os.listdir(self.folder) if name.startswith("step-"))
        for step in steps[1:]:
            shutil.rmtree(os.path.join(self.folder, f"step-{step}"))
        return steps[0], notes

    def notes(self, folder, kind):
        found = {}
        for path in glob.glob(os.path.join(folder, f"{kind}.*.jsonl")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    noted = json.loads(line)
                    found[noted["step"], int(path.split(".")[-2])] = noted
        return found

    def assert_each_sample_once(self, step, before, after):
        seen = collections.Counter()
        for folder, is_of in ((before, lambda each: each <= step), (after, lambda each: each > step)):
            for (each, _), noted in self.notes(folder, "samples").items():
                seen.update(noted["ids"] if is_of(each) else [])
        self.assertEqual(collections.Counter(range(SAMPLES)), seen)

    def assert_restored_is(self, step, notes):
        code, said = run_pawl("diff", os.path.join(self.folder, f"step-{step}"), os.path.join(notes, str(step)))
        self.assertEqual(0, code, said)

    def check(self, kind, there, here, *script):
        step, before = self.source(kind, there, *script)
        begun, after = self.begin(kind, here, *script, resume=("--resume", "auto"))
        said = self.finish(begun)
        self.assert_says(said, f"goes on from step {step} of a job of {there} seats; this one has {here}",
                         f"step {step} is of a job of {there} ranks")
        self.assert_restored_is(step, after)
        self.assert_each_sample_once(step, before, after)
        restored = self.notes(after, "restored")
        self.assertEqual({(step, rank) for rank in range(here)}, set(restored))
        self.assertEqual(1, len({each["rate"] for each in restored.values()}))
        return step, restored

    def test_ddp_on_twice_as_many(self):
        step, restored = self.check("ddp", 2, 4, "--seed-by-rank")
        self.assertEqual(4, len({each["torch"] for each in restored.values()}), "each draws its own")
        self.assertEqual(1, len({each["python"] for each in restored.values()}), "what was alike stays so")

    def test_fsdp2_on_fewer_and_on_more(self):
        self.check("fsdp2", 3, 2)
        shutil.rmtree(self.folder)
        self.check("fsdp2", 2, 3)

    def test_zero_on_one(self):
        self.check("zero", 2, 1)

    def test_a_node_dies_after_it(self):
        step, before = self.source("ddp", 2)
        begun, after = self.begin("ddp", 3, resume=("--resume", "auto"), spares=1, hooks=True)
        with begun as job:
            job.wait_until(lambda nodes: len(jobs.seats(nodes)) == 3 and jobs.generation(nodes) > 0, "a generation",
                           torch_job.START_S)
            job.wait_until(lambda _: self.notes(after, "restored"), "the first step", torch_job.START_S)
            job.kill_node(job.node_of_seat(1))
            self.assertEqual(0, job.wait_end(torch_job.END_S), job.output())
        self.assert_each_sample_once(step, before, after)
        self.assert_restored_is(step, after)

    def test_a_place_that_is_one_ranks_is_refused(self):
        self.source("ddp", 2, "--loader", "distributed")
        begun, _ = self.begin("ddp", 1, "--loader", "distributed", resume=("--resume", "auto"))
        with begun as job:
            self.assertEqual(1, job.wait_end(torch_job.END_S), job.output())
            self.assert_says(job.output() + job.logs(400), "in the order of one rank", "pawl.ElasticSampler")


if __name__ == "__main__":
    torch_job.harness.main()

"""The job writes its own checkpoints to object storage, which moto plays, and goes on from what lay there."""
import os
import subprocess
import time

import harness
from harness import JobTest, run_pawl
from object_store import ObjectStore

STEPS = harness.SMALL["steps"]
PATH = "s3://checkpoints/"


class S3PersistTest(JobTest):
    @classmethod
    def setUpClass(cls):
        cls.storage = ObjectStore()
        cls.addClassCleanup(cls.storage.close)

    def setUp(self):
        self.prefix = self.id().rpartition(".")[2]

    def persisted(self, every, *flags, **options):
        return self.job("--checkpoint", PATH + self.prefix, "--every", str(every), *flags,
                        **{"nodes": 3, "environment": self.storage.variables, **options})

    def s3(self, *words):
        return subprocess.run([os.environ["S3_TOOL"], "checkpoints", "crc32c", *words], check=True, timeout=120,
                              env={**os.environ, **self.storage.variables}, capture_output=True).stdout

    def keys(self):
        """Sizes of what there is of this test, by the key behind its prefix."""
        lines = self.s3("list", self.prefix + "/").decode().splitlines()
        return {key.removeprefix(self.prefix + "/"): int(size) for size, key in (line.split(" ", 1) for line in lines)}

    def published(self):
        return sorted(int(key.split("/")[0].removeprefix("step-")) for key in self.keys() if key.endswith("/committed"))

    def copied(self):
        """All of it, in a folder."""
        folder = os.path.join(self.scratch(), "copied")
        for key, size in self.keys().items():
            path = os.path.join(folder, key)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(self.s3("get", f"{self.prefix}/{key}", "0", str(size), "") if size else b"")
        return folder

    def wait_published(self, job, count):
        job.wait_until(lambda _: len(self.published()) >= count, f"{count} checkpoints", 60)

    def assert_only_checkpoints(self):
        left = [key for key in self.keys() if "/share-" in key or "/beside-" in key or "/attempt." in key]
        self.assertEqual([], left)

    def test_steps_are_written_while_it_trains(self):
        with self.persisted(70) as job:
            self.wait_published(job, 3)
            self.finish(job)
            said = job.tail() + job.logs()
        self.assertNotIn(self.storage.secret, said)
        self.assertEqual(STEPS, self.published()[-1], "the last step is written as well")
        self.assert_only_checkpoints()
        folder = self.copied()
        for step in self.published():
            code, said = run_pawl("verify", os.path.join(folder, f"step-{step}"))
            self.assertEqual(0, code, said)

    def test_daemons_are_killed_meanwhile(self):
        with self.persisted(10) as job:
            for seat in (0, 1):
                self.wait_published(job, len(self.published()) + 2)
                job.drill("kill", "daemon", str(job.node_of_seat(seat)))
            self.wait_published(job, len(self.published()) + 2)
            self.finish(job)
        self.assertEqual(STEPS, self.published()[-1])
        self.assert_only_checkpoints()
        code, said = run_pawl("verify", os.path.join(self.copied(), f"step-{STEPS}"))
        self.assertEqual(0, code, said)

    def test_old_ones_are_removed(self):
        with self.persisted(40, "--keep-last", "2") as job:
            self.finish(job)
        self.assertEqual(2, len(self.published()))
        self.assertEqual({f"step-{step}" for step in self.published()} | {"pawl-job.json"},
                         {key.split("/")[0] for key in self.keys()})

    def test_a_job_begins_with_a_copy_of_it(self):
        """Bit for bit as the one that was not interrupted."""
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        folder = self.copied()
        begins, again = self.published()[-2], os.path.join(self.scratch(), "again")
        with self.job("--checkpoint", again, "--every", "100", "--resume", os.path.join(folder, f"step-{begins}"),
                      nodes=3, wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertEqual(begins + 1, min(line["step"] for line in job.run().lines))
        code, said = run_pawl("diff", os.path.join(folder, f"step-{STEPS}"), os.path.join(again, f"step-{STEPS}"))
        self.assertEqual(0, code, said)

    def test_a_job_goes_on_where_another_ended(self):
        """Killed as a whole while it writes; then bit for bit as the one that was not interrupted."""
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed, self.prefix = PATH + self.prefix, self.prefix + "-killed"
        with self.persisted(5) as job:
            self.wait_published(job, 4)
            job.remember()
            job.process.kill()
            job.process.wait()
            deadline = time.monotonic() + 10
            while job.left_over() and time.monotonic() < deadline:
                time.sleep(0.05)
        begins = self.published()[-1]
        with self.persisted(100, "--resume", "auto", wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertEqual(begins + 1, min(line["step"] for line in job.run().lines))
        self.assert_only_checkpoints()
        named = f"{PATH}{self.prefix}/step-{begins}"
        self.prefix += "-named"
        with self.persisted(100, "--resume", named, wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
        for again in (named.rpartition("/")[0], PATH + self.prefix):
            code, said = run_pawl("diff", f"{undisturbed}/step-{STEPS}", f"{again}/step-{STEPS}",
                                  environment=self.storage.variables)
            self.assertEqual(0, code, said)

    def test_what_is_wrong_is_told_before_trainers_start(self):
        for changed, path, words in (
                ({"AWS_SECRET_ACCESS_KEY": "wrong"}, PATH + "a", ["403", "AWS_SECRET_ACCESS_KEY"]),
                ({}, "s3://no-such-bucket-here/a", ["create the bucket"]),
                ({"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, PATH + "a", ["AWS_ACCESS_KEY_ID"]),
                ({}, "s3://A/a", ["s3://A/a"])):
            with self.subTest(words=words):
                code, said = run_pawl("run", "--standalone", "--nnodes", "1", "--checkpoint", path, "/bin/true",
                                      environment={**self.storage.variables, "HOME": self.scratch(), **changed})
                self.assertNotEqual(0, code, said)
                self.assert_says(said, "--checkpoint", *words)
                self.assertNotIn(self.storage.secret, said)


if __name__ == "__main__":
    harness.main()

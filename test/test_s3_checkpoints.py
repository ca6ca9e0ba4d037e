"""Checkpoints at s3:// in the commands that read: what they say is what they say of the same files in a folder."""
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

import harness
import object_store

FIXTURES = pathlib.Path(harness.ROOT) / "test" / "fixtures"
OK, FAILED, USAGE, NOT_FOUND, DEGRADED = range(5)
SOURCES = {"dcp": "torch/G1b_fsdp2_tied_w3/ckpt", "hf": "torch/G8j_huggingface/sharded_two_files",
           "deepspeed": "deepspeed/zero3_w2_bf16/ckpt"}


class S3CheckpointsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = object_store.ObjectStore()
        cls.addClassCleanup(cls.server.close)
        folder = tempfile.TemporaryDirectory(prefix="pawl-s3-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        cls.environment = {"HOME": folder.name, "PATH": os.environ["PATH"], **cls.server.variables}
        cls.places = {name: FIXTURES / path for name, path in SOURCES.items()}
        cls.places["store"] = cls.folder / "job" / "step-5"
        cls.places["store"].parent.mkdir()
        cls.pawl("convert", cls.places["dcp"], cls.places["store"], "--to", "pawl")
        for name, place in cls.places.items():
            cls.upload(place, "job/step-5" if name == "store" else name)

    @classmethod
    def upload(cls, place, key):
        for path in sorted(place.rglob("*")):
            if path.is_file():
                cls.tool("put", f"{key}/{path.relative_to(place)}", path)

    @classmethod
    def tool(cls, *words):
        subprocess.run([os.environ["S3_TOOL"], "checkpoints", "crc32c", *words], env=cls.environment, check=True,
                       capture_output=True, timeout=120)

    @classmethod
    def pawl(cls, *words, code=OK, environment=None):
        """Its standard output; of a refusal its error, too."""
        run = subprocess.run([harness.PAWL, *map(str, words)], env=environment or cls.environment, capture_output=True,
                             text=True, timeout=300)
        if run.returncode != code:
            raise AssertionError(f"pawl {words}: {run.returncode}, not {code}\n{run.stdout}\n{run.stderr}")
        if cls.server.secret in run.stdout + run.stderr:
            raise AssertionError("the secret is told")
        return run.stdout if code == OK else run.stdout + run.stderr

    def address(self, name):
        return "s3://checkpoints/" + ("job/step-5" if name == "store" else name)

    def test_inspect_says_the_same(self):
        for name, place in self.places.items():
            with self.subTest(name):
                here = json.loads(self.pawl("inspect", place, "--output", "json"))
                there = json.loads(self.pawl("inspect", self.address(name) + "/", "--output", "json"))
                self.assertEqual(self.address(name) + "/", there.pop("path"))
                del here["path"]
                self.assertEqual(json.dumps(here).replace(str(place), self.address(name)), json.dumps(there))

    def test_verify_and_diff_read_all_bytes(self):
        for name, place in self.places.items():
            with self.subTest(name):
                here = json.loads(self.pawl("verify", place, "--output", "json"))
                there = json.loads(self.pawl("verify", self.address(name), "--output", "json"))
                for key in ("verdict", "tensors_read", "bytes_read", "checksums"):
                    self.assertEqual(here[key], there[key])
                self.assertIn("\nequal\n", self.pawl("diff", self.address(name), place))

    def test_convert_writes_the_same_files(self):
        for name, place in self.places.items():
            for to in ("safetensors", "pawl"):
                with self.subTest(name, to=to):
                    here, there = self.folder / "here", self.folder / "there"
                    self.pawl("convert", place, here, "--to", to)
                    self.pawl("convert", self.address(name), there, "--to", to)
                    self.assertIn("\nequal\n", self.pawl("diff", here, there))
                    for path in (here, there):
                        shutil.rmtree(path) if path.is_dir() else path.unlink()

    def test_ls_lists_the_steps_of_a_job(self):
        for path in ("s3://checkpoints/job", "s3://checkpoints/job/", self.address("store")):
            found = json.loads(self.pawl("ls", path, "--output", "json"))["checkpoints"]
            self.assertEqual([(5, True, "")], [(one["step"], one["finished"], one["damage"]) for one in found])
        self.assertIn("whole", self.pawl("ls", "s3://checkpoints/job"))
        self.assertIn("not_found", self.pawl("ls", "s3://checkpoints/none", "--output", "json", code=NOT_FOUND))

    def test_damage_is_found_there_too(self):
        copy = self.folder / "damaged"
        shutil.copytree(self.places["store"], copy)
        biggest = max(copy.iterdir(), key=lambda path: path.stat().st_size)
        content = bytearray(biggest.read_bytes())
        content[-5] ^= 1
        biggest.write_bytes(content)
        self.upload(copy, "damaged")
        told = self.pawl("verify", "s3://checkpoints/damaged", code=DEGRADED)
        self.assertIn(f"s3://checkpoints/damaged/{biggest.name}", told)
        self.pawl("convert", "s3://checkpoints/damaged", self.folder / "never", "--to", "safetensors",
                  code=DEGRADED)
        self.assertFalse((self.folder / "never").exists())

    def test_refusals_say_what_to_do(self):
        without = {key: value for key, value in self.environment.items() if not key.startswith("AWS_ACCESS")}
        self.assertIn("AWS_ACCESS_KEY_ID", self.pawl("inspect", self.address("dcp"), code=FAILED, environment=without))
        wrong = {**self.environment, "AWS_SECRET_ACCESS_KEY": "wrong"}
        self.assertIn("check AWS_SECRET_ACCESS_KEY",
                      self.pawl("inspect", self.address("dcp"), code=FAILED, environment=wrong))
        self.assertIn("nothing lies beneath it", self.pawl("inspect", "s3://checkpoints/none", code=NOT_FOUND))
        self.assertIn("NoSuchBucket", self.pawl("inspect", "s3://elsewhere/x", code=NOT_FOUND))
        self.assertIn("gs://", self.pawl("inspect", "gs://checkpoints/x", code=FAILED))
        told = self.pawl("convert", self.places["dcp"], "s3://checkpoints/new", "--to", "pawl", code=FAILED)
        self.assertIn("write to a folder and copy it there", told)
        self.pawl("prune", "s3://checkpoints/job", "--keep-last", "1", code=FAILED)


if __name__ == "__main__":
    harness.main()

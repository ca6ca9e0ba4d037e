"""The client of object storage against another one's server: moto, which checks signatures as AWS does."""
import os
import pathlib
import random
import subprocess
import tempfile
import unittest

import harness
import object_store

MIB = 1 << 20


class S3Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = object_store.ObjectStore()
        cls.addClassCleanup(cls.server.close)
        folder = tempfile.TemporaryDirectory(prefix="pawl-s3-")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)

    def s3(self, *words, secret=None, bucket="checkpoints", summed="crc32c", fails=None):
        """Its output; with `fails`, the code and the text of its error."""
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], **self.server.variables}
        if secret:
            environment["AWS_SECRET_ACCESS_KEY"] = secret
        run = subprocess.run([os.environ["S3_TOOL"], bucket, summed, *words], env=environment, capture_output=True,
                             timeout=120)
        if fails is None:
            self.assertEqual(0, run.returncode, run.stdout)
            return run.stdout
        error = run.stdout.decode()
        self.assertEqual(1, run.returncode, error)
        self.assertTrue(error.startswith(fails + ": "), error)
        self.assertNotIn(self.server.secret, error)
        return error

    def file(self, name, content):
        path = self.folder / name
        path.write_bytes(content)
        return str(path)

    def test_objects_of_any_name(self):
        for summed in ("crc32c", "md5"):
            for name in ("plain", "a b+c&d=e%20f", "dir/sub/é~✓", "x/../y", "quote\"'<>;:@!$*(),?#", "//slashes//"):
                with self.subTest(name=name, summed=summed):
                    key = f"names-{summed}/{name}"
                    content = (name * 3).encode()
                    etag = self.s3("put", key, self.file("content", content), summed=summed).decode()
                    self.assertEqual(f"{len(content)} {etag}", self.s3("head", key).decode())
                    self.assertEqual(content[2:7], self.s3("get", key, "2", "5", etag))
                    self.assertEqual(f"{len(content)} {key}\n", self.s3("list", key).decode())
                    self.s3("remove", key)
                    self.s3("remove", key)
                    self.s3("head", key, fails="not_found")

    def test_an_object_in_parts(self):
        content = random.Random(1).randbytes(13 * MIB + 5)
        for summed in ("crc32c", "md5"):
            with self.subTest(summed=summed):
                etag = self.s3("upload", "big", self.file("big", content), str(5 * MIB), summed=summed).decode()
                self.assertEqual(f"{len(content)} {etag}", self.s3("head", "big").decode())
                self.assertEqual(content, self.s3("get", "big", "0", str(len(content)), etag))
                self.assertEqual(content[5 * MIB - 3:5 * MIB + 3], self.s3("get", "big", str(5 * MIB - 3), "6", ""))
        self.s3("abort", "never")
        self.s3("head", "never", fails="not_found")

    def test_a_list_of_several_pages(self):
        empty = self.file("empty", b"")
        names = sorted(f"many/{number}" for number in range(5))
        for name in names:
            self.s3("put", name, empty)
        self.assertEqual("".join(f"0 {name}\n" for name in names), self.s3("list", "many/").decode())
        self.assertEqual(b"", self.s3("list", "none/"))

    def test_conditions(self):
        one, two = self.file("one", b"first"), self.file("two", b"second")
        etag = self.s3("put-if-absent", "only", one).decode()
        self.s3("put-if-absent", "only", two, fails="stale")
        self.assertEqual(b"first", self.s3("get", "only", "0", "5", etag))
        self.s3("put", "only", two)
        self.s3("get", "only", "0", "5", etag, fails="stale")
        self.s3("get", "only", "100", "5", "", fails="stale")

    def test_errors_name_what_to_do(self):
        self.assertIn("NoSuchBucket", self.s3("list", "", bucket="elsewhere", fails="not_found"))
        self.assertIn("check AWS_SECRET_ACCESS_KEY", self.s3("list", "", secret="wrong", fails="invalid"))
        self.assertIn("s3://checkpoints/none", self.s3("get", "none", "0", "5", "", fails="not_found"))


if __name__ == "__main__":
    harness.main()

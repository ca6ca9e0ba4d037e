"""`pawl convert` onto a file system that is really full, from the first page to the last that it needs: what stood at
the place stays, nothing else is left, and the sentence names the path and what to do."""
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import harness  # noqa: E402
import small_disk  # noqa: E402

FIXTURES = os.path.join(harness.ROOT, "test", "fixtures", "torch")
SOURCE, OTHER = os.path.join(FIXTURES, "K_dcp_numbered", "ckpt"), os.path.join(FIXTURES, "G6_ddp_zero_w3",
                                                                              "consolidated.pt")
RUNS = 24  # of one format, about


def digest(path):
    """Of a file or a folder, by names and bytes."""
    found = hashlib.sha256()
    files = [path] if os.path.isfile(path) else sorted(os.path.join(folder, name) for folder, _, names in os.walk(path)
                                                      for name in names)
    for each in files:
        with open(each, "rb") as file:
            found.update(each.encode() + b"\0" + file.read())
    return found.hexdigest()


def pages_of(path):
    """That files and their folders take on a tmpfs."""
    sizes = [os.path.getsize(os.path.join(folder, name)) for folder, _, names in os.walk(path) for name in names]
    return sum(-(-size // small_disk.PAGE) for size in sizes or [os.path.getsize(path)])


def convert(kind, source, target, *options):
    return subprocess.run([harness.PAWL, "convert", source, target, "--to", kind, "--memory", "1MiB", *options],
                          capture_output=True, text=True)


def names_in(folder, source):
    """A file with what its optimizer numbers: the weights that it trains, those that decay first, then the others."""
    shown = subprocess.run([harness.PAWL, "inspect", source, "-o", "json"], capture_output=True, text=True, check=True)
    with open(os.path.join(os.path.dirname(source), "golden.json"), encoding="utf-8") as file:
        trained = set(json.load(file)["optimizer_index_to_fqn"].values())
    weights = [tensor for tensor in json.loads(shown.stdout)["tensors"]
               if tensor["role"] == "weight" and tensor["name"] in trained]
    groups = [[tensor["name"] for tensor in weights if (len(tensor["shape"]) > 1) is decays]
              for decays in (True, False)]
    path = os.path.join(folder, "names")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join("".join(name + "\n" for name in group) for group in groups))
    return path


def fill_and_convert(directory, kind, names):
    """The sentences of all that failed; each is checked here, where the disk is seen."""
    target = os.path.join(directory, "made")
    done = convert(kind, SOURCE, target, "--despite-problems")
    assert done.returncode == 0, done.stderr
    old = digest(target)
    done = convert(kind, OTHER, os.path.join(directory, "measured"), "--param-names", names)
    assert done.returncode == 0, done.stderr
    needed = pages_of(os.path.join(directory, "measured"))
    subprocess.run(["rm", "-r", os.path.join(directory, "measured")], check=True)
    said, saved = [], False
    for free in range(0, 2 * needed + RUNS, max(1, needed // RUNS)):
        small_disk.fill(directory, free)
        done = convert(kind, OTHER, target, "--overwrite", "--param-names", names)
        small_disk.empty(directory)
        assert os.listdir(directory) == ["made"], (free, os.listdir(directory), done.stderr)
        if done.returncode == 0:
            saved = True
            break
        said.append(done.stderr)
        assert digest(target) == old, (free, done.stderr)
    assert saved and digest(target) != old, said
    return said


class FullDiskTest(unittest.TestCase):
    def check(self, kind):
        with tempfile.TemporaryDirectory() as folder:
            said = small_disk.run(2048, fill_and_convert, kind, names_in(folder, OTHER))
        missing = [each for each in said if "are missing" in each]
        later = [each for each in said if "are missing" not in each]
        self.assertGreater(len(missing), 5)  # looked at before the first write
        self.assertGreater(len(later), 0)    # headers, manifests and the rest of pages come on top
        for each in missing:
            self.assertRegex(each, r"no room in .*pawl-disk-[^:]*: \d+ bytes are needed and \d+ are free, so \d+ are "
                                   r"missing: free as many, or write elsewhere")
        for each in later:
            self.assertRegex(each, "made.pawl-partial.*No space left on device: free some space there, or write")

    def test_universal(self):
        self.check("universal")

    def test_dcp(self):
        self.check("dcp")

    def test_pawl(self):
        self.check("pawl")


if __name__ == "__main__":
    harness.main()

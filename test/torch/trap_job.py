"""A script of traps/, plain and under pawl with trainers killed: the result has the bits of the plain run, or pawl
refuses before the first step and says why. Never anything else."""
import hashlib
import json
import os
import sys
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch_job  # noqa: E402
from torch_job import END_S, HERE, JobTest, harness  # noqa: E402

TRAPS = os.path.join(HERE, "traps")


def results(folder, nodes):
    found = {}
    for seat in range(nodes):
        with open(os.path.join(folder, f"result.{seat}.json"), encoding="utf-8") as file:
            found[seat] = json.load(file)
    return found


class TrapTest(JobTest):
    def plain(self, name, nodes=2, **variables):
        return results(self.plain_folder(name, nodes, **variables), nodes)

    def plain_folder(self, name, nodes=2, **variables):
        """What the script has written in plain PyTorch, undisturbed; once for each version of it, and of what seeds
        loaders' workers, which is pawl's there too."""
        key = hashlib.sha256(f"{torch.__version__} {sorted(variables.items())}".encode())
        seeds = os.path.join(harness.ROOT, "python", "pawl", "loaders.py")
        for path in (*(os.path.join(TRAPS, each + ".py") for each in ("trap", name)), seeds):
            with open(path, "rb") as file:
                key.update(file.read())

        def run(folder):
            torch_job.run_plain(os.path.join(TRAPS, name + ".py"), folder, nodes, {}, TRAP_FOLDER=folder, **variables)
        kept = f"trap-{os.path.basename(name)}-{key.hexdigest()[:16]}"
        harness.made_once(kept, run)
        return os.path.join(harness.CACHE, kept)

    def killed(self, name, kill="1:9", code=0, spares=0, nodes=2, look=lambda folder: None, **variables):
        """(results, what was said) of the script under pawl; that seat's trainer dies in that step. `look` is given the
        folder with what the script has written."""
        with tempfile.TemporaryDirectory(prefix="pawl-trap-") as folder, self.job(
                nodes=nodes, spares=spares, command=[os.path.join(TRAPS, name + ".py")], wait=False, hooks=False,
                environment={**torch_job.environment(), "TRAP_FOLDER": folder, "TRAP_KILL": kill, **variables}) as job:
            self.assertEqual(code, job.wait_end(END_S), job.output())
            said = job.output() + job.logs(400)
            died = len([name for name in os.listdir(folder) if name.startswith("died")])
            self.assertEqual(kill.count(":"), died, said)
            look(folder)
            return results(folder, nodes) if code == 0 else None, said

    def equal(self, name, *words, kill="1:9", spares=0, nodes=2, look=lambda folder: None, **variables):
        """The result is that of the plain run, and these words were said on the way."""
        found, said = self.killed(name, kill, spares=spares, nodes=nodes, look=look, **variables)
        expected = self.plain(name, nodes, **variables)
        for seat, each in expected.items():
            differing = [key for key in {**each, **found[seat]} if each.get(key) != found[seat].get(key)]
            self.assertEqual([], differing, f"seat {seat} differs\n{said}")
        self.assert_says(said, *words)
        return said

    def refused(self, name, *words, **variables):
        """Before anything is lost, with these words and no traceback."""
        _, said = self.killed(name, kill="", code=1, **variables)
        self.assert_says(said, *words)
        self.assertNotIn("Traceback", said)

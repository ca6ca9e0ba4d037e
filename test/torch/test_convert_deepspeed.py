"""pawl convert of DeepSpeed's saves whose optimizer keeps more than flat moments: named and refused, or left out."""
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from importlib.machinery import ModuleSpec

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch  # noqa: E402
from harness import PAWL, ROOT  # noqa: E402

DEGRADED = 4
MORE = {
    "mu_product": torch.tensor(0.5),  # NAdam
    "RMS": 0.25,  # Adafactor
    "GG": [torch.ones(2, 2), torch.ones(3, 3)],  # SOAP
    "preconditioners": {"0": torch.ones(2, 2)},  # Shampoo
}


class StandIns:
    """DeepSpeed's modules, of which a pickle names classes: each is made when it is first named."""

    def find_spec(self, name, *_):
        return ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "deepspeed" else None

    def create_module(self, spec):
        module = types.ModuleType(spec.name)

        def made(word):
            if word.startswith("__"):
                raise AttributeError(word)
            setattr(module, word, type(word, (), {"__module__": spec.name, "__init__": lambda *_: None}))
            return vars(module)[word]

        module.__getattr__ = made
        return module

    def exec_module(self, module):
        pass


@contextlib.contextmanager
def stand_ins():
    finder = StandIns()
    sys.meta_path.append(finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name.split(".")[0] == "deepspeed"]:
            del sys.modules[name]


class DeepSpeedStates(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, self.directory)
        self.source = os.path.join(self.directory, "ckpt")

    def convert(self, *arguments):
        out = os.path.join(self.directory, "out")
        shutil.rmtree(out, ignore_errors=True)
        done = subprocess.run([PAWL, "convert", self.source, out, "--to", "safetensors", *arguments],
                              capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def check(self, words):
        """Refused by name; with the flag the moments are there."""
        code, said = self.convert()
        self.assertNotEqual(0, code, said)
        for word in words:
            self.assertIn(word, said)
        code, said = self.convert("--skip-unsupported")
        self.assertEqual(DEGRADED, code, said)
        done = subprocess.run([PAWL, "inspect", os.path.join(self.directory, "out"), "-o", "json"],
                              capture_output=True, text=True, timeout=120, check=True)
        self.assertIn("exp_avg_sq", json.dumps(json.loads(done.stdout)))

    def test_of_zero(self):
        shutil.copytree(os.path.join(ROOT, "test", "fixtures", "deepspeed", "zero1_w11", "ckpt"), self.source)
        with open(os.path.join(self.source, "latest"), encoding="utf-8") as file:
            path = os.path.join(self.source, file.read().strip(), "zero_pp_rank_0_mp_rank_00_optim_states.pt")
        with stand_ins():
            state = torch.load(path, weights_only=False)
            state["optimizer_state_dict"]["base_optimizer_state"]["state"][0].update(MORE)
            torch.save(state, path)
        self.check(MORE)

    def test_without_zero(self):
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5))
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        os.makedirs(os.path.join(self.source, "global_step1"))
        with open(os.path.join(self.source, "latest"), "w", encoding="utf-8") as file:
            file.write("global_step1")
        states = optimizer.state_dict()
        for each in states["state"].values():
            each.update(MORE)
        torch.save({"module": model.state_dict(), "optimizer": states, "global_steps": 1, "dp_world_size": 1,
                    "mp_world_size": 1, "ds_version": "0.19.8"},
                   os.path.join(self.source, "global_step1", "mp_rank_00_model_states.pt"))
        self.check([f"{word} of 0.weight" for word in MORE])


if __name__ == "__main__":
    unittest.main()

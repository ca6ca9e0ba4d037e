"""pawl convert of DeepSpeed's saves whose optimizer keeps more than flat moments: named and refused, or left out."""
import contextlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import types
import unittest
import zipfile
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
        done = subprocess.run([PAWL, "convert", self.source, out, "--to", "safetensors", "--overwrite", *arguments],
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

    def save_without_zero(self, change, **more):
        """A file of one rank; `change` gets the optimizer's state dict and gives what is saved."""
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 5))
        optimizer = torch.optim.Adam(model.parameters(), **more)
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()
        os.makedirs(os.path.join(self.source, "global_step1"), exist_ok=True)
        with open(os.path.join(self.source, "latest"), "w", encoding="utf-8") as file:
            file.write("global_step1")
        path = os.path.join(self.source, "global_step1", "mp_rank_00_model_states.pt")
        states = change(optimizer.state_dict())
        torch.save({"module": model.state_dict(), "optimizer": states, "global_steps": 1, "dp_world_size": 1,
                    "mp_world_size": 1, "ds_version": "0.19.8"}, path)
        return path, model, states

    @staticmethod
    def updated(states, make):
        for each in states["state"].values():
            each.update(make(each))
        return states

    def test_without_zero(self):
        self.save_without_zero(lambda states: self.updated(states, lambda _: MORE))
        self.check([f"{word} of 0.weight" for word in MORE])

    def test_states_of_many_entries(self):
        """More than the 32 that were read once; a larger state was dropped whole."""
        self.save_without_zero(lambda states: self.updated(
            states, lambda each: {f"old_{i}": torch.full_like(each["exp_avg"], i) for i in range(400)}))
        code, said = self.convert()
        self.assertEqual(0, code, said)
        found = self.tensors()
        for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
            self.assertTrue((found[f"{name}/old_399"] == 399).all())
            self.assertIn(f"{name}/exp_avg", found)

    def test_states_that_are_objects(self):
        def objects(states):
            states["state"] = {number: types.SimpleNamespace(**each) for number, each in states["state"].items()}
            return states

        self.save_without_zero(objects)
        given = os.path.join(self.directory, "names")
        with open(given, "w", encoding="utf-8") as file:
            file.write("0.weight\n0.bias\n1.weight\n1.bias\n")
        code, said = self.convert("--param-names", given)
        self.assertNotEqual(0, code, said)
        self.assertIn("the state of 0.weight is a call of types.SimpleNamespace", said)

    def test_groups_of_too_many_entries(self):
        def many(states):
            states["param_groups"][0].update({f"more_{i}": i for i in range(300)})
            return states

        self.save_without_zero(many)
        code, said = self.convert()
        self.assertEqual(DEGRADED, code, said)
        self.assertIn("of a group at most 256 are read", said)

    def fused(self, states):
        """As FP16_Optimizer keeps it: one flat master, one flat parameter."""
        flat = [torch.cat([each[word].flatten() for each in states["state"].values()])
                for word in ("exp_avg", "exp_avg_sq")]
        return {"optimizer_state_dict": {"state": {0: {"step": 1, "exp_avg": flat[0], "exp_avg_sq": flat[1]}},
                                         "param_groups": [{**states["param_groups"][0], "params": [0]}]},
                "fp32_groups_flat": [torch.arange(41.0)], "cur_scale": 1.0}

    def test_of_a_fused_optimizer(self):
        _, model, states = self.save_without_zero(self.fused)
        code, said = self.convert()
        self.assertEqual(0, code, said)
        found, at = self.tensors(), 0
        for name, parameter in model.named_parameters():
            for role, flat in (("master", states["fp32_groups_flat"][0]),
                               ("exp_avg", states["optimizer_state_dict"]["state"][0]["exp_avg"])):
                expected = flat[at:at + parameter.numel()].reshape(parameter.shape)
                self.assertTrue(torch.equal(expected, found[f"{name}/{role}"]), name)
            at += parameter.numel()

    def test_of_a_fused_optimizer_with_more(self):
        def more(states):
            states = self.fused(states)
            states["optimizer_state_dict"]["state"][0].update(MORE)
            return states

        self.save_without_zero(more)
        self.check([f"{word} of 0.weight" for word in MORE])

    def test_a_rate_that_is_damaged(self):
        """A tensor among the hyperparameters: its checksum is checked, without ZeRO and in a fused optimizer."""
        for change in (lambda states: states, self.fused):
            path, _, _ = self.save_without_zero(change, lr=torch.tensor(0.25), foreach=False)
            code, said = self.convert()
            self.assertEqual(0, code, said)
            with open(path, "rb") as file:
                content = file.read()
            wanted = struct.pack("<f", 0.25)
            with zipfile.ZipFile(path) as archive:
                records = [each for each in archive.infolist() if archive.read(each) == wanted]
            self.assertEqual(1, len(records))
            at = content.index(wanted, records[0].header_offset)
            with open(path, "wb") as file:
                file.write(content[:at] + struct.pack("<f", 0.5) + content[at + 4:])
            code, said = self.convert()
            self.assertEqual(DEGRADED, code, said)
            self.assertIn("mp_rank_00_model_states.pt", said)
            self.assertIn("checksum", said)

    def tensors(self):
        with open(os.path.join(self.directory, "out"), "rb") as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header, data = json.loads(file.read(size)), file.read()
        return {key: torch.frombuffer(bytearray(data[slice(*each["data_offsets"])]), dtype=torch.float32)
                .reshape(each["shape"])
                for key, each in header.items() if key != "__metadata__" and each["dtype"] == "F32"}


if __name__ == "__main__":
    unittest.main()

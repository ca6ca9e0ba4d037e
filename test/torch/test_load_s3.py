"""pawl.torch.load of what lies at s3://, and that pawl.torch.save says where it can write."""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import object_store  # noqa: E402
import torch  # noqa: E402

import pawl.torch  # noqa: E402
from pawl.errors import PawlError  # noqa: E402


def training(seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(300, 500), torch.nn.Linear(500, 7))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 300)).sum().backward()
    optimizer.step()
    return model, optimizer


class LoadS3Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        server = object_store.ObjectStore()
        cls.addClassCleanup(server.close)
        os.environ.update(server.variables)  # libpawl_checkpoint reads them once

    def test_what_was_saved_is_loaded(self):
        model, optimizer = training(1)
        with tempfile.TemporaryDirectory() as folder:
            saved = pathlib.Path(folder) / "saved"
            pawl.torch.save(saved, model, optimizer, values={"step": 7})
            for path in sorted(saved.iterdir()):
                subprocess.run([os.environ["S3_TOOL"], "checkpoints", "crc32c", "put", f"a/b/{path.name}", path],
                               check=True, capture_output=True)
        live, its_optimizer = training(2)
        report = pawl.torch.load("s3://checkpoints/a/b", live, its_optimizer)
        self.assertEqual({"step": 7}, report.values)
        for name, tensor in model.state_dict().items():
            self.assertTrue(torch.equal(tensor, live.state_dict()[name]), name)
        for one, other in zip(optimizer.state.values(), its_optimizer.state.values(), strict=True):
            self.assertTrue(torch.equal(one["exp_avg"], other["exp_avg"]))

    def test_refusals_say_what_to_do(self):
        model, optimizer = training(1)
        with self.assertRaisesRegex(PawlError, "nothing lies beneath it"):
            pawl.torch.load("s3://checkpoints/none", model, optimizer)
        with self.assertRaisesRegex(PawlError, "write to a folder and copy it there"):
            pawl.torch.save("s3://checkpoints/new", model, optimizer)


if __name__ == "__main__":
    harness.main()

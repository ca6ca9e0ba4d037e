"""A LoRA model of PEFT's loses trainers and nodes, and ends as in plain PyTorch (torch/peers/peft_lora.py)."""
import os
import sys
import unittest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

try:
    import peft  # noqa: F401
except ImportError as missing:
    print(f"PEFT is not here: {missing}")
    sys.exit(77)

import torch  # noqa: E402
from trap_job import TrapTest, harness  # noqa: E402

SCRIPT = os.path.join("..", "peers", "peft_lora")


class PeftTest(TrapTest):
    def test_adapters_under_ddp(self):
        self.adapters("ddp")

    @unittest.skipUnless(hasattr(torch.cpu.Stream, "record_event"), "FSDP2 of PyTorch 2.6 can't compute on CPUs")
    def test_adapters_under_fsdp2(self):
        self.adapters("fsdp2")

    def adapters(self, form):
        said = self.equal(SCRIPT, kill="1:6,0:10,1:13node", spares=1, TRAP_FORM=form)
        self.assertNotIn("starts cold", said)


if __name__ == "__main__":
    harness.main()

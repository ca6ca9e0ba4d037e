"""`pawl convert --to dcp`, read by torch itself: dcp.load into plain tensors, and into FSDP2's of two gloo processes.

The sources are a training's own torch.save, and fixtures; what torch loads is held bit for bit against what was
trained, or against the fixture's golden.
"""
import argparse
import json
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import unittest
import warnings
import zipfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import harness  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from harness import PAWL, ROOT  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner  # noqa: E402
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor  # noqa: E402

FIXTURES = os.path.join(ROOT, "test", "fixtures")
TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64}
WORLD = 2


class Tied(nn.Module):
    """Sizes that two ranks don't share evenly, a buffer, and an output tied to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.inner = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 6))
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.tensor([0.5, 2.0, 3.0]))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embed(tokens)) * self.scale[0])


def built(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = Tied()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, steps: int) -> list[float]:
    losses = []
    for step in range(first, first + steps):
        tokens = torch.randint(0, 11, (4, 7), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.roll(1, 1).flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def load(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> None:
    """As docs/user/convert.md says it: weights strictly, then the optimizer's tensors, hyperparameters being the
    program's own."""
    model_state, optimizer_state = get_state_dict(model, optimizer)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is one process only
        dcp.load({"model": model_state}, checkpoint_id=folder)
        dcp.load({"optim": optimizer_state}, checkpoint_id=folder, planner=DefaultLoadPlanner(allow_partial_load=True))
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)


def whole(value: torch.Tensor) -> torch.Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value.clone()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    out = {f"model.{name}": whole(value) for name, value in model_state.items()}
    for name, state in optimizer_state["state"].items():
        out |= {f"optim.{name}.{word}": whole(value) for word, value in state.items()}
    return out


def run_rank(rank: int, folder: str) -> None:
    """One of two processes: an FSDP2 model takes the checkpoint, and its losses go on as the unbroken run's."""
    dist.init_process_group("gloo", init_method="file://" + os.path.join(folder, "meet"), rank=rank, world_size=WORLD)
    model, optimizer = built(seed=99)
    mesh = init_device_mesh("cpu", (WORLD,))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    load(model, optimizer, os.path.join(folder, "dcp"))
    assert any(isinstance(value, DTensor) for value in model.state_dict().values())
    got = tensors_of(model, optimizer)
    losses = train(model, optimizer, 5, 5)
    if rank == 0:
        torch.save({"tensors": got, "losses": losses}, os.path.join(folder, "got.pt"))
    dist.barrier()
    dist.destroy_process_group()


def golden_tensors(path: str) -> dict[str, torch.Tensor]:
    with open(path, "rb") as file:
        data = file.read()
    length = struct.unpack("<Q", data[:8])[0]
    out = {}
    for key, entry in json.loads(data[8:8 + length]).items():
        if key != "__metadata__":
            begin, end = (8 + length + at for at in entry["data_offsets"])
            raw = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.uint8)
            out[key] = raw.view(TYPES[entry["dtype"]]).reshape(entry["shape"])
    return out


class ConvertToDcpTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="pawl-to-dcp-")
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def at(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def convert(self, source: str, *more: str) -> str:
        done = subprocess.run([PAWL, "convert", source, self.at("dcp"), "--to", "dcp", *more], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual(0, done.returncode, done.stdout + done.stderr)
        return self.at("dcp")

    def trained(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """Trained five steps, and saved as get_state_dict has it."""
        model, optimizer = built(seed=3)
        train(model, optimizer, 0, 5)
        model_state, optimizer_state = get_state_dict(model, optimizer)
        torch.save({"model": model_state, "optim": optimizer_state}, self.at("source.pt"))
        return model, optimizer

    def assert_equal(self, wanted: dict[str, torch.Tensor], got: dict[str, torch.Tensor]) -> None:
        self.assertEqual(sorted(wanted), sorted(got))
        for key, value in wanted.items():
            self.assertTrue(torch.equal(value, got[key]), key)

    def test_a_plain_model_goes_on(self) -> None:
        model, optimizer = self.trained()
        folder = self.convert(self.at("source.pt"), "--max-file-size", "300B")
        self.assertGreater(len([name for name in os.listdir(folder) if name.endswith(".distcp")]), 3)
        other, other_optimizer = built(seed=99)
        load(other, other_optimizer, folder)
        self.assert_equal(tensors_of(model, optimizer), tensors_of(other, other_optimizer))
        self.assertEqual(train(model, optimizer, 5, 5), train(other, other_optimizer, 5, 5))

    def test_fsdp2_on_two_ranks_goes_on(self) -> None:
        model, optimizer = self.trained()
        self.convert(self.at("source.pt"))
        ranks = [subprocess.Popen([sys.executable, "-B", __file__, "--rank", str(rank), "--folder", self.folder],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(WORLD)]
        try:
            said = [rank.communicate(timeout=120)[0].decode() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
        self.assertEqual([0] * WORLD, [rank.returncode for rank in ranks], "\n".join(said))
        got = torch.load(self.at("got.pt"), weights_only=True)
        self.assert_equal(tensors_of(model, optimizer), got["tensors"])
        for unbroken, loss in zip(train(model, optimizer, 5, 5), got["losses"], strict=True):
            self.assertAlmostEqual(unbroken, loss, delta=1e-5 * abs(unbroken))

    def test_torch_reads_what_other_frameworks_saved(self) -> None:
        for fixture, source in (("deepspeed/zero3_w2_bf16", "ckpt"), ("deepspeed/pp2_tp2_dp2_bf16", "ckpt"),
                                ("torch/G1b_fsdp2_tied_w3", "ckpt"), ("torch/I2_llama_sharded_bf16", "model")):
            with self.subTest(fixture):
                folder = self.convert(os.path.join(FIXTURES, fixture, source), "--overwrite")
                golden = golden_tensors(os.path.join(FIXTURES, fixture, "golden.safetensors"))
                with open(os.path.join(folder, ".metadata"), "rb") as file:
                    metadata = pickle.load(file)
                state = {key: torch.full(tuple(item.size), 77, dtype=item.properties.dtype)
                         for key, item in metadata.state_dict_metadata.items()}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    dcp.load(state, checkpoint_id=folder)
                compared = 0
                for key, value in golden.items():
                    name, role = key.rsplit("/", 1)
                    stored = f"model.{name}" if role in ("weight", "buffer") else f"optim.state.{name}.{role}"
                    if stored in state:
                        self.assertEqual(value.dtype, state[stored].dtype, stored)
                        self.assertTrue(torch.equal(value, state[stored]), stored)
                        compared += 1
                self.assertEqual(len(golden), compared)

    def test_flat_names_are_a_plain_state_dict(self) -> None:
        model, _ = self.trained()
        folder = self.convert(self.at("source.pt"), "--flat", "--roles", "weight")
        other, _ = built(seed=99)
        state = other.state_dict()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.load(state, checkpoint_id=folder)
        self.assert_equal(dict(model.state_dict()), state)

    def test_torchs_own_converter_takes_it_back(self) -> None:
        model, optimizer = self.trained()
        folder = self.convert(self.at("source.pt"))
        dcp_to_torch_save(folder, self.at("back.pt"))
        back = torch.load(self.at("back.pt"), weights_only=True)
        wanted = tensors_of(model, optimizer)
        got = {f"model.{name}": value for name, value in back["model"].items()}
        for name, state in back["optim"]["state"].items():
            got |= {f"optim.{name}.{word}": value for word, value in state.items()}
        for key, value in wanted.items():
            self.assertTrue(torch.equal(value, got[key]), key)

    def test_every_item_is_a_sound_zip_file(self) -> None:
        self.trained()
        folder = self.convert(self.at("source.pt"))
        with open(os.path.join(folder, ".metadata"), "rb") as file:
            metadata = pickle.load(file)
        for place in metadata.storage_data.values():
            with open(os.path.join(folder, place.relative_path), "rb") as file:
                file.seek(place.offset)
                with open(self.at("item.zip"), "wb") as item:
                    item.write(file.read(place.length))
            with zipfile.ZipFile(self.at("item.zip")) as item:
                self.assertIsNone(item.testzip())


if __name__ == "__main__":
    if "--rank" in sys.argv:
        parser = argparse.ArgumentParser()
        parser.add_argument("--rank", type=int)
        parser.add_argument("--folder")
        chosen = parser.parse_args()
        run_rank(chosen.rank, chosen.folder)
    else:
        harness.main()

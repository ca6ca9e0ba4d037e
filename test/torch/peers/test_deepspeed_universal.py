"""DeepSpeed loads the universal folders that `pawl convert` writes: into other stages, sizes and number types, with the
weights and moments of the training that saved, bit for bit, and goes on with the same losses.

Needs the environment of tools/setup-peers and a built pawl: run by tools/test-long, or by hand as
  PAWL=build/bin/pawl "$(tools/setup-peers --python)" -B test/torch/peers/test_deepspeed_universal.py
"""
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

from deepspeed_ranks import run  # first: it sets what torch and DeepSpeed look at when they are imported

# isort: split

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils import logger, safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

logger.setLevel("ERROR")

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAWL = os.path.abspath(os.environ.get("PAWL", ROOT / "build" / "bin" / "pawl"))
BATCH, STEPS, MORE = 12, 3, 3
ROLES = ("exp_avg", "exp_avg_sq")


def model_from(seed: int) -> nn.Module:
    """Sizes that no number of ranks divides."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Embedding(37, 11), nn.Linear(11, 23), nn.GELU(), nn.LayerNorm(23), nn.Linear(23, 37))


def engine_of(job: dict, seed: int, universal: bool):
    model = model_from(seed)
    # One group: ZeRO-3's loader lets several share one count of steps, and all have the first one's hyperparameters.
    groups = [{"params": list(model.parameters()), "weight_decay": 0.1}]
    rate = 3e-3 if not universal else 1.0  # what is not restored shows
    config = {"train_batch_size": BATCH, "gradient_clipping": 0.0, "steps_per_print": 1_000_000,
              "zero_optimization": {"stage": job["stage"]}, "zero_allow_untested_optimizer": True,
              "checkpoint": {"load_universal": universal}}
    if job["bf16"]:
        config["bf16"] = {"enabled": True}
    engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=False,
                                      optimizer=torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95),
                                                                        eps=1e-6))  # less: rounding grows
    return engine


def train(engine, first: int, count: int) -> list[float]:
    """The losses of `count` steps over the whole batch, whatever the number of ranks."""
    losses = []
    for step in range(first, first + count):
        generator = torch.Generator().manual_seed(1000 + step)
        seen = torch.randint(0, 37, (BATCH, 5), generator=generator)
        mine = slice(dist.get_rank(), None, dist.get_world_size())
        out = engine(seen[mine])
        loss = nn.functional.cross_entropy(out.float().flatten(0, 1), (seen[mine] * 3 + 1).remainder(37).flatten())
        engine.backward(loss)
        engine.step()
        whole = loss.detach().double()
        dist.all_reduce(whole)
        losses.append(whole.item() / dist.get_world_size())
    return losses


def state_of(engine) -> dict[str, torch.Tensor]:
    if engine.zero_optimization_stage() < 3:  # linked to parameters after the first group's first step only
        engine.optimizer._hp_optimizer_states_linked = False
        engine.optimizer._lazy_init_hp_params_optimizer_state()
    found = {}
    for name, parameter in engine.module.named_parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)
        found[f"{name}/master"] = safe_get_full_fp32_param(parameter).detach().reshape(shape).clone()
        for role in ROLES:
            found[f"{name}/{role}"] = safe_get_full_optimizer_state(parameter, role).detach().reshape(shape).clone()
    return found


def save(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 1, False)
    train(engine, 0, STEPS)
    state = state_of(engine)
    engine.save_checkpoint(str(folder / "ckpt"), tag="step", client_state={"note": "the job's own"})
    losses = train(engine, STEPS, MORE)
    if dist.get_rank() == 0:
        torch.save(state, folder / "state.pt")
        (folder / "losses.json").write_text(json.dumps(losses))


def load(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 99, True)
    path, client = engine.load_checkpoint(str(folder / "universal"))
    assert path is not None, "nothing was loaded"
    assert client.get("note", "the job's own") == "the job's own", client
    assert engine.global_steps == STEPS, engine.global_steps
    rates = {group["lr"] for group in engine.optimizer.optimizer.param_groups}
    state = state_of(engine)
    losses = train(engine, STEPS, MORE)
    if dist.get_rank() == 0:
        torch.save({"state": state, "losses": losses, "rates": rates}, folder / "loaded.pt")



def job(stage: int, world: int, bf16: bool = False) -> dict:
    return {"stage": stage, "world": world, "bf16": bf16}


class DeepSpeedLoads(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.folder = pathlib.Path(self.scratch.name)

    def convert(self, source: pathlib.Path) -> pathlib.Path:
        target = self.folder / "universal"
        ran = subprocess.run([PAWL, "convert", str(source), str(target), "--to", "universal", "--overwrite"],
                             capture_output=True, text=True)
        self.assertEqual(ran.returncode, 0, ran.stderr + ran.stdout)
        return target

    def check(self, source: dict, targets: list[dict]) -> None:
        run(save, source, self.folder)
        self.convert(self.folder / "ckpt")
        wanted = torch.load(self.folder / "state.pt")
        unbroken = json.loads((self.folder / "losses.json").read_text())
        for target in targets:
            with self.subTest(source=source, target=target):
                run(load, target, self.folder)
                loaded = torch.load(self.folder / "loaded.pt")
                self.assertEqual(set(loaded["state"]), set(wanted))
                for name, value in wanted.items():
                    self.assertTrue(torch.equal(loaded["state"][name], value), f"{name} differs")
                self.assertEqual(loaded["rates"], {3e-3})
                narrow = source["bf16"] or target["bf16"]
                for one, other in zip(loaded["losses"], unbroken, strict=False):
                    self.assertLess(abs(one - other) / abs(other), 2e-2 if narrow else 1e-5)

    def test_zero1_into_others(self):
        self.check(job(1, 2), [job(1, 3), job(2, 2), job(3, 2)])

    def test_zero2_in_bfloat16_into_others(self):
        self.check(job(2, 3, True), [job(1, 2, True), job(2, 2), job(3, 2, True)])

    def test_zero3_into_others(self):
        self.check(job(3, 2), [job(3, 3), job(1, 2), job(2, 3)])

    def test_every_file_is_read_by_torch(self):
        run(save, job(1, 2), self.folder)
        target = self.convert(self.folder / "ckpt")
        wanted = torch.load(self.folder / "state.pt")
        parameters = [path for path in (target / "zero").iterdir() if path.is_dir()]
        self.assertEqual({path.name for path in parameters}, {name.split("/")[0] for name in wanted})
        for path in parameters:
            for role, file in (("master", "fp32"), *((role, role) for role in ROLES)):
                value = torch.load(path / f"{file}.pt", weights_only=True)["param"]
                self.assertTrue(torch.equal(value, wanted[f"{path.name}/{role}"]), f"{path.name}/{role}")
            self.assertEqual(float(torch.load(path / "step.pt", weights_only=True)), STEPS)
        for path in [*target.glob("*_model_states.pt"), target / "zero" / "optimizer_state.pt"]:
            self.assertIsInstance(torch.load(path, weights_only=False), dict)

    def test_what_pytorch_saved_is_loaded_too(self):
        """A checkpoint of plain torch knows no DeepSpeed: what DeepSpeed needs beside the tensors is made."""
        model = model_from(5)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(STEPS):
            optimizer.zero_grad()
            model(torch.arange(12).reshape(4, 3)).square().mean().backward()
            optimizer.step()
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict
        weights, moments = get_state_dict(model, optimizer)
        dcp.save({"model": weights, "optim": moments}, checkpoint_id=self.folder / "dcp", no_dist=True)
        self.convert(self.folder / "dcp")
        for stage in (1, 3):
            run(load, job(stage, 2), self.folder)
            loaded = torch.load(self.folder / "loaded.pt")["state"]
            for (name, parameter) in model.named_parameters():
                self.assertTrue(torch.equal(loaded[f"{name}/master"], parameter.detach()), name)
                for role in ROLES:
                    self.assertTrue(torch.equal(loaded[f"{name}/{role}"], optimizer.state[parameter][role]), name)


if __name__ == "__main__":
    unittest.main()

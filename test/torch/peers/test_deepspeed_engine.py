"""Engines of DeepSpeed saved and loaded by pawl.deepspeed: any ZeRO stage on any number of ranks into any other, plain
PyTorch in both directions, with the weights, state, counters and hyperparameters of the training that saved, bit for
bit, and the same losses afterwards. What can't be done is refused; a save that is killed leaves the old checkpoint.

Needs the environment of tools/setup-peers and a built pawl: run by tools/test-long, or by hand as
  PYTHONPATH=python "$(tools/setup-peers --python)" -B test/torch/peers/test_deepspeed_engine.py
"""
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import unittest

from deepspeed_ranks import run  # first: it sets what torch and DeepSpeed look at when they are imported

# isort: split

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from deepspeed.utils import logger, safe_get_full_fp32_param, safe_get_full_optimizer_state
from torch import nn

import pawl.deepspeed
import pawl.torch
from pawl._checkpoint import Checkpoint
from pawl.errors import PawlError, Refused

logger.setLevel("CRITICAL")
get_accelerator().is_fp16_supported = lambda: True  # slow on most CPUs, and right

BATCH, STEPS, MORE = 12, 3, 3
ROLES = ("exp_avg", "exp_avg_sq")
CLIENT = {"epoch": 3, "seen": (1, 2), "random": torch.arange(5, dtype=torch.uint8)}


class Model(nn.Module):
    """Sizes that no number of ranks divides; a tied weight, one that isn't trained, a buffer, a number."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(37, 11)
        self.up, self.norm, self.down = nn.Linear(11, 23), nn.LayerNorm(23), nn.Linear(23, 11, bias=False)
        self.gain = nn.Parameter(torch.randn(1))
        self.fixed = nn.Parameter(torch.randn(11), requires_grad=False)
        self.head = nn.Linear(11, 37, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("shift", torch.randn(11))

    def forward(self, seen):
        hidden = self.embed(seen) * self.fixed + self.shift.to(self.fixed.dtype)
        return self.head(self.down(self.norm(nn.functional.gelu(self.up(hidden)))) * self.gain)


def optimizer_of(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups = [{"params": [each for each in trained if each.dim() > 1], "weight_decay": 0.1},
              {"params": [each for each in trained if each.dim() == 1], "weight_decay": 0.0, "lr": rate / 2}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95), eps=1e-6)


def engine_of(job: dict, seed: int, rate: float = 3e-3):
    model = Model(seed)
    config = {"train_batch_size": BATCH, "gradient_clipping": 0.0, "steps_per_print": 1_000_000,
              "zero_optimization": {"stage": job["stage"], "reduce_bucket_size": 1 << 16,
                                    "allgather_bucket_size": 1 << 16, **job["zero"]},
              "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
              "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": [1e-4, 5e-5], "warmup_num_steps": 5,
                                                           "warmup_max_lr": [3e-3, 1.5e-3]}}}
    if job["type"] != "fp32":
        config[job["type"]] = {"enabled": True}
    if job["type"] == "fp16":
        config["fp16"].update(initial_scale_power=8, loss_scale_window=2)
    if job["accumulate"]:
        config["data_types"] = {"grad_accum_dtype": "fp32"}
    engine, *_ = deepspeed.initialize(model=model, config=config, dist_init_required=False,
                                      optimizer=optimizer_of(model, rate))
    return engine


def batch(step: int):
    seen = torch.randint(0, 37, (BATCH, 5), generator=torch.Generator().manual_seed(1000 + step))
    return seen[dist.get_rank()::dist.get_world_size()]


def loss_of(out, seen):
    return nn.functional.cross_entropy(out.float().flatten(0, 1), (seen * 3 + 1).remainder(37).flatten())


def mean(loss) -> float:
    whole = loss.detach().double()
    dist.all_reduce(whole)
    return whole.item() / dist.get_world_size()


def train(engine, first: int, count: int) -> list[float]:
    """The losses of `count` steps over the whole batch, whatever the number of ranks."""
    losses = []
    for step in range(first, first + count):
        seen = batch(step)
        loss = loss_of(engine(seen), seen)
        engine.backward(loss)
        engine.step()
        losses.append(mean(loss))
    return losses


def train_plain(model, optimizer, first: int, count: int) -> list[float]:
    losses = []
    for step in range(first, first + count):
        seen = batch(step)
        optimizer.zero_grad()
        loss = loss_of(model(seen), seen)
        loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(mean(loss))
    return losses


# What a training holds, by the framework's own means ----------------------------------------------------------------

def state_of(engine) -> dict[str, torch.Tensor]:
    optimizer, found = engine.optimizer, {}
    full = {}  # without ZeRO: what the optimizer has for each parameter
    for half_group, full_group in zip(getattr(optimizer, "fp16_groups", []), getattr(optimizer, "fp32_groups", []),
                                      strict=False):
        full.update(zip(map(id, half_group), full_group, strict=False))
    inner = getattr(optimizer, "optimizer", optimizer)
    if hasattr(optimizer, "_hp_optimizer_states_linked"):  # to parameters, after the first group's first step only
        optimizer._hp_optimizer_states_linked = False
        optimizer._lazy_init_hp_params_optimizer_state()
    for name, parameter in engine.module.named_parameters():
        sharded = hasattr(parameter, "ds_id")
        with deepspeed.zero.GatheredParameters([parameter]) if sharded else contextlib.nullcontext():
            found[f"{name}/weight"] = parameter.detach().clone()
        shape = found[f"{name}/weight"].shape
        if not parameter.requires_grad:
            continue
        if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
            found[f"{name}/master"] = safe_get_full_fp32_param(parameter).detach().reshape(shape).clone()
            for role in ROLES:
                value = safe_get_full_optimizer_state(parameter, role)
                found[f"{name}/{role}"] = value.detach().reshape(shape).clone()
        else:
            key = full.get(id(parameter), parameter)
            found[f"{name}/master"] = key.detach().float().clone()
            found.update({f"{name}/{role}": inner.state[key][role].clone() for role in ROLES})
    found.update({f"{name}/buffer": buffer.clone() for name, buffer in engine.module.named_buffers()})
    steps = {float(values["step"]) for values in inner.state.values()}
    assert len(steps) == 1, steps
    found["step"] = torch.tensor(steps.pop())
    return found


def state_of_plain(model, optimizer) -> dict[str, torch.Tensor]:
    found = {f"{name}/master": parameter.detach().clone() for name, parameter in model.named_parameters()
             if parameter.requires_grad}
    found.update({f"{name}/weight": parameter.detach().clone() for name, parameter in model.named_parameters()})
    for name, parameter in model.named_parameters():
        if parameter in optimizer.state:
            found.update({f"{name}/{role}": optimizer.state[parameter][role].clone() for role in ROLES})
    found.update({f"{name}/buffer": buffer.clone() for name, buffer in model.named_buffers()})
    found["step"] = torch.tensor({float(values["step"]) for values in optimizer.state.values()}.pop())
    return found


def facts_of(engine) -> dict:
    """What is no tensor."""
    optimizer = engine.optimizer
    scaler = getattr(optimizer, "loss_scale_config", None) or getattr(optimizer, "loss_scaler", None)
    inner = getattr(optimizer, "optimizer", optimizer)
    return {"counters": [engine.global_steps, engine.global_samples, engine.skipped_steps, engine.micro_steps],
            "scheduler": engine.lr_scheduler.state_dict(),
            "scale": getattr(scaler, "cur_scale", 1.0), "scale_iterations": getattr(scaler, "cur_iter", 0),
            "groups": [[group["lr"], group["weight_decay"], list(group["betas"])] for group in inner.param_groups]}


# The ranks ----------------------------------------------------------------------------------------------------------

def leave(folder: pathlib.Path, name: str, **what) -> None:
    if dist.get_rank() == 0:
        torch.save(what, folder / f"{name}.pt")


def save(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 1)
    train(engine, 0, STEPS)
    pawl.deepspeed.save(engine, folder / "ckpt", CLIENT)
    leave(folder, "saved", state=state_of(engine), facts=facts_of(engine), losses=train(engine, STEPS, MORE))


def load(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 99, rate=1.0)
    report = pawl.deepspeed.load(engine, folder / "ckpt")
    leave(folder, "loaded", state=state_of(engine), facts=facts_of(engine), client=report.values, notes=report.notes,
          losses=train(engine, STEPS, MORE))


def pass_through(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 99, rate=1.0)
    pawl.deepspeed.load(engine, folder / "ckpt")
    pawl.deepspeed.save(engine, folder / "passed")
    wanted = torch.load(folder / "saved.pt", weights_only=False)
    same({f"{name}/weight": each.detach() for name, each in engine.module.named_parameters()}, wanted["state"])
    for one, other in zip(train(engine, STEPS, MORE), wanted["losses"], strict=True):
        assert abs(one - other) <= 1e-5 * abs(other), (one, other)


def load_into_plain(job: dict, folder: pathlib.Path) -> None:
    model = Model(99)
    optimizer = optimizer_of(model, 1.0)
    report = pawl.torch.load(folder / "ckpt", model, optimizer)
    assert report.engine["global_steps"] == STEPS, report.engine
    facts = {"groups": [[group["lr"], group["weight_decay"], list(group["betas"])] for group in optimizer.param_groups]}
    leave(folder, "loaded", state=state_of_plain(model, optimizer), facts=facts)


def save_plain(job: dict, folder: pathlib.Path) -> None:
    model = Model(1)
    optimizer = optimizer_of(model, 3e-3)
    train_plain(model, optimizer, 0, STEPS)
    pawl.torch.save(folder / "ckpt", model, optimizer, values={"epoch": 3})
    leave(folder, "saved", state=state_of_plain(model, optimizer), losses=train_plain(model, optimizer, STEPS, MORE))


def save_by_deepspeed(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 1)
    train(engine, 0, STEPS)
    engine.save_checkpoint(str(folder / "ckpt"), tag="step")
    leave(folder, "saved", state=state_of(engine), facts=facts_of(engine), losses=train(engine, STEPS, MORE))


def attached(job: dict, folder: pathlib.Path) -> None:
    """As a program that knows nothing of pawl: saves twice, is loaded on, and loads what DeepSpeed wrote, too."""
    engine = pawl.deepspeed.attach(engine_of(job, 1))
    assert engine.load_checkpoint(str(folder / "run")) == (None, None)
    train(engine, 0, 1)
    assert engine.save_checkpoint(str(folder / "run"), client_state={"epoch": 1}, exclude_frozen_parameters=True)
    train(engine, 1, STEPS - 1)
    engine.save_checkpoint(str(folder / "run"), client_state={"epoch": 3})
    engine.save_checkpoint(str(folder / "run"), client_state={"epoch": 3})  # the same tag again
    wanted, facts = state_of(engine), facts_of(engine)
    losses = train(engine, STEPS, MORE)
    other = pawl.deepspeed.attach(engine_of(job, 99, rate=1.0))
    path, client = other.load_checkpoint(str(folder / "run"))
    assert (path, client) == (str(folder / "run" / f"global_step{STEPS}"), {"epoch": 3}), (path, client)
    same(state_of(other), wanted)
    assert facts_of(other) == facts
    assert train(other, STEPS, MORE) == losses
    _, client = other.load_checkpoint(str(folder / "run"), tag="global_step1", load_module_strict=False)
    assert client == {"epoch": 1} and other.global_steps == 1
    other.load_checkpoint(str(folder / "run"), load_module_only=True)
    assert other.global_steps == 1
    same({key: value for key, value in state_of(other).items() if key.endswith(("weight", "master"))}, wanted)
    theirs = engine_of(job, 1)
    theirs.save_checkpoint(str(folder / "theirs"), client_state={"epoch": 9})
    path, client = other.load_checkpoint(str(folder / "theirs"))
    assert path is not None and client["epoch"] == 9


def same(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    for name, value in found.items():
        assert torch.equal(value, wanted[name]), f"{name}: {value} for {wanted[name]}"


def dies_in_a_save(job: dict, folder: pathlib.Path) -> None:
    engine = pawl.deepspeed.attach(engine_of(job, 1))
    train(engine, 0, STEPS)
    engine.save_checkpoint(str(folder), tag="kept")
    leave(folder, "saved", state=state_of(engine), facts=facts_of(engine), losses=train(engine, STEPS, MORE))
    dist.barrier()
    if dist.get_rank() == dist.get_world_size() - 1:
        from pawl import _checkpoint
        _checkpoint.write_store_part = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    try:
        engine.save_checkpoint(str(folder), tag="kept")  # in its place
    except PawlError as error:
        (folder / f"error{dist.get_rank()}").write_text(str(error))
    sys.stdout.flush()
    os._exit(0)


def refused(sentence: str, work) -> None:
    try:
        work()
    except Refused as error:
        assert sentence in str(error), error
        return
    raise AssertionError(f"not refused: {sentence}")


def refusals(job: dict, folder: pathlib.Path) -> None:
    engine = engine_of(job, 1)
    pawl.deepspeed.save(engine, folder / "begun")  # before the first step: there is no state, and that is no fault
    train(engine, 0, STEPS)
    pawl.deepspeed.save(engine, folder / "ckpt")
    train(engine, STEPS, 1)
    before, facts = state_of(engine), facts_of(engine)
    refused("is there already", lambda: pawl.deepspeed.save(engine, folder / "ckpt"))
    refused("different paths", lambda: pawl.deepspeed.save(engine, folder / f"rank{dist.get_rank()}"))
    refused("client_state['x'] is a", lambda: pawl.deepspeed.save(engine, folder / "new", {"x": object()}))
    refused("small", lambda: pawl.deepspeed.save(engine, folder / "new", {"x": torch.zeros(1 << 20)}))
    refused("not a DeepSpeed engine", lambda: pawl.deepspeed.save(engine.module, folder / "new"))
    engine.micro_steps += 1  # half of a step
    engine.gradient_accumulation_steps, asked = lambda: 2, engine.gradient_accumulation_steps
    if engine.micro_steps % 2 == 0:
        engine.micro_steps += 1
    refused("between steps", lambda: pawl.deepspeed.save(engine, folder / "new"))
    refused("between steps", lambda: pawl.deepspeed.load(engine, folder / "ckpt"))
    engine.gradient_accumulation_steps, engine.micro_steps = asked, facts["counters"][3]
    engine.managed_gradient_accumulation, engine._unmanaged_backward_count = lambda: False, 1  # the program says when
    refused("between steps", lambda: pawl.deepspeed.save(engine, folder / "new"))
    del engine.managed_gradient_accumulation
    engine._unmanaged_backward_count = 0
    for name, value, sentence in (("has_moe_layers", True, "experts"), ("mp_world_size", 2, "tensor parallelism"),
                                  ("pipeline_parallelism", True, "pipeline"),
                                  ("zero_nvme_offload_optimizer", lambda: True, "NVMe")):
        setattr(engine, name, value)
        refused(sentence, lambda: pawl.deepspeed.save(engine, folder / "new"))
        refused(sentence, lambda: pawl.deepspeed.load(engine, folder / "ckpt"))
        if callable(value):
            delattr(engine, name)  # the class's again
        else:
            setattr(engine, name, False if isinstance(value, bool) else 1)
    real, engine.optimizer = engine.optimizer, type("SuperOptimizer", (), {})()
    refused("SuperOptimizer", lambda: pawl.deepspeed.save(engine, folder / "new"))
    engine.optimizer = real
    groups = real.bit16_groups if job["stage"] in (1, 2) else real.fp16_groups
    kept = groups[0].pop()
    refused("rather than guess", lambda: pawl.deepspeed.save(engine, folder / "new"))
    groups[0].append(kept)
    scheduler, engine.lr_scheduler = engine.lr_scheduler, torch.optim.lr_scheduler.StepLR(real.optimizer, 1)
    refused("WarmupLR", lambda: pawl.deepspeed.load(engine, folder / "ckpt"))
    engine.lr_scheduler = scheduler
    model = Model(7)
    pawl.torch.save(folder / "weights", model)
    refused("no optimizer state", lambda: pawl.deepspeed.load(engine, folder / "weights"))
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-3, momentum=0.9)
    train_plain(model, optimizer, 0, 1)
    pawl.torch.save(folder / "momentum", model, optimizer)
    refused("exp_avg", lambda: pawl.deepspeed.load(engine, folder / "momentum"))
    optimizer = optimizer_of(model, 1e-3)
    train_plain(model, optimizer, 0, 2)
    optimizer.state[model.up.weight]["step"] += 1  # as when one was frozen for a step
    pawl.torch.save(folder / "uneven", model, optimizer)
    refused("keeps one step for both", lambda: pawl.deepspeed.load(engine, folder / "uneven"))
    model.up = nn.Linear(11, 24)
    model.norm, model.down = nn.LayerNorm(24), nn.Linear(24, 11, bias=False)
    pawl.torch.save(folder / "wider", model)
    refused("up.weight", lambda: pawl.deepspeed.load(engine, folder / "wider", optimizer_state=False))
    refused("no such", lambda: pawl.deepspeed.load(engine, folder / "nowhere"))
    assert not (folder / "new").exists() and not list(folder.glob("*pawl-partial"))
    same(state_of(engine), before)
    assert facts_of(engine) == facts
    fresh = engine_of(job, 5)
    refused("keeps one step for both", lambda: pawl.deepspeed.load(fresh, folder / "uneven"))
    assert not any(fresh.optimizer.optimizer.state.values()), "state was left behind"
    pawl.deepspeed.load(fresh, folder / "begun")
    pawl.deepspeed.load(fresh, folder / "weights", optimizer_state=False)
    pawl.deepspeed.load(fresh, folder / "ckpt")
    assert not torch.equal(state_of(fresh)["up.weight/weight"], before["up.weight/weight"])



def job(stage: int, world: int, kind: str = "fp32", accumulate: bool = False, **zero) -> dict:
    return {"stage": stage, "world": world, "type": kind, "accumulate": accumulate, "zero": zero}


class Engines(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)

    def left(self, name: str) -> dict:
        return torch.load(self.folder / f"{name}.pt", weights_only=False)

    def check_state(self, found: dict, wanted: dict, weights: bool) -> None:
        """`weights`: the model's own too, which are of another type where source and target differ in that."""
        for name, value in wanted.items():
            if weights or not name.endswith(("weight", "buffer")):
                self.assertTrue(torch.equal(found[name], value), f"{name} differs: {found[name]} for {value}")

    def check(self, source: dict, targets: list[dict]) -> None:
        run(save, source, self.folder)
        saved = self.left("saved")
        for target in targets:
            with self.subTest(source=source, target=target):
                run(load, target, self.folder)
                loaded = self.left("loaded")
                self.assertEqual(set(loaded["state"]), set(saved["state"]))
                self.check_state(loaded["state"], saved["state"], source["type"] == target["type"])
                for name in saved["state"]:
                    if name.endswith("/master"):
                        weight = loaded["state"][name.replace("master", "weight")]
                        self.assertTrue(torch.equal(weight, loaded["state"][name].to(weight.dtype)), name)
                self.check_facts(loaded["facts"], saved["facts"], source, target)
                self.assertEqual({**loaded["client"], "random": None}, {**CLIENT, "random": None})
                self.assertTrue(torch.equal(loaded["client"]["random"], CLIENT["random"]))
                narrow = {source["type"], target["type"]} != {"fp32"}
                for one, other in zip(loaded["losses"], saved["losses"], strict=True):
                    if source == target:
                        self.assertEqual(one, other)
                    else:
                        self.assertLess(abs(one - other) / abs(other), 2e-2 if narrow else 1e-5)

    def check_facts(self, found: dict, wanted: dict, source: dict, target: dict) -> None:
        scaled = source["type"] == target["type"] == "fp16"
        for key in ("counters", "scheduler", "groups", *(("scale", "scale_iterations") if scaled else ())):
            self.assertEqual(found[key], wanted[key], key)
        if scaled:
            self.assertGreater(found["scale_iterations"], 0)

    def test_zero_0_into_others(self):
        self.check(job(0, 2), [job(0, 2), job(2, 2), job(3, 3)])

    def test_zero_1_into_others(self):
        self.check(job(1, 2), [job(1, 2), job(1, 3), job(3, 2), job(0, 2)])

    def test_zero_2_into_others(self):
        self.check(job(2, 3), [job(2, 3), job(2, 2), job(2, 1), job(3, 4)])

    def test_zero_3_into_others(self):
        self.check(job(3, 2), [job(3, 2), job(3, 3), job(1, 2), job(0, 2)])

    def test_zero_3_with_kept_and_grouped_parameters(self):
        """Sub-groups of a few parameters; none, then all of the small ones stay gathered; copies within a node."""
        self.check(job(3, 3, sub_group_size=100, stage3_param_persistence_threshold=0),
                   [job(3, 2, sub_group_size=300, stage3_param_persistence_threshold=1000), job(2, 2),
                    job(3, 4, zero_hpz_partition_size=2)])

    def test_bfloat16(self):
        self.check(job(1, 2, "bf16", True),  # BF16_Optimizer
                   [job(1, 2, "bf16", True), job(1, 3, "bf16"), job(3, 2, "bf16"), job(0, 2, "bf16"), job(2, 2)])

    def test_bfloat16_of_zero_3(self):
        self.check(job(3, 3, "bf16"), [job(3, 3, "bf16"), job(2, 2, "bf16"), job(1, 2, "bf16", True), job(0, 2)])

    def test_float16_and_its_loss_scale(self):
        self.check(job(2, 2, "fp16"), [job(2, 2, "fp16"), job(3, 3, "fp16"), job(1, 2, "bf16")])

    def test_float16_without_zero(self):
        self.check(job(0, 2, "fp16"), [job(0, 2, "fp16"), job(3, 2, "fp16")])

    def test_offloaded_and_reordered(self):
        offload = {"offload_optimizer": {"device": "cpu"}}
        self.check(job(2, 2, "bf16", **offload),
                   [job(2, 2, "bf16", **offload), job(3, 2, "bf16", offload_param={"device": "cpu"}, **offload),
                    job(1, 2, "bf16", **offload)])

    def test_reordered_and_aligned_flat_tensors(self):
        """Of an engine that reorders parameters DeepSpeed itself gives out others' state: seen once they are back."""
        run(save, job(2, 2), self.folder)
        for through in (job(2, 3, round_robin_gradients=True), job(1, 3, parameter_alignment=True)):
            run(pass_through, through, self.folder)
            (self.folder / "ckpt").rename(self.folder / f"before{through['stage']}")
            (self.folder / "passed").rename(self.folder / "ckpt")
        run(load, job(3, 2), self.folder)
        self.check_state(self.left("loaded")["state"], self.left("saved")["state"], True)

    def test_into_plain_pytorch(self):
        for source in (job(1, 2), job(3, 3)):
            run(save, source, self.folder)
            run(load_into_plain, job(0, 2), self.folder)
            self.check_state(self.left("loaded")["state"], self.left("saved")["state"], True)
            self.assertEqual(self.left("loaded")["facts"]["groups"], self.left("saved")["facts"]["groups"])
            with Checkpoint(str(self.folder / "ckpt")) as checkpoint:  # as everything that reads pawl's store sees it
                self.assertEqual({tensor.role for tensor in checkpoint.tensors}, {"weight", "buffer", "step", *ROLES})
                self.assertEqual(checkpoint.aliases, {"head.weight": "embed.weight"})
            (self.folder / "ckpt").rename(self.folder / f"ckpt{source['stage']}")

    def test_masters_into_plain_pytorch(self):
        run(save, job(2, 2, "bf16"), self.folder)
        run(load_into_plain, job(0, 2), self.folder)
        found, wanted = self.left("loaded")["state"], self.left("saved")["state"]
        self.check_state(found, wanted, False)
        self.assertTrue(torch.equal(found["fixed/weight"], wanted["fixed/weight"].float()))

    def test_from_plain_pytorch(self):
        run(save_plain, job(0, 2), self.folder)
        wanted = self.left("saved")
        for target in (job(0, 2), job(1, 2), job(3, 3), job(2, 2, "bf16")):
            with self.subTest(target=target):
                run(load, target, self.folder)
                loaded = self.left("loaded")
                self.check_state(loaded["state"], wanted["state"], target["type"] == "fp32")
                self.assertEqual(loaded["client"], {"epoch": 3})
                self.assertTrue(any("counters" in note for note in loaded["notes"]), loaded["notes"])

    def test_from_what_deepspeed_saved(self):
        run(save_by_deepspeed, job(2, 3), self.folder)
        for target in (job(3, 2), job(1, 2)):
            run(load, target, self.folder)
            self.check_state(self.left("loaded")["state"], self.left("saved")["state"], True)
            self.assertEqual(self.left("loaded")["facts"]["groups"], self.left("saved")["facts"]["groups"])

    def test_programs_of_deepspeed_need_one_line(self):
        for stage in (2, 3):
            with self.subTest(stage=stage):
                (self.folder / str(stage)).mkdir()
                run(attached, job(stage, 2), self.folder / str(stage))
                self.assertEqual((self.folder / str(stage) / "run" / "latest").read_text(), f"global_step{STEPS}")

    def test_a_killed_save_leaves_the_old_checkpoint(self):
        run(dies_in_a_save, job(3, 2), self.folder, (0, -signal.SIGKILL))
        self.assertIn("the ranks lost each other", (self.folder / "error0").read_text())
        self.assertEqual((self.folder / "latest").read_text(), "kept")
        (self.folder / "kept").rename(self.folder / "ckpt")
        run(load, job(2, 2), self.folder)
        self.check_state(self.left("loaded")["state"], self.left("saved")["state"], True)

    def test_what_is_refused_changes_nothing(self):
        for stage in (1, 3):
            with self.subTest(stage=stage):
                (self.folder / str(stage)).mkdir()
                run(refusals, job(stage, 2), self.folder / str(stage))

    def test_importing_loads_neither(self):
        import subprocess
        code = "import sys, pawl, pawl.deepspeed; assert not {'torch', 'deepspeed'} & set(sys.modules)"
        subprocess.run([sys.executable, "-c", code], check=True)

    def test_values_come_back(self):
        import collections

        from pawl.deepspeed.values import from_json, to_json
        given = {"a": [1, 2.5, None, True, "x"], "b": (1, (2,)), "c": {3: "x", (4, 5): {}}, "d": b"\x00\xff",
                 "e": float("inf"), "f": collections.Counter({3: 2}), "pawl:type": 1}
        back = from_json(json.loads(json.dumps(to_json("it", given), allow_nan=False)))
        self.assertEqual(back, given)
        self.assertEqual(type(back["f"]), collections.Counter)
        for tensor in (torch.randn(3, 2).bfloat16(), torch.zeros(0, 2), torch.tensor(3)):
            back = from_json(json.loads(json.dumps(to_json("it", tensor))))
            self.assertTrue(torch.equal(back, tensor) and back.dtype == tensor.dtype)


if __name__ == "__main__":
    unittest.main()

"""The parallelisms of the matrix that DeepSpeed has: ZeRO-1, 2 and 3 in fp32, without its own kernels.

Needs the environment of tools/setup-peers. DeepSpeed saves and loads by itself: what pawl reads are its own files, and
what it reads is the universal folder that pawl writes.
"""
import os
import pathlib

os.environ.update({"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1", "DS_BUILD_OPS": "0"})

import deepspeed  # noqa: E402
import models  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from deepspeed.utils import logger, safe_get_full_fp32_param, safe_get_full_optimizer_state  # noqa: E402
from parallelisms import Parallelism, adam, bare  # noqa: E402

logger.setLevel("ERROR")
for operation in list(deepspeed.ops.__compatible_ops__):  # else one is compiled at the first start
    if "shm" in operation or "ccl" in operation:
        deepspeed.ops.__compatible_ops__[operation] = False


class Zero(Parallelism):
    stage = 1

    def build(self, seed, rates):
        model = models.made(self.kind, seed)  # DeepSpeed casts it itself
        settings = {"train_batch_size": models.BATCH, "gradient_clipping": 0.0, "steps_per_print": 1_000_000,
                    "zero_optimization": {"stage": self.stage, "reduce_bucket_size": 1 << 16,
                                          "allgather_bucket_size": 1 << 16},  # else 2 GB are zeroed each step
                    "zero_allow_untested_optimizer": True,
                    "checkpoint": {"load_universal": self.loads}}
        if self.weights is torch.bfloat16:
            settings["bf16"] = {"enabled": True}
        self.engine, self.optimizer, *_ = deepspeed.initialize(
            model=model, optimizer=adam(models.groups_of(model, rates), rates), config=settings,
            dist_init_required=False)
        self.model = self.engine.module

    def step(self, number):
        seen, expected = self.batch(number)
        loss = models.loss_of(self.engine(seen), expected)
        self.engine.backward(loss)
        self.engine.step()
        return loss

    def save(self, path: pathlib.Path) -> None:
        client = {"universal_checkpoint_info": {"universal_checkpoint_version": 0.2}}
        self.engine.save_checkpoint(str(path), tag="step", client_state=client)
        if dist.get_rank() == 0:
            for script in path.glob("zero_to_*.py"):
                script.unlink()
        dist.barrier()

    def load_universal(self, folder: pathlib.Path) -> None:
        """DeepSpeed looks for the folder's name in `latest_universal` beside it."""
        if dist.get_rank() == 0:
            (folder.parent / "latest_universal").write_text(folder.name)
        dist.barrier()
        self.engine.load_checkpoint(str(folder.parent), load_module_only=False)

    def state(self):
        if self.stage < 3:  # DeepSpeed links state to parameters after the first group's first step only
            self.optimizer._hp_optimizer_states_linked = False
            self.optimizer._lazy_init_hp_params_optimizer_state()
        found = {f"{bare(name)}/buffer": buffer.detach().clone() for name, buffer in self.model.named_buffers()}
        inner = self.optimizer.optimizer
        steps = {float(values["step"]) for values in inner.state.values() if "step" in values}
        for name, parameter in self.model.named_parameters():
            found[f"{name}/weight"] = safe_get_full_fp32_param(parameter).detach().clone()
            for role in ("exp_avg", "exp_avg_sq"):
                value = safe_get_full_optimizer_state(parameter, role)
                if value is not None:
                    found[f"{name}/{role}"] = value.detach().reshape(found[f"{name}/weight"].shape).clone()
            if self.weights is torch.bfloat16:
                with deepspeed.zero.GatheredParameters([parameter], enabled=self.stage == 3):
                    found[f"{name}/narrow"] = parameter.detach().clone()
            if len(steps) == 1:
                found[f"{name}/step"] = torch.tensor(next(iter(steps)))
        return found


    @classmethod
    def wanted(cls, state):
        """The masters are fp32 whatever the weights are; buffers DeepSpeed leaves in fp32 too."""
        if cls.weights is torch.float32:
            return state
        return state | {name.removesuffix("weight") + "narrow": value.to(cls.weights)
                        for name, value in state.items() if name.endswith("/weight")}


class Zero1(Zero):
    stage = 1


class Zero2(Zero):
    stage = 2
    world = 3


class Zero3(Zero):
    stage = 3


class Zero1Bf16(Zero1):
    weights, plain = torch.bfloat16, Zero1


class Zero3Bf16(Zero3):
    weights, plain = torch.bfloat16, Zero3


OF_DEEPSPEED = {"zero1": Zero1, "zero2": Zero2, "zero3": Zero3, "zero1_bf16": Zero1Bf16, "zero3_bf16": Zero3Bf16}

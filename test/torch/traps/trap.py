"""What the scripts of this folder share: data, a small model, deaths, and the digests by which two runs are compared.

A trap is a script as users write it, with one habit that a careless recovery would get wrong. test_traps.py runs it
plain, and under pawl with one trainer killed; both must end with the same bits.
"""
import hashlib
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch import nn

STEPS, SAMPLES, FEATURES, CLASSES, BATCH = 16, 256, 8, 4, 8
FOLDER = os.environ.get("TRAP_FOLDER", ".")


def data():
    generator = torch.Generator().manual_seed(3)
    return (torch.randn(SAMPLES, FEATURES, generator=generator),
            torch.randint(CLASSES, (SAMPLES,), generator=generator))


class Net(nn.Module):
    """With a head that is used only when it is asked for."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Dropout(0.1))
        self.head, self.late = nn.Linear(16, CLASSES), nn.Linear(16, CLASSES)

    def forward(self, inputs, late=False):
        features = self.body(inputs)
        return self.head(features) + self.late(features) if late else self.head(features)


class Crossed(nn.Module):
    """Its parameters are not in the order in which it uses them."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Linear(16, CLASSES), nn.Linear(FEATURES, 16)

    def forward(self, inputs, between=lambda features: features):
        """`between`: what its two layers are to have between them."""
        return self.last(between(self.first(inputs)))


class Adapted(nn.Module):
    """A frozen layer with an adapter (LoRA)."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a, self.b = nn.Linear(base.in_features, 3, bias=False), nn.Linear(3, base.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, inputs):
        return self.base(inputs) + self.b(self.a(inputs))


class Number(int):
    """Of a step that is over."""

    rehearsal = False


def point(step, job=None):
    """Here the trainers that the test chose die in the steps that it chose, once each; with their nodes where it says
    so. With a job, each step from the fourth on waits for the first commit, so that there is one when they die."""
    if job is not None and step >= 4 and not step.rehearsal:
        wait_committed(job, 1)
    place = f"{dist.get_rank()}:{int(step)}"
    found = [each for each in os.environ.get("TRAP_KILL", "").split(",") if each.removesuffix("node") == place]
    if found and not step.rehearsal:
        mark = os.path.join(FOLDER, f"died.{place}")
        if not os.path.exists(mark):
            with open(mark, "w", encoding="utf-8"):
                pass
            if found[0].endswith("node"):
                kill_node()
            os.kill(os.getpid(), signal.SIGKILL)


def wait_committed(job, number, patience_s=60.0):
    """Until a step from that one on is committed: no step of a job waits for that by itself. Plainly run, nothing."""
    deadline = time.monotonic() + patience_s
    while "TRAP_KILL" in os.environ and time.monotonic() < deadline:
        if job._trainer.committed_step() >= number:  # pylint: disable=protected-access
            break
        time.sleep(0.001)


def kill_node():
    """The keeper, which is the parent, and its children; this process comes last."""
    keeper = os.getppid()
    with open(f"/proc/{keeper}/task/{keeper}/children", encoding="utf-8") as file:
        children = [int(pid) for pid in file.read().split()]
    for pid in [keeper, *(pid for pid in children if pid != os.getpid())]:
        os.kill(pid, signal.SIGKILL)


def result(**found):
    """What the training has come to: modules, optimizers, tensors, numbers."""
    seen = {}
    for name, thing in found.items():
        if isinstance(thing, nn.Module):
            seen.update({f"{name}.{key}": digest(value) for key, value in thing.state_dict().items()})
            seen.update({f"{name}.{key} trains": each.training for key, each in thing.named_modules()})
        elif isinstance(thing, torch.optim.Optimizer):
            for place, parameter in enumerate(p for group in thing.param_groups for p in group["params"]):
                state = thing.state.get(parameter, {})
                seen.update({f"{name}.{place}.{key}": digest(value) for key, value in state.items()})
        else:
            seen[name] = digest(thing)
    path = os.path.join(FOLDER, f"result.{dist.get_rank()}.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(seen, file)
    os.replace(path + ".new", path)
    if "PAWL_SOCKET" not in os.environ:
        dist.destroy_process_group()


def digest(value):
    value = getattr(value, "_local_tensor", value)  # of a DTensor, this rank's part
    if isinstance(value, torch.Tensor):
        value = (str(value.dtype), value.detach().flatten().view(-1).tolist())
    return hashlib.blake2b(repr(value).encode(), digest_size=8).hexdigest()

"""What one process writes down, so that others can judge its run: the files of examples/charlm/record.h.

  start.<pid>.json         when the process came up, and what it trains on: nonce, backend of its group, whether libpawl is
                           in its memory
  loss.<seat>.<pid>.jsonl  one line per finished step, on disk before the next step begins; steps that were redone stand
                           there again
  final.<seat>.bin, .json  every tensor after the last step, and where each lies in the file
The loss is this rank's own. Hashes are BLAKE2b of 64 bits, in hex. Times are CLOCK_MONOTONIC in nanoseconds.
Nothing here is needed to train, or by pawl.
"""
import hashlib
import json
import os
import struct
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from data import Batches

# Of this process, not of one pass through the script: a spare passes through it twice.
NONCE = os.urandom(8).hex()
STARTED_NS = time.monotonic_ns()


class Record:
    def __init__(self, folder: str | None) -> None:
        self.folder = folder
        self.updates = 0  # passes through the optimizer by this process, lost ones and those the scaler skipped included
        self.begun = False
        if folder:
            os.makedirs(folder, exist_ok=True)

    def updated(self, step: int) -> None:
        """The optimizer has done the step; it may yet be lost."""
        self.updates += not is_rehearsal(step)

    def step(self, step: int, loss: Tensor, batches: Batches) -> None:
        """A step is done."""
        if not self.folder or is_rehearsal(step):
            return
        if not self.begun:  # not at the script's start: a spare that rehearses may write nothing
            self.begun = True
            self._replace(f"start.{os.getpid()}.json", self._start())
        value = float(loss.detach())
        line = {"step": int(step), "loss": round(value, 6), "loss_bits": struct.pack(">d", value).hex(),
                "samples_hash": batches.hash, "pid": os.getpid(), "nonce": NONCE, "updates": self.updates,
                "t_ns": time.monotonic_ns()}
        path = os.path.join(self.folder, f"loss.{dist.get_rank()}.{os.getpid()}.jsonl")
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def final(self, step: int, model: Any, optimizer: Any, scheduler: Any, scaler: Any, batches: Batches) -> None:
        """After the last step: all of this rank's state, name and role of each tensor beside its place."""
        if not self.folder:
            return
        content, tensors = bytearray(), []
        for name, role, tensor in held(model, optimizer, scheduler, scaler):
            data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            tensors.append({"name": name, "role": role, "offset_bytes": len(content), "size_bytes": len(data),
                            "hash": digest(data)})
            content += data
        seat = dist.get_rank()
        final = {"seat": seat, "pid": os.getpid(), "nonce": NONCE, "step": step, "updates": self.updates,
                 "samples": batches.position, "samples_hash": batches.hash,
                 "rng_hash": digest(torch.get_rng_state().numpy().tobytes()), "tensors": tensors}
        self._replace(f"final.{seat}.bin", bytes(content))
        self._replace(f"final.{seat}.json", json.dumps(final).encode() + b"\n")

    def _start(self) -> bytes:
        with open("/proc/self/stat", encoding="utf-8") as file:
            fields = file.read().rpartition(")")[2].split()
        with open("/proc/self/maps", encoding="utf-8") as file:
            mapped = "libpawl" in file.read()
        start = {"pid": os.getpid(), "nonce": NONCE, "start_time": int(fields[19]), "started_ns": STARTED_NS,
                 "backend": dist.get_backend(), "libpawl_mapped": mapped, "torch": torch.__version__}
        return json.dumps(start).encode() + b"\n"

    def _replace(self, name: str, content: bytes) -> None:
        """The file appears whole or not at all."""
        path = os.path.join(str(self.folder), name)
        with open(f"{path}.{os.getpid()}", "wb") as file:
            file.write(content)
        os.replace(f"{path}.{os.getpid()}", path)


def is_rehearsal(step: int) -> bool:
    """Whether a spare is warming up: those steps are nobody's, and nothing of them is written down."""
    return bool(getattr(step, "rehearsal", False))


def held(model: Any, optimizer: Any, scheduler: Any, scaler: Any) -> Iterator[tuple[str, str, Tensor]]:
    """Of shards, what this rank has."""
    names = {}
    for name, parameter in getattr(model, "module", model).named_parameters():
        names[parameter] = name
        yield name, "weight", own(parameter)
    for parameter, state in getattr(optimizer, "optim", optimizer).state.items():
        for role, value in sorted(state.items()):
            yield names[parameter], role, own(torch.as_tensor(value))
    for index, group in enumerate(optimizer.param_groups):
        yield f"group{index}", "lr", torch.tensor(group["lr"], dtype=torch.float64)
    yield "scheduler", "last_epoch", torch.tensor(scheduler.last_epoch)
    yield "scaler", "scale", torch.tensor(scaler.get_scale(), dtype=torch.float64)


def own(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=8).hexdigest()

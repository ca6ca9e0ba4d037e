"""The training that bench.py runs on a GPU, under pawl or without: blocks of an MLP, DDP or FSDP2, the same data again
for the same step and rank. Several ranks may share one GPU: each is then a machine of its own to NCCL.

Each rank writes a line for each step that it has done to steps.RANK.PROCESS.jsonl, and at the end a digest of all its
state to final.RANK.json.
"""
import argparse
import hashlib
import json
import os
import time
import warnings

if "PAWL_SOCKET" not in os.environ:
    os.environ["NCCL_HOSTID"] = f"bench-{os.getpid()}"  # else NCCL refuses two ranks on one GPU
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pawl  # noqa: E402

CLASSES = 256


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parallel", choices=("ddp", "fsdp", "none"), default="ddp")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--record", required=True)
    parser.add_argument("--gate", metavar="STEP:FILE", help="after this step it waits for the file")
    parser.add_argument("--over-gloo", action="store_true", help="CUDA tensors go over gloo, not NCCL")
    return parser.parse_args()


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, values):
        return values + self.drop(self.narrow(nn.functional.gelu(self.wide(self.norm(values)))))


class Net(nn.Module):
    def __init__(self, width, blocks):
        super().__init__()
        self.blocks, self.last = nn.ModuleList(Block(width) for _ in range(blocks)), nn.Linear(width, CLASSES)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values):
        self.seen += len(values)
        for block in self.blocks:
            values = block(values)
        return self.last(values)


def go_over_gloo():
    """The way back where NCCL can't run two ranks on one GPU: for this bench alone. Without a GPU, tensors on the CPU
    take the way of those on a GPU."""
    from datetime import timedelta

    from pawl import _extension, groups

    def make(store, rank, size, seconds):
        options = dist.ProcessGroupGloo._Options()
        address = os.environ.get("PAWL_NODE_ADDRESS", "127.0.0.1")
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=seconds)
        return dist.ProcessGroupGloo(store, rank, size, options)

    if torch.cuda.is_available():
        groups._make_nccl = make
    else:
        c10d = _extension.load()
        set_makers = c10d.set_makers
        c10d.set_makers = lambda device, gloo, nccl, gpu: set_makers(device, gloo, make, -1)
    if "PAWL_SOCKET" not in os.environ:
        dist.init_process_group("gloo")


def wrapped(model, parallel, device):
    if parallel == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)
    if parallel == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
        mesh = init_device_mesh(device.type, (dist.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


class Syncs:
    """How often the host waits for the device, as torch sees it."""

    def __init__(self):
        self.count = 0
        if torch.cuda.is_available():
            shown = warnings.showwarning

            def show(message, *rest):
                if "synchronizing CUDA operation" in str(message):
                    self.count += 1
                else:
                    shown(message, *rest)
            warnings.simplefilter("always")
            warnings.showwarning = show
            torch.cuda.set_sync_debug_mode("warn")

    def take(self):
        count, self.count = self.count, 0
        return count


class Record:
    def __init__(self, folder):
        self.folder, self.syncs = folder, Syncs()
        os.makedirs(folder, exist_ok=True)

    def step(self, job, step, loss, began):
        line = {"step": int(step), "t_ns": time.monotonic_ns(), "took_ms": (time.monotonic() - began) * 1e3,
                "loss": loss.hex(), "generation": job.generation, "syncs": self.syncs.take()}
        path = os.path.join(self.folder, f"steps.{job.rank}.{os.getpid()}.jsonl")
        with open(path, "ab", buffering=0) as file:
            file.write(json.dumps(line).encode() + b"\n")

    def final(self, job, model, optimizer):
        tensors = [*model.named_parameters(), *model.named_buffers()]
        tensors += [(f"{place}.{key}", value) for place, state in enumerate(optimizer.state.values())
                    for key, value in sorted(state.items())]
        digests = {name: hashlib.blake2b(bytes_of(tensor), digest_size=8).hexdigest() for name, tensor in tensors}
        path = os.path.join(self.folder, f"final.{job.rank}.json")
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump({"digests": digests, "random": torch.rand(4, device=job.device).tolist()}, file)
        os.replace(path + ".new", path)


def bytes_of(tensor):
    tensor = getattr(tensor, "_local_tensor", tensor).detach().cpu().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def train(step, job, options, model, optimizer, scheduler):
    generator = torch.Generator().manual_seed(int(step) * 64 + job.rank)
    inputs = torch.randn(options.batch, options.width, generator=generator).to(job.device)
    targets = torch.randint(CLASSES, (options.batch,), generator=generator).to(job.device)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    scheduler.step()
    return loss.detach()


def pass_gate(job, step, gate):
    number, _, path = (gate or "0:").partition(":")
    while int(step) == int(number) and not os.path.exists(path):
        job.alive()
        time.sleep(0.01)


def main():
    options = parse()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    if options.over_gloo:
        go_over_gloo()
    job = pawl.init()
    record = Record(options.record)
    torch.manual_seed(1)
    model = wrapped(Net(options.width, options.blocks).to(job.device), options.parallel, job.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.99)
    torch.manual_seed(100 + job.rank)
    job.protect(model, optimizer, scheduler)
    for step in job.steps(options.steps):
        began = time.monotonic()
        with step:
            loss = train(step, job, options, model, optimizer, scheduler)
        if step.lost:
            continue
        record.step(job, step, float(loss), began)
        pass_gate(job, step, options.gate)
    record.final(job, model, optimizer)
    if "PAWL_SOCKET" not in os.environ:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

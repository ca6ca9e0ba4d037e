"""The small training that the tests of test/torch run: DDP, with ZeRO or without, dropout and batch norm, seconds long.

Plain without `pawl run`, so that the undisturbed run beside it is the same script. What goes wrong is said by flags,
each for a seat and a step; `--once FILE` lets it go wrong only while the file isn't there. Its record is that of
examples/charlm/record.h; `marks.<seat>.jsonl` beside it has what a test asks about otherwise.
"""
import argparse
import hashlib
import json
import os
import struct
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

import pawl

NONCE = os.urandom(8).hex()
STARTED_NS = time.monotonic_ns()
SAMPLES, FEATURES, WIDTH, CLASSES = 1000, 16, 64, 8


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--step-ms", type=int, default=0)
    parser.add_argument("--optimizer", choices=("zero", "adam", "sgd", "replacing"), default="zero")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="STEPS",
                        help="draws random numbers in job.aside")
    parser.add_argument("--draw-between", action="store_true",
                        help="draws random numbers between steps, unprotected by aside")
    parser.add_argument("--gather-between", type=int, default=0, metavar="MS",
                        help="objects of all ranks, after a wait")
    parser.add_argument("--skip-step", type=int, default=0, help="its loss overflows: the scaler skips the update")
    parser.add_argument("--loader", action="store_true", help="a DataLoader takes the batches")
    parser.add_argument("--carried", type=int, default=0, metavar="ELEMENTS",
                        help="of a tensor in state=; a process that comes in late begins with thrice as many in seat "
                             "0, and with a third elsewhere")
    parser.add_argument("--record")
    parser.add_argument("--once", metavar="FILE")
    for name in ("raise-in", "raise-after", "exit", "break", "interrupt"):
        parser.add_argument(f"--{name}", metavar="SEAT:STEP", help="SEAT may be `all`")
    parser.add_argument("--exit-code", type=int, default=3)
    parser.add_argument("--stop", metavar="SEAT:STEP")
    parser.add_argument("--replace", metavar="SEAT:STEP", help="a parameter is put elsewhere")
    parser.add_argument("--drift", metavar="SEAT:STEP", help="a number of a parameter changes, as by a sick device")
    parser.add_argument("--wider", metavar="SEAT", type=int, help="this seat has another model beside the one in DDP")
    parser.add_argument("--hook-at", type=int, default=0, metavar="STEP",
                        help="from this step on a communication hook exchanges gradients")
    parser.add_argument("--hook-late", action="store_true",
                        help="a process that comes in late registers it before its first step")
    parser.add_argument("--unprotected", action="store_true", help="an optimizer that isn't protected steps the model")
    parser.add_argument("--no-loop", action="store_true")
    parser.add_argument("--no-rehearsal", action="store_true")
    parser.add_argument("--fail-rehearsal", action="store_true", help="of a parked spare")
    parser.add_argument("--resilient", action="store_true")
    parser.add_argument("--write-in-loop", metavar="FILE")
    parser.add_argument("--late-s", type=float, default=0, help="a process that comes in late takes so long to build")
    parser.add_argument("--group-timeout-s", type=float, default=60)
    parser.add_argument("--after-loop-s", type=float, default=0, help="what the script does after the last step")
    return parser.parse_args()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(FEATURES, WIDTH), nn.BatchNorm1d(WIDTH)
        self.second, self.drop = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2)
        self.last = nn.Linear(WIDTH, CLASSES)
        self.register_buffer("seen", torch.zeros(1), persistent=False)

    def forward(self, inputs):
        self.seen = self.seen + len(inputs)  # another tensor each time
        return self.last(self.drop(torch.relu(self.second(torch.relu(self.norm(self.first(inputs)))))))


class Record:
    def __init__(self, folder):
        self.folder, self.updates = folder, 0
        if folder:
            os.makedirs(folder, exist_ok=True)

    def begin(self):
        """Not while a spare rehearses: it may write nothing."""
        if not self.folder:
            return
        with open("/proc/self/stat", encoding="utf-8") as file:
            start_time = int(file.read().rpartition(")")[2].split()[19])
        self._whole(f"start.{os.getpid()}.json", {"pid": os.getpid(), "nonce": NONCE, "start_time": start_time,
                                                  "started_ns": STARTED_NS})

    def step(self, step, loss, sampler):
        self._line(f"loss.{dist.get_rank()}.{os.getpid()}.jsonl", {
            "step": int(step), "loss": loss, "loss_bits": struct.pack(">d", loss).hex(),
            "samples_hash": f"{sampler.hash:016x}", "pid": os.getpid(), "nonce": NONCE, "updates": self.updates,
            "t_ns": time.monotonic_ns(), "fence_wait_ns": 0})

    def mark(self, **what):
        self._line(f"marks.{dist.get_rank()}.jsonl", {"pid": os.getpid(), **what})

    def final(self, step, model, optimizer, sampler):
        if not self.folder:
            return
        content, tensors = bytearray(), []
        for name, role, tensor in held(model, optimizer):
            data = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            tensors.append({"name": name, "role": role, "offset_bytes": len(content), "size_bytes": len(data),
                            "hash": digest(data)})
            content += data
        seat = dist.get_rank()
        with open(os.path.join(self.folder, f"final.{seat}.bin"), "wb") as file:
            file.write(content)
        self._whole(f"final.{seat}.json", {
            "seat": seat, "pid": os.getpid(), "nonce": NONCE, "step": step, "updates": self.updates,
            "samples": sampler.position, "samples_hash": f"{sampler.hash:016x}",
            "rng_hash": digest(torch.get_rng_state().numpy().tobytes()), "tensors": tensors})

    def _line(self, name, what):
        if self.folder:
            with open(os.path.join(self.folder, name), "ab", buffering=0) as file:
                file.write(json.dumps(what).encode() + b"\n")

    def _whole(self, name, what):
        path = os.path.join(self.folder, name)
        with open(path + ".new", "w", encoding="utf-8") as file:
            json.dump(what, file)
        os.replace(path + ".new", path)


def held(model, optimizer):
    names = {}
    for name, parameter in model.module.named_parameters():
        names[parameter] = name
        yield name, "weight", parameter
    for name, buffer in model.module.named_buffers():
        yield name, "buffer", buffer
    for parameter, state in getattr(optimizer, "optim", optimizer).state.items():
        for role, value in sorted(state.items()):
            if isinstance(value, torch.Tensor):
                yield names[parameter], role, value
    for index, group in enumerate(optimizer.param_groups):
        yield f"group{index}", "lr", torch.tensor(group["lr"], dtype=torch.float64)


def digest(data):
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def make_optimizer(kind, model):
    if kind == "zero":
        return ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-2)
    if kind == "adam":
        return torch.optim.AdamW(model.parameters(), lr=1e-2)
    if kind == "sgd":
        return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    return Replacing(model.parameters(), {"lr": 1e-2})


def averaged(_, bucket):
    """A communication hook that does what DDP does without any."""
    gradients = bucket.buffer().div_(dist.get_world_size())
    return dist.all_reduce(gradients, async_op=True).get_future().then(lambda done: done.value()[0])


class Replacing(torch.optim.Optimizer):
    """Momentum whose state is another tensor after each step, and a number besides."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["average"] = 0.9 * state.get("average", torch.zeros_like(parameter)) + parameter.grad
                parameter -= group["lr"] / state["count"] ** 0.1 * state["average"]


class Faults:
    def __init__(self, options, job):
        self.options, self.job = options, job

    def due(self, name, step):
        """Whether the fault is for this seat and step, and hasn't happened yet."""
        place = getattr(self.options, name)
        if not place or step.rehearsal:
            return False
        seat, _, number = place.partition(":")
        if int(step) != int(number) or (seat != "all" and int(seat) != self.job.rank):
            return False
        if self.options.once and os.path.exists(self.options.once):
            return False
        if name in ("raise_in", "raise_after", "exit") and "PAWL_SOCKET" in os.environ:
            self.wait_first_commit()
        if self.options.once:
            with open(self.options.once, "w", encoding="utf-8"):
                pass
        return True

    def wait_first_commit(self, patience_s=60.0):
        """Before one is there, a death starts every trainer anew; no step of a job waits for it by itself."""
        deadline = time.monotonic() + patience_s
        while self.job._trainer.committed_step() == 0 and time.monotonic() < deadline:
            time.sleep(0.005)


class Training:
    def __init__(self, options):
        self.options, self.record = options, Record(options.record)
        self.job = pawl.init(rehearse=not options.no_rehearsal, group_timeout_s=options.group_timeout_s)
        if type(self.job).__name__ != "RehearsalJob":
            self.record.begin()
        time.sleep(options.late_s if self.job.rehearsal else 0)
        if options.fail_rehearsal and type(self.job).__name__ == "RehearsalJob":
            raise ValueError("told to fail the rehearsal")
        self.faults = Faults(options, self.job)
        torch.manual_seed(options.seed)
        self.inputs = torch.randn(SAMPLES, FEATURES)
        self.targets = torch.randint(CLASSES, (SAMPLES,))
        self.model = DistributedDataParallel(Net())
        torch.manual_seed(options.seed * 1000 + self.job.rank)
        self.optimizer = make_optimizer(options.optimizer, self.model)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.999)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        self.sampler = pawl.ElasticSampler(SAMPLES, options.batch * self.job.world_size, seed=options.seed)
        self.loader = None
        if options.loader:
            data = torch.utils.data.TensorDataset(self.inputs, self.targets)
            self.loader = torch.utils.data.DataLoader(data, batch_sampler=self.sampler)
        self.counts = {"steps": 0}
        if options.carried:
            late = options.carried * 3 if self.job.rank == 0 else options.carried // 3
            self.counts["carried"] = torch.zeros(late if self.job.rehearsal else options.carried)
        self.evaluations = torch.Generator().manual_seed(7)
        self.hooked = False
        if options.hook_late and self.job.rehearsal:
            self.hook()
        self.protect()

    def hook(self):
        self.hooked = True
        self.model.register_comm_hook(None, averaged)

    def protect(self):
        things = [self.scheduler, self.model, self.sampler, self.scaler]
        if not self.options.unprotected:
            things.append(self.optimizer)
        if self.options.wider is not None:
            things.append(nn.Linear(4, 72 if self.options.wider == self.job.rank else 64))
        self.job.protect(*things, state={"counts": self.counts, "evaluations": self.evaluations})

    def run(self):
        if self.options.no_loop:
            return
        self.batches = iter(self.loader) if self.loader else None
        (pawl.resilient(self.loop) if self.options.resilient else self.loop)()
        time.sleep(self.options.after_loop_s)
        if self.options.carried:
            carried = self.counts["carried"]
            self.record.mark(carried=[carried.numel(), float(carried.max())])
        self.record.final(self.counts["steps"], self.model, self.optimizer, self.sampler)
        if "PAWL_SOCKET" not in os.environ:
            dist.destroy_process_group()  # plain gloo left to the interpreter's end now and then aborts there

    def loop(self):
        for step in self.job.steps(self.options.steps):
            with step:
                loss = self.step(step)
            if step.lost:
                if not step.rehearsal:
                    self.record.mark(lost=int(step))
                continue
            self.record.step(step, loss, self.sampler)
            step.on_commit(lambda number=int(step): self.record.mark(committed=number))
            if self.faults.due("raise_after", step):
                raise ValueError("told to raise after the block")
            self.between(step)
            if self.faults.due("break", step):
                break

    def step(self, step):
        if self.faults.due("raise_in", step):
            raise ValueError("told to raise in the block")
        if self.faults.due("exit", step):
            sys.exit(self.options.exit_code)
        if self.faults.due("interrupt", step):
            raise KeyboardInterrupt
        if self.options.write_in_loop:
            with open(self.options.write_in_loop, "a", encoding="utf-8") as file:
                file.write("x")
        print(f"in step {int(step)}{' of the rehearsal' if step.rehearsal else ''}", flush=True)
        loss = self.train(step)
        if self.faults.due("replace", step):
            parameter = self.model.module.second.weight
            parameter.data = parameter.data.clone()
        if self.faults.due("drift", step):
            with torch.no_grad():
                self.model.module.second.weight[40, 3] += 1e-3
        if self.faults.due("stop", step):
            self.job.stop()
        self.counts["steps"] = int(step)
        if self.options.carried:
            self.counts["carried"] += 1.0
        return loss

    def train(self, step):
        if self.loader:
            inputs, targets = next(self.batches)
        else:
            ids = self.sampler.batch(step)
            inputs, targets = self.inputs[ids], self.targets[ids]
        if 0 < self.options.hook_at <= int(step) and not self.hooked and not step.rehearsal:
            self.hook()
        self.optimizer.zero_grad()
        total = 0.0
        parts = list(zip(inputs.chunk(self.options.accumulate), targets.chunk(self.options.accumulate), strict=False))
        for number, (some, their) in enumerate(parts):
            self.model.require_backward_grad_sync = number == len(parts) - 1
            loss = nn.functional.cross_entropy(self.model(some), their) / len(parts)
            overflow = float("inf") if int(step) == self.options.skip_step and not step.rehearsal else 1.0
            self.scaler.scale(loss * overflow).backward()
            total += float(loss.detach())
        time.sleep(self.options.step_ms / 1000)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.scheduler.step()
        self.record.updates += 0 if step.rehearsal else 1
        return total

    def between(self, step):
        if self.options.draw_between:
            torch.rand(3)
        if self.options.gather_between:
            time.sleep(self.options.gather_between / 1000)
            found = [None] * self.job.world_size
            dist.all_gather_object(found, int(step))
            assert found == [int(step)] * self.job.world_size, found
        if self.options.evaluate_every and int(step) % self.options.evaluate_every == 0:
            with self.job.aside("eval"):
                chosen = torch.randint(SAMPLES, (16,), generator=self.evaluations)
                torch.rand(1000)
                self.model.eval()
                with torch.no_grad():
                    self.model.module(self.inputs[chosen])
                self.model.train()


def main():
    torch.set_num_threads(1)
    options = parse()
    Training(options).run()


if __name__ == "__main__":
    main()

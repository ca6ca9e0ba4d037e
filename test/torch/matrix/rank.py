"""One rank of one parallelism: makes checkpoints and notes how it goes on, or loads those of others and goes on.

It is forked by `run`, which has imported PyTorch once for all ranks of all jobs.

The job: {parallelism, means, folder, rendezvous, tasks: [{kind, groups, source}], saved_at, continued, answers}. A task
without a source trains from the start, saves, and notes the state it saved and the losses that follow. A task with one
loads that source's checkpoint into a training that began elsewhere and compares. Rank 0 writes a line of JSON for each
task done.
"""
import dataclasses
import datetime
import json
import os
import pathlib
import time
import traceback
import warnings

os.environ.update({"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
warnings.filterwarnings("ignore")  # PyTorch's own, about itself

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)

import means  # noqa: E402
from parallelisms import OF_TORCH, Rates  # noqa: E402

SEED, ELSEWHERE = 11, 4711
RATES, OTHER_RATES = Rates(), Rates(rate=1e-4, decay=0.0, beta=0.99)


def parallelism_of(name: str):
    if name in OF_TORCH:
        return OF_TORCH[name]
    from engines import OF_DEEPSPEED
    return OF_DEEPSPEED[name]


def joined(training) -> dict[str, torch.Tensor] | None:
    """On rank 0 the state of all ranks; a copy that differs from another's is named `<name> of rank N`."""
    everything = [None] * dist.get_world_size() if dist.get_rank() == 0 else None
    dist.gather_object(training.state(), everything)
    if everything is None:
        return None
    found = {}
    for rank, state in enumerate(everything):
        for name, value in state.items():
            if not same(found.setdefault(name, value), value):
                found[f"{name} of rank {rank}"] = value
    return found


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bits(a) == bits(b)


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()


def differences(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> list[str]:
    notes = [f"{name} is missing" for name in wanted if name not in found]
    notes += [f"{name} should not be there" for name in found if name not in wanted]
    for name, value in wanted.items():
        other = found.get(name)
        if other is not None and not same(value, other):
            shapes = f"{tuple(other.shape)} {other.dtype}, should be {tuple(value.shape)} {value.dtype}"
            notes.append(f"{name} differs: " + (
                shapes if value.shape != other.shape or value.dtype != other.dtype
                else f"at most by {(value.double() - other.double()).abs().max().item():.3g}"))
    return notes


def make(job, task, folder: pathlib.Path) -> dict:
    training = parallelism_of(job["parallelism"])(task["kind"], SEED, with_groups(RATES, task))
    first = training.losses(0, job["saved_at"])
    state = joined(training)
    started = time.monotonic()
    means.save(job["means"], folder / "checkpoint", training)
    saved = time.monotonic() - started
    if dist.get_rank() == 0:
        torch.save({"state": state, "rates": training.rates()}, folder / "expected.pt")
    losses = training.losses(job["saved_at"], job["continued"])
    if dist.get_rank() == 0:
        (folder / "made.json").write_text(json.dumps({"first": first, "losses": losses}))
    return {"first": first, "losses": losses, "save_s": saved}


def take(job, task, folder: pathlib.Path) -> dict:
    made = parallelism_of(job["parallelism"])
    source = folder.parent / task["source"]
    rates = with_groups(OTHER_RATES, task)  # the source's are to be restored

    def loaded(form):
        return means.load(job["means"], source / "checkpoint", task["source"], folder,
                          lambda: form(task["kind"], ELSEWHERE, rates, True))
    started = time.monotonic()
    training, notes = loaded(made)
    seconds = time.monotonic() - started
    found, rates_found = joined(training), training.rates()
    losses = training.losses(job["saved_at"], job["continued"])
    cast = None
    if made.plain and job["parallelism"] in OF_TORCH:  # the same cast of the training that is already proven
        reference = made(task["kind"], SEED, with_groups(RATES, task))
        reference.become_cast_of(loaded(made.plain)[0])
        cast = reference.losses(job["saved_at"], job["continued"])
    if dist.get_rank() != 0:
        return {}
    expected = torch.load(source / "expected.pt")
    wrong = differences(found, made.wanted(expected["state"]))
    if rates_found != expected["rates"]:
        wrong.append(f"the optimizer's groups say {rates_found}, should say {expected['rates']}")
    unbroken = json.loads((source / "made.json").read_text())["losses"]
    return {"differences": wrong, "losses": losses, "notes": notes, "load_s": seconds,
            "apart": distance(losses, unbroken)} | ({"from_cast": distance(losses, cast)} if cast else {})


def with_groups(rates: Rates, task) -> Rates:
    return dataclasses.replace(rates, groups=task["groups"])


def distance(losses: list[float], others: list[float]) -> float:
    return max(abs(a - b) / abs(b) for a, b in zip(losses, others, strict=True))


def main(job: dict, rank: int, log: str) -> None:
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ.update({"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(job["world"]),
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})  # for who asks; the store is a file
    try:
        work_through(job, rank)
    except BaseException as problem:  # the others wait for this rank; who started them ends them
        text = f"rank {rank}: {type(problem).__name__}: {problem}\n"
        pathlib.Path(f"{job['answers']}.failed.{rank}").write_text(text + traceback.format_exc())
        os._exit(1)
    os._exit(0)  # nothing of the process that forked this one is to be tidied up here


def work_through(job: dict, rank: int) -> None:
    store = dist.FileStore(job["rendezvous"], job["world"])
    dist.init_process_group("gloo", store=store, rank=rank, world_size=job["world"],
                            timeout=datetime.timedelta(seconds=240))
    for task in job["tasks"]:
        folder = pathlib.Path(job["folder"]) / f"{task['kind']}-{task['groups']}" / job["parallelism"]
        folder.mkdir(parents=True, exist_ok=True)
        answer = take(job, task, folder) if task.get("source") else make(job, task, folder)
        if rank == 0:
            with open(job["answers"], "a") as answers:
                answers.write(json.dumps(task | answer) + "\n")
        dist.barrier()

"""A training on three seats in whose sixth step seat 1 dies while seat 2 waits for seat 0, which is alive and in no
hurry.

So seat 2 can only be freed from outside: by the recovery that begins. A thread of it waits for a key of the store, too.
What happened is written to `--record`, one file a seat.
"""
from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import pawl
from pawl import groups

FAULT_STEP, PATIENCE_S = 6, 15.0


def meet(rank: int, world: int) -> dict[str, object]:
    """One of each call of the job's store, among all seats."""
    store = groups.PawlStore(timedelta(seconds=120))
    first = store.compare_set("test/winner", "", str(rank))
    store.add("test/sum", rank + 1)
    store.set(f"test/here/{rank}", bytes([rank, 0, 255]))
    store.wait([f"test/here/{seat}" for seat in range(world)])
    return {"winner": first.decode(), "sum": store.add("test/sum", 0),
            "here": [list(store.get(f"test/here/{seat}")) for seat in range(world)],
            "check": [store.check(["test/sum"]), store.check(["test/sum", "test/no"])],
            "deleted": store.delete_key(f"test/here/{rank + 10}")}


def wait_for_key(told: dict[str, object]) -> None:
    try:
        groups.PawlStore(timedelta(seconds=600)).get("test/never")
    except dist.DistStoreError as error:
        told["cancelled"] = str(error)


def be_blocked(rank: int, folder: str, told: dict[str, object]) -> None:
    freed = os.path.join(folder, "freed")
    if rank == 0:  # until seat 2 is free, or it is clear that nobody frees it
        deadline = time.monotonic() + PATIENCE_S
        while not (os.path.exists(freed) and groups.failed()) and time.monotonic() < deadline:
            time.sleep(0.05)
        told.update(freed=os.path.exists(freed), failed=groups.failed())  # in no collective: only pawld's word fails it
    if rank == 1:
        time.sleep(1)  # by now seat 2 waits
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == 2:
        waiting = threading.Thread(target=wait_for_key, args=(told,))
        waiting.start()
        began, received = time.monotonic(), torch.ones(4)
        dist.recv(received, src=0)
        told.update(seconds=time.monotonic() - began, failed=groups.failed(), received=received.tolist())
        waiting.join()
        with open(freed, "w", encoding="utf-8"):
            pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--record", required=True)
    options = parser.parse_args()
    os.makedirs(options.record, exist_ok=True)
    job = pawl.init()
    died = os.path.join(options.record, "died")
    blocked = os.path.exists(died)  # this process has taken the dead one's place: the others are past all this
    told: dict[str, object] = {} if blocked else {"store": meet(job.rank, job.world_size)}
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model, optimizer)
    for step in job.steps(options.steps):
        with step:
            optimizer.zero_grad()
            model(torch.full((2, 4), float(step))).sum().backward()
            optimizer.step()
            if int(step) == FAULT_STEP and not blocked:
                blocked = True
                if job.rank == 1:
                    with open(died, "w", encoding="utf-8"):
                        pass
                be_blocked(job.rank, options.record, told)
    told["groups"] = [groups.live_count(), groups.created_count()]
    with open(os.path.join(options.record, f"told.{job.rank}"), "w", encoding="utf-8") as file:
        json.dump(told, file)


if __name__ == "__main__":
    main()

"""What one rank does in a test of the managed groups: `group_rank.py SCENARIO '{"rank": ..., "world": ...}'`.

Each scenario is a function; it says JSON objects on standard output and hears commands on standard input
(group_ranks.py). Nothing here judges: the test does.
"""
from __future__ import annotations

import json
import os
import signal
import socket
import stat
import sys
import threading
import time
from datetime import timedelta

import group_forms
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from pawl import groups

LONG = timedelta(seconds=300)  # of each collective: who waits that long has not been freed


class Rank:
    """Who this is, and its wires to the test."""

    def __init__(self, rank: int, world: int, directory: str, **options: object):
        self.rank, self.world, self.directory, self.options = rank, world, directory, options

    def say(self, **message: object) -> None:
        print(json.dumps(message), flush=True)

    def hear(self) -> dict:
        return json.loads(sys.stdin.readline() or "null")

    def store(self, name: str) -> dist.Store:
        return dist.FileStore(os.path.join(self.directory, name), self.world)

    def open(self, generation: int, seconds: float = 60) -> None:
        groups.open_generation(generation, self.store(f"generation{generation}"), "127.0.0.1",
                               timedelta(seconds=seconds))

    def join(self, backend: str) -> None:
        """torch's default group, for `pawl` in generation 1."""
        if backend == "pawl":
            groups.register()
            self.open(1)
        dist.init_process_group(backend, store=self.store("default"), rank=self.rank, world_size=self.world,
                                timeout=LONG)


def forms(me: Rank) -> None:
    """Trains in each parallel form and says the result."""
    me.join(str(me.options["backend"]))
    result = {form: group_forms.train(form, me.rank, me.world, 6) for form in group_forms.FORMS}
    me.say(forms=result)
    dist.destroy_process_group()


def collectives(me: Rank) -> None:
    """Every collective on a managed group and on plain gloo: says those whose results differ, and what was compared."""
    import group_collectives

    me.join("pawl")
    plain = dist.new_group(backend="gloo", timeout=LONG)
    same, differing = group_collectives.compare(me.rank, me.world, dist.group.WORLD, plain)
    pair = [dist.new_group([rank, rank + 1]) for rank in range(0, me.world - 1, 2)][me.rank // 2]
    plain_pair = [dist.new_group([rank, rank + 1], backend="gloo") for rank in range(0, me.world - 1, 2)][me.rank // 2]
    in_pair = group_collectives.compare(me.rank % 2, 2, pair, plain_pair)
    me.say(same=same, differing=differing, in_pair=in_pair[1], failed=groups.failed())
    dist.destroy_process_group()


def mistakes(me: Rank) -> None:
    """A caller's mistake raises at the call, and the groups go on as if nothing was."""
    me.join("pawl")
    raised = []
    group = dist.group.WORLD
    for mistake in (lambda: dist.broadcast(torch.zeros(2), src=me.world + 1),
                    lambda: group.allgather([[torch.zeros(2)]], [torch.zeros(2)]),
                    lambda: group.reduce_scatter([torch.zeros(2)], [[torch.zeros(3)] * me.world])):
        try:
            mistake()
            raised.append(None)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
    after = torch.ones(1)
    dist.all_reduce(after)
    me.say(raised=raised, failed=groups.failed(), after=float(after))
    dist.destroy_process_group()


def forks(me: Rank) -> None:
    """In the middle of the work a process is forked that ends as scripts do, and one that drops a group before. Says
    their exit codes, whether the groups still work, and what failed."""
    import gc

    me.join("pawl")
    group = dist.new_group(timeout=LONG)
    codes = []
    for drops in (False, True):
        outstanding = dist.all_reduce(torch.ones(1), async_op=True) if me.rank == 0 else None
        pid = os.fork()
        if not pid:
            if drops:
                dist.destroy_process_group(group)
                del group
                gc.collect()
            sys.exit(0)
        codes.append(exit_code_of(pid))
        if outstanding is None:
            outstanding = dist.all_reduce(torch.ones(1), async_op=True)
        outstanding.wait()
    sums = [torch.ones(1), torch.ones(1)]
    dist.all_reduce(sums[0])
    dist.all_reduce(sums[1], group=group)
    me.say(codes=codes, sums=[float(each) for each in sums], failed=groups.failed())
    dist.destroy_process_group()


def exit_code_of(pid: int, patience_s: float = 60) -> int | None:
    """None: it did not end, and was killed."""
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def train(me: Rank) -> None:
    """Trains DDP or ZeRO by commands, through as many generations as the test opens.

    {"open": g, "resume": R, "until": S}: joins generation g, goes on behind step R and ends with S; with "hold":
    {"step": s, "where": "backward" or "broadcast"} it stands still there in step s, with "stop": true by SIGSTOP.
    {"fail": why}: from another thread, while the training thread may be blocked. {"end": true}: leaves.
    Says {"saved": step} after each step, {"held": step} where it was told to stand still, {"drained": why} after a step
    that failed, and {"done": ...} at S.
    """
    commands = Commands()
    groups.register()
    fresh = bool(me.options.get("fresh"))
    groups.set_loopback(fresh)
    if not fresh:
        order = commands.next()
        me.open(int(order["open"]))
    dist.init_process_group("pawl", store=me.store("default") if not fresh else dist.HashStore(), rank=me.rank,
                            world_size=me.world, timeout=LONG)
    training = Training(me)
    if fresh:
        training.rehearse()
        groups.set_loopback(False)
        me.say(rehearsed=True)
        order = commands.next()
        me.open(int(order["open"]))
    while "open" in order:
        if groups.failed() is None:
            training.restore(int(order["resume"]))
            training.go_on(int(order["resume"]), int(order["until"]), order.get("hold"))
        else:
            me.say(drained=groups.failed())
        order = commands.next()
        if "open" in order:
            groups.close_generation()
            try:
                me.open(int(order["open"]))
            except groups.GroupsFailed:
                pass  # said above
    me.say(live=groups.live_count(), created=groups.created_count())
    dist.destroy_process_group()


class Commands:
    """Standard input on a thread of its own; `fail` is obeyed there at once."""

    def __init__(self) -> None:
        import queue

        self._orders: queue.Queue[dict] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            order = json.loads(line)
            if "fail" in order:
                groups.fail(order["fail"])
            else:
                self._orders.put(order)
        self._orders.put({"end": True})

    def next(self) -> dict:
        return self._orders.get()


class Training:
    """A model in DDP or ZeRO, whose state of each step goes to a file."""

    def __init__(self, me: Rank):
        self.me, self.hold = me, None
        self.wrapped, self.step = group_forms.FORMS[str(me.options["form"])](me.rank, me.world)
        optimizer = next(cell.cell_contents for cell in self.step.__closure__
                         if isinstance(cell.cell_contents, torch.optim.Optimizer))
        self.optimizer = getattr(optimizer, "optim", optimizer)  # ZeRO keeps this rank's part in one of its own
        self.number = 0
        first = next(self.wrapped.parameters())
        first.register_post_accumulate_grad_hook(lambda _: self._maybe_hold("backward"))
        self.optimizer.register_step_post_hook(lambda *_: self._maybe_hold("broadcast"))

    def rehearse(self) -> None:
        for number in range(2):
            self.step(number)

    def path(self, number: int) -> str:
        return os.path.join(self.me.directory, f"state.{self.me.rank}.{number}")

    def tensors(self) -> list[torch.Tensor]:
        state = [value for parameter in self.optimizer.param_groups[0]["params"]
                 for _, value in sorted(self.optimizer.state[parameter].items())]
        return [*self.wrapped.parameters(), *state]

    def save(self, number: int) -> None:
        torch.save(self.tensors(), self.path(number) + ".part")
        os.rename(self.path(number) + ".part", self.path(number))

    def restore(self, number: int) -> None:
        if number > 0:
            with torch.no_grad():
                for mine, saved in zip(self.tensors(), torch.load(self.path(number)), strict=True):
                    mine.copy_(saved)
        for parameter in self.wrapped.parameters():
            parameter.grad = None

    def go_on(self, resume: int, until: int, hold: dict | None) -> None:
        self.hold = hold
        for self.number in range(resume + 1, until + 1):
            began = time.monotonic()
            loss = self.step(self.number)
            groups.wait_all()
            if groups.failed() is not None:
                self.me.say(drained=groups.failed(), step=self.number, seconds=time.monotonic() - began)
                return
            self.save(self.number)
            self.me.say(saved=self.number, loss=loss.hex())
        self.me.say(done=self.number, state=group_forms.digest(self.tensors()))

    def _maybe_hold(self, where: str) -> None:
        if self.hold and (self.hold["step"], self.hold["where"]) == (self.number, where):
            self.me.say(held=self.number)
            if self.hold.get("stop"):
                os.kill(os.getpid(), signal.SIGSTOP)
            else:
                time.sleep(600)


# As DTensor exchanges, and waits: their results are new tensors.
FUNCTIONAL = {
    "functional all_reduce": lambda: functional.all_reduce(torch.ones(4), "sum", dist.group.WORLD).sum().item(),
    "functional all_gather": lambda: functional.all_gather_tensor(torch.ones(4), 0, dist.group.WORLD).sum().item(),
    "functional all_gather_coalesced": lambda: [one.sum().item() for one in functional.all_gather_into_tensor_coalesced(
        [torch.ones(4), torch.ones(2)], dist.group.WORLD)],
    "functional reduce_scatter": lambda: functional.reduce_scatter_tensor(
        torch.ones(4 * dist.get_world_size()), "sum", 0, dist.group.WORLD).sum().item(),
    "functional reduce_scatter_coalesced": lambda: [
        one.sum().item() for one in functional.reduce_scatter_tensor_coalesced(
            [torch.ones(4 * dist.get_world_size())], "sum", [0], dist.group.WORLD)],
    "functional all_to_all": lambda: functional.all_to_all_single(
        torch.ones(dist.get_world_size()), None, None, dist.group.WORLD).sum().item()}


def blocked(me: Rank) -> None:
    """Rank 0 stands still; the others wait for it in the collective that is named, then drain. What they see is
    said."""
    me.join("pawl")
    warm = torch.ones(4)
    dist.all_reduce(warm)
    commands = Commands()
    if me.rank == 0:
        me.say(standing=True)
        commands.next()
        return
    me.say(waiting=True)
    before = time.monotonic()
    received = torch.full((4,), 7.0)
    gathered = [torch.full((4,), 7.0) for _ in range(me.world)]
    kept = torch.full((4,), 7.0)
    {"allreduce": lambda: dist.all_reduce(kept),
     "broadcast": lambda: dist.broadcast(received, src=0),
     "allgather": lambda: dist.all_gather(gathered, kept),
     "reduce_scatter": lambda: dist.reduce_scatter_tensor(received, torch.ones(4 * me.world)),
     "recv": lambda: dist.recv(received, src=0),
     "recv_any": lambda: dist.recv(received),
     "barrier": lambda: dist.barrier(),
     "batch": lambda: [work.wait() for work in dist.batch_isend_irecv(
         [dist.P2POp(dist.irecv, received, 0), dist.P2POp(dist.isend, kept, 0)])],
     **FUNCTIONAL}[str(me.options["collective"])]()
    groups.wait_all()
    seconds = time.monotonic() - before
    objects: list = [None] * me.world
    try:
        dist.all_gather_object(objects, {"rank": me.rank})
        raised = None
    except groups.GroupsFailed as error:
        raised = str(error)
    later = torch.full((4,), 3.0)
    dist.broadcast(later, src=0)
    me.say(failed=groups.failed(), lost=groups.lost(), seconds=seconds, received=received.tolist(), kept=kept.tolist(),
           gathered=[one.tolist() for one in gathered], raised=raised, objects=objects, later=later.tolist())
    commands.next()


def torn(me: Rank) -> None:
    """A broadcast of many bytes is cut in its midst, by commands.

    {"open": g, "source": S, "future": F}: the receiver tells that it waits for the bytes and stops itself ("standing");
    the source fills what the connection holds ("sending") once it hears {"go": true}. Who is left of them says how that
    ended. With "pair": a send and a receive instead. With "behind": two broadcasts, one for each of gloo's workers, and
    behind them an all-to-all, into whose output its user writes once it was given up; what is in it after the group's
    timeout is said, too.
    {"open": g}: joins the generation and says a sum over all ranks.
    """
    groups.register()
    timeout_s = float(me.options.get("timeout", LONG.total_seconds()))
    dist.init_process_group("pawl", store=dist.HashStore(), rank=me.rank, world_size=me.world,
                            timeout=timedelta(seconds=timeout_s))
    commands = Commands()
    me.say(ready=True)
    while "open" in (order := commands.next()):
        groups.close_generation()
        me.open(int(order["open"]))
        if "source" not in order:
            total = torch.ones(1)
            dist.all_reduce(total)
            me.say(total=float(total))
            continue
        behind = bool(order.get("behind"))
        many = [torch.full((1 << 24,), me.rank + 1.0) for _ in range(1 + behind)]
        late = torch.zeros(me.world)
        if me.rank == order["source"]:
            commands.next()
        told = bytes_taken()
        if order.get("pair"):
            works = [(dist.isend if me.rank == order["source"] else dist.irecv)(many[0], 1 - me.rank)]
        else:
            works = [dist.broadcast(one, src=int(order["source"]), async_op=True) for one in many]
        before = time.monotonic()
        if me.rank == order["source"]:
            if behind:
                works.append(dist.all_to_all_single(late, torch.ones(me.world), async_op=True))
            me.say(sending=True)
        else:
            wait_told(told)  # the source's gloo, that the bytes are waited for
            me.say(standing=True)
            os.kill(os.getpid(), signal.SIGSTOP)
        if order["future"]:
            works[0].get_future().wait()
        else:
            works[0].wait()
        seconds = time.monotonic() - before
        groups.wait_all()
        late.fill_(5)
        if behind:
            time.sleep(max(0, timeout_s + 3 - (time.monotonic() - before)))
        me.say(seconds=seconds, failed=groups.failed(), holds=sorted(set(many[0].tolist())), late=late.tolist(),
               given_up=groups._extension.load().given_up_count())
    dist.destroy_process_group()


def bytes_taken() -> int:
    """What peers have taken of all that this process has sent over its connections."""
    total = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as connection:
                if connection.family in (socket.AF_INET, socket.AF_INET6):
                    about = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
                    total += int.from_bytes(about[120:128], sys.byteorder)  # tcpi_bytes_acked
        except OSError:
            continue  # gone
    return total


def wait_told(before: int, quiet_s: float = 1.0) -> None:
    """Until something has been taken, and then no more of it comes for a while."""
    seen, since, deadline = before, time.monotonic(), time.monotonic() + 60
    while time.monotonic() < deadline and (seen == before or time.monotonic() - since < quiet_s):
        time.sleep(0.05)
        if (now := bytes_taken()) != seen:
            seen, since = now, time.monotonic()


class HaltingStore(dist.Store):
    """Stops its process once the group's address is set: the peers know where to connect, and nobody answers."""

    def __init__(self, inner: dist.Store):
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: bytes) -> None:
        self.inner.set(key, value)
        os.kill(os.getpid(), signal.SIGSTOP)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def wait(self, keys: list[str], timeout: timedelta = LONG) -> None:
        self.inner.wait(keys, timeout)


def making(me: Rank) -> None:
    """Opens a generation whose last rank is missing or half made; says how that ended."""
    groups.register()
    dist.init_process_group("pawl", store=dist.HashStore(), rank=me.rank, world_size=me.world, timeout=LONG)
    commands = Commands()
    me.say(ready=True)
    order = commands.next()
    store = me.store("generation1")
    if order.get("halt"):
        store = HaltingStore(store)
    began = time.monotonic()
    try:
        groups.open_generation(1, store, "127.0.0.1", timedelta(seconds=order["seconds"]))
        why = None
    except groups.GroupsFailed as error:
        why = str(error)
    me.say(opened=why, seconds=time.monotonic() - began, failed=groups.failed())
    commands.next()
    # The thread that was left behind ends by itself.
    deadline = time.monotonic() + 60
    while groups._extension.load().making_count() > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    me.say(making=groups._extension.load().making_count())
    groups.close_generation()
    me.open(2)
    total = torch.ones(1)
    dist.all_reduce(total)
    me.say(total=float(total))
    dist.destroy_process_group()


def remakes(me: Rank) -> None:
    """Makes the inner groups again and again; says what the process holds after the first few and after all."""
    me.join("pawl")
    dist.new_group([0, 1])

    def held() -> dict:
        with open("/proc/self/statm") as statm:
            resident = int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        return {"threads": len(os.listdir("/proc/self/task")), "descriptors": len(os.listdir("/proc/self/fd")),
                "resident_bytes": resident, "groups": groups.live_count(), "created": groups.created_count()}

    def held_after(first: dict) -> dict:
        """A group that was closed may take a moment to end its threads and sockets."""
        until = time.monotonic() + 30
        now = held()
        while time.monotonic() < until and any(now[what] > first[what] for what in ("threads", "descriptors")):
            time.sleep(0.02)
            now = held()
        return now

    def again(generation: int) -> float:
        groups.close_generation()
        me.open(generation)
        total = torch.full((1000,), float(me.rank))
        dist.all_reduce(total)
        return float(total[0])

    sums = [again(generation) for generation in range(2, 8)]
    first = held()
    sums += [again(generation) for generation in range(8, 58)]
    me.say(first=first, last=held_after(first), sums=sums, failed=groups.failed())
    dist.destroy_process_group()


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    {"forms": forms, "collectives": collectives, "mistakes": mistakes, "train": train, "blocked": blocked,
     "torn": torn, "forks": forks, "making": making, "remakes": remakes}[sys.argv[1]](Rank(**options))

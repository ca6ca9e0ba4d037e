"""A training of a few numbers, straight on pawl.h (by ctypes): its collectives are sums over pawl's rendezvous.

small_trainer.py JSON: {"record": FOLDER, "steps": N, ...}; what else it does is in DEFAULTS. $PAWL_LIBRARY is libpawl.
After step s the state is `after(s, world)`, on every seat; each step is a line in FOLDER/seat-<n>.jsonl, the end a file
FOLDER/final-<n>.json.
"""
import ctypes
import hashlib
import json
import os
import sys
import threading
import time

OK, RECOVER, STOP, TIMEOUT = 0, 1, 2, 4
SIZE, MASK = 512, (1 << 64) - 1
DEFAULTS = {
    "step_ms": 5,
    "start_ms": 0,          # a new process takes so long to come to its first recover_join
    "build_ms": 0,          # and so long between its first recover_join and recover_done
    "seal_after": 0,        # the layout is sealed after this step; 0: before the first
    "stop": None,           # [seat, step, wanted]: in that step this seat proposes the job's end
    "persist": [],          # [[seat, step], ...]: in these steps these seats ask that the step be written to storage
    "end_after": {},        # {seat: step}: these leave their loop after another step than the others
    "exits": None,          # [[seats], step, code]: they end there, in every process; step 0: before the job runs
    "drain_ms": 0,          # a lost step takes so long to run out, "drain_progress" says whether with signs of life
    "drain_progress": True,
    "thread": False,        # a second thread counts in the rendezvous all the time
    "after_ms": 0,          # what it does when it has finished
    "equal": False,         # all state is declared equal on all seats, and is
    "differs": None,        # but for one number of this seat
    "finish": True,         # False: the process ends without pawl_finish
}


class Seat(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t)] + [
        (name, ctypes.c_uint32) for name in ("seat", "rank", "world", "local_rank")] + [
        ("generation", ctypes.c_uint64), ("resume_step", ctypes.c_uint64), ("rendezvous_prefix", ctypes.c_char * 48)]


class Tensor(ctypes.Structure):
    # As far as that: what comes after it counts as 0.
    _fields_ = [("struct_size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("role", ctypes.c_char_p),
                ("dtype", ctypes.c_int), ("dimension_count", ctypes.c_uint32), ("shape", ctypes.c_void_p),
                ("begin", ctypes.c_void_p), ("size", ctypes.c_void_p), ("mesh", ctypes.c_uint32),
                ("placement", ctypes.c_int), ("lifetime", ctypes.c_int), ("data", ctypes.c_void_p),
                ("equal_axes", ctypes.c_uint64)]


def after(step, world):
    """The state when `step` is done: what every seat must have, whatever happened meanwhile."""
    state = [0] * SIZE
    for one in range(1, step + 1):
        advance(state, sum(share(one, rank) for rank in range(world)))
    return digest(state)


def share(step, rank):
    return (step * 2654435761 + rank * 40503) % (1 << 31)


def advance(state, total):
    for i in range(SIZE):
        state[i] = (state[i] * 6364136223846793005 + total + i) & MASK


def digest(state):
    return hashlib.sha256(b"".join(int(value).to_bytes(8, "little") for value in state)).hexdigest()[:16]


class Interrupted(Exception):
    """A call answered PAWL_RECOVER."""


class Stopped(Exception):
    """A call answered PAWL_STOP."""


class Trainer:
    def __init__(self, options):
        self.options = {**DEFAULTS, **options}
        self.library = ctypes.CDLL(os.environ["PAWL_LIBRARY"])
        self.library.pawl_error.restype = ctypes.c_char_p
        self.library.pawl_stop_step.restype = ctypes.c_uint64
        self.library.pawl_stored_step.restype = ctypes.c_uint64
        self.library.pawl_committed_step.restype = ctypes.c_uint64
        self.handle = ctypes.c_void_p()
        self.seat = Seat(ctypes.sizeof(Seat))
        self.state = (ctypes.c_uint64 * SIZE)()
        self.steps_done = ctypes.c_uint64(0)
        self.sealed = self.built = False
        self.counted = 0

    def call(self, name, *arguments):
        status = getattr(self.library, "pawl_" + name)(self.handle, *arguments)
        if status == RECOVER:
            raise Interrupted
        if status == STOP:
            raise Stopped
        if status != OK:
            raise RuntimeError(f"pawl_{name}: {status}: {self.library.pawl_error(self.handle).decode()}")

    def run(self):
        time.sleep(self.options["start_ms"] / 1e3)
        if self.library.pawl_attach(None, ctypes.byref(self.handle)) != OK:
            raise RuntimeError(self.library.pawl_error(None).decode())
        try:
            while True:
                try:
                    self.train()
                    return 0
                except Interrupted:
                    self.drain()
        except Stopped:
            return 3
        finally:
            self.library.pawl_detach(self.handle)

    def train(self):
        self.call("recover_join", ctypes.byref(self.seat))
        if not self.built:
            time.sleep(self.options["build_ms"] / 1e3)
        self.built = True
        self.exit_if_asked(0)
        if not self.sealed and (self.options["seal_after"] == 0 or self.seat.resume_step > 0):
            self.seal()
        if self.seat.resume_step > 0:
            self.call("restore")
        if self.steps_done.value != self.seat.resume_step:
            raise RuntimeError(f"restored step {self.steps_done.value}, not {self.seat.resume_step}")
        self.meet()
        self.call("recover_done")
        threading.Thread(target=self.count, args=(self.seat.generation,), daemon=True).start()
        step = self.seat.resume_step
        last = self.options["end_after"].get(str(self.seat.rank), self.options["steps"])
        while step < min(last, self.library.pawl_stop_step(self.handle) or last):
            step += 1
            self.step(step)
            if step == self.options["seal_after"] and not self.sealed:
                self.seal()
        if self.options["finish"]:
            self.call("finish")
        time.sleep(self.options["after_ms"] / 1e3)
        self.write(f"final-{self.seat.rank}.json", {"step": step, "state": digest(self.state)})

    def drain(self):
        until = time.monotonic() + self.options["drain_ms"] / 1e3
        while time.monotonic() < until:
            if self.options["drain_progress"]:
                self.call("progress", 2)
            time.sleep(0.02)

    def meet(self):
        """As ranks do that tell each other where they listen: nobody is ready before all have come so far."""
        self.call("rendezvous_set", f"here/{self.seat.rank}".encode(), b"", ctypes.c_size_t(0))
        for rank in range(self.seat.world):
            value, size = self.buffer()
            self.call("rendezvous_get", f"here/{rank}".encode(), value, size, ctypes.c_uint32(600_000))

    def step(self, step):
        self.call("step_begin", ctypes.c_uint64(step))
        time.sleep(self.options["step_ms"] / 1e3)
        self.exit_if_asked(step)
        if self.options["stop"] and self.options["stop"][:2] == [self.seat.rank, step]:
            agreed = ctypes.c_uint64()
            self.call("stop_after", ctypes.c_uint64(self.options["stop"][2]), ctypes.byref(agreed))
        if [self.seat.rank, step] in self.options["persist"]:
            self.call("persist")
        self.call("progress", 2)
        total = self.all_reduce(step)
        self.call("fence", None)
        state = list(self.state)
        advance(state, total)
        self.state[:] = state
        self.steps_done.value = step
        if self.sealed:
            self.call("window_open", ctypes.c_uint64(step), ctypes.c_uint64(step))
        self.write(f"seat-{self.seat.rank}.jsonl", {
            "step": step, "pid": os.getpid(), "generation": self.seat.generation, "state": digest(self.state),
            "committed": self.library.pawl_committed_step(self.handle),
            "stored": self.library.pawl_stored_step(self.handle), "counted": self.counted})

    def exit_if_asked(self, step):
        if self.options["exits"] and self.seat.rank in self.options["exits"][0] and step == self.options["exits"][1]:
            print(f"seat {self.seat.rank} fails on purpose in step {step}", file=sys.stderr, flush=True)
            os._exit(self.options["exits"][2])

    def all_reduce(self, step):
        self.add(f"sum/{step}", share(step, self.seat.rank))
        if self.add(f"arrived/{step}", 1) == self.seat.world:
            value, size = self.buffer()
            self.call("rendezvous_try_get", f"sum/{step}".encode(), value, size)
            self.call("rendezvous_set", f"go/{step}".encode(), value, ctypes.c_size_t(size.contents.value))
        value, size = self.buffer()
        self.call("rendezvous_get", f"go/{step}".encode(), value, size, ctypes.c_uint32(600_000))
        return int(value.raw[:size.contents.value])

    def add(self, key, amount):
        total = ctypes.c_int64()
        self.call("rendezvous_add", key.encode(), ctypes.c_int64(amount), ctypes.byref(total))
        return total.value

    def count(self, generation):
        """Adds to a key of its own as fast as it can: each sum must be one more than the last."""
        counted = 0
        while self.options["thread"] and self.seat.generation == generation:
            try:
                total = self.add(f"count/{self.seat.rank}", 1)
            except (Interrupted, Stopped, RuntimeError):
                return
            counted += 1
            if total != counted:
                print(f"counted {counted} times, the rendezvous says {total}", file=sys.stderr, flush=True)
                os._exit(1)
            self.counted = counted
            time.sleep(0.001)

    @staticmethod
    def buffer():
        value = ctypes.create_string_buffer(64)
        return value, ctypes.pointer(ctypes.c_size_t(64))

    def seal(self):
        axes, sizes, mesh = (ctypes.c_char_p * 1)(b"dp"), (ctypes.c_uint64 * 1)(self.seat.world), ctypes.c_uint32()
        self.call("mesh_add", b"data", axes, sizes, ctypes.c_uint32(1), ctypes.byref(mesh))
        shape, equal = (ctypes.c_uint64 * 1)(SIZE), self.options["equal"]
        numbers = Tensor(ctypes.sizeof(Tensor), b"numbers", b"weight", 11, 1, ctypes.addressof(shape), None, None, 0, 0,
                         0, ctypes.addressof(self.state), int(equal))
        steps = Tensor(ctypes.sizeof(Tensor), b"steps" if equal else f"steps/{self.seat.rank}".encode(), b"step", 11, 0,
                       None, None, None, 0, 1, 0, ctypes.addressof(self.steps_done), int(equal))
        self.mark = ctypes.c_uint64(1 if self.options["differs"] == self.seat.rank else 0)
        mark = Tensor(ctypes.sizeof(Tensor), b"mark", b"weight", 11, 0, None, None, None, 0, 0, 0,
                      ctypes.addressof(self.mark), int(equal))
        for tensor in (numbers, steps) if self.options["differs"] is None else (numbers, mark, steps):
            self.call("tensor_add", ctypes.byref(tensor), None)
        self.call("layout_seal")
        self.sealed = True

    def write(self, name, record):
        line = json.dumps(record) + "\n"
        os.makedirs(self.options["record"], exist_ok=True)
        with open(os.path.join(self.options["record"], name), "a", encoding="utf-8") as file:
            file.write(line)


if __name__ == "__main__":
    sys.exit(Trainer(json.loads(sys.argv[1])).run())

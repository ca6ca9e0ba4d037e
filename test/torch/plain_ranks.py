"""Runs scripts in plain PyTorch: each rank is a process of its own, forked from this one, which has loaded torch.

Most of the processor time of a short training is loading torch. A line of standard input is one run, in JSON:
`script`, `arguments`, `world`, `environment` (all of it), `output` (a file), `limit_s`. The answer is a line: `codes`
of the ranks, and whether they were `late`. As soon as one rank fails, the others are killed. Ranks that have not
ended after limit_s seconds write where each of their threads stands, and are killed a little later. This process ends
with its input.
"""
import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback

import torch
import torch.distributed.optim
import torch.nn.parallel  # noqa: F401  (loaded here once, for all ranks)


def run_rank(run, rank):
    """This process from now on: the script, as if it had been started."""
    os.environ.clear()
    os.environ.update(run["environment"] | {"RANK": str(rank), "WORLD_SIZE": str(run["world"])})
    output = os.open(run["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.dump_traceback_later(run["limit_s"], file=2)
    packages = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:1] = [os.path.dirname(run["script"]), *packages]
    sys.argv = [run["script"], *run["arguments"]]
    # Whatever the script made is kept, and the interpreter's end left out: gloo's groups now and then wait for ever for
    # a thread of theirs when they are freed.
    kept, code = [], 0
    try:
        kept.append(runpy.run_path(run["script"], run_name="__main__"))
    except SystemExit as exits:
        kept.append(exits)
        code = exits.code if isinstance(exits.code, int) else 1 if exits.code else 0
    except BaseException as error:
        kept.append(error)
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def wait_all(pids, limit_s):
    codes, late = {}, []

    def kill_others():
        for other in set(pids) - set(codes):
            os.kill(other, signal.SIGKILL)

    def on_limit(*_):
        late.append(True)
        kill_others()

    signal.signal(signal.SIGALRM, on_limit)
    signal.setitimer(signal.ITIMER_REAL, limit_s + 2)
    while len(codes) < len(pids):
        pid, status = os.wait()
        codes[pid] = os.waitstatus_to_exitcode(status)
        if codes[pid] != 0:
            kill_others()
    signal.setitimer(signal.ITIMER_REAL, 0)
    return {"codes": [codes[pid] for pid in pids], "late": bool(late)}


def main():
    torch.optim.SGD([torch.zeros(1)])  # optimizers load something more with their first object
    while line := sys.stdin.readline():
        run = json.loads(line)
        sys.stdout.flush()
        pids = []
        for rank in range(run["world"]):
            pid = os.fork()
            if pid == 0:
                run_rank(run, rank)
            pids.append(pid)
        print(json.dumps(wait_all(pids, run["limit_s"])), flush=True)
    return None


if __name__ == "__main__":
    main()

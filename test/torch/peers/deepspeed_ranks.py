"""Ranks of DeepSpeed on this machine's processors: forked from a test that has imported DeepSpeed once for all of them.

To be imported before torch and DeepSpeed: it sets what these look at when they are. Where there is no DeepSpeed, the
test ends as one that was skipped.
"""
import os
import pathlib
import sys
import tempfile
import traceback
from collections.abc import Callable

os.environ.update({"DS_ACCELERATOR": "cpu", "DS_SKIP_CUDA_CHECK": "1", "DS_BUILD_OPS": "0", "OMP_NUM_THREADS": "1",
                   "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"})

try:
    import deepspeed
except ImportError:
    print("DeepSpeed is not in this environment: tools/setup-peers")
    sys.exit(77)
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

torch.set_num_threads(1)
for operation in list(deepspeed.ops.__compatible_ops__):  # else one is compiled at the first start
    if "shm" in operation or "ccl" in operation:
        deepspeed.ops.__compatible_ops__[operation] = False


def run(work: Callable[[dict, pathlib.Path], None], job: dict, folder: pathlib.Path,
        expected: tuple[int, ...] | None = None) -> None:
    """`work(job, folder)` on job["world"] ranks that meet through a file; they are to end with these codes, or well."""
    with tempfile.TemporaryDirectory() as scratch:
        children = []
        for rank in range(job["world"]):
            child = os.fork()
            if child == 0:
                _be_rank(rank, job["world"], pathlib.Path(scratch), lambda: work(job, folder))
            children.append(child)
        codes = tuple(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
        if codes != (expected or (0,) * len(codes)):
            raise AssertionError(f"ranks ended with {codes}:\n{pathlib.Path(scratch, 'log').read_text()[-5000:]}")


def _be_rank(rank: int, world: int, scratch: pathlib.Path, work: Callable[[], None]) -> None:
    """Does not return."""
    code = 1
    try:
        log = os.open(scratch / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group("gloo", init_method=f"file://{scratch}/store", rank=rank, world_size=world)
        deepspeed.init_distributed("gloo", dist_init_required=False, verbose=False)
        work()
        dist.barrier()
        dist.destroy_process_group()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

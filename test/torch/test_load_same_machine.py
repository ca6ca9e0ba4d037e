"""Ranks of one machine that read for each other (pawl.torch.same_machine_reads): who reads what covers all that is
wanted, each element once and at its own address; on four gloo ranks, columns and replicas arrive bit for bit, between
all of them, between two and two, and where one may not write into the others.
PAWL_SEED: of the random wants.
"""
import itertools
import os
import random
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import live_ranks  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.distributed.fsdp  # noqa: E402
import torch.distributed.tensor.parallel  # noqa: E402
from torch import nn  # noqa: E402

import pawl.torch  # noqa: E402
from pawl import _checkpoint  # noqa: E402
from pawl._checkpoint import Request  # noqa: E402
from pawl.errors import PawlError  # noqa: E402
from pawl.torch import same_machine_reads  # noqa: E402
from pawl.torch.same_machine_reads import Want, divided, is_worth_sharing  # noqa: E402

WORLD = 4
SEED = int(os.environ.get("PAWL_SEED", random.SystemRandom().randrange(1 << 30)))
COLUMNS, ROWS = 4096, 120


def places_of(want):
    """Each element that is wanted, and the address it goes to."""
    request = want.request
    for at in itertools.product(*(range(size) for size in request.size)):
        index = tuple(begin + offset for begin, offset in zip(request.begin, at, strict=True))
        address = request.memory + sum(a * stride for a, stride in zip(at, request.stride_bytes, strict=True))
        yield (want.member, request.tensor, index, address)


def random_want(source, member, base):
    dimensions = source.randrange(4)
    shape = [source.randrange(1, 7) for _ in range(dimensions)]
    begin = [source.randrange(extent) for extent in shape]
    size = [source.randrange(1, extent - low + 1) for extent, low in zip(shape, begin, strict=True)]
    stride_bytes, step = [0] * dimensions, 4
    for dimension in source.sample(range(dimensions), dimensions):
        stride_bytes[dimension] = step
        step *= size[dimension] + source.randrange(2)
    # the tensor: its dimensions
    return Want(member, 4, Request(dimensions, None, begin, size, stride_bytes, base, step))


class DividedTest(unittest.TestCase):
    def test_everything_is_read_once_by_somebody(self):
        source = random.Random(SEED)
        share_bytes, same_machine_reads._SHARE_BYTES = same_machine_reads._SHARE_BYTES, 64
        try:
            for _ in range(200):
                wants = [random_want(source, source.randrange(3), 1 << 20 << number) for number in range(6)]
                wanted = sorted(place for want in wants for place in places_of(want))
                read = [[place for part in divided(wants, member) for place in places_of(part)] for member in range(3)]
                self.assertEqual(wanted, sorted(place for each in read for place in each), f"PAWL_SEED={SEED}")
                for part in (part for member in range(3) for part in divided(wants, member)):
                    last = max(address for *_, address in places_of(part))
                    self.assertEqual(last + part.item_bytes - part.request.memory, part.request.memory_bytes)
        finally:
            same_machine_reads._SHARE_BYTES = share_bytes

    def test_what_others_would_not_read_better_is_not_offered(self):
        def offered(begin, size, strides, is_replica=False):
            stride_bytes = tuple(4 * stride for stride in strides)
            return is_worth_sharing(Request(0, None, begin, size, stride_bytes, 0, 0), 4, (1024, 4096), is_replica)
        self.assertTrue(offered((0, 0), (1024, 2048), (2048, 1)))
        self.assertFalse(offered((0, 0), (512, 4096), (4096, 1)))
        self.assertTrue(offered((0, 0), (512, 4096), (4096, 1), is_replica=True))
        self.assertFalse(offered((0, 0), (1024, 2048), (1, 1024)))  # scattered in memory
        self.assertFalse(offered((0, 0), (1024, 64), (128, 1)))  # in runs of 256 bytes


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = nn.Linear(COLUMNS, ROWS)      # cut along its columns by tensor parallelism, its bias is a replica
        self.narrow = nn.Linear(ROWS, 3)
        self.scale = nn.Parameter(torch.rand(()))  # a number


def made(kind, seed, dtype=torch.float32):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import RowwiseParallel, parallelize_module
    torch.manual_seed(seed)
    model = Model().to(dtype)
    world = dist.get_world_size()
    mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("copies", "shards")) if kind == "hsdp" else (
        init_device_mesh("cpu", (world,)))
    if kind in ("fsdp2", "hsdp"):
        model.scale = nn.Parameter(torch.rand(1)[:0].sum() + model.scale.detach())
        fully_shard(model.wide, mesh=mesh)
        fully_shard(model.narrow, mesh=mesh)
    elif kind == "tp":
        parallelize_module(model, mesh, {"wide": RowwiseParallel()})
    return model


def values_of(model):
    return {name: (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()
            for name, tensor in model.state_dict().items()}


def columns_from_rows(rank, world, path):
    """What differs after each way to load, and what others have read for this rank."""
    source = made("fsdp2", 1)
    pawl.torch.save(path, source)
    truth = values_of(source)
    machines = {"together": "here", "two and two": f"machine {rank // 2}", "alone": f"machine {rank}",
                "refused": "here", "unknown": ""}
    join, answers = _checkpoint.Peers.join, {}

    def refuse(peers, tickets, number):
        if rank == 1:
            raise PawlError("the memory of process 1 can't be written")
        join(peers, tickets, number)

    for way, name in machines.items():
        same_machine_reads.machine = lambda name=name: name
        _checkpoint.Peers.join = refuse if way == "refused" else join
        for kind, dtype, verify in (("tp", torch.float32, "reading"), ("tp", torch.bfloat16, True),
                                    ("plain", torch.float32, "reading"), ("hsdp", torch.float32, True)):
            model = made(kind, 2, dtype)
            report = pawl.torch.load(path, model, verify=verify)
            found = values_of(model)
            differing = [key for key in truth if not torch.equal(truth[key].to(dtype), found[key])]
            answers[way, kind, dtype] = (differing, report.bytes_received)
    return answers


class SameMachineTest(unittest.TestCase):
    def test_columns_and_replicas_arrive(self):
        with tempfile.TemporaryDirectory(prefix="pawl-same-machine-") as folder:
            ranks = live_ranks.run(WORLD, columns_from_rows, os.path.join(folder, "ckpt"))
        wide = COLUMNS * ROWS
        for rank, answers in enumerate(ranks):
            for (way, kind, dtype), (differing, received) in answers.items():
                about = f"rank {rank}, {way}, {kind}, {dtype}"
                self.assertEqual([], differing, about)
                everywhere = sum(each[way, kind, dtype][1] for each in ranks)
                # replicas come by broadcast where they don't read for each other: each rank's half, or half of all
                if kind != "tp":
                    self.assertGreater(everywhere, wide * dtype.itemsize, about)
                elif way in ("together", "two and two"):
                    self.assertGreater(everywhere, wide * dtype.itemsize * 0.45, about)
                else:
                    self.assertLess(received, 4096, about)


if __name__ == "__main__":
    harness.main()

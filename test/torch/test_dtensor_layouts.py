"""Which elements each rank holds of a DTensor: our enumeration against PyTorch's, for every pair of placements on small
meshes and sizes that don't divide; and against what FSDP2 really holds of tensors that tensor parallelism has cut.
No job and no other process: the placements cut plain tensors here, and FSDP2 gets a process group that only pretends.
"""
import itertools
import os
import subprocess
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch  # noqa: E402
import torch.distributed  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor import DTensor, Replicate, Shard  # noqa: E402

try:  # PyTorch's own, and not in every version
    from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset  # noqa: E402
except ImportError:
    _compute_local_shape_and_global_offset = None
import harness  # noqa: E402
from torch.distributed.tensor.placement_types import _StridedShard  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

ELEMENTS = os.environ.get("PAWL_DTENSOR_ELEMENTS", os.path.join(harness.ROOT, "build", "bin", "dtensor_elements"))
MESHES = [(1, 3), (2, 2), (2, 3), (3, 2), (4, 2), (2, 4)]
SHAPES = [(), (1,), (7,), (9,), (12,), (5, 3), (4, 7), (0, 3), (2, 9, 4)]


def written(numbers):
    return "[" + ",".join(map(str, numbers)) + "]"


def word(placement):
    if isinstance(placement, _StridedShard):  # first: in some versions it is a Shard
        return f"SS{placement.dim}:{placement.split_factor}"
    return f"S{placement.dim}" if isinstance(placement, Shard) else "R"


def strided(placements):
    return any(isinstance(p, _StridedShard) for p in placements)


def is_ordered(mesh, placements):
    """Whether a strided shard says an order of the axes: the second axis cut that dimension before the first did."""
    first, second = placements
    if isinstance(second, _StridedShard) and second.split_factor != 1:
        return False  # nothing comes after it
    if not isinstance(first, _StridedShard) or first.split_factor == 1:
        return True
    return not isinstance(second, Replicate) and second.dim == first.dim and first.split_factor == mesh[1]


def cases():
    for mesh, shape in itertools.product(MESHES, SHAPES):
        kinds = [Replicate()] + [Shard(d) for d in range(len(shape))]
        for d in range(len(shape)):
            kinds += [_StridedShard(d, split_factor=f) for f in sorted({1, 2, mesh[1]})]
        for placements in itertools.product(kinds, kinds):
            yield mesh, shape, placements


def chunk(tensor, placement, parts, index):
    """PyTorch's own cut of a tensor along one axis of the mesh."""
    if isinstance(placement, Replicate):
        return tensor
    pieces, _ = Shard(placement.dim)._split_tensor(tensor, parts, with_padding=False, contiguous=True)
    return pieces[index]


def expected(mesh, shape, placements, coordinate):
    """The local tensor, of element numbers: axes in order, but those that a strided shard lets go first."""
    count = 1
    for extent in shape:
        count *= extent
    local = torch.arange(count).reshape(shape)
    order = [1, 0] if isinstance(placements[0], _StridedShard) and placements[0].split_factor > 1 else [0, 1]
    for axis in order:
        local = chunk(local, placements[axis], mesh[axis], coordinate[axis])
    return local


def answers_to(asked):
    """Our enumeration: a line a rank, or one "refused", of each case."""
    lines = "".join("{} {} {}\n".format(written(mesh), written(shape), " ".join(map(word, placements)))
                    for mesh, shape, placements in asked)
    return iter(subprocess.run([ELEMENTS], input=lines, text=True, capture_output=True, check=True).stdout.splitlines())


def answer_of(local):
    return " ".join([written(local.shape)] + [str(int(e)) for e in local.flatten().tolist()])


def held_by_fsdp2(mesh, shape, rank):
    """A rank's local tensor of a DTensor that is cut along dimension 0 by tensor parallelism, then by FSDP2."""
    torch.distributed.init_process_group("fake", rank=rank, world_size=mesh[0] * mesh[1], store=FakeStore())
    try:
        devices = init_device_mesh("cpu", mesh, mesh_dim_names=("dp", "tp"))
        count = torch.Size(shape).numel()
        whole = torch.arange(count, dtype=torch.float32).reshape(shape)
        local = chunk(whole, Shard(0), mesh[1], rank % mesh[1])
        module = torch.nn.Module()
        module.w = torch.nn.Parameter(DTensor.from_local(local.clone(), devices["tp"], [Shard(0)], shape=whole.shape,
                                                         stride=whole.stride()))
        fully_shard(module, mesh=devices["dp"])
        return module.w.to_local().detach().clone(), module.w.placements
    finally:
        torch.distributed.destroy_process_group()


class DTensorLayoutsTest(unittest.TestCase):
    def test_what_fsdp2_holds_after_tensor_parallelism(self):
        asked = [(mesh, shape, (_StridedShard(0, split_factor=mesh[1]), Shard(0)))
                 for mesh in MESHES if mesh[1] > 1 for shape in [(7,), (9,), (5, 3), (12, 2)]]
        answers = answers_to(asked)
        for mesh, shape, placements in asked:
            for rank in range(mesh[0] * mesh[1]):
                local, said = held_by_fsdp2(mesh, shape, rank)
                self.assertEqual(list(map(word, placements)), list(map(word, said)))
                self.assertEqual(answer_of(local), next(answers), f"mesh {mesh} shape {shape} rank {rank}")

    def test_every_pair_of_placements(self):
        compared, refused, self.odd = 0, 0, 0
        asked = list(cases())
        answers = answers_to(asked)
        for mesh, shape, placements in asked:
            about = f"mesh {mesh} shape {shape} {placements}"
            answer = next(answers)
            if not is_ordered(mesh, placements):
                self.assertEqual("refused", answer, about)
                refused += 1
                continue
            for coordinate in itertools.product(range(mesh[0]), range(mesh[1])):
                if coordinate != (0, 0):
                    answer = next(answers)
                local = expected(mesh, shape, placements, coordinate)
                self.assertEqual(answer_of(local), answer, f"{about} at {coordinate}")
                self.check_offset(mesh, shape, placements, coordinate, local, about)
                compared += 1
        self.assertGreater(compared, 5000)
        self.assertGreater(refused, 100)
        self.assertLess(self.odd, compared / 50)
        self.assertIsNone(next(answers, None))

    def check_offset(self, mesh, shape, placements, coordinate, local, about):
        """What PyTorch says of a rank's part: its shape, and where it begins. Of strided shards so uneven that a rank
        has nothing of one part and something of another, its formula and its FSDP2 disagree: FSDP2 has the bytes."""
        if _compute_local_shape_and_global_offset is None:
            return
        size, offset = _compute_local_shape_and_global_offset(shape, mesh, list(coordinate), list(placements))
        if strided(placements) and tuple(size) != tuple(local.shape):
            self.odd += 1
            return
        self.assertEqual(tuple(local.shape), tuple(size), f"{about} at {coordinate}")
        if local.numel() == 0:
            return
        first, begin = int(local.flatten()[0]), []
        for extent in reversed(shape):
            begin.insert(0, first % extent)
            first //= extent
        self.assertEqual(tuple(begin), tuple(offset), f"{about} at {coordinate}")


if __name__ == "__main__":
    harness.main()

"""pawl.torch.save: who writes what (pure), and saves of real trainings on four gloo ranks, looked at by torch alone.

The store is read back whole by `pawl convert --to safetensors` and held bit for bit against the live tensors, which
torch gathers by its own means. Then what must not be lost: a rank that fails or is killed leaves the old checkpoint.
"""
import os
import random
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import live_ranks  # noqa: E402
import live_trainings  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from pawl import _checkpoint  # noqa: E402
from pawl.errors import PawlError, Refused  # noqa: E402
from pawl.torch.boxes import Box, whole  # noqa: E402
from pawl.torch.saving import merge_groups, save  # noqa: E402
from pawl.torch.write_shares import PART_BYTES_MIN, Description, divide  # noqa: E402

WORLD = 4
KINDS = ("ddp", "fsdp2", "fsdp2_tp", "hsdp", "zero", "pp_dp", "fsdp1")


def held(name, shape, box=None, role="weight", sample=1):
    return Description(name, role, "float32", shape, box or whole(shape), 4, sample)


class DivisionTest(unittest.TestCase):
    """Pure: descriptions in, shares out."""

    def covered(self, ranks, shares):
        """How often each element of each tensor is written; and how many bytes each rank writes."""
        counts = {(d.name, d.role): torch.zeros(d.shape, dtype=torch.int64) for of_rank in ranks for d in of_rank}
        loads = []
        for of_rank, given in zip(ranks, shares, strict=False):
            loads.append(sum(share.box.count * 4 for share in given))
            for share in given:
                d, box = of_rank[share.piece], share.box
                for axis, (begin, size) in enumerate(zip(box.begin, box.size, strict=False)):
                    self.assertLessEqual(d.box.begin[axis], begin)
                    self.assertLessEqual(begin + size, d.box.begin[axis] + d.box.size[axis])
                counts[d.name, d.role][tuple(slice(b, b + s) for b, s in zip(box.begin, box.size, strict=False))] += 1
        return counts, loads

    def check(self, ranks, slack, **options):
        shares = divide(ranks, **options)
        self.assertEqual(shares, divide(ranks, **options))
        counts, loads = self.covered(ranks, shares)
        for key, count in counts.items():
            self.assertTrue(bool((count == 1).all()), key)
        self.assertLessEqual(max(loads) - min(loads), slack, loads)
        return loads

    def test_replicas_are_cut_evenly(self):
        tensors = [held(f"layer{n}", (1000 + n, 7)) for n in range(10)] + [held("one", (1, 1, 5000)), held("step", ())]
        self.check([tensors] * 4, 4 * 7 * 2, part_bytes_min=64)
        self.check([tensors] * 3, 2 * 30000, part_bytes_min=30000)  # no part is smaller than that

    def test_whoever_has_more_of_its_own_gets_less_of_what_all_have(self):
        own = [[held("stage0", (7000,))], [held("stage1", (3000,))], []]
        loads = self.check([each + [held("all", (14000,))] for each in own], 8, part_bytes_min=16)
        self.assertEqual(24000 * 4, sum(loads))
        many = [[held("own", (30000,))] + [held("all", (3000,))], [held("all", (3000,))]]
        self.assertEqual([120000, 12000], self.check(many, 108000, part_bytes_min=16))

    def test_what_some_ranks_hold_goes_to_them(self):
        pair = held("rows", (100, 10), Box((0, 0), (50, 10)))
        other = held("rows", (100, 10), Box((50, 0), (50, 10)))
        self.check([[pair], [other], [pair], [other]], 0, part_bytes_min=16)

    def test_random_layouts_are_covered_once(self):
        drawn = random.Random(3)
        for _ in range(100):
            world = drawn.randint(1, 6)
            ranks = [[] for _ in range(world)]
            for number in range(drawn.randint(1, 12)):
                shape = tuple(drawn.randint(0, 9) for _ in range(drawn.randint(0, 3)))
                holders = drawn.sample(range(world), drawn.randint(1, world))
                role = drawn.choice(["weight", "buffer"])
                cut = drawn.randint(0, shape[0]) if shape else None
                for rank in holders:
                    if cut is None or 0 in shape:
                        ranks[rank].append(held(f"t{number}", shape, role=role))
                    else:
                        for begin, end in ((0, cut), (cut, shape[0])):
                            box = Box((begin,) + (0,) * (len(shape) - 1), (end - begin,) + shape[1:])
                            ranks[rank].append(held(f"t{number}", shape, box, role))
            shares = divide(ranks, part_bytes_min=drawn.choice([1, 16, 1 << 20]))
            counts, _ = self.covered(ranks, shares)
            for key, count in counts.items():
                self.assertTrue(bool((count == 1).all()), key)

    def test_empty_tensors_are_there(self):
        shares = divide([[held("none", (0, 3))], [held("none", (0, 3))]])
        self.assertEqual([1, 0], [len(each) for each in shares])

    def test_buffers_come_whole_from_the_lowest_rank(self):
        table = held("table", (1 << 20,), role="buffer", sample=0)
        self.assertEqual([0, 1, 0], [len(each) for each in divide([[], [table], [table]])])

    def test_disagreement_is_refused(self):
        with self.assertRaisesRegex(Refused, r"w \(weight\): float32 \[2\] on rank 0, float32 \[3\] on rank 1"):
            divide([[held("w", (2,))], [held("w", (3,))]])
        unlike = [[held("w", (2,), sample=1)], [held("w", (2,), sample=2)]]
        with self.assertRaisesRegex(Refused, r"different values .* w \(weight\) on ranks 0 and 1"):
            divide(unlike)
        self.assertEqual([1, 0], [len(each) for each in divide(unlike, check_replicas=False, part_bytes_min=1)])
        with self.assertRaisesRegex(Refused, "rank 1: w: 9 dimensions"):
            divide([[], [held("w", (1,) * 9)]])

    def test_nothing_is_divided_into_nothing(self):
        self.assertEqual([], divide([]))
        self.assertEqual([[], []], divide([[], []]))


class MergingTest(unittest.TestCase):
    def test_groups_of_stages(self):
        merged = merge_groups([[(["a"], {"lr": 1.0}), (["b"], {"lr": 2.0})], [(["c", "a"], {"lr": 1.0})]])
        self.assertEqual([{"lr": 1.0, "params": ["a", "c"]}, {"lr": 2.0, "params": ["b"]}], merged)
        with self.assertRaisesRegex(Refused, "a has .* on rank 0 and .* on rank 1"):
            merge_groups([[(["a"], {"lr": 1.0})], [(["a"], {"lr": 2.0})]])


def save_all(rank, world, directory, kinds):
    answers = {}
    for kind in kinds:
        model, optimizer = live_trainings.make(kind)
        path = os.path.join(directory, kind)
        saved = save(path, model, optimizer, values={"step": 2, "kind": kind})
        assert os.path.exists(path), "returned before it was published"
        truth = live_trainings.truth(kind, model, optimizer)
        answers[kind] = truth, (saved.tensors, saved.bytes, saved.bytes_written)
    return answers


def in_groups_and_with_clashes(rank, world, directory):
    """Two groups save at once, each its own; then four ranks that call different parameters by one name."""
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch.manual_seed(rank % 2)
    module = nn.Linear(300, 40)
    saved = save(os.path.join(directory, f"of{rank % 2}"), module, group=groups[rank % 2])
    assert saved.bytes == (300 * 40 + 40) * 4, saved
    said = []
    for arguments in ({}, {"rename": f"rank{rank % 2}.{{}}".format}, {"check_replicas": False}):
        try:
            save(os.path.join(directory, f"clash{len(said)}"), module, **arguments)
            said.append("saved")
        except Refused as error:
            said.append(str(error))
    return said, {name: parameter.detach().clone() for name, parameter in module.named_parameters()}


def replicated(rank, world, path):
    """Large enough to be cut, transposed in memory so that rows of it are no interval, and one tensor in two types."""
    torch.manual_seed(7)
    module = nn.Module()
    module.wide = nn.Parameter(torch.randn(1500, 1000).t())
    module.one = nn.Parameter(torch.randn(1, 2_000_000).bfloat16())
    saved = save(path, module)
    return saved.bytes_written, saved.bytes


def overwrite_with_trouble(rank, world, path, trouble, unlucky=1):
    """One save after another to one path; in the second, one rank has trouble."""
    model, optimizer = live_trainings.make("fsdp2", seed=trouble_seed(trouble))
    if trouble is None:
        save(path, model, optimizer)
        return "saved"
    if rank == unlucky:
        original = _checkpoint.write_store_part

        def troubled(*arguments, **options):
            if trouble == "killed":
                os.kill(os.getpid(), 9)
            if trouble == "killed after writing":
                original(*arguments, **options)
                os.kill(os.getpid(), 9)
            raise OSError(28, "No space left on device")
        _checkpoint.write_store_part = troubled
    try:
        save(path, model, optimizer, overwrite=True)
    except PawlError as error:
        return str(error)
    return "saved"


def trouble_seed(trouble):
    return 1 if trouble is None else 2


class SaveTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="pawl-save-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)

    def stored(self, path):
        """Everything in a checkpoint, by (name, role), and its values, by the library's C interface."""
        with _checkpoint.Checkpoint(path) as checkpoint:
            found, requests = {}, []
            for tensor in checkpoint.tensors:
                memory = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
                found[tensor.name, tensor.role] = memory
                if memory.numel():
                    stride_bytes = tuple(memory.element_size() * stride for stride in memory.stride())
                    requests.append(_checkpoint.Request(tensor.index, None, (0,) * memory.dim(), memory.shape,
                                                        stride_bytes, memory.data_ptr(), memory.nbytes))
            checkpoint.read(requests)
            return found, checkpoint.values, checkpoint.aliases

    def same(self, expected, found, about):
        self.assertEqual(sorted(expected), sorted(found), about)
        for key, value in expected.items():
            self.assertEqual((value.dtype, value.shape), (found[key].dtype, found[key].shape), (about, key))
            self.assertTrue(torch.equal(value, found[key]), (about, key))

    def test_every_layout_bit_for_bit(self):
        answers = live_ranks.run(WORLD, save_all, self.directory, KINDS)
        for kind in KINDS:
            truth = {}
            for answer in answers:
                truth.update(answer[kind][0])
            found, values, aliases = self.stored(os.path.join(self.directory, kind))
            self.assertEqual({"step": 2, "kind": kind}, values["user"])
            self.assertEqual({name for name, role in found if role == "exp_avg"},
                             {name for group in values["param_groups"] for name in group["params"]})
            self.assertEqual({"head.weight": "embed.weight"} if kind in ("ddp", "fsdp2", "fsdp1") else {}, aliases)
            if kind == "fsdp1":  # torch knows the weights alone
                found = {key: value for key, value in found.items() if key in truth}
            self.same(truth, found, kind)
            sizes = [answer[kind][1] for answer in answers]
            self.assertEqual(1, len({(tensors, total) for tensors, total, _ in sizes}))
            self.assertEqual(sizes[0][1], sum(written for _, _, written in sizes))
        self.assertEqual(sorted(KINDS), sorted(os.listdir(self.directory)))  # nothing partial is left
        self.check_by_the_command(os.path.join(self.directory, "fsdp2"), os.path.join(self.directory, "fsdp1"))

    def check_by_the_command(self, path, other):
        """`pawl` reads it like any checkpoint, and proves its checksums."""
        for arguments in (["verify", path], ["inspect", path]):
            done = subprocess.run([harness.PAWL, *arguments], capture_output=True, text=True)
            self.assertEqual(0, done.returncode, done.stdout + done.stderr)

    def test_trouble_leaves_the_old_checkpoint(self):
        path = os.path.join(self.directory, "troubled", "model")
        os.mkdir(os.path.dirname(path))
        live_ranks.run(WORLD, overwrite_with_trouble, path, None)
        old, _, _ = self.stored(path)
        ends = live_ranks.ends_of(WORLD, overwrite_with_trouble, path, "fails")
        self.assertEqual({"rank 1: OSError: [Errno 28] No space left on device"}, {ended.value for ended in ends})
        self.assertEqual(["model"], os.listdir(os.path.dirname(path)))
        self.same(old, self.stored(path)[0], "after a failure")
        for trouble in ("killed", "killed after writing"):
            ends = live_ranks.ends_of(WORLD, overwrite_with_trouble, path, trouble)
            self.assertEqual(9, ends[1].signal)
            for rank in (0, 2, 3):
                self.assertIn("the ranks lost each other", ends[rank].value or ends[rank].trouble)
            self.same(old, self.stored(path)[0], trouble)
        self.assertEqual(["model"], os.listdir(os.path.dirname(path)))
        ends = live_ranks.ends_of(WORLD, overwrite_with_trouble, path, "killed", 0)  # which has begun the folder
        self.assertEqual([9, 0, 0, 0], [ended.signal for ended in ends])
        self.same(old, self.stored(path)[0], "rank 0 was killed")
        self.assertEqual({"saved"}, set(live_ranks.run(WORLD, overwrite_with_trouble, path, "nothing", WORLD)))
        self.assertFalse(torch.equal(old["scale", "exp_avg"], self.stored(path)[0]["scale", "exp_avg"]))
        self.assertEqual(["model"], os.listdir(os.path.dirname(path)))  # what the killed one left was taken over

    def test_groups_and_clashes(self):
        directory = os.path.join(self.directory, "groups")
        os.mkdir(directory)
        answers = live_ranks.run(WORLD, in_groups_and_with_clashes, directory)
        for rank, (said, module) in enumerate(answers):
            self.assertRegex(said[0], r"different values .* weight \(weight\) on ranks 0 and 1")
            self.assertEqual([answers[0][0][0], "saved", "saved"], said)
            expected = {(name, "weight"): value for name, value in module.items()}
            self.same(expected, self.stored(os.path.join(directory, f"of{rank % 2}"))[0], "of a group")
            both, _, _ = self.stored(os.path.join(directory, "clash1"))
            prefix = f"rank{rank % 2}."
            self.same(expected, {(name.removeprefix(prefix), role): value for (name, role), value in both.items()
                                 if name.startswith(prefix)}, "renamed")
            lowest, _, _ = self.stored(os.path.join(directory, "clash2"))
            self.assertEqual(rank % 2 == 0, torch.equal(lowest["weight", "weight"], module["weight"]))
        self.assertEqual(["clash1", "clash2", "of0", "of1"], sorted(os.listdir(directory)))

    def test_what_all_hold_is_cut_over_them(self):
        path = os.path.join(self.directory, "cut")
        written = live_ranks.run(WORLD, replicated, path)
        self.assertEqual({10_000_000}, {whole for _, whole in written})
        self.assertEqual(10_000_000, sum(mine for mine, _ in written))
        self.assertLess(max(mine for mine, _ in written), 2_500_000 + PART_BYTES_MIN, written)
        torch.manual_seed(7)
        expected = {("wide", "weight"): torch.randn(1500, 1000).t()}
        expected["one", "weight"] = torch.randn(1, 2_000_000).bfloat16()
        self.same(expected, self.stored(path)[0], "cut")

    def test_what_stands_there_is_not_overwritten_unless_asked(self):
        path = os.path.join(self.directory, "alone")
        model = nn.Linear(3, 2)
        save(path, model, values=[1, {"a": None}])
        with self.assertRaises(Refused):
            save(path, model)
        with torch.no_grad():
            model.weight.add_(1)
        save(path, model, overwrite=True)
        found, values, _ = self.stored(path)
        self.same({(name, "weight"): p.detach() for name, p in model.named_parameters()}, found, "overwritten")
        self.assertIsNone(values["user"])
        with self.assertRaisesRegex(Refused, "values is a object"):
            save(path, model, values={"odd": object()}, overwrite=True)

    def test_views_and_types_as_they_lie(self):
        path = os.path.join(self.directory, "types")
        module = nn.Module()
        module.transposed = nn.Parameter(torch.arange(12.0).view(3, 4).t())
        module.part = nn.Parameter(torch.arange(40.0).view(5, 8)[1:4, ::2])
        for kind in (torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
                     torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64):
            module.register_buffer("as_" + str(kind).removeprefix("torch."), torch.tensor([[1, 0, 3]]).to(kind))
        module.register_buffer("empty", torch.empty(0, 3))
        module.register_buffer("number", torch.tensor(7))
        save(path, module)
        found, _, _ = self.stored(path)
        self.assertEqual(len(found), len(list(module.state_dict())))
        for (name, _), value in found.items():
            live = module.state_dict()[name]
            self.assertEqual((live.dtype, live.shape), (value.dtype, value.shape), name)
            self.assertTrue(torch.equal(live.float() if live.dtype.itemsize == 1 else live,
                                        value.float() if live.dtype.itemsize == 1 else value), name)


if __name__ == "__main__":
    harness.main()

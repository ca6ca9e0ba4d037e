"""What pawl says a rank holds of a training, against what torch says the whole is: every layout, on four real ranks.

Each rank hands over its pieces (copied) and, by torch's own means, the whole tensors; joined, the pieces must be the
wholes, every element of them covered. Optimizer state of FSDP1, which torch gathers wrongly on the CPU in one form, is
made from the weights, so that the whole is known.
"""
import itertools
import os
import random
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import live_ranks  # noqa: E402
import live_trainings  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

from pawl.errors import Refused  # noqa: E402
from pawl.torch.boxes import boxes_of_interval  # noqa: E402
from pawl.torch.layout import layout_of, pieces_of  # noqa: E402

WORLD = 4


def plain(layout):
    """What can be pickled and outlives the rank."""
    pieces = [(p.name, p.role, p.shape, p.begin, p.size, p.tensor.clone()) for p in layout.pieces]
    numbers = [(n.name, n.role, n.value) for n in layout.numbers]
    return pieces, numbers, layout.aliases, [(g.parameters, g.values) for g in layout.groups]


def state_from_weights(model, optimizer):
    for parameter, state in optimizer.state.items():
        for factor, word in enumerate(("exp_avg", "exp_avg_sq"), 2):
            state[word].copy_(parameter.detach() * factor)


def describe(rank, world, kinds):
    answers = {}
    for kind, word in kinds:
        model, optimizer = live_trainings.make(kind, word)
        if kind.startswith("fsdp1"):
            state_from_weights(model, optimizer)
        layout = layout_of(model, optimizer)
        for piece in layout.pieces:  # views: who writes into them writes into the training
            storages = {p.detach().to_local().untyped_storage().data_ptr() if hasattr(p, "to_local")
                        else p.untyped_storage().data_ptr() for p in model.parameters()}
            if piece.role == "weight" and piece.tensor.numel():
                assert piece.tensor.untyped_storage().data_ptr() in storages, (kind, str(piece))
        answers[kind, word] = plain(layout), live_trainings.truth(kind, model, optimizer)
    for kind in ("fsdp2", "fsdp1", "fsdp1_flat", "zero"):  # nothing has run yet, and there is no optimizer state
        model, optimizer = live_trainings.make(kind, steps=0)
        answers[kind, "fresh"] = plain(layout_of(model, optimizer)), live_trainings.truth(kind, model, optimizer)
    return answers


def joined(of_ranks):
    """Whole tensors from all ranks' pieces, with how often each element is there."""
    wholes, counts = {}, {}
    for pieces, *_ in of_ranks:
        for name, role, shape, begin, size, tensor in pieces:
            whole = wholes.setdefault((name, role), torch.zeros(shape, dtype=tensor.dtype))
            count = counts.setdefault((name, role), torch.zeros(shape, dtype=torch.int64))
            assert tuple(whole.shape) == tuple(shape) and tuple(tensor.shape) == tuple(size)
            at = tuple(slice(b, b + s) for b, s in zip(begin, size, strict=False))
            if tensor.numel() and bool((count[at] > 0).all()):
                assert torch.equal(whole[at], tensor), f"{name} {role}: replicas differ"
            whole[at] = tensor
            count[at] += 1
    return wholes, counts


class LayoutTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.cases = [(kind, "adamw") for kind in live_trainings.KINDS] + [
            ("ddp", "sgd"), ("fsdp2", "sgd"), ("fsdp2_tp", "adagrad"), ("fsdp2", "adam")]
        cls.answers = live_ranks.run(WORLD, describe, cls.cases)

    def of(self, kind, word="adamw"):
        return [answer[kind, word][0] for answer in self.answers]

    def test_pieces_join_to_the_wholes(self):
        for kind, word in self.cases:
            wholes, counts = joined(self.of(kind, word))
            truth = {}
            for answer in self.answers:
                truth.update(answer[kind, word][1])
            if kind.startswith("fsdp1"):
                for (name, _role), value in list(truth.items()):
                    truth[name, "exp_avg"], truth[name, "exp_avg_sq"] = value * 2, value * 3
                    truth[name, "step"] = torch.tensor(2.0)
                truth["seen", "buffer"] = torch.tensor(2)
            self.assertEqual(sorted(truth), sorted(wholes), kind)
            for key, whole in wholes.items():
                self.assertTrue(torch.equal(truth[key], whole) and truth[key].dtype == whole.dtype, (kind, word, key))
                self.assertGreater(int(counts[key].min()), 0, (kind, key))

    def test_before_the_first_step(self):
        for kind in ("fsdp2", "fsdp1", "fsdp1_flat", "zero"):
            wholes, _ = joined(self.of(kind, "fresh"))
            self.assertEqual({"weight", "buffer"}, {role for _, role in wholes}, kind)
            for key, value in self.answers[0][kind, "fresh"][1].items():
                self.assertTrue(torch.equal(value, wholes[key]), (kind, key))

    def test_sharded_tensors_are_listed_in_parts(self):
        pieces = [p for rank in self.of("fsdp2") for p in rank[0] if p[:2] == ("blocks.0.up.weight", "weight")]
        self.assertEqual([(0, 0), (2, 0), (4, 0), (6, 0)], [p[3] for p in pieces])
        self.assertEqual([(2, 6), (2, 6), (2, 6), (1, 6)], [p[4] for p in pieces])
        scale = [p[4] for rank in self.of("fsdp2") for p in rank[0] if p[:2] == ("scale", "exp_avg")]
        self.assertEqual([(1,), (1,), (0,), (0,)], scale)  # empty parts are listed too
        strided = [p[3:5] for rank in self.of("fsdp2_tp") for p in rank[0] if p[:2] == ("blocks.1.up.weight", "weight")]
        self.assertEqual([((0, 0), (2, 6)), ((3, 0), (2, 6)), ((2, 0), (1, 6)), ((5, 0), (1, 6))], strided)

    def test_tied_parameters_are_listed_once(self):
        for kind in ("ddp", "fsdp2", "fsdp1"):
            for pieces, _, aliases, _ in self.of(kind):
                self.assertEqual({"head.weight": "embed.weight"}, aliases, kind)
                self.assertFalse([p for p in pieces if p[0] == "head.weight"], kind)
        self.assertEqual({}, self.of("plain")[0][2])

    def test_only_persistent_buffers(self):
        for kind in live_trainings.KINDS:
            self.assertEqual(["seen"], [p[0] for p in self.of(kind)[0][0] if p[1] == "buffer"], kind)

    def test_groups_by_name(self):
        for kind in live_trainings.KINDS:
            groups = self.of(kind)[0][3]
            names = [name for names, _ in groups for name in names]
            self.assertIn("blocks.0.up.weight", names, kind)
            self.assertEqual(len(names), len(set(names)))
            self.assertEqual([0.9, 0.999], groups[0][1]["betas"])
            self.assertNotIn("params", groups[0][1])
        self.assertEqual(0.25, self.of("fsdp2")[0][3][0][1]["weight_decay"])
        self.assertEqual(0.0, self.of("fsdp2")[0][3][1][1]["weight_decay"])

    def test_owners_alone_list_the_state_of_zero(self):
        owners = [{p[0] for p in rank[0] if p[1] == "exp_avg"} for rank in self.of("zero")]
        for one, other in itertools.combinations(owners, 2):
            self.assertFalse(one & other)
        self.assertGreater(len([names for names in owners if names]), 1)

    def test_stages_list_what_they_hold(self):
        first, second = ({p[0] for p in rank[0]} for rank in self.of("pp_dp")[:2])
        self.assertIn("blocks.0.up.weight", first)
        self.assertNotIn("blocks.0.up.weight", second)
        self.assertIn("blocks.1.up.weight", second)


class IntervalsTest(unittest.TestCase):
    def test_boxes_cover_the_interval_and_are_few(self):
        drawn = random.Random(5)
        for _ in range(500):
            shape = tuple(drawn.randint(1, 4) for _ in range(drawn.randint(0, 4)))
            elements = torch.arange(torch.Size(shape).numel()).view(shape)
            begin = drawn.randint(0, elements.numel())
            end = drawn.randint(begin, elements.numel())
            found = []
            for box, first in boxes_of_interval(shape, begin, end):
                part = elements[tuple(slice(b, b + s) for b, s in zip(box.begin, box.size,
                                                                      strict=False))].flatten().tolist()
                self.assertEqual(first, part[0])
                found.append(part)
            self.assertEqual(list(range(begin, end)), [e for part in found for e in part])
            self.assertLessEqual(len(found), max(1, 2 * len(shape) - 1))


class RefusalsTest(unittest.TestCase):
    """What can't be told is refused by name."""

    def refused(self, pattern, *arguments, **more):
        with self.assertRaisesRegex(Refused, pattern):
            pieces_of(*arguments, **more)

    def test_models(self):
        meta = nn.Linear(2, 2, device="meta")
        self.refused("weight .* has no memory yet", meta)
        lazy = nn.LazyLinear(2)
        self.refused("weight has no shape yet", lazy)
        sparse = nn.Module()
        sparse.register_buffer("table", torch.eye(3).to_sparse())
        self.refused("table .* only dense tensors", sparse)
        self.refused("dict is not a model", {})
        self.refused("weight .* two tensors on one rank", [nn.Linear(2, 2), nn.Linear(2, 2)])

    def test_optimizers(self):
        model = nn.Linear(2, 2)
        foreign = torch.optim.SGD(nn.Linear(3, 3).parameters())
        self.refused("param group 0 has a parameter of shape .3, 3.", model, foreign)
        self.refused("OptimizerLike is not a torch.optim.Optimizer", model, type("OptimizerLike", (), {})())
        odd = torch.optim.SGD(model.parameters(), lr=1.0)
        odd.state[model.weight]["history"] = [torch.ones(2)]
        self.refused(r"weight \(history\): SGD keeps a list", model, odd)
        odd = torch.optim.SGD([{"params": model.parameters(), "hook": print}], lr=1.0)
        self.refused("param group 0: hook is a builtin_function", model, odd)
        odd = torch.optim.SGD(model.parameters(), lr=float("inf"))
        self.refused("param group 0: lr is inf", model, odd)
        both = [self.stepped(model), self.stepped(model)]
        self.refused(r"weight \(momentum_buffer\) is in two optimizers", model, both)

    def stepped(self, model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
        model(torch.ones(2)).sum().backward()
        optimizer.step()
        return optimizer

    def test_numbers_in_the_state_are_tensors_too(self):
        model = nn.Linear(2, 2)
        optimizer = self.stepped(model)
        optimizer.state[model.weight]["step"] = 7
        piece = next(p for p in pieces_of(model, optimizer) if p.role == "step")
        self.assertEqual(("weight", (), "int64", 7), (piece.name, piece.shape, piece.dtype, piece.tensor.item()))

    def test_wrappers_leave_no_trace_and_other_names_stay(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        inner = nn.ModuleDict({"module": nn.Linear(2, 2), "wrapped": checkpoint_wrapper(nn.Linear(2, 2))})
        names = [p.name for p in pieces_of(torch.nn.parallel.DataParallel(torch.compile(inner)))]
        self.assertEqual(["module.weight", "module.bias", "wrapped.weight", "wrapped.bias"], names)
        self.assertEqual(["a.weight", "a.bias"], [p.name for p in pieces_of(nn.Linear(2, 2), rename="a.{}".format)])

    def test_a_sum_that_nobody_holds(self):
        def partial(rank, world):
            from torch.distributed.device_mesh import init_device_mesh
            from torch.distributed.tensor import DTensor, Partial
            module = nn.Module()
            mesh = init_device_mesh("cpu", (world,))
            module.w = nn.Parameter(DTensor.from_local(torch.ones(2), mesh, [Partial()]))
            try:
                pieces_of(module)
            except Refused as error:
                return str(error)
            return "not refused"
        self.assertRegex(live_ranks.run(2, partial)[1], "w .* is a DTensor placed as P.* no rank has its value")


if __name__ == "__main__":
    harness.main()

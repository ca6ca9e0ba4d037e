"""pawl.torch.load of optimizer state that torch.save keyed by number: held against torch's own load_state_dict, for
models whose parameters have equal shapes and optimizers whose groups come in any order. Equal, or refused: never other.
"""
import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zipfile

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import torch  # noqa: E402
from torch import nn  # noqa: E402

import pawl.torch  # noqa: E402
from pawl.errors import Refused  # noqa: E402

ORDERS = {
    "model's": lambda named: [named],
    "sorted": lambda named: [sorted(named)],
    "reversed": lambda named: [named[::-1]],
    "head first": lambda named: [named[-2:] + named[:-2]],
    "split by decay": lambda named: [[each for each in named if each[1].dim() > 1],
                                     [each for each in named if each[1].dim() == 1]],
    "split by decay, sorted": lambda named: [sorted(each for each in named if each[1].dim() > 1),
                                             sorted(each for each in named if each[1].dim() == 1)],
    "a group each": lambda named: [[each] for each in named],
    "a group each, reversed": lambda named: [[each] for each in named[::-1]],
    "without the first": lambda named: [named[2:]],
}


def training(widths, order, seed):
    """A chain of layers, and an AdamW with its parameters in that order. Weights differ with the seed."""
    torch.manual_seed(seed)
    model = nn.Sequential(*(nn.Linear(before, after) for before, after in zip(widths, widths[1:], strict=False)))
    groups = ORDERS[order](list(model.named_parameters()))
    return model, torch.optim.AdamW([{"params": [parameter for _, parameter in group], "lr": 0.125 / (1 + number)}
                                     for number, group in enumerate(groups) if group])


def step(model, optimizer):
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = torch.linspace(-1 - number, 1, parameter.numel()).reshape(parameter.shape)
    optimizer.step()


def moments(model, optimizer):
    return {(name, word): value.tolist() for name, parameter in model.named_parameters()
            for word, value in optimizer.state.get(parameter, {}).items()}


class NumbersTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pawl-numbers-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.path = os.path.join(self.directory, "state.pt")

    def saved(self, widths, order):
        model, optimizer = training(widths, order, 1)
        step(model, optimizer)
        step(model, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 2}, self.path)
        return model, optimizer

    def loaded_by_torch(self, widths, order):
        """None where torch refuses, or leaves state whose shape isn't its parameter's."""
        model, optimizer = training(widths, order, 2)
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        try:
            optimizer.load_state_dict(state["optimizer"])
        except ValueError:
            return None
        if any(value.shape != parameter.shape for parameter, state in optimizer.state.items()
               for word, value in state.items() if word != "step"):
            return None
        return model, optimizer

    def check(self, widths, saved_order, order):
        """Whether it was loaded."""
        about = f"{widths}: saved {saved_order}, loaded {order}"
        source = self.saved(widths, saved_order)
        expected = self.loaded_by_torch(widths, order)
        model, optimizer = training(widths, order, 2)
        try:
            pawl.torch.load(self.path, model, optimizer)
        except Refused as error:
            self.assertRegex(str(error), "number|which is which|lacks", about)
            self.assertTrue(not optimizer.state, about)
            return False
        found = moments(model, optimizer)
        if found != moments(*source):  # else right by the names, whatever torch makes of the numbers
            self.assertIsNotNone(expected, about)
            self.assertEqual(moments(*expected), found, about)
            self.assertEqual([group["lr"] for group in expected[1].param_groups],
                             [group["lr"] for group in optimizer.param_groups], about)
        return True

    def test_made_the_same_way_is_what_torch_loads(self):
        for order in ORDERS:
            for widths in ((4, 4, 4, 4), (3, 5, 3, 5), (2, 2, 2, 2, 2, 2)):
                self.assertTrue(self.check(widths, order, order), f"{widths} {order}")

    def test_any_order_into_any_other_is_what_torch_loads_or_refused(self):
        chosen = random.Random(17)
        loaded = 0
        for _ in range(60):
            widths = [chosen.choice((2, 3)) for _ in range(chosen.randint(3, 6))]
            loaded += self.check(widths, chosen.choice(list(ORDERS)), chosen.choice(list(ORDERS)))
        self.assertGreater(loaded, 5)

    def test_names_that_sort_in_another_order_than_the_models(self):
        for order in ORDERS:  # "10.weight" comes before "2.weight"
            self.assertTrue(self.check((3,) * 14, order, order))

    def test_groups_of_other_sizes_are_refused_with_the_reason(self):
        self.saved((4, 4, 4), "model's")
        model, optimizer = training((4, 4, 4), "split by decay", 2)
        with self.assertRaisesRegex(Refused, "which is which.*2 groups of names for 1 of the optimizer"):
            pawl.torch.load(self.path, model, optimizer)
        pawl.torch.load(self.path, model)  # the weights alone need no names
        self.assertEqual({}, dict(optimizer.state))

    def test_a_loaded_training_goes_on_as_torchs_does(self):
        for order in ("sorted", "reversed", "split by decay, sorted"):
            self.saved((4, 4, 4, 4), order)
            expected = self.loaded_by_torch((4, 4, 4, 4), order)
            model, optimizer = training((4, 4, 4, 4), order, 2)
            pawl.torch.load(self.path, model, optimizer)
            for trained in (expected, (model, optimizer)):
                step(*trained)
                step(*trained)
            for name, tensor in expected[0].state_dict().items():
                self.assertTrue(torch.equal(tensor, model.state_dict()[name]), f"{order} {name}")


    def test_numbers_of_older_optimizers_are_what_torch_makes_of_them(self):
        def training_of(seed):
            model, _ = training((4, 4), "model's", seed)
            return model, torch.optim.NAdam(model.parameters(), lr=0.25)

        source = training_of(1)
        step(*source)
        step(*source)
        expected = moments(*source)
        state = {"model": source[0].state_dict(), "optimizer": source[1].state_dict()}
        for each in state["optimizer"]["state"].values():  # as NAdam had them before PyTorch 2
            each.update(step=int(each["step"]), mu_product=float(each["mu_product"]))
        torch.save(state, self.path)
        loaded = training_of(2)
        pawl.torch.load(self.path, *loaded)
        self.assertEqual(expected, moments(*loaded))

        for count in ((1 << 24) + 1, float((1 << 24) + 2), (1 << 24) + 4.5):
            for each in state["optimizer"]["state"].values():
                each["step"] = count
            torch.save(state, self.path)
            by_torch, by_pawl = training_of(2), training_of(2)
            by_torch[1].load_state_dict(state["optimizer"])
            pawl.torch.load(self.path, *by_pawl)
            self.assertEqual(moments(*by_torch), moments(*by_pawl), count)

        for each in state["optimizer"]["state"].values():
            each["tempo"] = 0.5
        torch.save(state, self.path)
        with self.assertRaisesRegex(Refused, r"0\.weight \(tempo\)"):
            pawl.torch.load(self.path, *training_of(2))

    def test_a_rate_that_is_damaged_in_a_packed_archive_is_a_problem(self):
        model, _ = training((4, 4), "model's", 1)
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.25), capturable=False, foreach=False)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        torch.save({"optimizer": {"state": {}, "param_groups": optimizer.state_dict()["param_groups"]},
                    "model": model.state_dict()}, self.path)
        packed = io.BytesIO()
        with zipfile.ZipFile(self.path) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as to:
            for name in source.namelist():
                to.writestr(name, source.read(name))
        with zipfile.ZipFile(packed) as archive:
            rate = next(each for each in archive.infolist()
                        if each.file_size == 4 and archive.read(each) == struct.pack("<f", 0.25))
        damaged = bytearray(packed.getvalue())
        at = rate.header_offset + 30 + len(rate.filename.encode())
        damaged[at:at + rate.compress_size] = b"\xff" * rate.compress_size
        with open(self.path, "wb") as file:
            file.write(damaged)
        done = subprocess.run([harness.PAWL, "convert", self.path, self.path + ".out", "--to", "safetensors"],
                              capture_output=True, text=True, timeout=120, check=False)
        self.assertNotEqual(0, done.returncode, done.stdout + done.stderr)
        self.assertIn("optimizer state: tensor optimizer.param_groups.0.lr", done.stdout + done.stderr)

    def test_groups_in_another_order_are_refused_unless_the_caller_says_so(self):
        source = self.saved((4, 4, 4), "split by decay")
        order = ORDERS["split by decay"]
        ORDERS["groups reversed"] = lambda named: order(named)[::-1]
        self.addCleanup(ORDERS.pop, "groups reversed")
        ORDERS["lonely"] = lambda named: order(named)[1:] + [order(named)[0][:1], order(named)[0][1:]]
        self.addCleanup(ORDERS.pop, "lonely")
        model, optimizer = training((4, 4, 4), "groups reversed", 2)
        with self.assertRaisesRegex(Refused, r"which is which.*Hints\(group_order=\[1, 0\]\)"):
            pawl.torch.load(self.path, model, optimizer)
        pawl.torch.load(self.path, model, optimizer, hints=pawl.torch.Hints(group_order=[1, 0]))
        self.assertEqual(moments(*source), moments(model, optimizer))
        self.assertEqual([group["lr"] for group in source[1].param_groups][::-1],
                         [group["lr"] for group in optimizer.param_groups])
        with self.assertRaisesRegex(Refused, "group_order names 2 groups, and the live optimizers have 3"):
            pawl.torch.load(self.path, *training((4, 4, 4), "lonely", 2), hints=pawl.torch.Hints(group_order=[1, 0]))
        with self.assertRaisesRegex(Refused, "name each of the groups once"):
            pawl.torch.Hints(group_order=[1, 1])


OPTIMIZERS = [
    lambda groups: torch.optim.AdamW(groups),
    lambda groups: torch.optim.Adam(groups, amsgrad=True),
    lambda groups: torch.optim.SGD(groups, momentum=0.5),
    lambda groups: torch.optim.RMSprop(groups, centered=True),
    lambda groups: torch.optim.SGD(groups),
]


class Drawn:
    """A model of few shapes, and how its optimizer is made: drawn from a seed, and made anew as often as needed."""

    def __init__(self, seed):
        draw = random.Random(seed)
        self.parts = [draw.choice(("linear", "bare", "norm", "embedding", "batch")) for _ in range(draw.randint(2, 6))]
        self.is_tied = draw.random() < 0.2
        self.frozen = draw.random() < 0.2
        self.idle = draw.random() < 0.2  # one that no step reaches, and that has no state
        self.kind = draw.randrange(len(OPTIMIZERS))
        self.seed = draw.random()

    def model(self, seed):
        torch.manual_seed(seed)
        made = {"linear": lambda: nn.Linear(3, 3), "bare": lambda: nn.Linear(3, 3, bias=False),
                "norm": lambda: nn.LayerNorm(3), "embedding": lambda: nn.Embedding(3, 3),
                "batch": lambda: nn.BatchNorm1d(3)}
        model = nn.ModuleDict({f"{part}_{number}": made[part]() for number, part in enumerate(self.parts)})
        matrices = [each for each in model.values() if each.weight.dim() == 2]
        if self.is_tied and len(matrices) > 1:
            matrices[-1].weight = matrices[0].weight
        if self.frozen:
            next(model.parameters()).requires_grad_(False)
        return model

    def groups(self, model, order):
        named = [each for each in model.named_parameters() if each[1].requires_grad]
        if order != "drawn":
            return [group for group in ORDERS[order](named) if group]
        draw = random.Random(self.seed)
        draw.shuffle(named)
        cuts = sorted(draw.randrange(len(named) + 1) for _ in range(draw.randrange(3)))
        return [named[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(named)], strict=True) if end > begin]

    def training(self, order, seed):
        model = self.model(seed)
        groups = self.groups(model, order)
        return model, OPTIMIZERS[self.kind]([{"params": [parameter for _, parameter in group], "lr": 0.5 / (1 + number)}
                                             for number, group in enumerate(groups)])

    def step(self, model, optimizer):
        for number, parameter in enumerate(model.parameters()):
            parameter.grad = torch.linspace(-1 - number, 1, parameter.numel()).reshape(parameter.shape)
        if self.idle:
            optimizer.param_groups[-1]["params"][-1].grad = None
        optimizer.step()


class DrawnTest(unittest.TestCase):
    """The same of drawn models and groups, and of `pawl convert` with the names in the optimizer's order."""

    setUp = NumbersTest.setUp

    def content(self, model, optimizer):
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        return ({name: tensor.tolist() for name, tensor in model.state_dict().items()},
                {(names[id(parameter)], word): value.tolist() for parameter, state in optimizer.state.items()
                 for word, value in state.items() if value is not None},
                [group["lr"] for group in optimizer.param_groups])

    def by_torch(self, drawn, order):
        model, optimizer = drawn.training(order, 2)
        state = torch.load(self.path)
        model.load_state_dict(state["model"])
        try:
            optimizer.load_state_dict(state["optimizer"])
        except ValueError:
            return None
        return self.content(model, optimizer)

    def save_drawn(self, drawn, order):
        model, optimizer = drawn.training(order, 1)
        drawn.step(model, optimizer)
        drawn.step(model, optimizer)
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, self.path)
        return model, optimizer

    def test_made_the_same_way(self):
        chosen = random.Random(int(os.environ.get("PAWL_SEED", "23")))
        loaded = 0
        for _ in range(120):
            seed, order = chosen.random(), chosen.choice([*ORDERS, "drawn"])
            drawn = Drawn(seed)
            if not drawn.groups(drawn.model(1), order):
                continue
            source = self.content(*self.save_drawn(drawn, order))
            self.assertEqual(source, self.by_torch(drawn, order))
            model, optimizer = drawn.training(order, 2)
            about = f"{seed} {order} {drawn.__dict__}"
            try:
                report = pawl.torch.load(self.path, model, optimizer)
            except Refused as error:
                self.fail(f"{about}: {error}")
            self.assertEqual(source, self.content(model, optimizer), about)
            self.assertEqual([], report.kept, about)
            loaded += 1
        self.assertGreater(loaded, 80)

    def test_made_another_way(self):
        chosen = random.Random(int(os.environ.get("PAWL_SEED", "24")))
        outcomes = {"loaded": 0, "refused": 0}
        for _ in range(120):
            seed, saved, order = chosen.random(), *(chosen.choice([*ORDERS, "drawn"]) for _ in range(2))
            drawn = Drawn(seed)
            if not drawn.groups(drawn.model(1), order) or not drawn.groups(drawn.model(1), saved):
                continue
            source = self.content(*self.save_drawn(drawn, saved))
            expected = self.by_torch(drawn, order)
            model, optimizer = drawn.training(order, 2)
            before = self.content(model, optimizer)
            about = f"{seed} {saved} {order} {drawn.__dict__}"
            try:
                pawl.torch.load(self.path, model, optimizer)
            except Refused:
                self.assertEqual(before, self.content(model, optimizer), about)
                outcomes["refused"] += 1
                continue
            outcomes["loaded"] += 1
            found = self.content(model, optimizer)
            if found[:2] == source[:2]:
                continue  # right by the names, whatever torch makes of the numbers
            self.assertEqual(expected, found, about)
        self.assertGreater(min(outcomes.values()), 10, outcomes)

    def test_convert_with_the_names_in_the_optimizers_order(self):
        chosen = random.Random(int(os.environ.get("PAWL_SEED", "25")))
        for round_ in range(24):
            drawn = Drawn(chosen.random())
            order = chosen.choice([*ORDERS, "drawn"])
            groups = drawn.groups(drawn.model(1), order)
            if not groups:
                continue
            model, optimizer = self.save_drawn(drawn, order)
            names = [[name for name, _ in group] for group in groups]
            flat = [name for group in names for name in group]
            for given in (names, flat):
                with self.subTest(f"{round_} {order}", groups=len(given)):
                    self.convert(json.dumps(given))
                    other, live = drawn.training(order if order == "without the first" else "sorted", 2)
                    pawl.torch.load(self.out, other, live, strict=False)  # rates that differ in one group here stay
                    self.assertEqual(self.content(model, optimizer)[:2], self.content(other, live)[:2])

    @property
    def out(self):
        return os.path.join(self.directory, "out")

    def convert(self, names):
        with open(os.path.join(self.directory, "names.json"), "w", encoding="utf-8") as file:
            file.write(names)
        shutil.rmtree(self.out, ignore_errors=True)
        done = subprocess.run([os.environ.get("PAWL", "pawl"), "convert", self.path, self.out, "--to", "pawl",
                               "--param-names", file.name], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(0, done.returncode, done.stderr)


if __name__ == "__main__":
    unittest.main()

"""pawl.torch.load of optimizer state that torch.save keyed by number: held against torch's own load_state_dict, for
models whose parameters have equal shapes and optimizers whose groups come in any order. Equal, or refused: never other.
"""
import os
import random
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

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


if __name__ == "__main__":
    unittest.main()

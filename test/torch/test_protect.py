"""What is protected, how it is called and placed, what is refused; the plain mode; libpawl with PAWL=off."""
import collections
import contextlib
import copy
import dataclasses
import functools
import gc
import json
import multiprocessing
import os
import pickle
import platform
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
import warnings
import zlib
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [HERE, os.path.dirname(HERE), PACKAGE]

import harness  # noqa: E402
import numpy  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch_job import TRAINER, environment, flags, reference_run  # noqa: E402

import pawl  # noqa: E402
import pawl.job as job_module  # noqa: E402
from pawl import (  # noqa: E402
    _library,
    captured_steps,
    commit_acts,
    declared_state,
    errors,
    late_buffers,
    left_gradients,
    look_around,
    losses,
    made_ddp,
    managed,
    protect,
    reducers,
    rehearsal_guard,
    replicas,
    same_script,
    script_exit,
    second_step,
    tagged_values,
    unprotected_state,
    volatile_state,
    windows,
    witness,
)

made_ddp.watch()


def small():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 2))


def sharded_here():
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


class Turning(nn.Module):
    def __init__(self, turned):
        super().__init__()
        self.register_buffer("turned", turned)


class Endless(torch.utils.data.IterableDataset):
    def __iter__(self):
        return iter(range(9))


@dataclasses.dataclass
class Score:
    loss: float


class Reduced:
    def __init__(self):
        self.loss = 1.0

    def __reduce__(self):
        return Reduced, ()


class Slotted:
    __slots__ = ("__dict__", "loss")


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()


class HeldTest(unittest.TestCase):
    def held(self, *things, world=1, **keywords):
        protected = protect.Protected(0, world)
        protected.add(things, keywords.get("state"))
        return {(held.name, held.role): held for held in protected.held()}

    def test_names_roles_and_placements(self):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), amsgrad=True)
        train(model, optimizer)
        held = self.held(optimizer, model)
        self.assertEqual({"weight", "buffer", "step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"},
                         {role for _, role in held})
        self.assertIn(("0.weight", "exp_avg"), held)
        self.assertIn(("1.running_mean", "buffer"), held)
        self.assertEqual(_library.Lifetime.VOLATILE, held["1.running_mean", "buffer"].lifetime)
        self.assertEqual(_library.Placement.UNIQUE, held["1.running_mean", "buffer"].placement)
        self.assertEqual(_library.Placement.REPLICATE, held["0.weight", "exp_avg"].placement)
        self.assertEqual(6 + 4 * 6 + 3, len(held))

    def test_tied_parameters_are_held_once(self):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        model[1].weight = model[0].weight
        self.assertEqual(["0.weight", "0.bias", "1.bias"], [name for name, _ in self.held(model)])

    def test_buffers_that_are_not_saved_are_held(self):
        model = nn.Module()
        model.register_buffer("mask", torch.ones(3), persistent=False)
        self.assertIn(("mask", "nonpersistent_buffer"), self.held(model))

    def test_two_models_and_two_optimizers_of_one_parameter(self):
        one, other = small(), small()
        optimizers = [torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for _ in range(2)]
        for optimizer in optimizers:
            train(one, optimizer)
        held = self.held(one, other, *optimizers)
        self.assertIn(("module1.0.weight", "weight"), held)
        self.assertIn(("0.weight", "momentum_buffer"), held)
        self.assertIn(("0.weight", "momentum_buffer.1"), held)

    def test_memory_order(self):
        convolution = nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last)
        view = protect.storage_order(convolution.weight)
        self.assertEqual((5, 3, 3, 3), tuple(convolution.weight.shape))
        self.assertTrue(view.is_contiguous())
        self.assertEqual(convolution.weight.data_ptr(), view.data_ptr())
        self.assertEqual((0, 2, 3, 1), protect.memory_order(convolution.weight))
        rows = torch.zeros(3, 4)
        self.assertEqual([(), (1, 0), (), None],
                         [protect.memory_order(each) for each in (rows, rows.T, rows[:1].T, rows[:, ::2])])

    def test_shapes_are_declared_as_the_model_has_them(self):
        model = nn.Sequential(nn.Conv2d(3, 5, 3).to(memory_format=torch.channels_last), nn.Flatten())
        model.register_buffer("waves", torch.zeros(2, 3, dtype=torch.complex64).T)
        protected = protect.Protected(0, 1)
        protected.add([model, torch.optim.SGD(model.parameters(), 0.1)], None)
        trainer = mock.Mock()
        state = declared_state.DeclaredState(trainer, protected, mock.Mock(), 100, list, lambda: 1)
        with one_process_group():
            state.seal(mock.Mock())
        said = {call.args[0]: (call.args[3], call.kwargs["order"])
                for call in trainer.tensor_add.call_args_list}
        self.assertEqual({"0.weight": ((5, 3, 3, 3), (0, 2, 3, 1)), "0.bias": ((5,), ()),
                          "waves": ((3, 2), (1, 0))}, said)

    def test_what_changed_is_named(self):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        train(model, optimizer)
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        unchanged = protect.Unchanged(protected, protected.held())
        train(model, optimizer)
        self.assertIsNone(unchanged.first_change())
        self.assertEqual([], unchanged.moved())
        parameter = model[2].weight
        first = optimizer.state[parameter]["exp_avg"]
        optimizer.state[parameter]["exp_avg"] = first.clone()
        self.assertEqual(["2.weight"], [held.name for held in unchanged.moved()], "may lie elsewhere, and is told")
        self.assertEqual([], unchanged.moved())
        before = model[1].running_mean
        model[1].running_mean = torch.full_like(before, 4.0)
        self.assertEqual(["1.running_mean"], [held.name for held in unchanged.moved()])
        self.assertIsNot(before, model[1].running_mean)
        model[2].weight = nn.Parameter(torch.zeros(2, 6))
        self.assertIn("2.weight was added, removed or replaced", unchanged.first_change())

    def test_plain_attributes_of_modules(self):
        def made():
            model = nn.Sequential(nn.BatchNorm1d(4, momentum=0.1), nn.Dropout(0.5), small())
            model.calls, model.handle = 0, next(addresses)
            protected = protect.Protected(0, 1)
            protected.add([model], None)
            return model, next(each for each in protected.parts if each.name == "attributes")

        addresses = iter((1 << 40, 2 << 40, 3 << 40))
        model, part = made()
        model[0].momentum, model.calls, model.late = None, 3, "fresh"
        saved = part.save()
        self.assertEqual({"0.calls": 3, "0.late": "fresh", "1.momentum": None}, saved["changed"])
        model[0].momentum, model[1].p, model.calls, model.later = 0.01, 0.3, 4, 1
        part.load(saved)
        self.assertEqual((None, 0.5, 3, "fresh"), (model[0].momentum, model[1].p, model.calls, model.late))
        self.assertFalse(hasattr(model, "later"), "it came after the saved state")
        other, its = made()
        its.load(saved)
        self.assertEqual((None, 3, "fresh", 2 << 40),
                         (other[0].momentum, other.calls, other.late, other.handle))
        self.assertEqual(saved["changed"], its.save()["changed"])

    def test_plain_attributes_of_a_module_that_is_removed(self):
        model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
        protected = protect.Protected(0, 1)
        protected.add([model], None)
        part = next(each for each in protected.parts if each.name == "attributes")
        model[1].p = 0.1
        saved = part.save()
        del model[1]
        part.save()
        part.load(saved)

    def annealed(self, **attributes):
        """(a model that has a temperature and these, its part, a step)"""
        model = nn.Sequential(nn.Linear(2, 2))
        model[0].tau = 8.0
        vars(model[0]).update(attributes)
        protected = protect.Protected(0, 1)
        protected.add([model], None)
        part = next(each for each in protected.parts if each.name == "attributes")

        def step(probe=None):
            model[0].tau /= 2
            model[0].probe = probe
            return part.save()
        return model[0], part, step

    def test_a_number_beside_a_tensor_that_is_looked_at_now_and_then(self):
        for lost in (None, torch.ones(3), torch.ones(2)):
            layer, part, step = self.annealed(probe=None)
            step()
            step()
            saved = [step(torch.ones(2)), step(), step()]
            self.assertEqual([1.0, 0.5, 0.25], [each["changed"]["1.tau"] for each in saved])
            for tau, each in zip((1.0, 0.5, 0.25), saved, strict=True):
                other, its, _ = self.annealed(probe=None)
                its.load(tagged_values.from_json(tagged_values.to_json("", each)))
                self.assertEqual(tau, other.tau)
                layer.tau, layer.probe = 0.1, lost
                part.load(each)
                self.assertEqual(tau, layer.tau)
                self.assertEqual(each["changed"], {**part.save()["changed"], **{
                    key: value for key, value in each["changed"].items() if key == "1.probe"}})

    def test_a_number_beside_a_tensor_that_a_lost_step_left(self):
        layer, part, step = self.annealed(probe=None)
        saved = step()
        step(torch.ones(2))
        part.load(saved)
        self.assertEqual((4.0, None), (layer.tau, layer.probe))

    def test_a_number_beside_what_is_written_in_place(self):
        """torch counts writes, numpy doesn't: of an array nobody knows whether it stayed."""
        for history in (numpy.zeros(8), torch.zeros(8)):
            layer, part, _ = self.annealed(history=history, n=0)
            for _ in range(3):
                layer.history[layer.n] = 1.0
                layer.n += 1
                saved = tagged_values.from_json(tagged_values.to_json("", part.save()))
            self.assertEqual([], saved["free"])
            other, its, _ = self.annealed(history=history * 0, n=0)
            its.load(saved)
            self.assertEqual((0, 0.0), (other.n, float(other.history.sum())), "both begin anew")

    def test_a_number_that_came_later_than_where_there_is_a_tensor(self):
        _, _, step = self.annealed(probe=None)
        saved = step(torch.ones(2))
        other, its, _ = self.annealed(probe=None)
        other.length = 4
        its.load(saved)
        self.assertEqual((4, 8.0), (other.length, other.tau), "nobody knows what they speak of")

    def test_numbers_that_may_not_be_kept_are_known(self):
        model = nn.Sequential(nn.Linear(2, 2))
        layer = model[0]
        layer.tau, layer.length, layer.cosines, layer.rate = 1.0, 0, None, 0.5
        protected = protect.Protected(0, 1)
        protected.add([model], None)
        known = unprotected_state.Known(protected)
        known.refresh()
        self.assertTrue(known.keeps_attribute(layer, "length", layer.length))
        layer.length, layer.cosines, layer.tau = 8, torch.ones(8), 0.5
        known.refresh()
        self.assertFalse(known.keeps_attribute(layer, "tau", layer.tau), "it may speak of the cosines")
        layer.tau = 0.25
        known.refresh()
        self.assertEqual([True, False, False], [known.keeps_attribute(layer, key, vars(layer)[key])
                                                for key in ("tau", "length", "rate")])

    def test_what_is_no_table(self):
        shared = nn.Parameter(torch.ones(2))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are old
            normed = nn.utils.spectral_norm(nn.utils.weight_norm(nn.Linear(2, 2), "bias", dim=None))
        normed(torch.ones(1, 2))
        with torch.no_grad():
            normed(torch.ones(1, 2))
        for module in (nn.LSTM(2, 2, 2, dropout=0.5), nn.GRU(2, 2), normed):
            module.rate, module.shared = numpy.float64(0.5), [shared]
            protected = protect.Protected(0, 1)
            protected.add([module], None)
            part = next(each for each in protected.parts if each.name == "attributes")
            module.rate, module.dropout = numpy.float64(0.25), 0.1
            saved = tagged_values.from_json(tagged_values.to_json("", part.save()))
            self.assertEqual({"0.rate": 0.25, "0.dropout": 0.1}, saved["changed"])
            self.assertEqual([], saved["tables"])
            module.rate, module.dropout = numpy.float64(9), 9.0
            part.load(saved)
            self.assertEqual((numpy.float64(0.25), numpy.float64, 0.1), (module.rate, type(module.rate),
                                                                         module.dropout))

    def test_a_number_that_speaks_of_a_table(self):
        """As of rotary embeddings that keep cosines for the longest sequence so far."""
        for wrap in (lambda table: table, lambda table: [table], lambda table: {"cosines": [table]}):
            with self.subTest(wrap=wrap):
                self.keep_a_number_beside(wrap)

    def keep_a_number_beside(self, wrap):
        def made():
            model = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
            model[1].length, model[1].cosines = 0, None
            protected = protect.Protected(0, 1)
            protected.add([model], None)
            return model, next(each for each in protected.parts if each.name == "attributes")

        model, part = made()
        model[1].length, model[1].cosines, model[0].p = 64, wrap(torch.ones(64)), 0.1
        saved = part.save()
        for length, cosines in ((0, None), (8, wrap(torch.ones(8)))):
            other, its = made()
            other[1].length, other[1].cosines = length, cosines
            its.load(saved)
            self.assertEqual((length, cosines, 0.1), (other[1].length, other[1].cosines, other[0].p))

    def test_parameters_that_change_places_in_their_optimizer(self):
        """Whatever is restored by its place there would be another parameter's."""
        model = small()
        optimizer = torch.optim.SGD([{"params": [model[0].weight]}, {"params": [model[2].weight], "lr": 1e-4}], lr=0.1)
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        unchanged = protect.Unchanged(protected, protected.held())
        self.assertIsNone(unchanged.first_change())
        first, second = optimizer.param_groups
        first["params"], second["params"] = second["params"], first["params"]
        self.assertEqual("SGD: its parameter groups are others than before", unchanged.first_change())


class WrittenTest(unittest.TestCase):
    """What a script writes at the wrong time, and what it leaves for the next block."""

    def test_the_sentinel_names_what_was_written(self):
        model = small()
        sentinel = windows.Sentinel()
        sentinel.begin(list(model.named_parameters()))
        train(model, torch.optim.SGD(model.parameters(), lr=0.0), steps=0)
        model(torch.randn(8, 4)).sum().backward()
        self.assertIsNone(sentinel.end(), "forward and backward write no weights")
        sentinel.begin(list(model.named_parameters()))
        with torch.no_grad():
            model[2].weight.clamp_(-1, 1)
        self.assertEqual("2.weight", sentinel.end())
        self.assertIsNone(sentinel.end(), "nothing is watched any more")

    def test_an_optimizer_for_each_parameter(self):
        model = nn.Linear(2, 2)
        optimizers = [torch.optim.SGD([each], lr=0.1) for each in model.parameters()]
        protected, steps = protect.Protected(0, 1), []
        protected.add([model, *optimizers], None)
        watch = protect.OptimizerWatch(protected, lambda: steps.append(1))
        self.addCleanup(watch.close)
        with mock.patch.object(protect.Protected, "owns", side_effect=protected.owns) as searched:
            for _ in range(5):
                for optimizer in optimizers:
                    optimizer.step()
        self.assertEqual((10, 2), (len(steps), searched.call_count))
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        with self.assertRaisesRegex(pawl.Refused, "SGD changes weight, which is protected"):
            other.step()

    def test_left_gradients_are_read_in_part(self):
        model = nn.Linear(100, 100)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        protected, read = protect.Protected(0, 1), []
        protected.add([model, optimizer], None)
        holds = left_gradients.holds_something
        with mock.patch.object(left_gradients, "holds_something", side_effect=lambda gradient: (
                read.append(gradient.numel()), holds(gradient))[1]):
            for _ in range(2):
                model(torch.ones(1, 100)).sum().backward()
                self.assertEqual("weight", self.left(protected)[0])
        self.assertTrue(read)
        self.assertLess(max(read), 2 * left_gradients.SAMPLED)

    def test_gradients_that_the_next_block_adds_to(self):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        watch = protect.OptimizerWatch(protected, lambda: None)
        self.addCleanup(watch.close)
        backward = lambda: model(torch.randn(8, 4)).sum().backward()  # noqa: E731
        self.assertIsNone(protected.carried_gradient())
        backward()
        self.assertEqual(("0.weight", None), self.left(protected), "what the next block does is not known yet")
        backward()
        self.assertEqual(("0.weight", True), self.left(protected), "it has added to them")
        optimizer.step()
        self.assertIsNone(protected.carried_gradient(), "used, and left where they are")
        optimizer.zero_grad(set_to_none=False)
        self.assertIsNone(protected.carried_gradient(), "zeros add nothing")
        backward()
        self.assertEqual(("0.weight", True), self.left(protected))
        optimizer.zero_grad()
        self.assertIsNone(protected.carried_gradient())

    def left(self, protected):
        found = protected.carried_gradient()
        return found and (found.name, found.carries)

    def adversaries(self):
        """Two models: a block of theirs, which leaves gradients in the first, and how it drops them when it begins."""
        critic, maker = nn.Linear(4, 1), nn.Linear(4, 4)
        optimizers = [torch.optim.Adam(each.parameters()) for each in (critic, maker)]
        protected = protect.Protected(0, 1)
        protected.add([critic, maker, *optimizers], None)
        watch = protect.OptimizerWatch(protected, lambda: None)
        self.addCleanup(watch.close)

        def block(drop):
            drop(optimizers[0])
            (critic(torch.randn(8, 4)).mean() - critic(maker(torch.randn(8, 4)).detach()).mean()).backward()
            optimizers[0].step()
            optimizers[1].zero_grad()
            (-critic(maker(torch.randn(8, 4))).mean()).backward()
            optimizers[1].step()
        return protected, block

    def test_gradients_that_the_next_block_drops_are_harmless(self):
        for drop in (lambda each: each.zero_grad(), lambda each: each.zero_grad(set_to_none=False)):
            protected, block = self.adversaries()
            told = []
            protected.gradients.on_carried = told.append
            block(drop)
            self.assertEqual(("weight", None), self.left(protected))
            for _ in range(3):
                block(drop)
                self.assertIsNone(self.left(protected))
            protected.drop_gradients()
            block(drop)
            self.assertIsNone(self.left(protected), "that is known for good")
            self.assertEqual([], told)
            block(lambda _: None)
            self.assertEqual(["bias", "weight"], sorted(each.name for each in told))
            self.assertEqual(("weight", True), self.left(protected), "from now on it may happen again")

    def test_gradients_that_an_optimizer_uses_one_block_later(self):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        watch = protect.OptimizerWatch(protected, lambda: None)
        self.addCleanup(watch.close)
        model(torch.randn(8, 4)).sum().backward()
        self.assertEqual(("0.weight", None), self.left(protected))
        self.assertEqual(("0.weight", None), self.left(protected), "a block that does nothing shows nothing")
        for carries in (None, True):
            optimizer.step()
            optimizer.zero_grad()
            model(torch.randn(8, 4)).sum().backward()
            self.assertEqual(("0.weight", carries), self.left(protected))

    def used(self, how, blocks=5, seen=None, make=small):
        """Names that were told after each of some blocks of a script that does this with what was used."""
        model = make()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        watch = protect.OptimizerWatch(protected, lambda: None)
        self.addCleanup(watch.close)
        told, counts = [], []
        protected.gradients.on_carried = lambda left: told.append((left.name, left.step))
        with mock.patch.object(left_gradients, "holds_something", side_effect=left_gradients.holds_something) as reads:
            for block in range(1, blocks + 1):
                how(block, model, optimizer)
                left = protected.carried_gradient(block)
                counts.append((len(told), left is not None))
        if seen is not None:
            seen.append(reads.call_count)
        return told, counts

    def step(self, model, optimizer):
        model(torch.randn(8, 4)).sum().backward()
        optimizer.step()

    def test_used_gradients_that_the_next_block_adds_to(self):
        def each_second(block, model, optimizer):
            self.step(model, optimizer)
            if block % 2 == 0:
                optimizer.zero_grad()
        told, counts = self.used(each_second)
        self.assertEqual([("0.weight", 1)], told, "one of a group stands for all")
        self.assertEqual([(0, False), (1, False), (1, True), (1, False), (1, True)], counts)

        def scaled(_block, model, optimizer):
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(0.5)
            self.step(model, optimizer)
        self.assertEqual([(0, False), (1, True)], self.used(scaled, blocks=2)[1])

        def graph(_block, model, optimizer):
            model(torch.randn(8, 4)).sum().backward(create_graph=True)
            optimizer.step()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.assertEqual([(0, False), (1, True)], self.used(graph, blocks=2)[1])

    def test_used_gradients_that_an_optimizer_uses_again(self):
        def half(_block, model, optimizer):
            model[2].bias.grad = torch.ones(2) if model[2].bias.grad is None else model[2].bias.grad
            optimizer.step()
        self.assertEqual([(0, False), (1, True)], self.used(half, blocks=2)[1])

    def by_hand(self, write, gradient=torch.autograd.grad):
        """A script that computes gradients beside those of the parameters, and writes them there."""
        def block(number, model, optimizer):
            if number == 1:
                model(torch.randn(8, 4)).square().sum().backward()
                return optimizer.step()
            parameters = list(model.parameters())
            found = gradient(model(torch.randn(8, 4)).square().sum(), parameters)
            for parameter, each in zip(parameters, found, strict=True):
                write(parameter.grad, each)
            return optimizer.step()
        return block

    def test_used_gradients_that_a_script_overwrites(self):
        def each_sample(_block, model, optimizer, kept=0.0):
            parameters = list(model.parameters())
            sums = [torch.zeros_like(each) for each in parameters]
            for x in torch.randn(8, 40):
                found = torch.autograd.grad(model(x).square().sum(), parameters)
                norm = torch.stack([each.norm() for each in found]).norm()
                for one, each in zip(sums, found, strict=True):
                    one += each / max(1.0, norm)
            for parameter, each in zip(parameters, sums, strict=True):
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.copy_(kept * parameter.grad + each + 0.1 * torch.randn_like(each))
            optimizer.step()

        def linear():
            torch.manual_seed(1)
            return nn.Linear(40, 30)

        def put(gradient, new):
            gradient.data = new

        self.assertEqual(([], [(0, False)] * 5), self.used(each_sample, make=linear))
        for kept in (0.5, 0.9):
            momentum = functools.partial(each_sample, kept=kept)
            self.assertEqual(([("weight", 1)], [(0, False), (1, True)]), self.used(momentum, blocks=2, make=linear))
        for how in (self.by_hand(put), *(self.by_hand(write) for write in (
                lambda gradient, new: gradient.copy_(new), lambda gradient, new: gradient.copy_(new * 0.3),
                lambda gradient, new: gradient.data.copy_(new), lambda gradient, new: gradient.data.copy_(-2 * new),
                lambda gradient, new: gradient.copy_(new + 0.1 * torch.randn_like(new))))):
            with self.subTest(how=how):
                self.assertEqual(([], [(0, False)] * 5), self.used(how))

    def test_used_gradients_that_a_script_adds_to(self):
        for write in (lambda gradient, new: gradient.add_(new), lambda gradient, new: gradient.mul_(0.9).add_(new),
                      lambda gradient, new: gradient.data.add_(new), lambda gradient, new: gradient.mul_(1.0),
                      lambda gradient, new: gradient.add_(new.sign()), lambda gradient, new: gradient.add_(
                          new.clamp(-1, 1)),
                      lambda gradient, new: gradient.mul_(0.9).add_(new + 0.3 * torch.randn_like(new)),
                      lambda gradient, new: gradient.mul_(0.3).add_(new * torch.rand_like(new)),
                      lambda gradient, new: None):
            self.assertEqual([(0, False), (1, True)], self.used(self.by_hand(write), blocks=2)[1])

        def decayed(number, model, optimizer):
            def write(gradient, new):
                parameter = next(each for each in model.parameters() if each.grad is gradient)
                gradient.mul_(0.9).add_(new + 1e-2 * parameter.detach())
            self.by_hand(write)(number, model, optimizer)
        self.assertEqual([(0, False), (1, True)], self.used(decayed, blocks=2)[1])

        def both(block, model, optimizer):
            if block > 1:
                torch.autograd.grad(model(torch.randn(8, 4)).sum(), list(model.parameters()))
            self.step(model, optimizer)
        self.assertEqual([(0, False), (1, True)], self.used(both, blocks=2)[1])

    def test_what_a_gradient_is_made_of(self):
        torch.manual_seed(1)
        made, one, other = left_gradients._is_made_of, torch.randn(64), torch.randn(64)
        for kind in (torch.float32, torch.bfloat16):
            old, new = one.to(kind), other.to(kind)
            for now, expected in ((old, True), (new, False), (0.25 * new, False), (old + new, True), (old - new, True),
                                  (0.5 * old + 3 * new, True), (torch.randn(64).to(kind), False),
                                  (torch.zeros(64, dtype=kind), False), (old * float("nan"), False),
                                  (0.9 * old + new.sign(), True), (old + new.clamp(-1, 1), True),
                                  (0.9 * old + new * torch.rand(64).to(kind), True), (0.5 * old + 0.01 * new, True),
                                  (new.sign(), False), (new * torch.rand(64).to(kind), False)):
                self.assertEqual(expected, made(now, old, new))
            constant = [made(each, 2 * new, new) for each in (new, 3 * new)]
            self.assertEqual([False, True], constant, "a constant gradient")
            self.assertEqual([True, False], [made(each, old, None) for each in (old, new)])
        self.assertTrue(made(None, one, other))
        self.assertTrue(made(one, None, other))
        self.assertFalse(made(other[:2], one[:2], other[:2]))
        self.assertTrue(made(torch.randn(2), one[:2], other[:2]), "too few to tell")
        self.assertTrue(made(0.7 * one + torch.randn(64), one, None))

    def test_used_gradients_that_are_dropped_are_harmless(self):
        def top(_block, model, optimizer):
            optimizer.zero_grad()
            self.step(model, optimizer)

        def in_place(block, model, optimizer):
            model.zero_grad(set_to_none=block == 4)
            self.step(model, optimizer)

        def closure(_block, model, optimizer):
            def compute():
                optimizer.zero_grad(set_to_none=False)
                loss = model(torch.randn(8, 4)).sum()
                loss.backward()
                return loss
            optimizer.step(compute)

        def assigned(_block, model, optimizer):
            found = torch.autograd.grad(model(torch.randn(8, 4)).sum(), list(model.parameters()))
            for parameter, gradient in zip(model.parameters(), found, strict=True):
                parameter.grad = gradient
            optimizer.step()

        def copied(_block, model, optimizer):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter) if parameter.grad is None else parameter.grad.fill_(2)
            optimizer.step()

        def followed(_block, model, optimizer):
            parameters = list(model.parameters())
            inner = torch.autograd.grad(model(torch.randn(8, 4)).square().sum(), parameters, create_graph=True)
            optimizer.zero_grad(set_to_none=False)
            (model(torch.randn(8, 4)).sum() + sum(each.square().sum() for each in inner)).backward()
            optimizer.step()

        def generator_first(block, model, optimizer):
            model(torch.randn(8, 4)).sum().backward()  # as of a loss that goes through it to another
            if block % 3 == 0:
                return
            optimizer.zero_grad(set_to_none=False)
            self.step(model, optimizer)
        seen = []
        for how in (top, in_place, closure, assigned, copied, followed):
            with self.subTest(how=how.__name__):
                self.assertEqual(([], [(0, False)] * 5), self.used(how, seen=seen))
        self.assertEqual(0, seen[0], "what is dropped as torch does it is never read")
        told, counts = self.used(generator_first, blocks=7)
        self.assertEqual([], told)
        self.assertEqual([(0, step % 3 == 0) for step in range(1, 8)], counts, "those that nobody has used count apart")

    def test_sparse_gradients(self):
        table = nn.Embedding(5, 2, sparse=True)
        self.assertFalse(left_gradients.holds_something(torch.zeros(5, 2).to_sparse()))
        table(torch.tensor([1, 1])).sum().backward()
        self.assertTrue(left_gradients.holds_something(table.weight.grad))

    def test_which_parameters_have_a_gradient_is_kept(self):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        protected.declared(protected.held())
        part = protected.gradients_part()
        model[0].weight.grad = torch.ones(6, 4)
        saved = part.save()
        protected.drop_gradients()
        part.load(saved)
        self.assertEqual(0.0, model[0].weight.grad.sum().item())
        self.assertIsNone(model[0].bias.grad)

    def test_state_that_is_not_there_yet_has_its_place(self):
        model = small()
        optimizer = torch.optim.AdamW(model.parameters())
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        held = protected.held()
        protected.declared(held)
        unchanged = protect.Unchanged(protected, held)
        self.assertIn(("0.weight", "exp_avg"), [(each.name, each.role) for each in held])
        self.assertFalse(optimizer.state)
        part = next(each for each in protected.parts if each.name == "optimizer0")
        before = part.save()
        train(model, optimizer)
        self.assertIsNone(unchanged.first_change())
        self.assertEqual(3 * 6, len(unchanged.moved()), "exp_avg, exp_avg_sq and step")
        there = part.save()
        part.load(before)
        self.assertFalse(optimizer.state, "gone again, as it was")
        part.load(there)
        place = next(each for each in held if (each.name, each.role) == ("0.weight", "exp_avg"))
        self.assertIs(place.tensor, optimizer.state[model[0].weight]["exp_avg"])
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        self.assertIsNone(unchanged.first_change())
        self.assertEqual(3 * 6, len(unchanged.moved()), "other tensors now")
        optimizer.state[model[0].weight]["late"] = torch.zeros(3)
        self.assertIn("optimizer state of 0.weight appeared (late)", unchanged.first_change())

    def test_every_trainable_parameter_needs_an_optimizer(self):
        model, average = small(), small()
        protected = protect.Protected(0, 1)
        protected.add([model], None)
        with self.assertRaisesRegex(pawl.Refused, "0.weight is trainable, but no protected optimizer has it, and 5"):
            protected.refuse_unready()
        protected.add([torch.optim.SGD(model.parameters(), lr=0.1), average], None)
        protected.refuse_unready()
        average(torch.randn(8, 4)).sum().backward()
        self.assertIn("module1.", protected.trained_without)


class Calls:
    """A libpawl that notes what it is called for."""

    def __init__(self):
        self.calls, self.failing = [], None

    def __getattr__(self, name):
        def call(*_, **__):
            self.calls.append(name)
            if name == self.failing:
                raise pawl.errors.Recover("a peer died")
            captured = "window_open" in self.calls
            return types.SimpleNamespace(captured=captured, written=None) if name == "fence" else None
        return call


class WindowTest(unittest.TestCase):
    """When a managed job opens a window and closes it, over a libpawl that does nothing."""

    def job(self):
        job = object.__new__(managed.ManagedJob)
        job._trainer, job._protected = Calls(), protect.Protected(0, 1)
        job.model = small()
        job.optimizer = torch.optim.SGD(job.model.parameters(), lr=0.1, momentum=0.9)
        job._protected.add([job.model, job.optimizer], None)
        train(job.model, job.optimizer)
        job.optimizer.zero_grad()
        self.windows = windows.Windows(job._trainer, script_exit.say)
        job._losses, job._member = losses.Losses(job._trainer), types.SimpleNamespace(late=False)
        job._state = declared_state.DeclaredState(job._trainer, job._protected, self.windows, 0, list,
                                                  lambda: job._done)
        job._captured = captured_steps.CapturedSteps(job._protected, job._state, self.windows, job._losses,
                                                     mock.Mock(), lambda: job._done)
        job._state.seal(Calls())
        job._witness = witness.Witness()
        job._captured.due = True
        job._updated = False
        job._done, job._first_done, job._inside = 4, 0, None
        job._trainer.calls = []
        return job

    def write(self, job):
        with torch.no_grad():
            job.model[0].weight.clamp_(-0.01, 0.01)

    def test_a_write_before_a_block_that_ends_without_a_fence(self):
        job = self.job()
        job._begin(5)
        self.write(job)
        job._trainer.calls = []
        job._captured.end(quiet=False)
        self.assertEqual(["window_void"], job._trainer.calls, "later processes shall know it, too")
        self.assertEqual([4], list(self.windows.torn))

    def test_a_write_at_the_loops_top_waits_from_then_on(self):
        job = self.job()
        job._begin(5)
        self.assertEqual(["window_open", "step_begin", "progress"], job._trainer.calls)
        self.write(job)
        job._close_window()
        self.assertEqual([4], list(self.windows.torn))
        self.assertIn("0.weight was written while that step was copied", self.windows.torn[4])
        job._done, job._captured.due, job._trainer.calls = 5, True, []
        job._captured.enter_block()
        job._begin(6)
        self.assertEqual(["window_open", "step_begin", "fence", "progress"], job._trainer.calls)
        self.write(job)
        job._close_window()
        self.assertEqual([4], list(self.windows.torn), "that one was copied before")

    def test_each_window_that_was_written_is_known(self):
        job = self.job()
        job._begin(5)
        self.windows.early_writer = "another"
        self.write(job)
        job._captured.end(quiet=False)
        self.assertEqual([4], list(self.windows.torn))

    def test_a_gradient_that_is_added_to_for_the_first_time_ends_the_window(self):
        job = self.job()
        job.model(torch.randn(8, 4)).sum().backward()  # a block's, after which the optimizer steps
        job.optimizer.step()
        job._protected.gradients.used(job.optimizer)
        job._begin(5)
        job._trainer.calls = []
        job.model(torch.randn(8, 4)).sum().backward()
        job._protected.gradients.about_to_step(job.optimizer)
        self.assertEqual(["window_void"], job._trainer.calls, "not sealed, it is the step before that counts")
        self.assertEqual([4], list(self.windows.torn))
        with self.assertRaisesRegex(pawl.Refused, "step 4 can't be restored: gradients of 0.weight"):
            job._captured.refuse_torn(4)

    def test_writes_at_the_loops_top_are_seen_before_the_seal(self):
        job = self.job()
        job._state.sealed, job._done, job._captured.due = False, 1, False
        job._begin(2)
        self.write(job)
        job._close_window()
        self.assertEqual("0.weight", self.windows.early_writer)
        self.assertEqual({}, self.windows.torn)


    def test_the_last_window_is_opened_after_a_break_at_the_loops_top(self):
        job = self.job()
        job.model(torch.randn(8, 4)).sum().backward()
        job._begin(5)
        self.assertNotIn("window_open", job._trainer.calls)
        job._captured.open(last=True)
        self.assertIn("window_open", job._trainer.calls)

    def test_a_stop_in_a_lost_step_is_not_meant(self):
        job = self.job()
        job._losses.lost_by = "a peer died"
        job.stop()
        self.assertEqual([], job._trainer.calls)
        job._losses.lost_by = None
        job._trainer.interrupted = lambda: False
        job.stop()
        self.assertEqual(["stop_after"], job._trainer.calls)

    def test_a_checkpoint_is_asked_for_where_the_job_writes_them(self):
        job = self.job()
        self.assertFalse(job.checkpoint())
        with mock.patch.dict(os.environ, {"PAWL_CHECKPOINT": "/c"}):
            job._losses.lost_by = "a peer died"
            self.assertTrue(job.checkpoint())
            self.assertEqual([], job._trainer.calls, "the step is done again, and asks again")
            job._losses.lost_by = None
            job._trainer.interrupted = lambda: False
            self.assertTrue(job.checkpoint())
        self.assertEqual(["persist"], job._trainer.calls)


class CommitActsTest(unittest.TestCase):
    def test_once_for_a_step_and_at_least_once_for_each(self):
        seen, of_steps = [], []
        acts = commit_acts.CommitActs([seen.append])
        acts.skip_to(2)
        for step in (3, 4, 5):
            acts.add(step, lambda step=step: of_steps.append(step))
        acts.act(3)
        acts.act(3)
        self.assertEqual(([3], [3]), (seen, of_steps))
        acts.drop_after(4)  # the fifth is lost, and done again
        acts.act(5)
        self.assertEqual(([3, 4, 5], [3, 4]), (seen, of_steps))
        successor = commit_acts.CommitActs([seen.append])
        successor.part().load(acts.part().save())
        successor.act(6)
        self.assertEqual([3, 4, 5, 6], seen)


class LossesTest(unittest.TestCase):
    def test_what_was_noted_first(self):
        lost = losses.Losses(Calls())
        self.assertFalse(lost.noted() or lost.failure() or lost.recovery_due())
        lost.note(pawl.errors.Stop("the job ends"))
        self.assertEqual("the job ends", lost.failure())
        self.assertFalse(lost.recovery_due())
        lost.note(pawl.errors.Recover("a peer died"))
        self.assertTrue(lost.recovery_due())


class RefusedTest(unittest.TestCase):
    def refuse(self, words, *things, world=1):
        with self.assertRaisesRegex(pawl.Refused, words):
            protected = protect.Protected(0, world)
            protected.add(things, None)
            protected.held()

    def test_what_cannot_be_protected_yet(self):
        data = torch.utils.data.TensorDataset(torch.zeros(10, 1))
        loader = torch.utils.data.DataLoader
        self.refuse("an IterableDataset", loader(Endless(), batch_size=2))
        self.refuse("protect its DataLoader", torch.utils.data.RandomSampler(data))
        self.refuse("has no name", torch.zeros(3))
        self.refuse("no state that pawl knows", 3)
        self.refuse("0.weight.*gaps", self.with_gaps())
        self.refuse("turned.*resolve_conj", Turning(torch.ones(2, dtype=torch.complex64).conj()))
        self.refuse("meta", nn.Linear(2, 2, device="meta"))

    def test_a_buffer_that_becomes_a_lazy_conjugate(self):
        model = Turning(torch.full((2,), 1 + 2j))
        protected = protect.Protected(0, 1)
        protected.add([model], None)
        unchanged = protect.Unchanged(protected, protected.held())
        model.turned = model.turned * 1
        self.assertEqual(len(unchanged.moved()), 1)
        model.turned = model.turned.conj()
        with self.assertRaisesRegex(pawl.Refused, "turned.*lazy conjugate"):
            unchanged.moved()

    def with_gaps(self):
        model = small()
        model[0].weight = nn.Parameter(torch.zeros(6, 8)[:, ::2])
        return model

    def test_sharded_models(self):
        with one_process_group():
            from torch.distributed.fsdp import FullyShardedDataParallel
            self.refuse("FSDP1", FullyShardedDataParallel(small(), device_id=torch.device("cpu")))
            from torch.distributed.tensor import DeviceMesh, DTensor, Partial
            plain = nn.Linear(2, 2)
            part = DTensor.from_local(plain.weight.data, DeviceMesh("cpu", [0]), [Partial()])
            plain.weight = nn.Parameter(part)
            self.refuse("weight .weight. is a DTensor placed as P.*: no rank has its value", plain)

    def test_a_loader_with_workers_on_the_sampler(self):
        data = torch.utils.data.TensorDataset(torch.zeros(10, 1))
        sampler = pawl.ElasticSampler(data, 2, rank=0, world=1)
        with self.assertRaisesRegex(pawl.Refused, "2 workers"):
            next(iter(torch.utils.data.DataLoader(data, batch_sampler=sampler, num_workers=2)))


class RootTest(unittest.TestCase):
    def setUp(self):
        from pawl import sharded
        if not sharded_here():
            self.skipTest("FSDP2 can't compute on CPUs with this PyTorch")
        self.sharded = sharded
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        self.addCleanup(torch.distributed.destroy_process_group)

    def made(self):
        from torch.distributed.fsdp import fully_shard
        mesh = torch.distributed.init_device_mesh("cpu", (1,))
        model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
        fully_shard(model[0], mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def held_on(self, *axes):
        from torch.distributed.fsdp import fully_shard
        mesh = torch.distributed.init_device_mesh("cpu", (1,) * len(axes), mesh_dim_names=axes)
        model = fully_shard(nn.Linear(2, 2), mesh=mesh)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], None)
        return {(held.name, held.role): held for held in protected.held()}

    def test_replicas_of_shards_are_equal_along_their_axis_with_all_that_the_optimizer_keeps(self):
        held = self.held_on("replicas", "shards")
        self.assertEqual({"weight", "exp_avg", "exp_avg_sq", "step"}, {role for _, role in held})
        for each in held.values():
            self.assertEqual((1, (("replicas", 1), ("shards", 1))), (each.equal_axes, each.axes), each.role)
        for each in self.held_on("shards").values():
            self.assertEqual(0, each.equal_axes, each.role)

    def after_forward(self, model):
        model(torch.ones(1, 2)).sum().backward()
        return self.sharded.switches(self.sharded.modules_in(model))["after_forward"]

    def test_one_that_first_ran_in_a_lost_step_is_as_on_a_newcomer(self):
        survivor, newcomer = self.made(), self.made()
        modules = self.sharded.modules_in(survivor)
        saved = self.sharded.switches(modules)
        self.after_forward(survivor)
        self.sharded.reset(modules)
        self.sharded.put_switches_back(modules, saved)
        self.sharded.put_switches_back(self.sharded.modules_in(newcomer), saved)
        self.assertEqual(self.after_forward(survivor), self.after_forward(newcomer))


class ZeroTest(unittest.TestCase):
    def test_state_is_unique_and_scalars_are_those_inside_too(self):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        with one_process_group():
            model = nn.parallel.DistributedDataParallel(small())
            optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.5)
            train(model, optimizer)
            protected = protect.Protected(0, 1)
            protected.add([model, optimizer], None)
            held = {(held.name, held.role): held for held in protected.held()}
            self.assertEqual(_library.Placement.UNIQUE, held["0.weight", "exp_avg"].placement)
            self.assertTrue(protected.owns(optimizer.optim))
            part = volatile_state.optimizer_part("zero", optimizer, lambda *_: None)
            saved = tagged_values.loads(tagged_values.dumps("zero", part.save()))
            optimizer.param_groups[0]["lr"] = optimizer.optim.param_groups[0]["lr"] = 9.0
            part.load(saved)
            self.assertEqual([0.5, 0.5], [optimizer.param_groups[0]["lr"], optimizer.optim.param_groups[0]["lr"]])

            optimizer.param_groups[0]["lr"] = optimizer.optim.param_groups[0]["lr"] = 9.0
            elsewhere = {**saved, "state": saved["state"] * 3}  # another world has other partitions
            part.load_elsewhere(elsewhere)
            self.assertEqual([0.5, 0.5], [optimizer.param_groups[0]["lr"], optimizer.optim.param_groups[0]["lr"]])
            self.assertEqual(6, len(optimizer.optim.state), "the tensors are this rank's own")
            with self.assertRaisesRegex(pawl.Refused, "numbers that are no tensors"):
                part.load_elsewhere({**saved, "state": [[0, {"step": 3}]]})


class StateTest(unittest.TestCase):
    def round_trip(self, part, change):
        saved = volatile_state.VolatileState([part]).save()
        change()
        volatile_state.VolatileState([part]).load(saved)

    def test_a_kind_of_array_is_refused(self):
        for strange in (numpy.ma.masked_array([1, 2], [True, False]), numpy.zeros(3).view(numpy.recarray)):
            with self.assertRaisesRegex(pawl.Refused, "kind of array that has no form"):
                volatile_state.object_part("state0", {"seen": strange})

    def test_every_generator(self):
        import random

        draws = [lambda: torch.rand(3).tolist(), random.random, lambda: numpy.random.rand(3).tolist()]
        part = volatile_state.Part("random", volatile_state.save_random, volatile_state.load_random)
        saved = volatile_state.VolatileState([part]).save()
        first = [draw() for draw in draws]
        volatile_state.VolatileState([part]).load(saved)
        self.assertEqual(first, [draw() for draw in draws])

    def test_named_generators(self):
        import random

        torchs, own, numpys = torch.Generator().manual_seed(3), random.Random(3), numpy.random.default_rng(3)
        for thing, draw in ((torchs, lambda: torch.rand(2, generator=torchs).tolist()), (own, own.random),
                            (numpys, lambda: numpys.random(2).tolist())):
            part = volatile_state.object_part("generator", thing)
            seen = []
            self.round_trip(part, lambda seen=seen, draw=draw: seen.append(draw()))
            self.assertEqual(seen[0], draw())

    def test_variables_are_changed_where_they_are(self):
        inner, tensor, row, names = {"best": 1.5}, torch.ones(3), [1, {"deep": 2}], {"a", "b"}
        outer = {"inner": inner, "tensor": tensor, "row": row, "names": names, "number": 7}

        def change():
            inner["best"], inner["new"] = 9, 9
            tensor.zero_()
            row[1]["deep"] = 5
            row.append(3)
            names.add("c")
            outer["number"] = 8
            outer["late"] = 1
        self.round_trip(volatile_state.object_part("state", outer), change)
        self.assertEqual({"best": 1.5}, inner)
        self.assertEqual([1.0] * 3, tensor.tolist())
        self.assertEqual([1, {"deep": 2}], row)
        self.assertEqual({"a", "b"}, names)
        self.assertEqual(7, outer["number"])
        self.assertNotIn("late", outer)
        self.assertIs(inner, outer["inner"])

    def test_what_has_no_form_is_named_when_it_is_protected(self):
        point = collections.namedtuple("Point", "x")
        with open(os.devnull, encoding="utf-8") as file:
            for strange in (file, len, point(1), object()):
                with self.assertRaisesRegex(pawl.Refused, r"state0\['kept'\]\[0\] is a .*, which can't be kept"):
                    protect.Protected(0, 1).add([], {"kept": [strange]})

    def test_attributes_are_put_back_in_the_same_object(self):
        class Best:
            def __init__(self):
                self.loss, self.weights = 1.5, {"a": torch.ones(2)}
        best = Best()
        weights = best.weights["a"]

        def change():
            best.loss = 9
            weights.zero_()
            best.later = 1
        self.round_trip(volatile_state.object_part("state", {"best": best}), change)
        self.assertEqual((1.5, [1.0, 1.0], False), (best.loss, weights.tolist(), hasattr(best, "later")))

    def restored(self, make, change):
        """(what a new process has, what this one has after a loss) of a state that was changed and saved."""
        here, there = make(), make()
        part, new = volatile_state.object_part("state0", here), volatile_state.object_part("state0", there)
        change(here)
        saved = volatile_state.VolatileState([part]).save()
        here.clear()
        volatile_state.VolatileState([part]).load(saved)
        volatile_state.VolatileState([new]).load(saved)
        return there, here

    def test_objects_that_come_later_are_made_anew(self):
        def change(state):
            state["best"] = Score(1.5)
            state["all"].append(Score(2.5))
            state["step"] = pawl.job.Step(5, None)
        for found in self.restored(lambda: {"best": None, "all": []}, change):
            self.assertEqual((Score(1.5), [Score(2.5)], 5, int),
                             (found["best"], found["all"], found["step"], type(found["step"])))

    def test_what_cannot_be_made_anew_is_refused_when_it_is_saved(self):
        class Local:
            def __init__(self):
                self.loss = 1.0
        for late in (Local(), Reduced(), Slotted(), torch.Generator(), collections.defaultdict(int)):
            state = {"rows": [], "kept": Local()}
            part = volatile_state.object_part("state0", state)
            part.save()
            state["rows"].append(late)
            with self.assertRaisesRegex(pawl.Refused, r"state0\['rows'\]\[0\] is a \w*.*was not there when"):
                part.save()

    def test_only_loaded_classes_that_are_their_attributes_are_made(self):
        for path in (["subprocess", "Popen"], ["nowhere", "Score"], [__name__, "Reduced"], ["os", "system"]):
            part = volatile_state.object_part("state0", {"best": None})
            with self.assertRaisesRegex(pawl.Refused, "which this process doesn't know"):
                part.load({"dict": {"best": {"attributes": [path, {}]}}})

    def test_two_names_for_one_object(self):
        for make in (lambda loss: Score(loss), lambda loss: {"loss": loss}, lambda loss: [loss],
                     lambda loss: torch.tensor(loss)):
            state = {"best": make(1.0), "now": make(2.0)}
            part = volatile_state.object_part("state0", state)
            saved = tagged_values.loads(tagged_values.dumps("", part.save()))
            state["best"] = state["now"]
            together = tagged_values.loads(tagged_values.dumps("", part.save()))
            part.load(saved)
            self.assertEqual((make(1.0), make(2.0)), (state["best"], state["now"]))
            part.load(together)
            self.assertEqual(make(2.0), state["now"])
            self.assertIs(state["best"], state["now"])

    def test_arrays_and_queues_are_changed_where_they_are(self):
        row, recent = numpy.zeros(2), collections.deque([1.0], 3)

        def change():
            row[:] = 5
            recent.append(2.0)
        self.round_trip(volatile_state.object_part("state", {"row": row, "recent": recent}), change)
        self.assertEqual(([0.0, 0.0], [1.0]), (row.tolist(), list(recent)))

    def test_schedulers_have_a_form(self):
        schedulers = torch.optim.lr_scheduler
        optimizer = torch.optim.SGD(small().parameters(), lr=0.1, momentum=0.9)
        for make in (lambda: schedulers.LambdaLR(optimizer, lambda _: 1.0),
                     lambda: schedulers.ReduceLROnPlateau(optimizer),
                     lambda: schedulers.OneCycleLR(optimizer, 0.1, total_steps=9),
                     lambda: schedulers.CyclicLR(optimizer, 0.1, 0.2),
                     lambda: schedulers.SequentialLR(optimizer, [schedulers.ConstantLR(optimizer),
                                                                 schedulers.StepLR(optimizer, 3)], [2])):
            protect.Protected(0, 1).add([make()], None)

    def test_what_outgrows_its_room_is_said_once(self):
        history, said = [0.5] * 10, []
        state = volatile_state.VolatileState([volatile_state.object_part("history", history)], said.append)
        self.assertIsNotNone(state.save_within(2000))
        history += torch.rand(1000, dtype=torch.float64).tolist()
        self.assertIsNone(state.save_within(2000))
        history.append(0.5)
        self.assertIsNone(state.save_within(2000))
        self.assertEqual(1, len(said))
        self.assertRegex(said[0], "protection stands still.*there is room for 2000.*the largest is history")
        state.ending = True
        note = state.save_within(2000).joined()
        with self.assertRaisesRegex(pawl.Refused, "the last step's state can't be restored: .*room for 2000"):
            state.load(note)

    def test_what_outgrows_its_room_is_named_within_what_holds_it(self):
        held, said = {"small": 1, "deep": [{"batch": torch.zeros(4096)}]}, []
        state = volatile_state.VolatileState([volatile_state.object_part("state0", held)], said.append)
        self.assertIsNone(state.save_within(9000))
        self.assertIn("the largest is state0['deep'][0]['batch'], 16", said[0])
        held["deep"][0]["batch"] = torch.zeros(1024)
        self.assertIsNotNone(state.save_within(9000))
        self.assertEqual(1, len(said))

    def test_tensors_of_any_shape_lie_beside_the_rest(self):
        x = torch.arange(6000.0)
        state = {"x": x, "turned": torch.rand(80, 90).t(), "view": x[10:5000:2], "none": torch.empty(0, 5)}
        part = volatile_state.object_part("state0", state)
        room = volatile_state.room_for([part], 4096)
        pieces = volatile_state.VolatileState([part]).save_within(room)
        self.assertLess(sum(each.nbytes for each in state.values()), len(pieces))
        self.assertLess(len(pieces.head), 1024, "not as text")
        self.assertLess(len(pieces), room)
        saved, before = pieces.joined(), {key: value.clone() for key, value in state.items()}
        x.zero_()
        state["turned"], state["none"] = torch.zeros(3), None
        volatile_state.VolatileState([part]).load(saved)
        self.assertIs(x, state["x"])
        for key, value in before.items():
            self.assertTrue(torch.equal(value, state[key]), key)

    def test_room_is_the_same_for_sizes_that_differ_little(self):
        def room(count):
            return volatile_state.room_for([volatile_state.object_part("s", {"x": torch.zeros(count)})], 1 << 18)
        self.assertEqual(1 << 18, room(3))
        self.assertEqual(room(15 << 20), room((15 << 20) - (300 << 10)))
        self.assertLess(room(15 << 20), (60 << 20) * 1.2)
        self.assertGreater(room(15 << 20), (60 << 20) * 1.05)


class TaggedValuesTest(unittest.TestCase):
    def test_there_and_back(self):
        values = {"int": 1 << 127, "floats": [0.1 * i for i in range(20)], "odd": [float("inf"), -0.0], "none": None,
                  "tuple": (1, ("x",)), "set": {1}, "frozen": frozenset({2}), "bytes": b"x", "array": bytearray(b"y"),
                  "deque": collections.deque([1], 3), "ordered": collections.OrderedDict(a=1), 3: "a number's",
                  "counter": collections.Counter("aab"), "numpy": numpy.arange(3), "scalar": numpy.float32(1.5),
                  "complex": 1 - 0j, "range": range(3), "size": torch.Size([1, 2]), "dtype": torch.bfloat16,
                  "tensor": torch.rand(3).bfloat16(), "empty": torch.empty(0, 3), "pawl:type": "a key of the user's"}
        found = tagged_values.loads(tagged_values.dumps("state", values))
        self.assertEqual(list(values), list(found))
        for key, value in values.items():
            self.assertIs(type(value), type(found[key]), key)
            self.assertEqual(repr(value), repr(found[key]), key)

    def test_tensors_come_back_as_the_script_had_them(self):
        def there_and_back(value):
            pieces = tagged_values.Pieces()
            pieces.finish(tagged_values.Writer(pieces).to_json("state", value))
            return tagged_values.load_pieces(pieces.joined())

        for size in (3, 2048):
            leaf, turned = torch.rand(size).requires_grad_(), torch.rand(size, dtype=torch.complex64).conj()
            found = there_and_back({"leaf": leaf, "turned": turned, "plain": leaf.detach()})
            self.assertTrue(found["leaf"].requires_grad and found["leaf"].is_leaf)
            self.assertFalse(found["plain"].requires_grad)
            self.assertTrue(torch.equal(turned, found["turned"]))

    def test_of_a_checkpoint_kinds_are_plain(self):
        writer = tagged_values.Writer(kinds_as_they_are=False)
        pair = collections.namedtuple("Pair", "a b")(1, 2.0)
        given = {"seen": collections.defaultdict(int, x=1), "pair": pair}
        found = tagged_values.from_json(writer.to_json("state", given))
        self.assertEqual({"seen": {"x": 1}, "pair": (1, 2.0)}, found)
        with self.assertRaises(pawl.Refused):
            tagged_values.dumps("state", pair)

    def test_what_holds_itself(self):
        ring = []
        ring.append(ring)
        with self.assertRaisesRegex(pawl.Refused, "levels deep"):
            tagged_values.dumps("state", ring)

    def test_nothing_is_executed_or_guessed(self):
        for wrong in (pickle.dumps(1), b"", tagged_values.pack({"pawl:type": "call", "of": "os.system"}),
                      tagged_values.pack({"pawl:type": "tensor", "dtype": "load", "shape": [1], "base64": "AAAA"}),
                      tagged_values.pack({"pawl:type": "array", "dtype": "|O", "shape": [1], "base64": "AAAAAAAAAAA="}),
                      tagged_values.pack({"pawl:type": "tuple"})):
            with self.assertRaises(pawl.Refused):
                tagged_values.loads(wrong)

    def test_pieces_that_are_damaged(self):
        pieces = tagged_values.Pieces()
        good = pieces.finish(tagged_values.Writer(pieces).to_json("", {"x": torch.ones(2000)})).joined()
        self.assertEqual(2000.0, tagged_values.load_pieces(good)["x"].sum().item())
        for wrong in (good[:-64], b"", b"x" * 99, good[:20], b"y" + good[1:]):
            with self.assertRaises(pawl.Refused):
                tagged_values.load_pieces(wrong)


class LookAroundTest(unittest.TestCase):
    def test_what_the_loop_carries_is_told_once(self):
        said = []
        plain = job_module.Job(0, 1, 0, torch.device("cpu"))
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        average, best, data, drawn = torch.zeros(3), 9.0, torch.ones(4), torch.zeros(2)
        protected_too = {"seen": 0, "drawn": drawn}
        protected = protect.Protected(0, 1)
        protected.add([model, optimizer], protected_too)
        around = look_around.LookAround(protected, said.append)
        around.add([model, optimizer], protected_too)
        job_module.observe_steps(around)
        self.addCleanup(job_module.observe_steps, None)
        protected.bind_variables(sys._getframe())
        for step in plain.steps(5):
            points = torch.full((2, 4), float(step))  # of this step alone
            if step % 2:
                kept = points
            with step:
                average += drawn.sum() + points.sum() + kept.sum()
                drawn = torch.full((2,), float(step))  # another tensor, for which the entry stands
                loss = model(torch.ones(2, 4)).sum() * data.mean()  # written before it is read
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                average += 0.1
                best -= 1.0
                protected_too["seen"] += 1
        self.assertEqual(1, len([words for words in said if "average" in words]), said)
        self.assertIn("average (tensor float32[3])", said[0])
        self.assertIn("best (", said[0])
        self.assertIn("kept (", said[0])
        for harmless in ("loss", "data", "protected_too", "model", "optimizer", "step (", "drawn", "points"):
            self.assertNotIn(harmless, said[0].partition(". What")[0])


    def looking(self, protected=None):
        """(one who looks, what it says)"""
        said = []
        around = look_around.LookAround(protected or protect.Protected(0, 1), said.append)
        job_module.observe_steps(around)
        self.addCleanup(job_module.observe_steps, None)
        return around, said

    def test_what_first_changes_later(self):
        around, said = self.looking()
        plain = pawl.Job(0, 1, 0, torch.device("cpu"))
        plain._place = types.SimpleNamespace(epoch=0)
        rate, patience, seen, told = 1.0, 3, 0, {}
        for step in plain.steps(40):
            with step:
                self.assertLess(rate - patience - seen, 9)
            if said:
                told[int(step)] = said.pop()
            if step == 5:
                rate /= 4
                plain._place.epoch = 1
            if step == 9:
                with plain.aside():
                    patience -= 1
                around.aside()  # as a job under pawl does it
            if step == 12:
                seen += 1
        self.assertEqual({6: "rate (0.25)", 10: "patience (2)", 16: "seen (1)"},
                         {step: words.partition("protected: ")[2].partition(". What")[0]
                          for step, words in told.items()})

    def test_what_is_too_large_to_be_read_is_not_told(self):
        _, said = self.looking()
        plain, rows, patience = pawl.Job(0, 1, 0, torch.device("cpu")), [numpy.zeros(1 << 18) for _ in range(70)], 9
        for step in plain.steps(4):
            with step:
                rows[0] += 1
                patience -= 1
        self.assertIn("protected: patience (7). What", said[0])

    def test_looks_end(self):
        for ends_after, count in ((None, look_around.LOOKS_MAX), (10, 9)):
            around, _ = self.looking()
            around._look = lambda _loop: None
            plain = pawl.Job(0, 1, 0, torch.device("cpu"))
            for step in plain.steps(201):
                around.aside()
                with step:
                    pass
                if step == ends_after:
                    around.end()  # as after a loss
            self.assertEqual(count, around._looks)

    def test_what_matters_is_told_first_and_by_object(self):
        class AverageMeter:
            def __init__(self):
                self.sum, self.count, self.avg = 0.0, 0, 0.0

        class Stopper:
            def __init__(self):
                self.patience, self.best = 9, 9.0
        _, said = self.looking()
        a, b, c, d, e, f, g, h = meters = [AverageMeter() for _ in range(8)]
        stopper, train_loss, rate, notes = Stopper(), 0.0, 1.0, {"x": 1, "y": 2}
        plain = pawl.Job(0, 1, 0, torch.device("cpu"))
        for step in plain.steps(4):
            with step:
                for meter in (a, b, c, d, e, f, g, h, *meters):
                    meter.sum, meter.count, meter.avg = meter.sum + 1.0, meter.count + 1, meter.avg + 1.0
                stopper.patience, stopper.best = stopper.patience - 1, stopper.best - 1.0
                train_loss, rate = train_loss + 1.0, rate / 2
                notes["x"], notes["y"] = notes["x"] + 1, notes["y"] + 1
                del meter
        told = said[0].partition("protected: ")[2].partition(". What")[0]
        first, _, rest = told.partition("a (AverageMeter: sum, count, avg)")
        for words in ("notes (['x'], ['y'])", "rate (0.25)", "stopper (Stopper: patience, best)"):
            self.assertIn(words, first)
        self.assertIn("b (AverageMeter: sum, count, avg)", rest)
        self.assertTrue(rest.endswith(" and 4 more"), told)


class SchedulerTest(unittest.TestCase):
    def test_a_scheduler_that_is_not_protected_is_refused(self):
        class Own:
            def __init__(self, inner):
                self.inner, self.state_dict, self.load_state_dict = inner, dict, print

        def protected(*more, state=None):
            model = small()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            made = [each(optimizer) for each in more]
            found = protect.Protected(0, 1)
            found.add([model, optimizer, *made], state(optimizer) if state else None)
            found.refuse_unready()

        def constant(optimizer):
            return torch.optim.lr_scheduler.ConstantLR(optimizer)

        def chained(optimizer):
            return torch.optim.lr_scheduler.SequentialLR(optimizer, [constant(optimizer), constant(optimizer)], [3])

        protected()
        for fine in (constant, chained, lambda optimizer: Own([constant(optimizer)])):
            protected(fine)
        protected(state=lambda optimizer: {"best": 1.0, "schedule": constant(optimizer)})
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lone = constant(optimizer)
        found = protect.Protected(0, 1)
        found.add([model, optimizer], {"best": 1.0})
        with self.assertRaisesRegex(pawl.Refused, "a ConstantLR sets the learning rates of SGD, and it isn.t"):
            found.refuse_unready()
        found.add([lone], None)
        found.refuse_unready()
        for other in (torch.optim.swa_utils.SWALR, torch.optim.lr_scheduler.ReduceLROnPlateau):
            beside = [other(optimizer, **({"swa_lr": 0.1} if other.__name__ == "SWALR" else {}))]
            with self.assertRaisesRegex(pawl.Refused, f"an? {other.__name__} sets .* with each scheduler"):
                found.refuse_unready()
            elsewhere = torch.optim.swa_utils.SWALR(torch.optim.SGD(model.parameters(), lr=0.1), 0.01)
            beside.clear()
            found.refuse_unready()  # it is gone, and the other's optimizer is not protected
            del elsewhere
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        found.add([plateau], None)
        found.refuse_unready()

    def test_a_scheduler_that_is_gone_sets_no_rates(self):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tried = torch.optim.lr_scheduler.ConstantLR(optimizer)  # a search for the rate, say
        found = protect.Protected(0, 1)
        found.add([model, optimizer], None)
        del tried
        found.refuse_unready()

    def test_nothing_is_looked_for_in_the_whole_process_while_others_wait_for_the_seat(self):
        model = small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = protect.Protected(0, 1)
        found.add([model, optimizer], None)
        with mock.patch("gc.get_objects", side_effect=AssertionError("all that lives")):
            found.refuse_unready(again=True)
            with self.assertRaisesRegex(AssertionError, "all that lives"):
                found.refuse_unready()


class BuiltAlikeTest(unittest.TestCase):
    """What seats compare before they connect."""

    class Store:
        def __init__(self):
            self.value = b""

        def rendezvous_compare_set(self, key, expected, desired):
            self.value = self.value or desired
            return self.value

    def test_other_groups_are_refused(self):
        store = self.Store()
        same_script.agree(store, 0, 2, [])
        same_script.agree(store, 1, 2, [])
        with self.assertRaisesRegex(pawl.Refused, "seats 0 and 2 .* have made 2 and 3 groups of all ranks"):
            same_script.agree(store, 2, 3, [])

    def test_another_order_of_gradients_is_refused(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
        protected = protect.Protected(0, 1)
        protected.add((model, torch.optim.SGD(model.parameters(), lr=0.1)), None)
        declared = protected.gradient_order()
        self.assertEqual(["bucket 0", "0.weight", "0.bias", "1.weight", "1.bias"], declared)
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
        came = protected.gradient_order()
        self.assertEqual({"1.weight", "1.bias"}, set(came[1:3]), "laid anew")
        store = self.Store()
        same_script.agree(store, 0, 1, came)
        same_script.agree(store, 1, 1, came)
        with self.assertRaisesRegex(pawl.Refused, r"another order on seat 0 than on seat 2.*\(number 2 is 1.* there, "
                                                  r"0.weight here\).*find_unused_parameters=True"):
            same_script.agree(store, 2, 1, declared)

    def test_a_hook_that_keeps_errors_is_refused(self):
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        for hook, state, fine in ((default_hooks.fp16_compress_hook, None, True),
                                  (default_hooks.allreduce_hook, dist.group.WORLD, True),
                                  (powerSGD_hook.powerSGD_hook, powerSGD_hook.PowerSGDState(None), False)):
            model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2))
            model.register_comm_hook(state, hook)
            protected = protect.Protected(0, 1)
            protected.add((model, torch.optim.SGD(model.parameters(), lr=0.1)), None)
            if fine:
                protected.refuse_unready()
            else:
                with self.assertRaisesRegex(pawl.Refused, "powerSGD_hook has a state .PowerSGDState."):
                    protected.refuse_unready()


class ReplicasTest(unittest.TestCase):
    """Two ranks in one process."""

    class Store:
        def __init__(self):
            self.values, self.deleted = {}, []

        def rendezvous_compare_set(self, key, expected, desired):
            return self.values.setdefault(key, desired)

        def rendezvous_set(self, key, value):
            self.values[key] = value

        def rendezvous_get(self, key, timeout_s):
            return self.values[key]

        def rendezvous_delete(self, key):
            self.deleted.append(key)

    def setUp(self):
        self.enterContext(one_process_group())

    def ranks(self, wrap=True, optimizer=torch.optim.AdamW, warns=False):
        self.store, self.said, found = self.Store(), [], []
        for rank in (0, 1):
            model = small()
            model = nn.parallel.DistributedDataParallel(model) if wrap else model
            protected = protect.Protected(rank, 1)
            protected.add([model, optimizer(model.parameters(), lr=0.1)], None)
            train(model, protected.optimizers[0])
            found.append((protected, replicas.Replicas(protected, self.store, self.said.append, warns),
                          protected.held()))
        return found

    def compare(self, ranks, step):
        for _, each, held in ranks:
            each.compare(step, held)
            self.assertTrue(each.end(60.0))
            each.begin(step, held)

    def change(self, ranks, name, by):
        held = next(each for each in ranks[1][2] if f"{each.name} {each.role}" == name)
        held.tensor.detach().view(-1)[0].mul_(by)

    def restored(self, ranks, before=None):
        """The second rank is another process from here on. `before`: what was so before the loss, unseen."""
        saved = ranks[1][1].part().save()
        other = replicas.Replicas(ranks[1][0], self.store, self.said.append, warns=False)
        other.part().load(saved)
        ranks[1] = (ranks[1][0], other, ranks[1][2])
        self.store.values.clear()
        if before is not None:
            before()
        for _, each, held in ranks:
            each.restored(6)
            each.begin(6, held)
            self.assertTrue(each.end(60.0))
            each.begin(6, held)

    def test_a_difference_after_a_loss_is_an_error(self):
        for change, words in (
                (lambda ranks: self.change(ranks, "2.bias exp_avg", 1.01), r"ranks 0 and 1 .*: 2.bias \(exp_avg\)"),
                (lambda ranks: self.change(ranks, "2.bias step", 0), r": 2.bias \(step\)"),
                (lambda ranks: ranks[1][0].optimizers[0].param_groups[0].update(lr=0.2), "lr of AdamW is 0.1 and 0.2"),
                (lambda ranks: ranks[1][0].optimizers[0].param_groups[0].update(betas=(0.9, 0.9)), "betas of AdamW")):
            ranks = self.ranks()
            self.compare(ranks, 5)
            self.restored(ranks)
            self.compare(ranks, 7)
            change(ranks)
            with self.assertRaisesRegex(pawl.Refused, f"after step 8 .*{words}"):
                self.compare(ranks, 8)
            self.assertEqual([], self.said)

    def test_rates_that_a_ranks_own_loss_may_have_cut_are_told(self):
        ranks = self.ranks()
        for protected, _, _ in ranks:
            protected.add([torch.optim.lr_scheduler.ReduceLROnPlateau(protected.optimizers[0])], None)
        self.compare(ranks, 5)
        self.restored(ranks)
        ranks[1][0].optimizers[0].param_groups[0].update(lr=0.05)
        self.compare(ranks, 7)
        self.assertEqual(1, len(self.said))
        self.assertIn("lr of AdamW is 0.1 and 0.05", self.said[0])

    def test_what_differs_before_a_loss_is_the_scripts_own_doing(self):
        ranks = self.ranks()
        self.change(ranks, "2.bias weight", 1.01)
        self.compare(ranks, 5)
        self.assertIn("differ in what DDP and replicas have alike: 2.bias (weight)", self.said[0])
        self.compare(ranks, 6)
        self.restored(ranks)
        self.compare(ranks, 7)
        self.change(ranks, "2.bias exp_avg", 1.01)
        self.compare(ranks, 8)
        self.assertEqual(2, len(self.said), "each is told once; nobody knows that the others were equal")

    def test_what_differs_in_the_restored_state_is_the_scripts_own_doing(self):
        for change in (lambda ranks: self.change(ranks, "2.bias weight", 1.01),
                       lambda ranks: ranks[1][0].optimizers[0].param_groups[0].update(lr=0.2)):
            ranks = self.ranks()
            self.compare(ranks, 5)  # alike
            self.restored(ranks, before=lambda ranks=ranks, change=change: change(ranks))
            self.compare(ranks, 7)
            self.assertEqual([], self.said)

    def test_later_than_the_first_steps_a_difference_is_told(self):
        ranks = self.ranks()
        self.compare(ranks, 5)
        self.restored(ranks)
        for step in range(7, 16):
            self.compare(ranks, step)
        ranks[1][0].optimizers[0].param_groups[0].update(lr=0.2)
        self.compare(ranks, 1000)
        self.assertIn("lr of AdamW is 0.1 and 0.2", self.said[0])

    def test_what_may_differ(self):
        ranks = self.ranks()
        self.compare(ranks, 5)
        self.restored(ranks)
        for name in ("1.running_mean buffer", "1.num_batches_tracked buffer"):
            self.change(ranks, name, 3)
        self.change(ranks, "0.weight weight", 1 + 1e-6)  # as another processor may round
        self.compare(ranks, 7)
        for wrap, optimizer in ((False, torch.optim.AdamW), (True, self.partitioned)):
            ranks = self.ranks(wrap, optimizer)
            self.compare(ranks, 5)
            self.restored(ranks)
            self.change(ranks, "2.bias exp_avg", 3)
            self.compare(ranks, 7)
        self.assertEqual([], self.said)

    def test_settings_of_ranks_that_have_nothing_alike_are_told(self):
        ranks = self.ranks(wrap=False)
        self.compare(ranks, 5)
        self.restored(ranks)
        ranks[1][0].optimizers[0].param_groups[0]["lr"] = 0.2
        self.compare(ranks, 7)
        self.compare(ranks, 8)
        self.assertEqual(["after step 7 ranks 0 and 1 differ in what steers the training: lr of AdamW is 0.1 and 0.2"],
                         self.said)

    def partitioned(self, parameters, lr):
        from torch.distributed.optim import ZeroRedundancyOptimizer
        return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=lr)

    def test_which_steps_are_compared(self):
        ranks = self.ranks()
        for step in (*range(2, 20), 1003, 1004, *range(1007, 2100, 4)):  # as where gradients are added up over four
            self.compare(ranks, step)
        self.assertEqual([*range(2, 10), 1003, 2003], sorted({int(key.split("/")[3]) for key in self.store.values}))
        self.assertEqual({*range(2, 10), 1003}, {int(key.split("/")[3]) for key in self.store.deleted})

    def test_of_many_tensors_each_has_its_turn(self):
        ranks = self.ranks()
        with mock.patch.object(replicas, "TENSORS_MAX", 5):
            samples = replicas.Samples(each for each in ranks[0][2] if not each.is_buffer)
            seen = [each for step in range(samples.turns) for each in samples.of(step)]
            self.assertEqual(sorted(map(id, samples.held)), sorted(map(id, seen)))
            for step in range(samples.turns):
                taken = samples.take(step)
                rows = replicas.rows_of(taken, replicas.bytes_of(taken))
                self.assertEqual([each.memory.flatten()[0].item() for each in samples.of(step)],
                                 [row[0] for row in rows])

    def test_how_far_apart_elements_may_lie(self):
        for kind, near, far in ((torch.float32, 1.00001, 1.01), (torch.float64, 1.0000001, 1.0001),
                                (torch.bfloat16, 1.008, 1.1), (torch.int64, 1, 2)):
            tensor = torch.ones(2).to(kind)
            self.assertFalse(replicas.are_apart([1, 1], [1, near], tensor), kind)
            self.assertTrue(replicas.are_apart([1, 1], [1, far], tensor), kind)
        nan = float("nan")
        self.assertFalse(replicas.are_apart([1.0, nan], [1.0 + 1e-6, nan], torch.ones(2)))
        self.assertTrue(replicas.are_apart([1.0, 1.0], [1.0, nan], torch.ones(2)))


class Crossed(nn.Module):
    """Gradients come in another order than that of declaration, turned round."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.last, self.norm, self.first, self.middle = (
            nn.Linear(8, 2), nn.BatchNorm1d(8), nn.Linear(4, 8), nn.Linear(8, 8))

    def forward(self, inputs):
        return self.last(self.middle(self.norm(self.first(inputs))))


class Turned(Crossed):
    """In the order of declaration."""

    def forward(self, inputs):
        return self.last(self.norm(self.first(inputs)) + 0 * self.middle(self.first(inputs)))


class Reducer:
    """torch's, as another version may have it."""

    def __init__(self, reducer, method=None):
        self._reducer = reducer
        if method is not None:
            self._rebuild_buckets = method

    def _get_zeros_like_grad_buckets(self):
        self.given = self._reducer._get_zeros_like_grad_buckets()
        return self.given

    def _set_ddp_runtime_logging_sample_rate(self, rate):
        self._reducer._set_ddp_runtime_logging_sample_rate(rate)


class LateBuffersTest(unittest.TestCase):
    def setUp(self):
        self.module = small()
        self.late = late_buffers.LateBuffers(self.module)
        self.late.declared([])

    def saved(self):
        return copy.deepcopy(self.late._save())

    def test_a_tensor_that_the_script_knows_by_another_name_stays_the_same(self):
        self.module.register_buffer("mean", torch.tensor([1.0, 2.0]))
        self.module.register_buffer("same", self.module.mean)
        known, saved = self.module.mean, self.saved()
        known.add_(5)
        self.late._load(saved)
        self.assertIs(known, self.module.mean)
        self.assertIs(known, self.module.same)
        self.assertEqual([1.0, 2.0], known.tolist())

    def test_another_size_or_a_tensor_that_cannot_be_written(self):
        for first in (torch.zeros(2, 3), torch.tensor(4.0).expand(2)):
            self.module.register_buffer("mean", first)
            saved = self.saved()
            self.module.mean = torch.ones(3).expand(2, 3) if first.dim() == 2 else torch.ones(1)
            self.late._load(saved)
            self.assertTrue(torch.equal(first, self.module.mean))

    def growing(self, persistent=True):
        """(a module with a buffer of three, what is late in it, what tells of moved ones, the one of the layout)"""
        module = nn.Module()
        module.register_buffer("bias", torch.arange(3.0), persistent)
        protected = protect.Protected(0, 1)
        protected.add([module], None)
        held = protected.held()
        protected.declared(held)
        return module, protected.late_buffers[0], protect.Unchanged(protected, held), held[0]

    def test_a_buffer_that_grows(self):
        for persistent in (True, False):
            module, late, unchanged, held = self.growing(persistent)
            first, saved = module.bias, [late._save()]
            module.register_buffer("bias", torch.arange(5.0), persistent)
            self.assertEqual([], unchanged.moved())
            saved.append(copy.deepcopy(late._save()))
            module.bias = torch.arange(9.0)
            late._load(saved[1])
            self.assertEqual(list(range(5)), module.bias.tolist())
            late._load(saved[0])
            self.assertIs(first, module.bias, "its memory is restored by the layout")
            self.assertIs(first, held.tensor)
            self.assertEqual([], unchanged.moved())
            module.bias = torch.ones(3)
            self.assertEqual([held], unchanged.moved(), "as it was declared, elsewhere")
            self.assertEqual({}, late._save())
            other, its, watch, _ = self.growing(persistent)
            its._load(saved[1])
            self.assertEqual(list(range(5)), other.bias.tolist())
            self.assertEqual([], watch.moved())
            self.assertEqual(persistent, "bias" in other.state_dict())

    def test_a_buffer_that_is_dropped(self):
        module, late, unchanged, _ = self.growing()
        first, module.bias = module.bias, None
        self.assertEqual([], unchanged.moved())
        saved = copy.deepcopy(late._save())
        module.bias = torch.ones(7)
        late._load(saved)
        self.assertIsNone(module.bias)
        late._load({})
        self.assertIs(first, module.bias)
        del module.bias
        with self.assertRaisesRegex(pawl.Refused, r"bias \((nonpersistent_)?buffer\): .*register_buffer"):
            unchanged.moved()

    def test_where_the_script_has_a_plain_attribute_before(self):
        self.module.register_buffer("mean", torch.ones(2))
        saved = self.saved()
        del self.module.mean
        self.module.mean = None
        self.late._load(saved)
        self.assertEqual([1.0, 1.0], self.module.mean.tolist())
        self.assertIn("mean", self.module.state_dict())
        self.late._load({})
        self.assertFalse(hasattr(self.module, "mean"))


class SecondStepTest(unittest.TestCase):
    """What a second step makes is there after one, or is known not to be."""

    def setUp(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def started(self, **ddp):
        """A model of several buckets, its optimizer, and that they are protected."""
        model = nn.parallel.DistributedDataParallel(Crossed(), bucket_cap_mb=1e-4, **ddp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        protected = protect.Protected(0, 1)
        protected.add((model, optimizer), None)
        return model, optimizer, protected

    def both(self, **ddp):
        """What a rehearsal of two steps finds."""
        model, optimizer, protected = self.started(**ddp)
        train(model, optimizer, 2)
        return second_step.made_by_both(protected)

    def why_not(self, prepare=None, step=train, **ddp):
        """After one step."""
        model, optimizer, protected = self.started(**ddp)
        if prepare is not None:
            prepare(model)
        step(model, optimizer)
        return second_step.why_not_derived(protected, self.both(**ddp))

    def test_one_step_comes_to_what_two_come_to(self):
        for ddp in ({}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}):
            with self.subTest(**ddp):
                model, optimizer, protected = self.started(**ddp)
                declared = protected.gradient_order()
                train(model, optimizer)
                self.assertEqual(declared, protected.gradient_order(), "torch does it later")
                both = self.both(**ddp)
                self.assertIsNone(second_step.why_not_derived(protected, both))
                derived = protected.gradient_order()
                self.assertEqual(both.buckets, derived)
                self.assertEqual("find_unused_parameters" in ddp, derived == declared)
                train(model, optimizer, 2)
                self.assertEqual(derived, protected.gradient_order(), "and does not do it again")

    def test_the_module_inside_of_ddp_is_protected(self):
        net = Crossed()
        model = nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1e-4)
        another = nn.parallel.DistributedDataParallel(Crossed())
        optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
        protected = protect.Protected(0, 1)
        protected.add((net, optimizer), None)
        self.assertEqual([model], protected.ddp_modules())
        train(model, optimizer)
        declared = protected.gradient_order()
        second_step.lay_buckets(protected)
        laid = protected.gradient_order()
        self.assertNotEqual(declared, laid)
        train(model, optimizer)
        self.assertEqual(laid, protected.gradient_order())
        self.assertIn(another, made_ddp.made())
        self.assertIn(copied := copy.deepcopy(model), made_ddp.made())
        del copied
        del another
        gc.collect()
        self.assertIn(model, made_ddp.made())

    def test_nothing_is_derived_without_a_rehearsal_of_both(self):
        model, optimizer, protected = self.started()
        train(model, optimizer)
        self.assertEqual("no rehearsal in this process has shown what it makes",
                         second_step.why_not_derived(protected, None))

    def test_what_else_the_second_step_makes_is_not_derived(self):
        def skipped(model, _optimizer):
            model(torch.randn(8, 4)).sum().backward()

        def not_exchanged(model, optimizer):
            with model.no_sync():
                train(model, optimizer)

        def twice(model, optimizer):
            train(model, optimizer, 2)

        def with_buffer(model):
            model.module.register_buffer("late", torch.zeros(1))

        self.assertEqual("it makes optimizer state", self.why_not(step=skipped))
        self.assertEqual("DDP has no new order for its buckets", self.why_not(step=not_exchanged))
        self.assertEqual("DDP has no new order for its buckets", self.why_not(step=twice))
        self.assertEqual("it makes parameters or buffers", self.why_not(with_buffer))

    def test_buckets_that_torch_lays_in_the_third_step(self):
        def no_sync(model):
            model.require_backward_grad_sync = False

        for prepare, ddp in ((lambda _: None, {"static_graph": True}), (no_sync, {})):
            with self.subTest(**ddp):
                orders = []
                for steps in (2, 3):
                    model, optimizer, protected = self.started(**ddp)
                    prepare(model)
                    train(model, optimizer)
                    self.assertEqual("DDP has no new order for its buckets",
                                     second_step.why_not_derived(protected, self.both()))
                    model.require_backward_grad_sync = True
                    train(model, optimizer, steps - 1)
                    orders.append(protected.gradient_order())
                    if steps == 2:
                        second_step.lay_buckets(protected)
                        orders.append(protected.gradient_order())
                after_two, laid, after_three = orders
                self.assertNotEqual(after_two, laid)
                self.assertEqual(after_three, laid)

    def test_another_version_of_torch_does_both_steps(self):
        def replace(method=None):
            def prepared(model, optimizer):
                train(model, optimizer)
                model.reducer = Reducer(model.reducer, method)
            return prepared
        self.assertIn("can't lay DDP's buckets", self.why_not(step=replace()))
        self.assertIn("can't be laid", self.why_not(step=replace(lambda sizes: True)))
        self.assertEqual("DDP has no new order for its buckets", self.why_not(step=replace(lambda: None)))


class LayoutsTest(unittest.TestCase):
    """Of DDP's buckets, and what is restored of them."""

    KINDS = ({}, {"gradient_as_bucket_view": True}, {"static_graph": True}, {"find_unused_parameters": True})

    def setUp(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)

    def started(self, steps, kind=Crossed, **ddp):
        """A model after so many steps, and its layout; of several buckets, unless it is told otherwise."""
        model = nn.parallel.DistributedDataParallel(kind(), **{"bucket_cap_mb": 1e-4, **ddp})
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        layouts = reducers.Layouts([model], contextlib.nullcontext)
        for _ in range(steps):
            train(model, optimizer)
            layouts.lay()
        return model, optimizer, layouts.part()

    def break_backward(self, model, optimizer):
        def fail(_gradient):
            raise ValueError("told to")
        hook = model.module.first.weight.register_hook(fail)
        with self.assertRaises(ValueError):
            train(model, optimizer)
        hook.remove()
        self.assertTrue(reducers.is_broken(model))

    def shapes(self, model):
        """Of the gradients in each bucket: what torch tells of the parameters is how they were laid first."""
        return [[tuple(each.shape) for each in bucket.gradients()] for bucket in
                model.reducer._get_zeros_like_grad_buckets()]

    def assert_restored(self, to, other):
        """`other` has got the layout of `to`, and goes on with it."""
        model, _, part = to
        another, optimizer, restored = other
        optimizer.zero_grad()
        restored.load(part.save())
        self.assertEqual(part.save(), restored.save())
        self.assertEqual(self.shapes(model), self.shapes(another))
        self.assertFalse(reducers.is_broken(another))
        self.assertEqual([None] * 8, [each.grad for each in another.parameters()])
        train(another, optimizer)
        due = not reducers.is_laid(model) and not model.find_unused_parameters
        self.assertEqual(due, another.reducer._rebuild_buckets() is True)
        self.assertTrue(all(each.grad is not None for each in another.parameters()))

    def test_they_are_laid_at_the_end_of_a_step_as_they_are_in_a_forward(self):
        model, optimizer, _ = self.started(3)
        torchs = nn.parallel.DistributedDataParallel(Crossed(), bucket_cap_mb=1e-4)
        train(torchs, torch.optim.SGD(torchs.parameters(), lr=0.1), 3)
        self.assertEqual(self.shapes(torchs), self.shapes(model))

    def test_a_process_that_has_other_buckets(self):
        for ddp in self.KINDS:
            for before in (1, 2):
                with self.subTest(before=before, **ddp):
                    self.assert_restored(self.started(3, **ddp), self.started(before, **ddp))

    def test_a_process_that_comes_to_its_gradients_in_another_order(self):
        for cap in (1e-4, 25):
            with self.subTest(cap=cap):
                self.assert_restored(self.started(3, bucket_cap_mb=cap), self.started(2, Turned, bucket_cap_mb=cap))

    def test_a_model_with_sparse_gradients_is_left_as_it_is(self):
        model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Embedding(8, 4, sparse=True), nn.Linear(4, 2)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        layouts = reducers.Layouts([model], contextlib.nullcontext)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.arange(8)).sum().backward()
            optimizer.step()
            layouts.lay()
        layouts.part().load(layouts.part().save())
        model(torch.arange(8)).sum().backward()
        self.assertTrue(model.module[0].weight.grad.is_sparse)
        self.assertTrue(reducers.is_laid(model), "DDP laid them in its own forward")
        self.assertEqual([1, 2], sorted(len(bucket) for bucket in reducers.buckets(model)))

    def test_buckets_that_cannot_be_laid_as_they_were(self):
        with self.assertRaisesRegex(pawl.Refused, "buckets can't be laid as they were.*find_unused_parameters=True"):
            self.started(2)[2].load(self.started(0)[2].save())

    def test_a_process_whose_buckets_were_laid_in_a_step_that_is_lost(self):
        unlaid = self.started(0, bucket_cap_mb=25)
        self.assertFalse(reducers.is_laid(unlaid[0]))
        self.assert_restored(unlaid, self.started(2, bucket_cap_mb=25))

    def test_a_backward_that_an_exception_has_left(self):
        for ddp in self.KINDS:
            with self.subTest(**ddp):
                model, optimizer, part = self.started(3, **ddp)
                saved, laid = part.save(), self.shapes(model)
                self.break_backward(model, optimizer)
                part.load(saved)
                self.assertFalse(reducers.is_broken(model))
                self.assertEqual(laid, self.shapes(model))
                self.assertEqual(saved, part.save())
                train(model, optimizer)
                self.assertIsNot(True, model.reducer._rebuild_buckets(), "no rank has a part in that any more")

    def test_buckets_that_are_laid_a_second_time(self):
        model, optimizer, part = self.started(0)
        unlaid = part.save()
        part.load(self.started(2)[2].save())
        _, _, again = second = self.started(2, Turned)
        part.load(again.save())
        self.assertEqual(self.shapes(second[0]), self.shapes(model))
        reducers._reset(model)
        train(model, optimizer)
        self.assertIsNone(reducers.lay_buckets(model))
        self.assertEqual(self.shapes(self.started(2)[0]), self.shapes(model))
        self.assertEqual(self.started(2)[2].save(), reducers.Layouts([model], contextlib.nullcontext).part().save())
        with self.assertRaisesRegex(errors.BuildAnew, "laid its buckets in a step that is lost"):
            part.load(unlaid)

    def test_a_backward_that_breaks_before_buckets_are_laid(self):
        model, optimizer, part = self.started(0)
        saved, before = part.save(), self.shapes(model)
        self.break_backward(model, optimizer)
        part.load(saved)
        self.assertFalse(reducers.is_broken(model))
        self.assertEqual((before, saved), (self.shapes(model), part.save()))
        train(model, optimizer)
        self.assertIsNone(reducers.lay_buckets(model))

    def test_buckets_that_a_process_in_use_cannot_have(self):
        _, _, part = self.started(2)
        part.save()
        with self.assertRaisesRegex(errors.BuildAnew, "can't be laid as they were"):
            part.load(zlib.compress(json.dumps([[True, [[0], [1, 2, 3, 4, 5, 6, 7]]]]).encode()))

    def test_looking_at_them_takes_no_memory(self):
        model, _, _ = self.started(0)
        model.reducer = Reducer(model.reducer)
        self.assertTrue(reducers.buckets(model))
        self.assertEqual([0], sorted({stride for bucket in model.reducer.given for stride in bucket.buffer().stride()}))


class RehearsalTest(unittest.TestCase):
    def test_output_goes_to_the_log(self):
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "log")
            code = ("import os\n"
                    "from pawl.rehearsal import captured_output\n"
                    "with captured_output():\n"
                    "    print('from python'); os.system('echo from a child')\n"
                    "print('afterwards')\n")
            done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60,
                                  env={**os.environ, "PYTHONPATH": PACKAGE, "PAWL_REHEARSAL_LOG": log}, check=True)
            self.assertEqual("afterwards\n", done.stdout)
            with open(log, encoding="utf-8") as file:
                self.assertEqual("from python\nfrom a child\n", file.read())

    def test_files_of_the_running_job_stay(self):
        with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PAWL_RUN_DIR=folder + "/run"):
            live, run = os.path.join(folder, "live.log"), os.path.join(folder, "run")
            os.mkdir(run)
            with open(live, "w", encoding="utf-8") as file:
                file.write("lines")
            guard = rehearsal_guard.RehearsalGuard()
            for touch in (lambda: open(live, "w"), lambda: open(live, "a"), lambda: os.open(live, os.O_RDWR),
                          lambda: open(live + ".new", "w"), lambda: os.remove(live), lambda: os.truncate(live, 0),
                          lambda: os.rename(live, live + ".old"), lambda: os.replace(live, run + "/x"),
                          lambda: torch.save([1], live), lambda: shutil.rmtree(folder),
                          lambda: torch.jit.save(torch.jit.script(nn.Linear(1, 1)), live),
                          lambda: torch.jit.script(nn.Linear(1, 1)).save(live),
                          lambda: open(os.path.join(run, "..", "live.log"), "w")):
                with guard.on(), self.assertRaisesRegex(rehearsal_guard.RehearsalStopped, "live.log|pawl-|tmp|run"):
                    touch()
            with open(live, encoding="utf-8") as file:
                self.assertEqual("lines", file.read())
            with guard.on():
                open(live).close()
                open(os.path.join(run, "mine"), "w").close()
                os.makedirs(os.path.join(folder, "checkpoints"), exist_ok=True)
                with tempfile.NamedTemporaryFile() as own, tempfile.TemporaryDirectory() as its:
                    own.write(b"x")
                    open(os.path.join(its, "file"), "w").close()
            self.assertIsNotNone(guard.stopped)
            open(live, "w").close()  # the hook is there, and does nothing any more


    def test_children_that_may_write_are_not_begun(self):
        with tempfile.TemporaryDirectory() as folder:
            live, guard = os.path.join(folder, "live"), rehearsal_guard.RehearsalGuard()
            code = f"open({live!r}, 'w')"
            for begin in (lambda: subprocess.run(["touch", live], check=True), lambda: os.system(f"touch {live}"),
                          lambda: subprocess.run(f"ls > {live}", shell=True, check=True),
                          lambda: os.posix_spawn(sys.executable, ["python", "-c", code], {}),
                          lambda: os.spawnv(os.P_WAIT, sys.executable, ["python", "-c", code]),
                          lambda: multiprocessing.get_context("spawn").Process(target=print).start(),
                          lambda: subprocess.run(["git", "clone", "x"], check=True)):
                words = "to (run|begin) .*(touch|ls >|python -c|spawn|os.fork|git clone)"
                with guard.on(), self.assertRaisesRegex(rehearsal_guard.RehearsalStopped, words):
                    begin()
                    self.fail(f"begun: {guard.stopped}")
                self.assertFalse(os.path.exists(live))
            gc.collect()  # as in one_process_group
            with guard.on():
                subprocess.run(["git", "rev-parse", "HEAD"], check=False, capture_output=True)
                subprocess.run(["uname"], check=True, stdout=subprocess.DEVNULL)
                platform.processor()
                for method in ("fork", "spawn"):
                    loader = torch.utils.data.DataLoader(list(range(4)), num_workers=1, multiprocessing_context=method)
                    self.assertEqual([0, 1, 2, 3], [each.item() for each in loader])


class LeavingTest(unittest.TestCase):
    """Whether a loop was left by break is read off the frame that drops its iterator."""

    def test_break_return_and_exception(self):
        found = []

        def steps():
            try:
                yield 1
            except GeneratorExit:
                found.append(script_exit.left_by_break(sys._getframe().f_back))
                raise

        def breaks():
            for _ in steps():
                break

        def returns():
            for _ in steps():
                return 3

        def raises():
            for _ in steps():
                raise ValueError

        def raises_deeper():
            for _ in steps():
                int("x")
        for leave, expected in ((breaks, True), (returns, True), (raises, False), (raises_deeper, False)):
            found.clear()
            try:
                leave()
            except ValueError:
                pass
            self.assertEqual([expected], found, leave.__name__)


class PlainTest(unittest.TestCase):
    def run_plain(self, *arguments, code=0, **changed):
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("PAWL", "RANK", "WORLD"))}
        done = subprocess.run([sys.executable, "-B", TRAINER, *arguments], capture_output=True, text=True, timeout=180,
                              env={**plain, **environment(), **changed}, check=False)
        self.assertEqual(code, done.returncode, done.stderr)
        return done.stdout + done.stderr

    def test_alone(self):
        with tempfile.TemporaryDirectory() as folder:
            self.run_plain(*flags(steps=5, record=folder))
            run = harness.record.read_run(folder)
            self.assertEqual([1, 2, 3, 4, 5], [line["step"] for line in run.steps(0)])

    def test_a_script_that_makes_the_default_group_itself(self):
        script = ("import pawl, torch.distributed as dist\n"
                  "from torch.distributed import init_process_group\n"
                  "from pawl import start\n"
                  "job = pawl.init()\n"
                  "init_process_group('gloo'); dist.init_process_group(backend='gloo')\n"
                  "assert dist.get_world_size() == job.world_size == 1\n"
                  "try: start.refuse_made_group()\n"
                  "except pawl.Refused as refused: print(refused)\n"
                  "dist.destroy_process_group()\n")
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("PAWL", "RANK", "WORLD"))}
        done = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=180,
                              env={**plain, **environment()}, check=False)
        self.assertEqual(0, done.returncode, done.stderr)
        self.assertIn("call pawl.init() first", done.stdout)

    def test_two_processes_as_torchrun_starts_them(self):
        run = reference_run(2, steps=6)
        self.assertEqual([0, 1], run.seats())
        self.assertEqual(6, run.finals[1]["step"])

    def test_off_beats_the_socket(self):
        self.run_plain(*flags(steps=3), PAWL="off", PAWL_SOCKET="/nowhere")

    def test_no_daemon_is_a_sentence(self):
        said = self.run_plain(*flags(steps=3), PAWL_SOCKET="/nowhere/at/all", code=78)
        self.assertIn("pawl: no pawld answers", said)
        self.assertNotIn("Traceback", said)

    def test_a_world_without_an_address(self):
        said = self.run_plain(*flags(steps=3), WORLD_SIZE="4", RANK="0", code=1)
        self.assertIn("MASTER_ADDR is not set", said)
        self.assertNotIn("Traceback", said)

    def test_stop_and_an_exception(self):
        said = self.run_plain(*flags(steps=30, stop="0:4"))
        self.assertIn("in step 4", said)
        self.assertNotIn("in step 5", said)
        said = self.run_plain(*flags(steps=30, raise_in="0:4"), code=1)
        self.assertIn("ValueError: told to raise", said)


class LibraryTest(unittest.TestCase):
    """libpawl by ctypes, with PAWL=off: every call answers, and the store works."""

    def test_off(self):
        code = ("from pawl._library import *\n"
                "import pawl\n"
                "trainer = Trainer()\n"
                "seat = trainer.recover_join()\n"
                "assert (seat.rank, seat.world, seat.resume_step) == (1, 2, 0), seat\n"
                "assert trainer.role() is Role.SEATED and trainer.handle\n"
                "mesh = trainer.mesh_add('data', [('dp', 2)])\n"
                "number = trainer.tensor_add('w', 'weight', 0, (2, 3), 4096, mesh=mesh, placement=Placement.REPLICATE, "
                "lifetime=Lifetime.STABLE)\n"
                "trainer.blob_add('state', 100, lambda: b'x', lambda data: None)\n"
                "trainer.layout_seal(); trainer.step_begin(1); trainer.fence(); trainer.window_open(1, 8)\n"
                "trainer.progress(Phase.EXCHANGE); trainer.restore(); trainer.recover_done()\n"
                "trainer.rendezvous_set('key', b'value')\n"
                "assert trainer.rendezvous_get('key', 1.0) == b'value'\n"
                "assert trainer.rendezvous_compare_set('key', b'value', b'other') == b'other'\n"
                "try: trainer.rendezvous_get('nothing', 0.01)\n"
                "except pawl.errors.TimedOut as late: pass\n"
                "assert trainer.stop_after(3) == trainer.stop_step() == 3 and not trainer.interrupted()\n"
                "assert trainer.committed_step() == 0\n"
                "trainer.finish(); trainer.detach(); trainer.detach()\n"
                "print('done')\n")
        done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, timeout=60,
                              check=False,
                              env={**os.environ, **environment(), "PAWL": "off", "RANK": "1", "WORLD_SIZE": "2"})
        self.assertEqual(("done\n", ""), (done.stdout, done.stderr))

    def test_a_library_that_is_not_there(self):
        done = subprocess.run([sys.executable, "-B", "-c", "from pawl._library import Trainer; Trainer()"],
                              capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "PYTHONPATH": PACKAGE, "PAWL_LIBRARY": "/nowhere/libpawl.so.0"})
        self.assertIn("libpawl is not at /nowhere/libpawl.so.0", done.stderr)


class one_process_group:
    """A gloo group of one, for what can't be made without."""

    def __enter__(self):
        if not dist.is_initialized():
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)

    def __exit__(self, *_):
        dist.destroy_process_group()
        gc.collect()  # a DDP that is left over would wait for the group's threads where a forked child collects it


if __name__ == "__main__":
    harness.main()

"""Checkpoints of several models with an optimizer each (GANs, averages beside the model), by torch.save and DCP: each
optimizer's state goes to its own model in pawl.torch.load, or is refused with what to do; and `pawl convert` names it
after the model, or asks.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict  # noqa: E402

import pawl.torch  # noqa: E402
from pawl import _checkpoint  # noqa: E402
from pawl.errors import PawlError, Refused  # noqa: E402

PAWL = os.environ.get("PAWL", "pawl")


def chain(*widths):
    return nn.Sequential(*(nn.Linear(before, after) for before, after in zip(widths, widths[1:], strict=False)))


def step(model, optimizer, scale=1.0):
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = scale * torch.linspace(-1 - number, 1, parameter.numel()).reshape(parameter.shape)
    optimizer.step()


class Pair:
    """Two models, and an AdamW for each, under the keys that a program gives them."""

    def __init__(self, seed, first, second, keys=("netG", "netD", "optG", "optD"), rates=(0.125, 0.25)):
        torch.manual_seed(seed)
        self.keys = keys
        self.models = [chain(*first), chain(*second)]
        self.optimizers = [torch.optim.AdamW(model.parameters(), lr=rate)
                           for model, rate in zip(self.models, rates, strict=True)]

    def trained(self):
        for number, (model, optimizer) in enumerate(zip(self.models, self.optimizers, strict=True)):
            step(model, optimizer, 1 + number)
            step(model, optimizer, 1 + number)
        return self

    @property
    def module(self):
        return nn.ModuleDict(dict(zip(self.keys, self.models, strict=False)))

    def states(self):
        return dict(zip(self.keys, [each.state_dict() for each in (*self.models, *self.optimizers)], strict=True))

    def dcp_states(self, options=None):
        found = [get_state_dict(model, optimizer, options=options)
                 for model, optimizer in zip(self.models, self.optimizers, strict=True)]
        return dict(zip(self.keys, [*(model for model, _ in found), *(state for _, state in found)], strict=True))

    def content(self):
        return [(name, tensor.tolist()) for model in self.models for name, tensor in model.state_dict().items()], [
            [(word, value.tolist()) for parameter in model.parameters()
             for word, value in optimizer.state[parameter].items()]
            for model, optimizer in zip(self.models, self.optimizers, strict=True)], [
            optimizer.param_groups[0]["lr"] for optimizer in self.optimizers]


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pawl-models-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.path = os.path.join(self.directory, "state.pt")

    def pawl(self, *arguments):
        done = subprocess.run([PAWL, *arguments], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout, done.stderr

    def names(self, path, **options):
        """name -> roles, as the checkpoint is seen."""
        with _checkpoint.Checkpoint(path, **options) as checkpoint:
            found = {}
            for tensor in checkpoint.tensors:
                found.setdefault(tensor.name, set()).add(tensor.role)
            return found

    def assert_all_named(self, path, pair, **options):
        found = self.names(path, **options)
        for key, model in zip(pair.keys, pair.models, strict=False):
            for name, _ in model.named_parameters():
                self.assertLessEqual({"weight", "exp_avg", "exp_avg_sq"}, found[f"{key}.{name}"], f"{key}.{name}")

    def assert_loaded(self, source, target, **options):
        report = pawl.torch.load(self.path, target.module, target.optimizers, **options)
        self.assertEqual(source.content(), target.content())
        self.assertEqual([], report.kept)
        return report


class GanTest(Case):
    SHAPES = (4, 4, 4, 3), (3, 4, 4)  # equal ones inside of a model, and the same names in both

    def test_torch_save_by_number(self):
        source = Pair(1, *self.SHAPES).trained()
        torch.save(source.states(), self.path)
        report = self.assert_loaded(source, Pair(2, *self.SHAPES))
        self.assertIn("they have the live optimizer's names", " ".join(report.notes))
        # Without a live optimizer nothing says the order inside of a model.
        code, _, said = self.pawl("convert", self.path, os.path.join(self.directory, "out"), "--to", "safetensors")
        self.assertNotEqual(0, code)
        self.assertIn("--param-names", said)

    def test_names_of_several_optimizers(self):
        source = Pair(1, *self.SHAPES).trained()
        torch.save(source.states(), self.path)
        names = os.path.join(self.directory, "names.json")
        given = {"optG": [f"netG.{name}" for name, _ in source.models[0].named_parameters()],
                 "optD": [f"netD.{name}" for name, _ in source.models[1].named_parameters()]}
        with open(names, "w", encoding="utf-8") as file:
            json.dump(given, file)
        out = os.path.join(self.directory, "out.safetensors")
        code, _, said = self.pawl("convert", self.path, out, "--to", "safetensors", "--param-names", names)
        self.assertEqual(0, code, said)
        self.assert_all_named(self.path, source, parameter_names_file=names)
        for form in ("dcp", "pawl"):  # each has names of its own
            made = os.path.join(self.directory, form)
            code, _, said = self.pawl("convert", self.path, made, "--to", form, "--param-names", names)
            self.assertEqual(0, code, said)
            for pair in ((self.path, made), (made, self.path)):
                code, _, said = self.pawl("diff", *pair, "--param-names", names)
                self.assertEqual(0, code, said)
        target = Pair(2, *self.SHAPES)
        pawl.torch.load(self.path, target.module, target.optimizers, hints=pawl.torch.Hints(parameter_names=given))
        self.assertEqual(source.content(), target.content())
        with open(names, "w", encoding="utf-8") as file:
            json.dump({"optX": given["optG"]}, file)
        with self.assertRaisesRegex(PawlError, 'there is no optimizer "optX"'):
            self.names(self.path, parameter_names_file=names)

    def test_objects_by_their_parameters(self):
        """Models and optimizers that were saved whole: with a rate that is a tensor, or without a state."""
        for kind, tensor, options in ((torch.optim.AdamW, torch.tensor, {}), (torch.optim.SGD, float, {}),
                                      (torch.optim.SGD, float, {"momentum": 0.5})):
            with self.subTest(kind=kind.__name__, **options):
                source, target = Pair(1, *self.SHAPES), Pair(2, *self.SHAPES)
                for pair, rates in ((source, (0.125, 0.25)), (target, (0.75, 0.75))):
                    pair.optimizers = [kind(model.parameters(), lr=tensor(rate) if pair is source else rate, **options)
                                       for model, rate in zip(pair.models, rates, strict=True)]
                source.trained()
                objects = dict(zip(source.keys, [*source.models, *source.optimizers], strict=True))
                torch.save({"loop": {"optimizer": source.optimizers[0]}} | objects, self.path)  # it leads there, too
                self.assert_loaded(source, target)

    def test_state_below_objects_of_an_optimizer_saved_whole(self):
        class Factors:
            def __init__(self, size):
                self.left, self.right = torch.full((size, size), 0.5), [torch.full((size,), 0.25)]

        self.addCleanup(globals().pop, "Factors")
        globals()["Factors"] = Factors
        Factors.__qualname__ = "Factors"
        source = Pair(1, *self.SHAPES).trained()
        for optimizer in source.optimizers:
            for parameter, state in optimizer.state.items():
                state["factors"] = {"both": Factors(len(parameter))}
        torch.save(dict(zip(source.keys, [*source.models, *source.optimizers], strict=True)), self.path)
        found = self.names(self.path)
        self.assertEqual({f"{key}.{name}" for key, model in zip(source.keys, source.models, strict=False)
                          for name, _ in model.named_parameters()}, set(found))
        for name, roles in found.items():
            self.assertLessEqual({"factors.both.left", "factors.both.right.0"}, roles, name)

    def test_shapes_that_only_one_parameter_has(self):
        source = Pair(1, (2, 3, 4, 5), (2, 3, 4)).trained()  # the critic's shapes are among the generator's, too
        torch.save(source.states(), self.path)
        self.assert_all_named(self.path, source)
        self.assert_loaded(source, Pair(2, (2, 3, 4, 5), (2, 3, 4)))

    def test_two_of_one_kind_are_told_by_their_keys(self):
        keys = ("netD_A", "netD_B", "optimizer_D_A", "optimizer_D_B")
        source = Pair(1, (4, 4, 4), (4, 4, 4), keys).trained()
        torch.save(source.states(), self.path)
        self.assert_loaded(source, Pair(2, (4, 4, 4), (4, 4, 4), keys))

    def test_two_of_one_kind_that_nothing_tells_apart(self):
        keys = ("left", "right", "first", "second")
        source = Pair(1, (4, 4, 4), (4, 4, 4), keys).trained()
        torch.save(source.states(), self.path)
        target = Pair(2, (4, 4, 4), (4, 4, 4), keys)
        before = target.content()[0]
        with self.assertRaisesRegex(Refused, "number.*pass optimizer= as a dict"):
            pawl.torch.load(self.path, target.module, target.optimizers)
        self.assertEqual(before, target.content()[0])
        pawl.torch.load(self.path, target.module, dict(zip(("first", "second"), target.optimizers, strict=True)))
        self.assertEqual(source.content(), target.content())

    def test_a_list_of_optimizers_goes_by_its_order(self):
        source = Pair(1, (4, 4, 4), (4, 4, 4), ("a", "b", "x", "y")).trained()
        torch.save({"a": source.models[0].state_dict(), "b": source.models[1].state_dict(),
                    "optimizers": [each.state_dict() for each in source.optimizers]}, self.path)
        self.assert_loaded(source, Pair(2, (4, 4, 4), (4, 4, 4), ("a", "b", "x", "y")))

    def test_one_optimizer_of_two_models(self):
        torch.manual_seed(1)
        models = nn.ModuleDict({"encoder": chain(4, 4, 4), "decoder": chain(4, 4, 4)})
        optimizer = torch.optim.AdamW(models.parameters(), lr=0.5)
        step(models, optimizer)
        torch.save({**{key: model.state_dict() for key, model in models.items()}, "optimizer": optimizer.state_dict()},
                   self.path)
        other = nn.ModuleDict({"encoder": chain(4, 4, 4), "decoder": chain(4, 4, 4)})
        live = torch.optim.AdamW(other.parameters())
        pawl.torch.load(self.path, other, live)
        for mine, theirs in zip(models.parameters(), other.parameters(), strict=True):
            self.assertTrue(torch.equal(mine, theirs))
            for word, value in optimizer.state[mine].items():
                self.assertTrue(torch.equal(value, live.state[theirs][word]), word)
        self.assertEqual(0.5, live.param_groups[0]["lr"])

    def test_dcp_by_name(self):
        for options in (None, StateDictOptions(flatten_optimizer_state_dict=True)):
            source = Pair(1, *self.SHAPES).trained()
            self.path = os.path.join(self.directory, f"dcp{options is None}")
            dcp.save(source.dcp_states(options), checkpoint_id=self.path, no_dist=True)
            self.assert_all_named(self.path, source)
            self.assert_loaded(source, Pair(2, *self.SHAPES))

    def test_dcp_by_number(self):
        source = Pair(1, *self.SHAPES).trained()
        self.path = os.path.join(self.directory, "dcp")
        dcp.save(source.states(), checkpoint_id=self.path, no_dist=True)
        self.assert_loaded(source, Pair(2, *self.SHAPES))

    def test_given_roots_are_kept_as_of_torch_save(self):
        torch.manual_seed(1)
        model = chain(4, 4, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        step(model, optimizer)
        state = {"net": model.state_dict(), "optim": optimizer.state_dict()}
        torch.save(state, self.path)
        folder = os.path.join(self.directory, "dcp")
        dcp.save(state, checkpoint_id=folder, no_dist=True)
        for root in ("", "net."):
            given = self.file_of([f"{root}{name}" for name, _ in model.named_parameters()])
            expected = self.names(self.path, parameter_names_file=given)
            self.assertEqual({f"{root}{name}" for name, _ in model.named_parameters()}, set(expected))
            self.assertEqual(expected, self.names(folder, parameter_names_file=given))

    def test_named_groups_of_two_of_one_kind(self):
        keys = ("left", "right", "first", "second")
        source = Pair(1, (4, 4, 4), (4, 4, 4), keys).trained()
        self.path = os.path.join(self.directory, "dcp")
        dcp.save(source.dcp_states(), checkpoint_id=self.path, no_dist=True)
        target = Pair(2, (4, 4, 4), (4, 4, 4), keys)
        with self.assertRaisesRegex(Refused, "first may be that of left or of right"):
            pawl.torch.load(self.path, target.module, target.optimizers)
        code, _, said = self.pawl("convert", self.path, os.path.join(self.directory, "out"), "--to", "safetensors")
        self.assertNotEqual(0, code)
        self.assertIn('{"first": "left"}', said)
        self.assert_loaded(source, target, hints=pawl.torch.Hints(
            parameter_names={"first": "left", "second": "right"}))
        target = Pair(3, (4, 4, 4), (4, 4, 4), keys)
        pawl.torch.load(self.path, target.module, dict(zip(("first", "second"), target.optimizers, strict=True)))
        self.assertEqual(source.content(), target.content())
        with self.assertRaisesRegex(PawlError, 'no tensors lie under "middle"'):
            self.names(self.path, parameter_names_file=self.file_of({"first": "middle"}))

    def test_one_of_two_with_its_optimizer(self):
        source = Pair(1, (4, 4, 4), (4, 4, 4)).trained()
        torch.save(source.states(), self.path)
        target = Pair(2, (4, 4, 4), (4, 4, 4), rates=(0.75, 0.75))
        with self.assertRaisesRegex(Refused, r"several models of these names, below 'netG\.', 'netD\.'.*as a dict"):
            pawl.torch.load(self.path, target.models[1], strict=False)
        pawl.torch.load(self.path, target.models[1], {"optD": target.optimizers[1]}, strict=False,
                        rename=lambda name: f"netD.{name}")
        for mine, theirs in zip(source.content(), target.content(), strict=True):
            self.assertEqual(mine[len(mine) // 2:], theirs[len(theirs) // 2:])
            self.assertNotEqual(mine[:len(mine) // 2], theirs[:len(theirs) // 2])

    def test_one_of_two_whose_optimizer_has_names_is_not_named_as_the_only_one(self):
        source = Pair(1, (4, 4, 4), (2, 4)).trained()  # the first has equal shapes, so its numbers have no names
        torch.save(source.states(), self.path)
        self.assertLessEqual({"netG.0.weight", "netG.1.weight", "netD.0.weight"}, set(self.names(self.path)))
        target = Pair(2, (4, 4, 4), (2, 4))
        with self.assertRaisesRegex(Refused, "names begin with 'netD.'"):
            pawl.torch.load(self.path, target.models[1], strict=False)

    def test_several_models_that_are_not_one_module(self):
        source = Pair(1, (4, 4, 4), (4, 4, 4)).trained()
        torch.save(source.states(), self.path)
        for models in (source.models, dict(zip(source.keys, source.models, strict=False))):
            with self.assertRaisesRegex(Refused, "ModuleDict"):
                pawl.torch.load(self.path, models, source.optimizers)

    def test_one_model_under_the_key_that_the_file_gives_it(self):
        source = Pair(1, (4, 4, 4), (4, 4, 4)).trained()
        torch.save({"model": source.models[0].state_dict(), "optimizer": source.optimizers[0].state_dict()}, self.path)
        target = Pair(2, (4, 4, 4), (4, 4, 4))
        pawl.torch.load(self.path, nn.ModuleDict({"model": target.models[0]}), target.optimizers[0])
        self.assertEqual(source.content()[1][0], target.content()[1][0])
        self.assertTrue(torch.equal(source.models[0][0].weight, target.models[0][0].weight))

    def test_each_model_with_its_optimizer_in_a_dict_of_their_own(self):
        source = Pair(1, (4, 4, 4), (4, 4, 4), ("G", "D", "", "")).trained()
        torch.save({key: {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    for key, model, optimizer in zip("GD", source.models, source.optimizers, strict=True)}, self.path)
        target = Pair(2, (4, 4, 4), (4, 4, 4), ("G", "D", "", ""))
        with self.assertRaisesRegex(Refused, "'G' here is 'G.model' in the checkpoint.*nn.ModuleDict"):
            pawl.torch.load(self.path, target.module, target.optimizers)
        below = nn.ModuleDict({key: nn.ModuleDict({"model": model})
                               for key, model in zip("GD", target.models, strict=True)})
        pawl.torch.load(self.path, below, target.optimizers)
        self.assertEqual(source.content(), target.content())

    def file_of(self, names):
        path = os.path.join(self.directory, "given.json")
        with open(path, "w", encoding="utf-8") as file:
            json.dump(names, file)
        return path


class AverageTest(Case):
    def average_of(self, model):
        average = chain(3, 4, 5)
        average.load_state_dict({name: tensor / 2 for name, tensor in model.state_dict().items()})
        return average

    def trained(self, seed):
        torch.manual_seed(seed)
        model = chain(3, 4, 5)
        return model, torch.optim.AdamW(model.parameters(), lr=0.5)

    def test_the_model_beside_its_average_has_the_optimizer(self):
        for model_key, average_key, optimizer_key in (("model", "ema", "optimizer"), ("g", "g_ema", "g_optim"),
                                                      ("net", "ema_model", "opt"), ("student", "teacher", "optim")):
            for by_name in (False, True):
                with self.subTest(model_key, by_name=by_name):
                    model, optimizer = self.trained(1)
                    step(model, optimizer)
                    weights, moments = get_state_dict(model, optimizer)
                    if not by_name:
                        weights, moments = model.state_dict(), optimizer.state_dict()
                    torch.save({average_key: self.average_of(model).state_dict(), model_key: weights,
                                optimizer_key: moments}, self.path)
                    found = self.names(self.path)
                    self.assertEqual({"weight", "exp_avg", "exp_avg_sq", "step"}, found["0.weight"])
                    self.assertEqual({"weight"}, found[f"{average_key}.0.weight"])
                    other, live = self.trained(2)
                    pawl.torch.load(self.path, other, live, strict=False)
                    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
                        self.assertTrue(torch.equal(mine, theirs))
                        self.assertTrue(torch.equal(optimizer.state[mine]["exp_avg"], live.state[theirs]["exp_avg"]))


if __name__ == "__main__":
    unittest.main()

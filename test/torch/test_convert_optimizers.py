"""What optimizers keep, through `pawl convert` and back: every optimizer that torch has, and home-made ones whose state
has objects, named tuples, lists and Python numbers. Every tensor and every number is there, under its parameter's name;
`pawl diff` finds the conversion equal. What has no form is named and refused.
"""

import collections
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import torch  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from harness import PAWL  # noqa: E402
from torch import nn  # noqa: E402

TYPES = {"F64": torch.float64, "F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}
FORMS = ("safetensors", "dcp", "pawl")
Pair = collections.namedtuple("Pair", ("left", "right"))  # noqa: PYI024


class Attributes:
    def __init__(self, **values):
        self.__dict__.update(values)


class Slots:
    __slots__ = ("first", "second")

    def __init__(self, first, second):
        self.first, self.second = first, second


class History(list):
    pass


class HomeMade(torch.optim.Optimizer):
    """Keeps what a function gives for each parameter."""

    def __init__(self, parameters, make):
        super().__init__(parameters, {"lr": 0.5})
        self.make = None  # a function is no part of a checkpoint
        for number, parameter in enumerate(self.param_groups[0]["params"]):
            self.state[parameter] = make(self, number, parameter)


def leaves(value, path=()):
    """The tensors and numbers below a parameter's state, by their paths, as tensors."""

    def is_number(each):
        return isinstance(each, (int, float)) and not isinstance(each, bool)

    if isinstance(value, torch.Tensor):
        return {".".join(path): value}
    if isinstance(value, (bool, int, float)):
        return {
            ".".join(path): torch.tensor(
                value, dtype={bool: torch.bool, int: torch.int64}.get(type(value), torch.float64)
            )
        }
    if isinstance(value, (list, tuple)) and type(value) is not Pair and value and all(map(is_number, value)):
        return {
            ".".join(path): torch.tensor(
                value, dtype=torch.int64 if all(type(each) is int for each in value) else torch.float64
            )
        }
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple, collections.deque)):
        parts = [*enumerate(value), *getattr(value, "__dict__", {}).items()]
    else:
        parts = [
            (key, getattr(value, key)) for key in (*getattr(value, "__slots__", ()), *getattr(value, "__dict__", {}))
        ]
    return {name: leaf for key, part in parts for name, leaf in leaves(part, (*path, str(key))).items()}


def tensors_of(path):
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    header.pop("__metadata__", None)
    out = {}
    for key, each in header.items():
        begin, end = each["data_offsets"]
        out[key] = torch.frombuffer(bytearray(data[begin:end]) or bytearray(8), dtype=TYPES[each["dtype"]])[
            : -1 if begin == end else None
        ].reshape(each["shape"])
    return out


class Case(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pawl-optimizers-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)
        self.path = os.path.join(self.directory, "state.pt")
        self.names = os.path.join(self.directory, "names.json")

    def pawl(self, *arguments):
        done = subprocess.run([PAWL, *arguments], capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def save(self, model, optimizer, whole=False):
        torch.save(
            {
                "model": model if whole else model.state_dict(),
                "optimizer": optimizer if whole else optimizer.state_dict(),
            },
            self.path,
        )
        of_parameter = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = [[of_parameter[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]
        with open(self.names, "w", encoding="utf-8") as file:
            json.dump(groups, file)
        return {of_parameter[id(parameter)]: state for parameter, state in optimizer.state.items()}

    def check(self, states, *flags):
        """The file to each form and back: all there, and equal."""
        made = {}
        for form in FORMS:
            made[form] = os.path.join(self.directory, f"out-{form}")
            shutil.rmtree(made[form], ignore_errors=True)
            code, said = self.pawl("convert", self.path, made[form], "--to", form, "--overwrite", *flags)
            self.assertEqual(0, code, f"{form}: {said}")
            code, said = self.pawl("diff", self.path, made[form], *flags)
            self.assertEqual(0, code, f"{form}: {said}")
        again = os.path.join(self.directory, "again.safetensors")
        for form in FORMS:
            code, said = self.pawl("convert", made[form], again, "--to", "safetensors", "--overwrite")
            self.assertEqual(0, code, f"{form}: {said}")
            found = tensors_of(again)
            for name, state in states.items():
                for role, leaf in leaves(state).items():
                    key = f"{name}/{role}"
                    self.assertIn(key, found, form)
                    self.assertTrue(torch.equal(leaf.to(torch.float64), found[key].to(torch.float64)), f"{form} {key}")
                extra = {key for key in found if key.startswith(f"{name}/")} - {
                    f"{name}/{role}" for role in leaves(state)
                }
                self.assertEqual({f"{name}/weight"}, extra, form)


class TorchOptimizers(Case):
    def trained(self, kind, **options):
        torch.manual_seed(1)
        sparse = kind is torch.optim.SparseAdam
        bias = kind is not torch.optim.Muon
        model = (
            nn.Sequential(*(nn.Embedding(7, 4, sparse=True) for _ in range(2)))
            if sparse
            else nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Linear(4, 4, bias=bias), nn.Linear(4, 4, bias=bias))
        )
        optimizer = kind(model.parameters(), **options)

        def closure():
            optimizer.zero_grad()
            loss = (
                sum(each(torch.tensor([1, 3])).square().sum() for each in model)
                if sparse
                else model(torch.ones(2, 3)).square().sum()
            )
            loss.backward()
            return loss

        for _ in range(3):
            optimizer.step(closure)
        return model, optimizer

    def test_every_one_of_torch(self):
        kinds = [
            kind
            for kind in vars(torch.optim).values()
            if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
        ]
        self.assertGreater(len(kinds), 12)
        more = {
            torch.optim.SGD: {"momentum": 0.5},
            torch.optim.RMSprop: {"momentum": 0.5, "centered": True},
            torch.optim.Adam: {"amsgrad": True},
        }
        for kind in kinds:
            with self.subTest(kind=kind.__name__):
                model, optimizer = self.trained(kind, **({"lr": 0.01} | more.get(kind, {})))
                states = self.save(model, optimizer)
                self.assertTrue(states)
                self.check(states, "--param-names", self.names)
                self.check(self.save(model, optimizer, whole=True))


class HomeMadeOptimizers(Case):
    def check_both(self, make, shape=(3, 4, 4)):
        """As a state dict, and saved whole."""
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(before, after) for before, after in zip(shape, shape[1:], strict=False)))
        optimizer = HomeMade(model.parameters(), make)
        for whole in (False, True):
            with self.subTest(whole=whole):
                self.check(self.save(model, optimizer, whole), *([] if whole else ["--param-names", self.names]))

    def test_what_is_empty_gives_nothing(self):
        """As do objects of a class that has no state; torch.Size is the tuple that it is."""
        self.check_both(
            lambda _, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                "factory": collections.defaultdict(list),
                "queue": collections.deque(maxlen=5),
                "bare": Attributes(),
                "nested": [[], (), {}, [None]],
                "shape": parameter.shape,
                "scalar_shape": torch.Size(()),
            }
        )

    def test_an_object_without_state_in_protocol_0(self):
        """copyreg._reconstructor(class, object, None)."""
        model = nn.Sequential(nn.Linear(3, 4))
        state = {"exp_avg": torch.zeros(4, 3), "bare": Attributes()}
        torch.save(
            {"model": model.state_dict(), "optimizer": {"state": {0: state}, "param_groups": [{"params": [0, 1]}]}},
            self.path,
            pickle_protocol=0,
        )
        code, said = self.pawl("convert", self.path, self.names, "--to", "safetensors")
        self.assertEqual(0, code, said)

    def test_a_state_that_is_an_object(self):
        self.check_both(
            lambda _, number, parameter: Attributes(
                step=3, exp_avg=torch.full_like(parameter, number), decay=0.25, warm=True
            )
        )

    def test_numbers_beyond_float32(self):
        self.check_both(
            lambda _, number, parameter: {
                "step": (1 << 24) + 1 + number,
                "seen": 1 << 62,
                "exp_avg": torch.full_like(parameter, 0.5),
            }
        )

    def test_named_tuples_slots_and_lists_of_a_class(self):
        self.check_both(
            lambda _, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                "pair": tuple(Pair(torch.ones(2), 0.5)),
                "slots": Slots(torch.zeros(3), 4),
                "history": History([torch.ones(1), torch.zeros(1)]),
                "queue": collections.deque([torch.ones(2), torch.zeros(2)], 5),
                "deep": {"er": [{"most": Attributes(left=[torch.ones(1), 7], right={"size": 0.75})}]},
            }
        )

    def test_fields_of_a_named_tuple_go_by_their_places(self):
        model = nn.Sequential(nn.Linear(3, 4))
        optimizer = HomeMade(
            model.parameters(),
            lambda _, number, parameter: {"pair": Pair([torch.ones(2)], torch.full_like(parameter, 2.0))},
        )
        for whole in (False, True):
            self.save(model, optimizer, whole)
            out = os.path.join(self.directory, "out.safetensors")
            code, said = self.pawl(
                "convert",
                self.path,
                out,
                "--to",
                "safetensors",
                "--overwrite",
                *([] if whole else ["--param-names", self.names]),
            )
            self.assertEqual(0, code, said)
            self.assertLessEqual(
                {"0.weight/pair.0.0", "0.weight/pair.1", "0.bias/pair.0.0", "0.bias/pair.1"}, set(tensors_of(out))
            )

    def test_lists_of_numbers_are_tensors(self):
        self.check_both(
            lambda _, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                "losses": [0.5, 0.25, 1],
                "counts": (1, 2, number),
                "empty": [],
                "nothing": None,
            }
        )

    def test_numbers_in_dcp_folders(self):
        """torch's DCP has them as objects beside the tensors: nested, flattened, and keyed by number."""
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
        states = {
            name: {
                "step": 3,
                "exp_avg": torch.full_like(parameter, 0.5),
                "decay": 0.25,
                "warm": True,
                "losses": [0.5, 1.0],
                "none": None,
            }
            for name, parameter in model.named_parameters()
        }
        group = {"lr": 0.5, "betas": (0.5, 0.75)}
        numbered = {
            "state": dict(enumerate(states.values())),
            "param_groups": [{"params": list(range(len(states))), **group}],
        }
        nested = {"state": states, "param_groups": [{"params": list(states), **group}]}
        flat = {f"state.{name}.{word}": value for name, state in states.items() for word, value in state.items()} | {
            f"param_groups.{name}.{word}": value for name in states for word, value in group.items()
        }
        for number, optimizer in enumerate((nested, flat, numbered)):
            self.path = os.path.join(self.directory, f"dcp{number}")
            dcp.save({"model": model.state_dict(), "optimizer": optimizer}, checkpoint_id=self.path, no_dist=True)
            self.check(states)

    def test_what_has_no_form_in_dcp_folders(self):
        model = nn.Sequential(nn.Linear(3, 4))
        states = {
            name: {"exp_avg": torch.full_like(parameter, 0.5), "pair": (torch.ones(2), torch.ones(3)), "kind": "a word"}
            for name, parameter in model.named_parameters()
        }
        self.path = os.path.join(self.directory, "dcp")
        dcp.save(
            {
                "model": model.state_dict(),
                "optimizer": {"state": states, "param_groups": [{"params": list(states), "lr": 0.5}]},
            },
            checkpoint_id=self.path,
            no_dist=True,
        )
        out = os.path.join(self.directory, "out.safetensors")
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors")
        self.assertNotEqual(0, code, said)
        self.assertIn("optimizer.state.0.weight.pair.0 is a tensor inside an object", said)
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors", "--skip-unsupported")
        self.assertEqual(4, code, said)
        self.assertIn("0.weight/exp_avg", tensors_of(out))

    def test_containers_in_dcp_folders(self):
        """Lists that are empty, of None, or nested, are each one object of a DCP tree."""
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
        states = {
            name: {
                "step": 3,
                "exp_avg": torch.full_like(parameter, 0.5),
                "old_dirs": [],
                "empty": (),
                "al": [None, None],
                "pairs": [[1, 2], [3]],
                "mixed": [None, 0.5],
                "table": {"count": 7, "deep": [[0.25], True]},
                "size": torch.Size((2, 3)),
                "factory": collections.defaultdict(list),
            }
            for name, parameter in model.named_parameters()
        }
        nested = {"state": states, "param_groups": [{"params": list(states), "lr": 0.5}]}
        flat = {f"state.{name}.{word}": value for name, state in states.items() for word, value in state.items()} | {
            f"param_groups.{name}.lr": 0.5 for name in states
        }
        flat = {key: value for key, value in flat.items() if not key.endswith(".table")}  # torch makes a path of it
        numbered = {
            "state": dict(enumerate(states.values())),
            "param_groups": [{"params": list(range(len(states))), "lr": 0.5}],
        }
        for form, optimizer in (("nested", nested), ("flat", flat), ("numbered", numbered)):
            with self.subTest(form):
                self.path = os.path.join(self.directory, form)
                dcp.save({"model": model.state_dict(), "optimizer": optimizer}, checkpoint_id=self.path, no_dist=True)
                left_out = {"table"} if form == "flat" else set()
                self.check(
                    {name: {word: each[word] for word in each.keys() - left_out} for name, each in states.items()}
                )

    def test_lbfgs_in_dcp_folders(self):
        """Keyed by number; in the first step its lists are empty, and then they have tensors, or None."""
        for steps in (1, 3):
            with self.subTest(steps=steps):
                model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
                optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=steps)

                def closure(model=model, optimizer=optimizer):
                    optimizer.zero_grad()
                    loss = model(torch.ones(2, 3)).square().sum()
                    loss.backward()
                    return loss

                optimizer.step(closure)
                self.path = os.path.join(self.directory, "state.pt")
                states = self.save(model, optimizer)
                self.path = os.path.join(self.directory, f"dcp{steps}")
                dcp.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
                    checkpoint_id=self.path,
                    no_dist=True,
                )
                self.check(states, "--param-names", self.names)

    def test_many_entries(self):
        """More than the 64 and 512 that were read once."""
        self.check_both(
            lambda _, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                **{f"old_{i}": i / 4 for i in range(600)},
            }
        )

    def test_back_references_of_many_parameters(self):
        """From each state to the optimizer: what it leads to is there already."""
        torch.manual_seed(1)
        model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(300)))
        optimizer = HomeMade(
            model.parameters(),
            lambda own, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                "step": torch.tensor(1.0),
                "owner": own,
                "all": own.state,
            },
        )
        torch.save({"model": model, "optimizer": optimizer}, self.path)
        out = os.path.join(self.directory, "out.safetensors")
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors")
        self.assertEqual(0, code, said)
        found = tensors_of(out)
        self.assertEqual(3 * 600, len(found))
        for number, (name, _) in enumerate(model.named_parameters()):
            self.assertTrue((found[f"{name}/exp_avg"] == number).all(), name)

    def test_what_has_no_form_is_named(self):
        import numpy

        model = nn.Sequential(nn.Linear(3, 4))
        optimizer = HomeMade(
            model.parameters(),
            lambda _, number, parameter: {
                "exp_avg": torch.full_like(parameter, number),
                "scalar": numpy.float64(0.5),
                "huge": 1 << 70,
                "complex": 1 + 2j,
                "kind": "a word",
            },
        )
        self.save(model, optimizer)
        out = os.path.join(self.directory, "out.safetensors")
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors", "--param-names", self.names)
        self.assertNotEqual(0, code, said)
        for word in ("scalar", "huge", "complex"):
            self.assertIn(f"optimizer.state.0.{word} is", said)
        code, said = self.pawl(
            "convert", self.path, out, "--to", "safetensors", "--param-names", self.names, "--skip-unsupported"
        )
        self.assertEqual(4, code, said)
        _, said = self.pawl("inspect", self.path)
        self.assertIn("texts in its parameters' state, which are left out: kind", " ".join(said.split()))

    def test_a_group_of_too_many_entries_is_a_problem(self):
        model = nn.Sequential(nn.Linear(3, 4))
        optimizer = HomeMade(
            model.parameters(), lambda _, number, parameter: {"exp_avg": torch.full_like(parameter, number)}
        )
        optimizer.param_groups[0].update({f"more_{i}": i for i in range(300)})
        self.save(model, optimizer)
        out = os.path.join(self.directory, "out.safetensors")
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors", "--param-names", self.names)
        self.assertEqual(4, code, said)
        self.assertIn("param_groups[0] has 302 entries, and of a group at most 256 are read", said)
        code, said = self.pawl("convert", self.path, out, "--to", "safetensors", "--roles", "weight")
        self.assertEqual(0, code, said)


if __name__ == "__main__":
    unittest.main()

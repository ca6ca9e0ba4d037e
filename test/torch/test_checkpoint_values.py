"""What a job declares, against what pawl.torch.save() stores of the same training: pawld writes checkpoints from the
slots, so names, roles, shapes and types must be the same, and the values beside the tensors."""
import collections
import ctypes
import json
import os
import struct
import sys
import time
import unittest
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.dirname(HERE), os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")]

import harness  # noqa: E402
import live_ranks  # noqa: E402
import live_trainings  # noqa: E402
import torch  # noqa: E402
from segment import SEALED, replica_layout, replica_slots  # noqa: E402
from torch import nn  # noqa: E402
from torch_job import START_S, TorchTest, jobs  # noqa: E402

from pawl import (  # noqa: E402
    checkpoint_values,
    declared_state,
    made_ddp,
    optimizer_numbers,
    protect,
    volatile_state,
)
from pawl.errors import Refused  # noqa: E402
from pawl.torch.layout import layout_of, pieces_of  # noqa: E402
from pawl.torch.saving import StoredValues, merge_groups  # noqa: E402

made_ddp.watch()
WORLD = 4
TYPES = ("float32", "float64", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
         "uint64", "bool", "complex32", "complex64", "complex128")
STEP = 7
NOT_KEPT = "nonpersistent_buffer"


class Listening:
    """A libpawl that notes what is declared."""

    def __init__(self):
        self.tensors, self.blobs = {}, {}

    def tensor_add(self, name, role, dtype, shape, _data, *, region=None, lifetime, **_):
        whole = (tuple(region.shape), tuple(region.begin), tuple(region.size)) if region is not None else (
            tuple(shape), (0,) * len(shape), tuple(shape))
        assert (name, role) not in self.tensors, (name, role)
        self.tensors[name, role] = (*whole, TYPES[dtype])
        return len(self.tensors)

    def blob_add(self, name, capacity, save, load):
        self.blobs[name] = capacity, save, load

    def mesh_add(self, *_):
        return 0

    def layout_seal(self):
        pass


def declared(rank, world, *things):
    """What the job declares of these, and the protected things. It stores checkpoints."""
    protected, trainer, said = protect.Protected(rank, world), Listening(), []
    protected.add(things, None)
    volatile_state.room_for(protected.parts, 0)  # as agree_on_room() does
    with (mock.patch.dict(os.environ, PAWL_CHECKPOINT="somewhere"),
          mock.patch.object(declared_state.script_exit, "say", said.append)):
        state = declared_state.DeclaredState(trainer, protected, mock.Mock(), 100, list, lambda: STEP)
        state.seal(mock.Mock())
    trainer.state, trainer.protected, trainer.said = state, protected, said
    return trainer


def stored(*arguments, **keywords):
    """What pawl.torch.save() lists on this rank."""
    return {(piece.name, piece.role): (piece.shape, piece.begin, piece.size, piece.dtype)
            for piece in pieces_of(*arguments, **keywords)}


def without(found, role):
    return {key: value for key, value in found.items() if key[1] != role}


def values_of(trainer):
    _, save, _ = trainer.blobs[checkpoint_values.BLOB]
    return json.loads(save(1 << 20))


def values_stored(model, optimizer=None, **keywords):
    """Beside the tensors, by a single rank that holds all groups."""
    layout = layout_of(model, optimizer, **keywords)
    groups = merge_groups([[(each.parameters, each.values) for each in layout.groups]])
    text = StoredValues({"step": STEP}, groups, layout.extra_state, f"torch {torch.__version__}").text()
    return {"values": json.loads(text), "aliases": layout.aliases}


def compare(rank, world, kinds):
    answers = {}
    for kind in kinds:
        model, optimizer = live_trainings.make(kind)
        try:
            trainer = declared(rank, world, model, optimizer)
        except Refused as refused:
            answers[kind] = str(refused)
            continue
        answers[kind] = (trainer.tensors, stored(model, optimizer),
                         (values_of(trainer), values_stored(model, optimizer)) if rank == 0 else list(trainer.blobs))
    return answers


class Counting(torch.optim.Optimizer):
    """Its state has numbers of all kinds."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["norm"], state["warm"] = state["count"] / 4, state["count"] > 1


class Noting(nn.Linear):
    """With a state of its own."""

    def __init__(self, note):
        super().__init__(2, 2)
        self.note, self.asked = note, 0

    def get_extra_state(self):
        self.asked += 1
        return self.note

    def set_extra_state(self, state):
        self.note = state


def train(model, optimizer, size=4):
    model(torch.randn(8, size)).abs().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


class DeclaredTest(unittest.TestCase):
    """Tensors."""

    maxDiff = None

    def compare(self, found, expected, more=frozenset()):
        """`more`: roles that are declared and not stored."""
        self.assertEqual(expected, {key: value for key, value in found.items() if key[1] not in more})

    def test_every_way_to_train_on_many_ranks(self):
        answers = live_ranks.run(WORLD, compare, live_trainings.KINDS)
        refused = {kind for kind in live_trainings.KINDS if isinstance(answers[0][kind], str)}
        too_old = set() if sharded_here() else {"fsdp2", "hsdp", "fsdp2_tp"}
        self.assertEqual({"pp_dp", "fsdp1", "fsdp1_flat"} | too_old, refused)
        for kind in set(live_trainings.KINDS) - refused:
            for rank, answer in enumerate(answers):
                found, expected, values = answer[kind]
                with self.subTest(kind=kind, rank=rank):
                    self.assertIn(("table", NOT_KEPT), found)
                    self.assertIn(("seen", "buffer"), found)
                    self.compare(found, expected, {NOT_KEPT})
                    if rank == 0:
                        self.assertEqual(*values)
                    else:
                        self.assertNotIn(checkpoint_values.BLOB, values)

    def test_memory_orders_tied_weights_and_complex_numbers(self):
        model = nn.Sequential(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last), nn.Linear(2, 2),
                              nn.Linear(2, 2))
        model[2].weight = model[1].weight
        model.turns = nn.Parameter(torch.ones(2, 3, dtype=torch.complex64))
        model.register_buffer("mask", torch.ones(3), persistent=False)
        model[0].register_buffer("again", model.mask)  # persistent by that name alone
        model[1].register_buffer("further", model.mask)
        optimizer = torch.optim.AdamW(model.parameters())
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        trainer = declared(0, 1, model, optimizer)
        self.compare(trainer.tensors, stored(model, optimizer))
        self.assertEqual(((2, 3), (0, 0), (2, 3), "complex64"), trainer.tensors["turns", "exp_avg"])
        self.assertEqual((4, 3, 3, 3), trainer.tensors["0.weight", "weight"][0])
        self.assertIn(("0.again", "buffer"), trainer.tensors)
        self.assertEqual({"2.weight": "1.weight", "1.further": "0.again"}, values_of(trainer)["aliases"])
        self.assertEqual(values_stored(model, optimizer), values_of(trainer))

    def test_wrappers_inside_of_a_model_have_no_part_in_names(self):
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        model = nn.Sequential(checkpoint_wrapper(nn.Linear(4, 4)), torch.compile(nn.BatchNorm1d(4)))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        trainer = declared(0, 1, model, optimizer)
        self.compare(trainer.tensors, stored(model, optimizer))
        self.assertIn(("1.running_mean", "buffer"), trainer.tensors)

    def test_numbers_in_an_optimizers_state(self):
        model = nn.Linear(4, 4)
        optimizer = Counting(model.parameters())
        train(model, optimizer)
        trainer = declared(0, 1, model, optimizer)
        self.compare(trainer.tensors, stored(model, optimizer))
        self.assertEqual(((), (), (), "int64"), trainer.tensors["bias", "count"])
        numbers = trainer.state._numbers
        train(model, optimizer)
        optimizer.state[model.bias]["warm"] = "of another kind"
        trainer.state.about_to_open(False)
        self.assertEqual({("weight", "count"): 2, ("weight", "norm"): 0.5, ("weight", "warm"): True,
                          ("bias", "count"): 2, ("bias", "norm"): 0.5, ("bias", "warm"): False},
                         {(each.name, each.role): each.tensor.item() for each in numbers.held})

    def test_numbers_of_state_that_is_not_there_yet(self):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        optimizer = Counting([parameter for each in model for parameter in each.parameters()])
        for parameter in model[0].parameters():
            optimizer.state[parameter].update(count=5, norm=1.25, warm=True)
        trainer = declared(0, 1, model, optimizer)
        self.assertEqual({f"{layer}.{name}" for layer in "01" for name in ("weight", "bias")},
                         {name for name, role in trainer.tensors if role == "count"})
        optimizer.state[model[1].weight]["count"] = 9
        trainer.state.about_to_open(False)
        counts = {each.name: each.tensor.item() for each in trainer.state._numbers.held if each.role == "count"}
        self.assertEqual({"0.weight": 5, "0.bias": 5, "1.weight": 9, "1.bias": 0}, counts)

    def test_without_checkpoints_nothing_is_declared_for_them(self):
        model = nn.Linear(4, 4)
        optimizer = Counting(model.parameters())
        train(model, optimizer)
        with mock.patch.dict(os.environ, PAWL_CHECKPOINT=""), mock.patch.object(optimizer_numbers, "OptimizerNumbers"):
            protected, trainer = protect.Protected(0, 1), Listening()
            protected.add([model, optimizer], None)
            declared_state.DeclaredState(trainer, protected, mock.Mock(), 100, list, lambda: STEP).seal(mock.Mock())
        self.assertEqual({"weight"}, {role for _, role in trainer.tensors})
        self.assertEqual(["volatile/rank0"], list(trainer.blobs))

    # Where they can't be the same.

    def test_several_models_and_optimizers(self):
        one, other = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        first, second = (torch.optim.AdamW(each.parameters()) for each in (one, other))
        train(one, first)
        train(other, second)
        trainer = declared(0, 1, one, other, first, second)
        beside = {"rename": lambda name: f"module1.{name}"}
        self.compare(trainer.tensors, stored(one, first) | stored(other, second, **beside))
        groups = [values_stored(one, first), values_stored(other, second, **beside)]
        self.assertEqual([group for each in groups for group in each["values"]["param_groups"]],
                         values_of(trainer)["values"]["param_groups"])
        with self.assertRaisesRegex(Refused, "names two tensors on one rank"):  # pawl.torch gives no prefixes by itself
            stored([one, other], [first, second])

    def test_two_optimizers_of_one_parameter(self):
        model = nn.Linear(4, 4)
        optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for _ in range(2)]
        for each in optimizers:
            train(model, each)
        trainer = declared(0, 1, model, *optimizers)
        self.compare(trainer.tensors, stored(model, optimizers[0]), {"momentum_buffer.1"})
        self.assertEqual([["weight", "bias"]] * 2,
                         [group["params"] for group in values_of(trainer)["values"]["param_groups"]])
        with self.assertRaisesRegex(Refused, "is in two optimizers"):
            stored(model, optimizers)

    def test_state_that_is_not_there_yet_is_declared(self):
        model = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        train(model[0], optimizer)
        found, expected = declared(0, 1, model, optimizer).tensors, stored(model, optimizer)
        self.assertEqual({("1.weight", "momentum_buffer"), ("1.bias", "momentum_buffer")},
                         found.keys() - expected.keys())
        self.compare({key: found[key] for key in expected}, expected)

    def test_parameters_without_a_model(self):
        parameter = nn.Parameter(torch.ones(3))
        optimizer = torch.optim.SGD([parameter], 0.1)
        self.assertEqual([("optimizer0.parameter0", "weight")], list(declared(0, 1, optimizer).tensors))
        with self.assertRaisesRegex(Refused, "the model doesn't have"):
            stored(nn.Linear(2, 2), optimizer)


class ValuesTest(unittest.TestCase):
    """What is beside the tensors."""

    def values(self, *things):
        trainer = declared(0, 1, *things)
        return trainer, lambda: values_of(trainer)

    def test_they_follow_the_training(self):
        model = nn.Sequential(Noting({"seen": [1, None]}), nn.Linear(2, 2))
        optimizer = torch.optim.AdamW([{"params": model[0].parameters(), "weight_decay": 0.25},
                                       {"params": model[1].parameters(), "betas": [0.8, 0.9]}], lr=torch.tensor(0.5))
        trainer, values = self.values(model, optimizer)
        self.assertEqual(values_stored(model, optimizer), values())
        optimizer.param_groups[0]["lr"].mul_(0.5)
        optimizer.param_groups[1]["lr"] = 0.125
        optimizer.param_groups[1]["betas"][0] = 0.7
        optimizer.param_groups[0]["new"] = True
        model[0].note = {"seen": [2, "\u00e9"]}
        trainer.state.volatile.save()
        expected = values_stored(model, optimizer)
        self.assertEqual(0.25, expected["values"]["param_groups"][0]["lr"])
        self.assertEqual(expected, values())
        self.assertEqual(expected, values())
        optimizer.param_groups[0]["new"] = 1  # equal, and another value in JSON
        self.assertIs(int, type(values()["values"]["param_groups"][0]["new"]))
        self.assertEqual([], trainer.said)

    def test_texts_are_those_of_the_store(self):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer, _ = self.values(model, optimizer)
        text = bytes(trainer.blobs[checkpoint_values.BLOB][1](1 << 20)).decode()
        layout = layout_of(model, optimizer)
        groups = merge_groups([[(each.parameters, each.values) for each in layout.groups]])
        stored_text = StoredValues({"step": STEP}, groups, {}, f"torch {torch.__version__}").text()
        self.assertEqual(f'{{"values":{stored_text},"aliases":{{}}}}', text)

    def test_modules_are_asked_once_for_a_save(self):
        model = nn.Sequential(Noting("a"))
        trainer, values = self.values(model, torch.optim.SGD(model.parameters(), 0.1))
        before = model[0].asked
        trainer.state.volatile.save()
        self.assertEqual({"0._extra_state": "a"}, values()["values"]["extra_state"])
        self.assertEqual(before + 1, model[0].asked)

    def test_what_json_cant_hold_is_left_out_and_told_once(self):
        model = nn.Sequential(Noting(torch.ones(2)), Noting({1: 2}), Noting("kept"), Noting(None))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer.param_groups[0].update(made_of=b"x", far=float("inf"))
        trainer, values = self.values(model, optimizer)
        for _ in range(2):
            found = values()["values"]
            self.assertEqual({"2._extra_state": "kept"}, found["extra_state"])
            self.assertEqual(0.1, found["param_groups"][0]["lr"])
            self.assertNotIn("far", found["param_groups"][0])
        self.assertEqual(4, len(trainer.said), trainer.said)
        for part in ("param group 0: made_of is a bytes", "far is inf", "0._extra_state", "1._extra_state"):
            self.assertTrue(any(part in each for each in trainer.said), (part, trainer.said))

    def test_what_outgrows_its_room(self):
        model = nn.Sequential(Noting(""), *(nn.Linear(1, 1) for _ in range(50)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer, _ = self.values(model, optimizer)
        room, save, load = trainer.blobs[checkpoint_values.BLOB]
        self.assertEqual(0, room % 4096)
        self.assertGreater(room, 2 * len(save(room)))
        model[0].note = "x" * room
        trainer.state.volatile.save()
        for _ in range(2):
            found = json.loads(save(room))["values"]
            self.assertEqual(({}, 1, STEP), (found["extra_state"], len(found["param_groups"]), found["user"]["step"]))
        self.assertEqual(1, len(trainer.said), trainer.said)
        found = json.loads(save(300))["values"]
        self.assertEqual(([], STEP), (found["param_groups"], found["user"]["step"]))
        self.assertEqual(b"{}", save(100))
        load(b"whatever")

    def test_bytes_are_written_where_they_belong(self):
        text = checkpoint_values.Text(b'{"a":1}')
        room = ctypes.create_string_buffer(20)
        text.write_to(ctypes.addressof(room))
        self.assertEqual(b'{"a":1}', room.value)

    def test_a_save_is_cheap(self):
        model = nn.Sequential(collections.OrderedDict(
            (f"layer{number}", nn.ModuleDict({"attention": nn.Linear(2, 2)})) for number in range(300)))
        named = list(model.named_parameters())
        optimizer = torch.optim.AdamW([{"params": [p for _, p in named if p.dim() > 1]},
                                       {"params": [p for _, p in named if p.dim() <= 1], "weight_decay": 0.0}])
        trainer, _ = self.values(model, optimizer)
        _, save, _ = trainer.blobs[checkpoint_values.BLOB]
        room = ctypes.create_string_buffer(1 << 20)
        taken = []
        for step in range(50):
            for group in optimizer.param_groups:
                group["lr"] = 0.1 / (step + 1)
            begin = time.perf_counter()
            save(1 << 20).write_to(ctypes.addressof(room))
            taken.append(time.perf_counter() - begin)
        print(f"600 parameters, 2 param groups: {min(taken) * 1e3:.3f} ms, median {sorted(taken)[25] * 1e3:.3f} ms",
              file=sys.stderr)
        self.assertLess(min(taken), 3e-3)


class SlotsTest(TorchTest):
    """In a real job."""

    def test_a_slot_says_what_a_checkpoint_needs_also_after_a_loss(self):
        with self.training("--test-hooks", nodes=2, spares=1, steps=60, step_ms=50, optimizer="adam",
                           extra_environment={"PAWL_CHECKPOINT": "somewhere"}) as job:
            before = job.wait_spare(timeout_s=START_S)
            owner = jobs.seats(job.wait_step(8, START_S))[0]["node"]
            job.kill_node(owner)
            after = job.wait_running(jobs.generation(before), START_S)
            step = jobs.committed(job.wait_step(jobs.committed(after) + 4, START_S)) + 6
            holder, owner = (jobs.seats(after)[seat]["node"] for seat in (1, 0))
            job.hold(owner, "compute", step)
            job.wait_held(owner, "compute", START_S)
            pid = job.wait_step(step - 1, START_S)[holder]["pawld_pid"]
            try:
                rows = replica_layout(pid, 0)
                slots = [slot for slot in replica_slots(pid, 0) if slot.state == SEALED]
                at = next(int(row[10]) for row in rows if row[1:3] == [checkpoint_values.BLOB, "blob"])
                for slot in slots:
                    size, = struct.unpack("<Q", slot.read(at, 8))
                    values = json.loads(slot.read(at + 8, size))["values"]
                    self.assertEqual({"step": slot.step}, values["user"])
                    self.assertEqual({row[1] for row in rows[2:] if row[2] == "weight"},
                                     {name for group in values["param_groups"] for name in group["params"]})
                self.assertEqual(step - 1, slots[-1].step)
            except PermissionError:
                self.skipTest("privilege: another process's memory may not be read here (ptrace)")
            job.release(owner)
            self.assert_like_plain(job)


def sharded_here():
    return tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 7)


if __name__ == "__main__":
    harness.main()

"""dcp.save and dcp.load with pawl's Writer and Reader: one argument changed, on four gloo ranks and on one.

What was saved is held against the live tensors, loaded into trainings of other seeds and other layouts; and a
checkpoint that pawl.torch.save or torch itself has written is read through the Reader.
"""
import os
import shutil
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
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict  # noqa: E402

from pawl import _checkpoint  # noqa: E402
from pawl.torch.dcp import OBJECT, Reader, Writer, groups_of, names_of  # noqa: E402
from pawl.torch.saving import save  # noqa: E402

FIXTURES = os.path.join(harness.ROOT, "test", "fixtures", "torch")
WORLD = 4


class NamesTest(unittest.TestCase):
    """Pure: what a state's keys are called in a checkpoint of pawl's."""

    def test_an_optimizers_state_tells_where_the_model_is(self):
        names = names_of({"model.a.w": ("model", "a.w"), "model.seen": ("model", "seen"), "step": ("step",),
                          "optim.state.a.w.exp_avg": ("optim", "state", "a.w", "exp_avg"),
                          "optim.param_groups": ("optim", "param_groups")})
        self.assertEqual({"model.a.w": ("a.w", "weight"), "model.seen": ("seen", "weight"), "step": ("step", "weight"),
                          "optim.state.a.w.exp_avg": ("a.w", "exp_avg"),
                          "optim.param_groups": ("optim.param_groups", "weight")}, names)

    def test_without_proof_keys_stay(self):
        self.assertEqual({"model.a": ("model.a", "weight")}, names_of({"model.a": ("model", "a")}))

    def test_two_models_keep_their_keys(self):
        paths = {f"{top}.w": (top, "w") for top in ("one", "two")}
        paths["optim.state.w.step"] = ("optim", "state", "w", "step")
        self.assertEqual({key: (key, "weight") for key in paths}, names_of(paths))

    def test_groups_from_what_ranks_wrote(self):
        found = [(("optim", "param_groups", 10, "lr"), 3.0), (("optim", "param_groups", 9, "params"), ["a"]),
                 (("optim", "param_groups", 10, "params"), ["b"]), (("optim", "param_groups", 9, "lr"), 1.0)]
        self.assertEqual([{"params": ["a"], "lr": 1.0}, {"params": ["b"], "lr": 3.0}], groups_of(found))


def state_of(model, optimizer, **more):
    weights, states = get_state_dict(model, optimizer)
    return {"model": weights, "optim": states, **more}


def trained(kind, seed):
    model, optimizer = live_trainings.make(kind, seed=seed)
    return model, optimizer, live_trainings.truth(kind, model, optimizer)


def load_into(kind, path, seed, **options):
    model, optimizer, before = trained(kind, seed)
    state = state_of(model, optimizer)
    dcp.load(state, storage_reader=Reader(path, **options))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return before, live_trainings.truth(kind, model, optimizer)


def round_trips(rank, world, directory, kinds):
    answers = {}
    for kind in kinds:
        path = os.path.join(directory, kind)
        model, optimizer, truth = trained(kind, 1)
        dcp.save(state_of(model, optimizer, progress={"step": 2}), storage_writer=Writer(path))
        assert os.path.exists(path)
        answers[kind] = truth, *load_into(kind, path, 2)
    answers["elsewhere"] = answers["plain"][0], *load_into("hsdp", os.path.join(directory, "plain"), 3)
    model, optimizer, truth = trained("fsdp2_tp", 1)
    ours = os.path.join(directory, "ours")
    save(ours, model, optimizer)
    answers["ours"] = truth, *load_into("fsdp2_tp", ours, 4)
    return answers


def fail_on_one(rank, world, path):
    model, optimizer, _ = trained("fsdp2", 1)
    writer = Writer(path)
    if rank == 1:
        writer.write_data = lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    try:
        dcp.save(state_of(model, optimizer), storage_writer=writer)
    except BaseException as error:  # torch's CheckpointException is no Exception
        return str(error)
    return "saved"


class DcpStorageTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.directory = tempfile.mkdtemp(prefix="pawl-dcp-")
        cls.addClassCleanup(shutil.rmtree, cls.directory, True)

    def same(self, expected, found, about):
        self.assertEqual(sorted(expected), sorted(found), about)
        for key, value in expected.items():
            self.assertTrue(value.dtype == found[key].dtype and torch.equal(value, found[key]), (about, key))

    def test_one_argument_on_both_sides(self):
        kinds = ("plain", "ddp", "fsdp2", "fsdp2_tp")
        answers = live_ranks.run(WORLD, round_trips, self.directory, kinds)
        for rank, answer in enumerate(answers):
            for about, (saved, before, loaded) in answer.items():
                self.assertFalse(torch.equal(saved["blocks.0.up.weight", "exp_avg"],
                                             before["blocks.0.up.weight", "exp_avg"]), about)
                self.same(saved, loaded, (rank, about))
        with _checkpoint.Checkpoint(os.path.join(self.directory, "fsdp2")) as stored:
            roles = {tensor.role for tensor in stored.tensors}
            self.assertEqual({"weight", "exp_avg", "exp_avg_sq", "step", OBJECT}, roles)
            names = {tensor.name for tensor in stored.tensors if tensor.role == "exp_avg"}
            self.assertIn("blocks.0.up.weight", names)
            self.assertEqual(names, {name for group in stored.values["param_groups"] for name in group["params"]})

    def test_a_failure_publishes_nothing(self):
        path = os.path.join(self.directory, "failing", "model")
        os.mkdir(os.path.dirname(path))
        for said in live_ranks.run(WORLD, fail_on_one, path):
            self.assertIn("No space left on device", said)
        self.assertNotIn("model", os.listdir(os.path.dirname(path)))

    def test_objects_come_back_as_they_were(self):
        path = os.path.join(self.directory, "objects")
        state = {"model": {"w": torch.arange(6.0).view(2, 3)}, "odd": {"pair": (1, 2.5), "text": "x", "nothing": None}}
        dcp.save(state, storage_writer=Writer(path), no_dist=True)
        empty = {"model": {"w": torch.zeros(2, 3, dtype=torch.bfloat16)},
                 "odd": {"pair": None, "text": "", "nothing": 1}}
        dcp.load(empty, storage_reader=Reader(path), no_dist=True)
        self.assertTrue(torch.equal(state["model"]["w"], empty["model"]["w"].float()))
        self.assertEqual(state["odd"], empty["odd"])

    def test_values_of_our_own_saves(self):
        path = os.path.join(self.directory, "values")
        model = torch.nn.Linear(2, 2)
        save(path, model, values={"progress": {"step": 9, "seen": [1, 2]}})
        state = {"model": {"weight": torch.zeros(2, 2)}, "progress": {"step": 0, "seen": []}}
        dcp.load(state, storage_reader=Reader(path), no_dist=True)
        self.assertEqual({"step": 9, "seen": [1, 2]}, state["progress"])
        self.assertTrue(torch.equal(model.weight.detach(), state["model"]["weight"]))

    def test_what_torch_has_written(self):
        compared = 0
        for fixture in sorted(os.listdir(FIXTURES)):
            found = os.path.join(FIXTURES, fixture, "ckpt")
            if fixture not in ("G3_fsdp2_tp_2x2", "G2_hsdp_2x2", "G1b_fsdp2_tied_w3"):
                continue
            metadata = dcp.FileSystemReader(found).read_metadata().state_dict_metadata
            tensors = {key: each for key, each in metadata.items() if hasattr(each, "chunks")}
            self.assertGreater(len(tensors), 10)
            by_torch = {key: torch.zeros(each.size, dtype=each.properties.dtype) for key, each in tensors.items()}
            by_pawl = {key: torch.ones_like(each) for key, each in by_torch.items()}
            dcp.load(by_torch, storage_reader=dcp.FileSystemReader(found), no_dist=True)
            dcp.load(by_pawl, storage_reader=Reader(found), no_dist=True)
            self.same(by_torch, by_pawl, fixture)
            compared += 1
        self.assertGreater(compared, 0)


if __name__ == "__main__":
    harness.main()

"""FSDP2, HSDP, tensor parallelism and their mixtures, for the lane "long": a campaign of each, mixtures with what FSDP2
offers, and what is refused. Deaths that every run of the tests sees are in test_traps.py."""
import inspect
import os
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from campaign import GPT, SMALL_GPT, Campaign, harness  # noqa: E402
from leaks import Leaks  # noqa: E402
from test_drill import PYTHON, run_drill  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import FSDPModule  # noqa: E402
from torch.distributed.tensor import DTensor, Shard, distribute_tensor  # noqa: E402
from trap_job import TrapTest  # noqa: E402

from pawl import witness  # noqa: E402

COUNTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "counted_gpt.py")
STRANGERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "strangers")
# FSDP2 exchanges nothing after the optimizer's step.
IN_A_STEP = [
    ("compute", "node", 0), ("allreduce", "trainer", 1), ("fence", "node", 2), ("update", "trainer", 3),
    ("allreduce", "node", 3), ("aside", "trainer", 0), ("update", "node", 1), ("compute", "trainer", 2),
]
RELEASE = tuple(int(part) for part in torch.__version__.split(".")[:2])
needs_fsdp2 = unittest.skipUnless(hasattr(torch.cpu.Stream, "record_event"),
                                  "FSDP2 of PyTorch 2.6 can't compute on CPUs")


@needs_fsdp2
class ShardCampaignTest(Campaign):
    def test_fsdp2(self):
        self.campaign(IN_A_STEP, parallel="fsdp2")

    def test_hsdp(self):
        self.campaign(IN_A_STEP, parallel="hsdp")

    def test_layers_cut_over_pairs_of_ranks_within_fsdp2(self):
        self.campaign(IN_A_STEP, parallel="tp-fsdp2")


@needs_fsdp2
class EightRanksTest(Campaign):
    """Of eight nodes, two of which may die at once."""

    def test_shards_of_layers_that_pairs_of_ranks_share(self):
        self.large_campaign([("compute", "node", 0), ("allreduce", "trainer", 5), ("update", "node", 7),
                             ("aside", "trainer", 2)],
                            [("fence", 2, 3), ("compute", 7, 0)], parallel="tp-fsdp2")

    def test_replicas_of_four_shards(self):
        self.large_campaign([("allreduce", "node", 3), ("update", "trainer", 6), ("aside", "node", 4),
                             ("compute", "trainer", 0)],
                            [("allreduce", 0, 1), ("update", 5, 6)], parallel="hsdp", shards=4)

    def test_replicas_of_shards_of_layers_that_pairs_of_ranks_share(self):
        self.large_campaign([("fence", "node", 6), ("allreduce", "trainer", 1), ("update", "node", 4),
                             ("aside", "trainer", 7)],
                            [("compute", 3, 4), ("update", 0, 1)], parallel="tp-hsdp")


@needs_fsdp2
class StrangersTest(unittest.TestCase):
    """Scripts as public tutorials have them, with the few lines that pawl needs, under `pawl drill`."""

    def drill(self, script, *flags, arguments=()):
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            command = [PYTHON, os.path.join(STRANGERS, script), *flags]
            code, out, err = run_drill(*arguments, command=command, folder=folder)
        self.assertEqual(0, code, out + err)
        self.assertIn("bitwise equal: 3 faults", out)
        self.assertNotIn("starts cold", err)

    def test_fsdp2(self):
        with tempfile.TemporaryDirectory(prefix="pawl-test-") as folder:
            self.drill("fsdp2_tutorial.py", "--explicit-prefetching", "--mixed-precision", "--out-dir", folder)
            self.assertEqual([], os.listdir(folder), "what the runs wrote was to be taken back")

    def test_tensor_parallelism_within_fsdp2(self):
        self.drill("fsdp_tp_tutorial.py", arguments=["--nnodes", "4"])


@needs_fsdp2
class ShardLeakTest(Leaks):
    def test_swaps_under_fsdp2_leave_nothing_behind(self):
        self.swap(COUNTED, plain=GPT, parallel="fsdp2", device_ms=5, **SMALL_GPT)

    def test_swaps_under_tensor_parallelism_within_fsdp2_leave_nothing_behind(self):
        self.swap(COUNTED, plain=GPT, parallel="tp-fsdp2", device_ms=5, **SMALL_GPT)


class DigestTest(unittest.TestCase):
    """Of what a module is given, by which a step that is done again is compared (python/pawl/witness.py)."""

    def test_dtensors_by_what_this_rank_has_of_them(self):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(dist.destroy_process_group)
        mesh = init_device_mesh("cpu", (1,))
        for columns in (8, 4000):  # read whole, and by a sample
            with self.subTest(columns=columns):
                rows = torch.arange(8.0 * columns).view(8, columns)
                digests = [witness.digest(DTensor.from_local(each, mesh, [Shard(0)]))
                           for each in (rows, rows + 1, rows.clone())]
                self.assertEqual(digests[0], digests[2])
                self.assertNotEqual(digests[0], digests[1])


class ShardTrapTest(TrapTest):
    @needs_fsdp2
    def test_replicas_of_shards_and_an_exception_in_backward(self):
        said = self.equal("hsdp", "of 4 ranks are here", kill="1:6,0:10,3:13node", spares=1, nodes=4)
        self.assertNotIn("starts cold", said)

    @needs_fsdp2
    def test_tensor_parallelism_within_fsdp2(self):
        said = self.equal("tensor_parallel_shards", "of 4 ranks are here", kill="1:6,0:10,3:13node", spares=1, nodes=4)
        self.assertNotIn("starts cold", said)
        self.assertNotIn("Could not resolve the process group", said)  # what DTensor keeps from a spare's rehearsal

    @unittest.skipUnless("src_data_rank" in inspect.signature(distribute_tensor).parameters,
                         "PyTorch before 2.7 can't cut weights without an exchange")
    def test_teachers_that_ranks_share(self):
        said = self.equal("cut_teacher", kill="1:6,0:10", spares=1)
        self.assertNotIn("starts cold", said)
        for form, name in {"unprotected": "0.bias", "copied": "0.bias"}.items():
            with self.subTest(form=form):
                self.refused("cut_teacher", f"Sequential.{name}, and 3 more, was cut over the ranks",
                             "src_data_rank=None", TRAP_FORM=form)

    @unittest.skipIf(RELEASE < (2, 9), "PyTorch 2.8 and before leave such gradients, and momenta, as parts of a sum, "
                                       "which no rank has: refused by name")
    def test_modules_that_are_given_dtensors(self):
        self.equal("dtensor_inputs", kill="1:6,0:10", spares=1)

    def test_a_module_that_is_cut_within_another_one(self):
        self.equal("nested_cut", kill="1:6,0:10", spares=1)

    @needs_fsdp2
    def test_parameters_that_fewer_ranks_keep_after_a_forward_pass(self):
        self.equal("fsdp2_fewer_ranks", kill="1:8,0:10", spares=1, nodes=4)

    @needs_fsdp2
    def test_parts_whose_root_is_not_protected(self):
        self.equal("fsdp2_parts", "of 2 ranks are here", "gradients are added up over several steps",
                   kill="1:7,0:11")

    @needs_fsdp2
    def test_shards_whose_gradients_are_added_up(self):
        self.equal("fsdp2_accumulation", "gradients are added up over several steps", kill="1:6,0:11")

    def test_gradients_that_are_parts_of_a_sum(self):
        self.equal("zeroed_gradients", kill="1:6,0:10", spares=1)

    @needs_fsdp2
    def test_what_is_compiled(self):
        """Model and optimizer, under each parallelism."""
        for name in ("compiled_ddp", "compiled_fsdp2", "compiled_tp"):
            with self.subTest(name=name):
                said = self.equal(name, kill="1:6,0:10,1:13node", spares=1)
                self.assertNotIn("starts cold", said)

    def test_what_a_spare_has_compiled_as_another_rank(self):
        """Of a model whose class lives as long as the process, as that of an imported module does."""
        for name in ("compiled_import", "compiled_import_tp"):
            with self.subTest(name=name):
                self.assertNotIn("starts cold", self.equal(name, kill="0:6node", spares=1))

    def test_a_compiler_that_takes_long(self):
        self.assertNotIn("trainer_hang", self.equal("slow_compiler", kill="1:6"))

    @needs_fsdp2
    def test_adapters_several_optimizers_and_averages(self):
        for name in ("lora_ddp", "lora_fsdp2"):
            with self.subTest(name=name):
                said = self.equal(name, kill="1:6,0:10,1:13node", spares=1)
                self.assertNotIn("starts cold", said)

    @needs_fsdp2
    def test_what_fsdp2_can_not_be_mixed_with(self):
        for form, words in {
                "fsdp1": ("FSDP1", "fully_shard()"), "ddp inside": ("body is wrapped in DistributedDataParallel",),
                "half a mesh": ("a mesh of 1 of 2 ranks",), "unsharded root": ("head.weight is trained",),
                "tensor parallel": ("head.weight lies on a mesh of 1 of 2 ranks", "one training of all ranks"),
                "other order": ("head.weight lies on a mesh of 2 of 2 ranks, or in another order",),
                "mesh of its own": ("head.weight lies on a mesh of 1 of 2 ranks, or in another order",),
                "other kind": ("head.weight is a TwoTensor",),
                "outside": ("body.0.weight", "FSDPSequential that is not protected", "give that module"),
                "optimizer alone": ("parameter0", "FSDPSequential that is not protected"),
                "optimizer before": ("before fully_shard()",), "sharded later": ("after job.protect()",),
                "hook later": ("set_all_reduce_hook()",),
                "own gather later": ("exchanged by OwnGather", "set_custom_all_gather()"),
                "gather on commit": ("on_commit", "job.aside()"), "barrier on commit": ("on_commit", "job.aside()"),
                }.items():
            if form == "own gather later" and not hasattr(FSDPModule, "set_custom_all_gather"):
                continue  # PyTorch 2.8 has none
            with self.subTest(form=form):
                self.refused("fsdp2_refused", *words, TRAP_FORM=form)


if __name__ == "__main__":
    harness.main()

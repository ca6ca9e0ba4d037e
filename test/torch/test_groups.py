"""The managed groups give what plain gloo gives, bit for bit; alone they give the right shapes; what is wrong is
refused."""
from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import pickle
import struct
import sys
import tempfile
import threading
import unittest
from datetime import timedelta
from pathlib import Path
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(os.path.dirname(HERE)), "python"), HERE]

import group_collectives  # noqa: E402
import group_forms  # noqa: E402
import group_ranks  # noqa: E402
import harness  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

from pawl import _extension, build_extension, groups, other_world  # noqa: E402
from pawl.errors import Refused  # noqa: E402

RANK, WORLD = 2, 4
LIBRARY = os.environ.get("PAWL_LIBRARY", os.path.join(group_ranks.ROOT, "build", "lib", "libpawl.so.0"))

COUNTED, DIGESTED, KEPT = range(3)
PICKLED = pickle.dumps({"seed": 7})


def build_log(*records: tuple[int, str, torch.Tensor]) -> bytes:
    """As python/c10d/build_log.cc writes it, with digests of nothing."""
    text = struct.pack("<I", len(records))
    for kind, name, value in records:
        text += struct.pack("<BB", kind, len(name)) + name.encode() + struct.pack("<QQ", value.nbytes, 1)
        text += value.numpy().tobytes() if kind == KEPT else b""
    return text


class EqualTest(unittest.TestCase):
    def test_every_parallel_form_trains_as_on_gloo(self) -> None:
        plain = group_ranks.run("forms", WORLD, "forms", backend="gloo")
        managed = group_ranks.run("forms", WORLD, "forms", backend="pawl")
        for form in group_forms.FORMS:
            with self.subTest(form):
                losses = plain[WORLD - 1]["forms"][form]["losses"]
                self.assertEqual(len(losses), len(set(losses)), "the losses stand still: nothing was trained")
                for mine, theirs in zip(managed, plain, strict=True):
                    self.assertEqual(theirs["forms"][form], mine["forms"][form])

    def test_every_collective_gives_what_gloo_gives(self) -> None:
        for said in group_ranks.run("collectives", WORLD, "same"):
            self.assertEqual({}, said["differing"])
            self.assertEqual({}, said["in_pair"], "in a subgroup")
            self.assertEqual(list(group_collectives.CASES), said["same"], "a case failed on both: it compares nothing")
            self.assertIsNone(said["failed"])

    def test_a_forked_process_leaves_its_parents_groups_alone(self) -> None:
        for said in group_ranks.run("forks", 2, "codes"):
            self.assertEqual([0, 0], said["codes"])
            self.assertEqual([2.0, 2.0], said["sums"])
            self.assertIsNone(said["failed"])

    def test_a_mistake_of_the_caller_raises_at_the_call(self) -> None:
        for said in group_ranks.run("mistakes", 2, "raised"):
            for raised in said["raised"]:
                self.assertIsNotNone(raised, said)
            self.assertIsNone(said["failed"], "a mistake of the caller let the generation drain")
            self.assertEqual(2.0, said["after"])


class LoopbackTest(unittest.TestCase):
    """This process alone, as rank 2 of 4."""

    @classmethod
    def setUpClass(cls) -> None:
        groups.register()
        groups.set_loopback(True)
        dist.init_process_group("pawl", store=groups.PawlStore(timedelta(seconds=5)), rank=RANK, world_size=WORLD)

    @classmethod
    def tearDownClass(cls) -> None:
        dist.destroy_process_group()
        groups.set_loopback(False)

    def test_what_is_only_changed_stays(self) -> None:
        for collective in (dist.all_reduce, lambda t: dist.broadcast(t, 0), lambda t: dist.reduce(t, 1),
                           lambda t: dist.send(t, 0)):
            tensor = torch.arange(3.0)
            collective(tensor)
            self.assertEqual([0.0, 1.0, 2.0], tensor.tolist())

    def test_gathers_give_own_copies(self) -> None:
        own = torch.arange(6.0).reshape(3, 2)
        parts = [torch.full((3, 2), 9.0) for _ in range(WORLD)]
        dist.all_gather(parts, own)
        whole = torch.full((3 * WORLD, 2), 9.0)
        dist.all_gather_into_tensor(whole, own)
        self.assertTrue(all(torch.equal(part, own) for part in parts))
        self.assertTrue(torch.equal(whole, torch.cat([own] * WORLD)))
        in_place = torch.zeros(WORLD * 2)
        slot = in_place[RANK * 2:RANK * 2 + 2]
        slot.copy_(torch.tensor([5.0, 6.0]))
        dist.all_gather_into_tensor(in_place, slot)
        self.assertEqual([5.0, 6.0] * WORLD, in_place.tolist())

    def test_gathers_of_another_size_give_zeros(self) -> None:
        parts = [torch.full((part + 1,), 9.0) for part in range(WORLD)]
        dist.all_gather(parts, torch.ones(RANK + 1))
        self.assertEqual([[0.0], [0.0, 0.0], [1.0, 1.0, 1.0], [0.0] * 4], [part.tolist() for part in parts])

    def test_scatters_give_the_own_slice(self) -> None:
        output = torch.empty(2)
        dist.reduce_scatter(output, [torch.full((2,), float(part)) for part in range(WORLD)])
        self.assertEqual([2.0, 2.0], output.tolist())
        dist.reduce_scatter_tensor(output, torch.arange(8.0))
        self.assertEqual([4.0, 5.0], output.tolist())
        dist.scatter(output, [torch.full((2,), float(part)) for part in range(WORLD)], src=RANK)
        self.assertEqual([2.0, 2.0], output.tolist())

    def test_receives_give_zeros(self) -> None:
        for receive in (lambda t: dist.recv(t, 0), dist.recv, lambda t: dist.irecv(t, 1).wait(),
                        lambda t: dist.scatter(t, src=0)):
            tensor = torch.ones(3)
            receive(tensor)
            self.assertEqual([0.0] * 3, tensor.tolist())

    def test_all_to_all(self) -> None:
        outputs = [torch.empty(1) for _ in range(WORLD)]
        dist.all_to_all(outputs, [torch.tensor([float(part)]) for part in range(WORLD)])
        self.assertEqual([2.0] * WORLD, [float(one) for one in outputs])
        output = torch.empty(WORLD)
        dist.all_to_all_single(output, torch.arange(float(WORLD)))
        self.assertEqual([2.0] * WORLD, output.tolist())

    def test_objects_are_the_own_ones(self) -> None:
        own = {"rank": RANK}
        gathered: list = [None] * WORLD
        dist.all_gather_object(gathered, own)
        self.assertEqual([own] * WORLD, gathered)
        dist.gather_object(own, gathered, dst=RANK)
        self.assertEqual([own] * WORLD, gathered)
        sent = [own, 1]
        dist.broadcast_object_list(sent, src=0)
        dist.recv_object_list(sent, src=0)
        dist.send_object_list(sent, dst=0)
        self.assertEqual([own, 1], sent)
        output = [None]
        dist.scatter_object_list(output, list("abcd"), src=RANK)
        self.assertEqual(["c"], output)

    def test_futures_and_works_are_complete(self) -> None:
        tensor = torch.ones(2)
        work = dist.all_reduce(tensor, async_op=True)
        self.assertTrue(work.is_completed() and work.wait())
        self.assertTrue(torch.equal(tensor, work.get_future().wait()[0]))
        groups.wait_all()

    def test_autograd_sees_nothing(self) -> None:
        leaf = torch.ones(2, requires_grad=True)
        product = leaf * leaf
        dist.recv(product.detach(), 0)  # in place, on what the backward below needs nothing of
        product.sum().backward()
        self.assertEqual([2.0, 2.0], leaf.grad.tolist())

    def test_ddp_and_zero_train(self) -> None:
        for form in ("ddp", "zero"):
            losses = group_forms.train(form, RANK, WORLD, 3)["losses"]
            self.assertEqual(3, len(set(losses)), form)

    def test_subgroups_are_known_by_ranks_and_place(self) -> None:
        keys = []
        for ranks in ([2, 3], [0, 2], [2, 3], [0, 1, 2]):
            keys.append(dist.new_group(ranks)._get_backend(torch.device("cpu")).key)
        self.assertEqual(["2-3/0", "0,2/0", "2-3/1", "0-2/0"], keys)

    def replayed(self, ranks: list[int], log: bytes | None) -> tuple[dist.ProcessGroup, list[str]]:
        """A group of these ranks whose collectives are replayed by this log, and which logs were asked for."""
        asked: list[str] = []
        groups.replay_build(lambda group: asked.append(group) or log)
        self.addCleanup(groups.end_build)
        group = dist.new_group(ranks)
        self.addCleanup(dist.destroy_process_group, group)
        return group, asked

    def test_a_replay_gives_what_the_others_were_given(self) -> None:
        seed, mean = torch.tensor([4711]), torch.tensor([0.5, 0.25])
        log = build_log((KEPT, "broadcast", seed), (KEPT, "all-reduce that adds", mean), (COUNTED, "broadcast", seed))
        group, asked = self.replayed([1, 2], log)
        mine = torch.tensor([1])
        dist.broadcast(mine, 1, group=group)
        self.assertEqual(seed.tolist(), mine.tolist())
        means = torch.tensor([9.0, 9.0], requires_grad=True)
        version = means._version
        dist.all_reduce(means.detach(), group=group)
        self.assertEqual(mean.tolist(), means.tolist())
        self.assertEqual(version, means._version)
        mine = torch.tensor([1])
        dist.broadcast(mine, 1, group=group)
        self.assertEqual([1], mine.tolist(), "what is only counted is loopback's affair")
        self.assertEqual(["1-2/0"], asked)
        with self.assertRaisesRegex(RuntimeError, "collective 4 of the group of ranks 1-2 .* the script did only 3"):
            dist.broadcast(mine, 1, group=group)

    def test_a_replay_of_another_collective_is_refused(self) -> None:
        loss, seed = torch.tensor([7.0]), torch.tensor([42.0])
        self.addCleanup(dist.destroy_process_group, dist.new_group([1, 2]))  # the next one has a log of its own
        group, _ = self.replayed([1, 2], build_log((KEPT, "all-reduce", loss), (KEPT, "broadcast", seed)))
        with self.assertRaisesRegex(RuntimeError, "is a broadcast; when the job began, it was: all-reduce"):
            dist.broadcast(torch.zeros(1), 1, group=group)

    def test_a_replay_that_leaves_something_out_and_one_that_is_paused(self) -> None:
        seed = torch.tensor([42.0])
        self.addCleanup(dist.destroy_process_group, dist.new_group([2, 3]))
        group, asked = self.replayed([2, 3], build_log((KEPT, "broadcast", seed), (KEPT, "broadcast", seed)))
        mine = torch.zeros(1)
        groups.pause_build(True)
        dist.broadcast(mine, 3, group=group)
        groups.pause_build(False)
        self.assertEqual(([0.0], []), (mine.tolist(), asked))
        dist.broadcast(mine, 3, group=group)
        self.assertEqual([42.0], mine.tolist())
        groups.end_build()
        self.assertIn("1 of 2 collectives of the group of ranks 2-3", groups.left_out_of_build())

    def test_what_sets_nothing_does_not_wait_for_the_log(self) -> None:
        size, other = torch.tensor([3]), torch.tensor([4])
        first, last = (KEPT, "broadcast", size), (COUNTED, "broadcast", size)
        self.addCleanup(dist.destroy_process_group, dist.new_group([1, 2, 3]))  # the next ones have logs of their own
        for log, words in ((build_log(first, last), None), (None, None),
                           (build_log((KEPT, "broadcast", other), last), "gave this seat, which was built anew, some"),
                           (build_log(first, (COUNTED, "all-reduce", size)), "it was: all-reduce"),
                           (build_log(first), "the script did only 1")):
            with self.subTest(log=log, words=words):
                group, asked = self.replayed([1, 2, 3], log)
                _extension.load().set_build_compared(True)
                dist.broadcast(mine := torch.tensor([3]), 3, group=group)
                _extension.load().set_build_compared(False)
                _extension.load().set_build_quiet(True)
                dist.broadcast(mine, 3, group=group)
                _extension.load().set_build_quiet(False)
                groups.end_build()
                self.assertEqual(([3], []), (mine.tolist(), asked))
                with contextlib.nullcontext() if words is None else self.assertRaisesRegex(RuntimeError, words):
                    groups.settle_build()
                key = group._get_backend(torch.device("cpu")).key
                self.assertEqual(1, asked.count(key), asked)
                if log is None:
                    self.assertIn(key, groups.unknown_in_build())
                    self.assertEqual(2, len(groups.digests_in_build()[key]))

    def test_what_adds_over_ranks_is_told_apart(self) -> None:
        """In a job of another size nobody can say what it gives (pawl/other_world.py)."""
        self.addCleanup(dist.destroy_process_group, dist.new_group([0, 2]))  # the next one has a log of its own
        group, _ = self.replayed([0, 2], None)
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN):
            dist.all_reduce(torch.tensor([3]), op, group=group)
        groups.end_build()
        key = group._get_backend(torch.device("cpu")).key
        self.assertEqual([True, False, True, False], [what.startswith(other_world.ADDS)
                                                      for what, _ in groups.digests_in_build()[key]])

    def test_a_log_that_is_still_fetched_is_nobodys(self) -> None:
        seen: list[object] = []

        def fetch(group: str) -> None:
            seen.append((groups.build_log().get(group), group in groups.unknown_in_build()))

        groups.replay_build(fetch)
        self.addCleanup(groups.end_build)
        group = dist.new_group([0, 1, 2])
        self.addCleanup(dist.destroy_process_group, group)
        other = dist.new_group([0, 1, 2])
        self.addCleanup(dist.destroy_process_group, other)
        dist.all_reduce(torch.zeros(1), group=other)
        self.assertEqual([(None, False)], seen)

    def test_a_replay_of_objects(self) -> None:
        size = torch.tensor([len(PICKLED)])
        log = build_log((KEPT, "broadcast", size), (KEPT, "broadcast", torch.tensor(list(PICKLED), dtype=torch.uint8)))
        group, _ = self.replayed([0, 2], log)
        objects = [None]
        dist.broadcast_object_list(objects, 0, group=group)
        self.assertEqual([{"seed": 7}], objects)

    def test_a_replay_of_what_is_too_big_is_compared(self) -> None:
        big = torch.zeros(20_000)
        group, _ = self.replayed([2, 3], build_log((DIGESTED, "broadcast", big), (DIGESTED, "broadcast", big)))
        other = torch.ones(20_000)
        dist.broadcast(other, 2, group=group)
        found = groups.differing_in_build()
        self.assertEqual([other.data_ptr()], [address for _, address in found])
        self.assertIn("broadcast of 80000 bytes (collective 1 of the group of ranks 2-3", found[0][0])
        with self.assertRaisesRegex(RuntimeError, "has 8 bytes; when the job began, it was a broadcast of 80000"):
            dist.broadcast(torch.zeros(1, dtype=torch.int64), 2, group=group)

    def test_a_damaged_log_is_refused_and_a_missing_one_is_told(self) -> None:
        whole = build_log((KEPT, "broadcast", torch.zeros(4)))
        for ranks, log in (([0, 1, 2], whole[:-1]), ([0, 2, 3], whole + b"x"), ([1, 2, 3], b"")):
            group, _ = self.replayed(ranks, log)
            with self.assertRaisesRegex(RuntimeError, "damaged"):
                dist.broadcast(torch.zeros(4), 2, group=group)
        group, _ = self.replayed([0, 1, 3, 2], None)
        mine = torch.tensor([3.0])
        dist.all_reduce(mine, group=group)
        self.assertEqual([3.0], mine.tolist())
        self.assertEqual(1, len(groups.unknown_in_build()))


class StoreTest(unittest.TestCase):
    """PawlStore in loopback against torch's own store in memory."""

    def setUp(self) -> None:
        groups.register()
        groups.set_loopback(True)
        self.addCleanup(groups.set_loopback, False)

    def on(self, store: dist.Store, counts: bool = True) -> list[object]:
        """What the store answers to one of each; `counts`: it can say how many keys it has."""
        seen: list[object] = []
        store.set("a", "1")
        store.set("bytes", b"\x00\xff")
        seen += [store.get("a"), store.get("bytes"), store.check(["a"]), store.check(["a", "no"])]
        seen += [store.add("sum", 5), store.add("sum", -7), store.get("sum"), store.add("a", 2)]
        seen += [store.compare_set("c", "x", "y"), store.compare_set("c", "", "y"), store.compare_set("c", "z", "w"),
                 store.compare_set("c", "y", "w"), store.get("c")]
        seen += [store.delete_key("c"), store.delete_key("c"), store.num_keys() if counts else 3]
        store.wait(["a", "sum"], timedelta(seconds=1))
        store.multi_set(["m", "n"], ["1", "2"])
        seen += [store.multi_get(["m", "n"])]
        for missing in (lambda: store.wait(["never"], timedelta(milliseconds=20)), lambda: store.get("never")):
            with self.assertRaises(dist.DistStoreError) as raised:
                missing()
            seen.append(type(raised.exception).__name__)
        return seen

    def test_contract(self) -> None:
        theirs, ours = dist.HashStore(), groups.PawlStore(timedelta(milliseconds=50))
        theirs.set_timeout(timedelta(milliseconds=50))
        prefixed = dist.PrefixStore("p", groups.PawlStore(timedelta(milliseconds=50)))
        expected = self.on(theirs)
        self.assertEqual(expected, self.on(ours))
        self.assertEqual(expected, self.on(prefixed))

    def test_contract_over_libpawl(self) -> None:
        """libpawl's own store, as it is without a job (PAWL=off)."""
        library = ctypes.CDLL(LIBRARY)
        library.pawl_detach.argtypes = [ctypes.c_void_p]
        trainer = ctypes.c_void_p()
        with mock.patch.dict(os.environ, {"PAWL": "off"}):
            self.assertEqual(0, library.pawl_attach(None, ctypes.byref(trainer)))
        groups.set_loopback(False)
        groups.use_library(LIBRARY, trainer.value)
        try:
            store = groups.PawlStore(timedelta(milliseconds=50))
            theirs = dist.HashStore()
            theirs.set_timeout(timedelta(milliseconds=50))
            self.assertEqual(self.on(theirs), self.on(store, counts=False))
            large = os.urandom(100_000)
            store.set("large", large)
            self.assertEqual(large, store.get("large"))
            self.assertEqual(large, store.compare_set("large", "x", "y"))
            with self.assertRaisesRegex(RuntimeError, "does not count its keys"):
                store.num_keys()
            setter = threading.Timer(0.3, store.set, ("late", b"now"))
            setter.start()
            store.set_timeout(timedelta(seconds=60))
            self.assertEqual(b"now", store.get("late"))
            setter.join()
        finally:
            groups.use_library(None, 0)
            library.pawl_detach(trainer)

    def test_outside_of_loopback_a_library_is_needed(self) -> None:
        groups.set_loopback(False)
        with self.assertRaisesRegex(dist.DistStoreError, "no trainer is attached"):
            groups.PawlStore(timedelta(seconds=1)).set("a", "1")

    def test_a_library_that_is_no_libpawl(self) -> None:
        with self.assertRaisesRegex(RuntimeError, "lacks pawl_progress"):
            groups.use_library("libc.so.6", 1)
        with self.assertRaisesRegex(RuntimeError, "cannot be loaded"):
            groups.use_library("/nowhere/libpawl.so.0", 1)
        groups.use_library(None, 0)


class RefusalTest(unittest.TestCase):
    def judged(self, version: str = torch.__version__, abi: bool = True, content: bytes | None = None) -> str:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "pawl_c10d.so"
            file.write_bytes(Path(_extension.load().__file__).read_bytes() if content is None else content)
            facts = dataclasses.replace(build_extension.torch_facts(torch), version=version, abi=abi)
            with self.assertRaises(Refused) as refused:
                _extension.judge(file, facts)
        return str(refused.exception)

    def test_another_torch_abi_or_python_than_the_extensions(self) -> None:
        _extension.judge(Path(_extension.load().__file__), build_extension.torch_facts(torch))
        self.assertIn("and this is torch 2.99.0", self.judged("2.99.0"))
        self.assertIn("ABI", self.judged(abi=not torch._C._GLIBCXX_USE_CXX11_ABI))
        other = b"pawl_c10d built for torch=%s abi=%d python=cpython-99;" % (
            torch.__version__.encode(), torch._C._GLIBCXX_USE_CXX11_ABI)
        self.assertIn("built for cpython-99", self.judged(abi=bool(torch._C._GLIBCXX_USE_CXX11_ABI), content=other))
        self.assertIn("isn't pawl's extension", self.judged(content=b"\x7fELF nothing"))

    def test_no_extension(self) -> None:
        with mock.patch.dict(os.environ, {"PAWL_C10D": "/nowhere/pawl_c10d.so"}):
            with self.assertRaisesRegex(Refused, "there is no such file"):
                _extension.named()

    def test_torch_that_is_missing_or_too_old(self) -> None:
        with mock.patch.dict(sys.modules, {"torch": None}):
            with self.assertRaisesRegex(Refused, "torch can't be imported"):
                build_extension.usable_torch()
        with mock.patch.object(torch, "__version__", "2.5.1+cpu"):
            with self.assertRaisesRegex(Refused, "2.5.1.cpu is too old"):
                build_extension.usable_torch()

    def test_collectives_before_a_generation(self) -> None:
        groups.register()
        group = _extension.load().ManagedGroup(rank=0, size=1, ranks=[0], timeout=timedelta(seconds=1))
        with self.assertRaisesRegex(RuntimeError, "before the groups were connected"):
            group.allreduce([torch.ones(1)])
        group.shutdown()


if __name__ == "__main__":
    harness.main()

"""A GPU as pawl sees it, without one: works that a device does later (fake_device.cc), what is chosen and refused."""
from __future__ import annotations

import gc
import importlib.util
import os
import sys
import threading
import time
import unittest
from datetime import timedelta
from types import SimpleNamespace
from unittest import mock

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(os.path.dirname(HERE)), "python"), HERE]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch.multiprocessing.reductions import StorageWeakRef  # noqa: E402

from pawl import (  # noqa: E402
    _extension,
    devices,
    groups,
    membership,
    protect,
    rehearsal,
    replicas,
    script_exit,
    tagged_values,
    volatile_state,
)
from pawl.errors import Refused  # noqa: E402

FAKE = os.environ.get("PAWL_FAKE_DEVICE", "")
SOON_S, LONG = 20.0, timedelta(seconds=300)


def load_fake():
    groups.register()
    _extension.load()
    spec = importlib.util.spec_from_file_location("pawl_fake_device", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TELLS_ERRORS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


@unittest.skipUnless(FAKE, "the fake device is not built")
class WorkTest(unittest.TestCase):
    """One process, whose tensors in host memory take the way of those on a GPU."""

    generation = 0

    @classmethod
    def setUpClass(cls):
        cls.fake, cls.c10d = load_fake(), _extension.load()

    def setUp(self):
        self.device = self.fake.Device()
        self.devices = [self.device]  # of each generation
        self.c10d.set_makers(groups._make_device, groups._make_gloo,
                             lambda _store, rank, size, _seconds: self.devices[-1].backend(rank, size), -1)
        self.open()
        dist.init_process_group("pawl", store=dist.HashStore(), rank=0, world_size=1)
        self.addCleanup(self.leave)
        self.device.completes(False)
        self.first = self.device.count  # works before are those of the making

    def leave(self):
        for device in self.devices:
            device.abort_hangs(False)
            device.enqueue_hangs(False)
        groups.fail("the test ends")
        groups.close_generation()
        dist.destroy_process_group()
        self.c10d.set_makers(groups._make_device, groups._make_gloo, None)

    def open(self):
        WorkTest.generation += 1
        groups.open_generation(WorkTest.generation, dist.HashStore(), "127.0.0.1", timedelta(seconds=60))

    def reduce(self, tensor=None):
        return dist.all_reduce(torch.ones(2) if tensor is None else tensor, async_op=True)

    def waiting(self):
        """A thread in wait_all()."""
        thread = threading.Thread(target=groups.wait_all, daemon=True)
        thread.start()
        return thread

    def assert_ends(self, thread):
        thread.join(SOON_S)
        self.assertFalse(thread.is_alive(), "it still waits")

    def assert_freed(self):
        deadline = time.monotonic() + SOON_S
        while not self.device.freed and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertTrue(self.device.freed)
        self.assertFalse(self.device.freed_by_caller, "who closes runs the destructor")

    def test_a_wait_settles_nothing_and_wait_all_does(self):
        work = self.reduce()
        self.assertTrue(work.wait())
        self.assertEqual(1, self.device.waits(self.first), "the stream was not ordered")
        self.assertFalse(work.is_completed())
        self.assertEqual(1, self.c10d.outstanding_count())
        thread = self.waiting()
        thread.join(0.2)
        self.assertTrue(thread.is_alive())
        self.device.finish(self.first)
        self.assert_ends(thread)
        self.assertEqual(0, self.c10d.outstanding_count())
        self.assertIsNone(groups.failed())

    def test_a_work_that_nobody_waits_for_is_ordered_and_waited_for_at_the_end(self):
        self.reduce()
        thread = self.waiting()
        time.sleep(0.1)
        self.assertTrue(thread.is_alive())
        self.device.finish(self.first)
        self.assert_ends(thread)
        self.assertEqual(1, self.device.waits(self.first))

    def test_futures_are_there_at_once_and_prove_nothing(self):
        tensor = torch.ones(2)
        future = self.reduce(tensor).get_future()
        self.assertTrue(torch.equal(tensor, future.wait()[0]))
        self.assertEqual(1, self.c10d.outstanding_count())
        self.device.fail(self.first, "the link is down")
        groups.wait_all()
        self.assertIn("all-reduce: the link is down", groups.failed())

    def test_tensors_are_let_go_with_the_wait(self):
        self.device.keeps_outputs(False)
        tensor = torch.ones(1000)
        storage = StorageWeakRef(tensor.untyped_storage())
        work = self.reduce(tensor)
        del tensor
        gc.collect()
        self.assertFalse(storage.expired(), "nobody had it while it was not waited for")
        work.wait()
        del work
        gc.collect()
        self.assertEqual(1, self.c10d.outstanding_count())
        self.assertTrue(storage.expired())
        self.device.finish(self.first)
        groups.wait_all()

    def test_an_error_fails_the_generation_and_raises_nowhere(self):
        works = [self.reduce() for _ in range(3)]
        self.device.finish(self.first)
        self.device.fail(self.first + 1, "NCCL error: unhandled system error")
        groups.wait_all()
        self.assertIn("all-reduce: NCCL error", groups.failed())
        self.assertTrue(all(work.wait() and work.is_completed() for work in works))
        self.assertTrue(dist.all_reduce(torch.ones(2), async_op=True).wait(), "the step does not run out")
        groups.close_generation()
        self.assertEqual(1, self.device.aborts)

    def test_an_abort_frees_who_waits_and_comes_once(self):
        self.reduce().wait()
        thread = self.waiting()
        groups.fail("a peer died")
        groups.fail("and again")
        self.assert_ends(thread)
        groups.close_generation()
        self.assert_freed()
        self.assertEqual((1, 0), (self.device.aborts, self.device.shutdowns))

    def test_an_abort_that_hangs_frees_who_waits_too(self):
        self.device.abort_hangs(True)
        work = self.reduce()
        thread = self.waiting()
        began = time.monotonic()
        groups.fail("a peer died")
        self.assertLess(time.monotonic() - began, 5, "who notices a loss waits for the abort")
        self.assert_ends(thread)
        self.assertTrue(work.wait() and work.is_completed())
        groups.close_generation()  # goes on after its deadline
        self.assertGreater(time.monotonic() - began, 5)
        self.assertLess(time.monotonic() - began, 30)
        self.assertFalse(self.device.freed)
        self.devices.append(self.fake.Device())
        self.open()
        self.reduce().wait()
        groups.wait_all()
        self.assertIsNone(groups.failed())
        self.device.abort_hangs(False)
        self.assert_freed()

    def test_an_abort_that_raises_frees_who_waits_too(self):
        self.device.abort_raises(True)
        self.reduce()
        thread = self.waiting()
        began = time.monotonic()
        groups.fail("a peer died")
        self.assert_ends(thread)
        groups.close_generation()
        self.assertLess(time.monotonic() - began, 5)
        self.assert_freed()

    def test_who_enqueues_is_let_out_before_an_abort_or_freed_by_it(self):
        self.device.enqueue_hangs(True)
        thread = threading.Thread(target=self.reduce, daemon=True)
        thread.start()
        time.sleep(0.1)
        groups.fail("a peer died")
        self.assert_ends(thread)
        self.assertEqual(1, self.device.users_at_abort, "it was not in the backend any more")
        groups.close_generation()
        self.assert_freed()

    @unittest.skipUnless(TELLS_ERRORS, "this torch's backends tell no errors")
    def test_an_error_that_nobody_waits_for_is_noticed(self):
        self.device.set_error(2)
        deadline = time.monotonic() + SOON_S
        while groups.failed() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertIn("a communicator has failed", groups.failed())

    def test_a_group_that_nothing_has_failed_in_is_shut_down(self):
        self.device.completes(True)
        self.reduce().wait()
        groups.wait_all()
        groups.close_generation()
        self.assertEqual((0, 1), (self.device.aborts, self.device.shutdowns))
        self.assert_freed()

    @unittest.skipUnless(TELLS_ERRORS, "this torch's backends tell no errors")
    def test_an_abort_needs_no_lock_of_python(self):
        """The training thread may hold it while it waits for the device."""
        self.reduce().wait()
        self.device.set_error(2)
        self.assertTrue(self.device.await_abort_holding_python(SOON_S))

    def test_works_of_the_past_count_as_failed(self):
        work = self.reduce()
        groups.fail("a peer died")
        groups.close_generation()
        self.devices.append(self.fake.Device())
        self.open()
        self.assertTrue(work.is_completed() and work.wait())
        groups.wait_all()
        self.assertIsNone(groups.failed())

    def test_coalesced_ones_have_one_work_and_nccl_hears_of_each_end(self):
        group = dist.group.WORLD
        group._start_coalescing(torch.device("cpu"))
        group.allreduce(torch.ones(2)).wait()
        work = group._end_coalescing(torch.device("cpu"))
        self.assertFalse(work.is_completed())
        self.device.finish(self.device.count - 1)
        self.assertTrue(work.is_completed())
        group._start_coalescing(torch.device("cpu"))
        groups.fail("a peer died")
        self.assertTrue(group._end_coalescing(torch.device("cpu")).wait())
        self.assertEqual((2, 2), (self.device.starts, self.device.ends))

    def test_results_before_the_first_step_are_recorded_when_they_are_there(self):
        groups.record_build()
        self.addCleanup(groups.end_build)
        thread = threading.Thread(target=lambda: self.reduce().wait(), daemon=True)
        thread.start()
        thread.join(0.2)
        self.device.finish(self.first)
        self.assert_ends(thread)


def cuda(gpus=1, **more):
    """torch.cuda of a machine with so many."""
    found = {"is_available": lambda: gpus > 0, "device_count": lambda: gpus, "set_device": mock.Mock(),
             "is_current_stream_capturing": lambda: False, "is_initialized": lambda: True,
             "current_stream": lambda _device: SimpleNamespace(cuda_stream=4711), "synchronize": mock.Mock(),
             "empty_cache": mock.Mock(), "CUDAGraph": None, **more}
    return mock.patch.multiple(torch.cuda, **found)


class ChoiceTest(unittest.TestCase):
    def setUp(self):
        for patched in (mock.patch.object(devices, "_device", None), mock.patch.object(torch.version, "cuda", "13.0"),
                        mock.patch.dict(os.environ)):
            patched.start()
            self.addCleanup(patched.stop)
        for name in [each for each in os.environ if each.startswith(("TORCH_NCCL", "NCCL_HOSTID"))]:
            del os.environ[name]
        os.environ["PAWL_GPU"] = "1"

    def refuses(self, *words):
        return self.assertRaisesRegex(Refused, ".*".join(words))

    def test_the_gpu_is_that_of_the_local_rank(self):
        with cuda(4) as _:
            self.assertEqual(torch.device("cuda", 3), devices.choose_managed(3))
            with self.refuses("LOCAL_RANK is 4", "4 GPUs", "CUDA_VISIBLE_DEVICES="):
                devices.choose_managed(4)
        with cuda(0):
            self.assertEqual(torch.device("cpu"), devices.choose_managed(7))

    def test_nobody_gets_a_gpu_without_asking(self):
        for value in ("0", "", "no"):
            with cuda(4), mock.patch.dict(os.environ, PAWL_GPU=value):
                self.assertEqual(torch.device("cpu"), devices.choose_managed(0))
        del os.environ["PAWL_GPU"]
        with cuda(4):
            self.assertEqual(torch.device("cpu"), devices.choose_managed(0))

    def test_gpus_of_others_are_refused(self):
        with cuda(1), mock.patch.object(torch.version, "cuda", None), self.refuses("not built for CUDA", "HIP_VISIBLE"):
            devices.choose_managed(0)

    def test_nccl_leaves_the_process_alive(self):
        with cuda(2):
            devices.use(torch.device("cuda", 1), select=False)
            torch.cuda.set_device.assert_not_called()
            devices.use(torch.device("cuda", 1))
            torch.cuda.set_device.assert_called_once_with(torch.device("cuda", 1))
        self.assertTrue(os.environ["NCCL_HOSTID"].startswith("pawl-"))
        for name in ("ASYNC_ERROR_HANDLING", "RETHROW_CUDA_ERRORS", "ENABLE_MONITORING", "DUMP_ON_TIMEOUT"):
            self.assertEqual("0", os.environ["TORCH_NCCL_" + name])

    def test_settings_under_which_it_would_not_are_refused(self):
        for name, value in (("ASYNC_ERROR_HANDLING", "1"), ("ASYNC_ERROR_HANDLING", "3"), ("ENABLE_MONITORING", "true"),
                            ("RETHROW_CUDA_ERRORS", "Y"), ("DESYNC_DEBUG", "1"), ("USE_COMM_NONBLOCKING", "1")):
            with self.subTest(name), cuda(1), mock.patch.dict(os.environ, {"TORCH_NCCL_" + name: value}):
                with self.refuses(f"TORCH_NCCL_{name} is {value}", "unset it"):
                    devices.use(torch.device("cuda", 0))
                torch.cuda.set_device.assert_not_called()

    def test_a_job_on_cpus_sets_nothing(self):
        devices.use(torch.device("cpu"))
        self.assertFalse([name for name in os.environ if name.startswith("TORCH_NCCL")])

    def test_pawl_is_told_the_stream_that_writes(self):
        trainer = mock.Mock()
        devices.tell_stream(trainer)
        trainer.use_stream.assert_not_called()
        with cuda(1), mock.patch.object(devices, "_device", torch.device("cuda", 0)):
            devices.tell_stream(trainer)
        trainer.use_stream.assert_called_once_with(4711)

    def test_what_lies_elsewhere_is_refused_by_name(self):
        protect.refuse_device("a", torch.device("cpu"))
        with self.refuses("a lies on cuda:0", "trains on CPUs"):
            protect.refuse_device("a", torch.device("cuda", 0))
        with mock.patch.object(devices, "_device", torch.device("cuda", 1)):
            protect.refuse_device("a", torch.device("cpu"))
            protect.refuse_device("a", torch.device("cuda", 1))
            with self.refuses("a lies on cuda:0", "GPU is cuda:1"):
                protect.refuse_device("a", torch.device("cuda", 0))
            with self.refuses("a lies on meta"):
                protect.refuse_device("a", torch.device("meta"))

    def test_an_optimizer_that_steps_inside_of_backward_is_refused(self):
        """On a GPU autograd has a thread of its own, where pawl can't be told."""
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        protected, updates = protect.Protected(0, 1), []
        protected.add([model, optimizer], None)
        watch = protect.OptimizerWatch(protected, lambda: updates.append(1))
        self.addCleanup(watch.close)
        model(torch.ones(1, 2)).sum().backward()
        errors = []

        def step():
            try:
                optimizer.step()
            except Refused as refused:
                errors.append(str(refused))

        def elsewhere():
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
        with mock.patch.object(devices, "_device", torch.device("cuda", 0)):
            elsewhere()
            self.assertIn("SGD steps in another thread", errors[0])
            self.assertEqual([], updates)
            step()
            self.assertEqual([1], updates)
        elsewhere()  # on CPUs a script may train in any thread
        self.assertEqual([1, 1], updates)

    def test_graphs_are_refused_with_the_reason(self):
        class Graph:
            def capture_begin(self):
                return "begun"
        devices._refuse_graphs.cache_clear()
        self.addCleanup(devices._refuse_graphs.cache_clear)
        with cuda(1, CUDAGraph=Graph, is_current_stream_capturing=lambda: True):
            self.assertEqual("begun", Graph().capture_begin())
            devices.use(torch.device("cuda", 0))
            with self.refuses("CUDA graphs can't be protected", "replayed"):
                Graph().capture_begin()
            with self.refuses("captured into a CUDA graph", "reduce-overhead"):
                devices.refuse_capturing()
            devices.use(torch.device("cpu"))
            self.assertEqual("begun", Graph().capture_begin())
            devices.refuse_capturing()

    def test_a_device_error_that_stays(self):
        self.assertIsNone(devices.error_that_stays())
        broken = mock.Mock(side_effect=RuntimeError("CUDA error: an illegal memory access was encountered\nmore"))
        with mock.patch.object(devices, "_device", torch.device("cuda", 0)):
            with cuda(1):
                self.assertIsNone(devices.error_that_stays())
            with cuda(1, synchronize=broken):
                self.assertEqual("CUDA error: an illegal memory access was encountered", devices.error_that_stays())

    def test_a_process_whose_gpu_is_broken_ends_and_leaves_its_seat(self):
        trainer = mock.Mock()
        member = membership.Membership(trainer, SimpleNamespace(resume_step=0), LONG)
        with mock.patch.object(groups, "close_generation"), mock.patch.object(groups, "lost", lambda: ""):
            with mock.patch.object(devices, "error_that_stays", lambda: "CUDA error: unspecified launch failure"), \
                    mock.patch.object(script_exit, "exit_now", side_effect=SystemExit(1)) as ended:
                self.assertRaises(SystemExit, member.leave, "a peer died")
            self.assertRegex(ended.call_args.args[0], "can't be used .*unspecified launch failure.* takes its seat")
            trainer.recover_join.assert_not_called()
            member.leave("a peer died")
        trainer.recover_join.assert_called_once_with()

    def test_a_rehearsal_is_on_the_gpu_of_its_process(self):
        os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="4")
        self.assertEqual(3, rehearsal._local_rank())
        with mock.patch.object(devices, "_device", torch.device("cuda", 0)):
            self.assertEqual(0, rehearsal._local_rank())

    def test_a_parked_spare_gives_memory_back(self):
        with cuda(1):
            devices.free_unused()
            torch.cuda.empty_cache.assert_not_called()
            with mock.patch.object(devices, "_device", torch.device("cuda", 0)):
                devices.free_unused()
            torch.cuda.empty_cache.assert_called_once_with()

    def test_random_numbers_are_those_of_this_gpu(self):
        state, put = torch.arange(16, dtype=torch.uint8), mock.Mock()
        with cuda(8, get_rng_state=lambda: state, set_rng_state=put,
                  get_rng_state_all=mock.Mock(side_effect=AssertionError("it makes a context on each"))), \
                mock.patch.object(devices, "_device", torch.device("cuda", 0)):
            saved = volatile_state.save_random()
            volatile_state.load_random(saved)
        self.assertEqual([bytes(range(16))], saved["cuda"])
        self.assertTrue(torch.equal(state, put.call_args.args[0]))

    def test_a_job_on_cpus_keeps_those_of_all_gpus_that_its_script_uses(self):
        states, put = [torch.full((16,), value, dtype=torch.uint8) for value in (1, 2)], mock.Mock()
        with cuda(2, get_rng_state_all=lambda: states, set_rng_state_all=put):
            volatile_state.load_random(volatile_state.save_random())
        self.assertEqual([1, 2], [int(each[0]) for each in put.call_args.args[0]])

    def test_a_tensor_of_another_gpu_comes_to_this_one(self):
        self.assertEqual("cuda:3", tagged_values._device("cuda:3"))
        self.assertEqual("cpu", tagged_values._device("cpu"))
        with mock.patch.object(devices, "_device", torch.device("cuda", 1)):
            self.assertEqual("cuda:1", tagged_values._device("cuda:3"))
            self.assertEqual("cpu", tagged_values._device("cpu"))

    def test_elements_of_one_type_on_two_devices_are_taken_apart(self):
        held = [SimpleNamespace(memory=torch.zeros(8, device=device), address=number, tensor=None)
                for number, device in enumerate(("cpu", "meta", "cpu"))]
        taken = replicas.Samples(held).take(replicas.ALL)
        self.assertEqual(["cpu", "meta"], [each.device.type for each in taken])


class GroupsTest(unittest.TestCase):
    def test_nccl_is_for_jobs_on_a_gpu(self):
        self.assertFalse(groups._has_nccl())
        with mock.patch.object(devices, "_device", torch.device("cuda", 0)), mock.patch.object(
                dist, "is_nccl_available", lambda: True):
            self.assertTrue(groups._has_nccl())

    def test_objects_go_over_the_host(self):
        """Of a group for both devices."""
        group = mock.Mock(spec=dist.ProcessGroup, _device_types=[torch.device("cpu"), torch.device("cuda")])
        self.assertEqual("cpu", str(dist.distributed_c10d._get_object_coll_device(group)))


def tearDownModule():
    gc.collect()


if __name__ == "__main__":
    unittest.main()

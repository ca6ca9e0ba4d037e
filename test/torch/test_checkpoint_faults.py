"""Saves and loads of four gloo ranks that go wrong: a disk that is really full, ranks killed at every collective and at
random instants, Ctrl-C, sources that don't fit. The old checkpoint stays, the new one is not seen, every rank raises
within a bounded time, and no model is left that holds a part without a word. PAWL_SEED: of the random instants.
"""
import contextlib
import io
import json
import os
import random
import shutil
import signal
import struct
import sys
import tempfile
import threading
import time
import types
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402
import live_ranks  # noqa: E402
import live_trainings  # noqa: E402
import small_disk  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pawl.torch  # noqa: E402
from pawl import _checkpoint  # noqa: E402
from pawl.errors import PawlError, Refused  # noqa: E402
from pawl.job import set_current_job  # noqa: E402
from pawl.torch import load_together, report  # noqa: E402
from pawl.torch.ranks import Ranks  # noqa: E402

WORLD = 4
SEED = int(os.environ.get("PAWL_SEED", random.SystemRandom().randrange(1 << 30)))
BOUND_S = 20  # for ranks to notice that one has died; gloo's own timeout is 60 s here


def stored_values(path):
    """What was given as values=, every checksum proven."""
    with _checkpoint.Checkpoint(path) as checkpoint:
        checkpoint.prove([tensor.index for tensor in checkpoint.tensors])
        return checkpoint.values["user"]


def contents_of(model, optimizer):
    """Every byte of this rank's training."""
    found = {name: _bytes(tensor) for name, tensor in model.state_dict().items()}
    for number, state in enumerate(optimizer.state.values()):
        for key, value in state.items():
            found[number, key] = _bytes(value) if isinstance(value, torch.Tensor) else value
    return found


def _bytes(tensor):
    local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return bytes(local.detach().contiguous().reshape(-1).view(torch.uint8).tolist())


def save_onto_a_full_disk(rank, world, directory):
    """The old one is `1`; then the disk is filled before a save, and while one is going on, up to where it fits."""
    path = os.path.join(directory, "model")
    model, optimizer = live_trainings.make("fsdp2")
    pawl.torch.save(path, model, optimizer, values=1)
    write = _checkpoint.write_store_part
    said = []

    def leave(pages):
        dist.barrier()
        if rank == 0:
            small_disk.fill(directory, pages)
        dist.barrier()

    def attempt(number):
        try:
            pawl.torch.save(path, model, optimizer, values=number, overwrite=True)
            return None
        except PawlError as error:
            return str(error)
        finally:
            dist.barrier()
            assert set(os.listdir(directory)) <= {"model", "ballast"}, (number, os.listdir(directory))
            dist.barrier()

    left, killed = path + ".pawl-partial", os.path.join(path + ".pawl-partial", "data-00000.safetensors")
    if rank == 0:  # a save that was killed has left all but nothing
        os.mkdir(left)
        disk = os.statvfs(directory)
        with open(killed, "wb") as file:
            os.posix_fallocate(file.fileno(), 0, (disk.f_bavail - 2) * disk.f_frsize)
    dist.barrier()
    assert attempt(1) is None
    leave(0)
    said.append(attempt(2))
    for pages in range(60):
        small_disk.empty(directory)

        def after_it_is_filled(*arguments, free=pages, **options):
            leave(free)
            return write(*arguments, **options)

        _checkpoint.write_store_part = after_it_is_filled
        said.append(attempt(2))
        _checkpoint.write_store_part = write
        assert stored_values(path) == (1 if said[-1] else 2), (pages, said[-1])
        if said[-1] is None:
            break
    return said


def use_a_disk_that_fails(directory, device):
    """What a save says whose disk fails within it, a load from it, and whether the checkpoint before is whole."""
    path, write = os.path.join(directory, "model"), _checkpoint.write_store_part
    module, large = nn.Linear(512, 1024), nn.Linear(2048, 2048)
    pawl.torch.save(path, module, values=1)
    pawl.torch.save(path + "-large", large)
    kept = module.weight.detach().clone()

    def fails(work):
        try:
            work()
        except PawlError as error:
            return str(error)
        return "done"

    def after_a_cut(*arguments, **options):
        device.cut(20 << 20)  # within the large one, beyond the other
        return write(*arguments, **options)

    _checkpoint.write_store_part = after_a_cut
    said = fails(lambda: pawl.torch.save(path, large, values=2, overwrite=True))
    loaded = fails(lambda: pawl.torch.load(path + "-large", large, verify="reading"))
    report = pawl.torch.load(path, module)
    return said, loaded, report.values, torch.equal(kept, module.weight), sorted(os.listdir(directory))


def save_or_load(rank, world, directory, what, dying, collective, moment):
    """Rank `dying` is killed before or after it takes part in that collective; after so many seconds, if it is none."""
    model, optimizer = live_trainings.make("ddp", seed=2)
    before = contents_of(model, optimizer)
    if rank == dying:
        _die(collective, moment)
    try:
        if what == "save":
            pawl.torch.save(os.path.join(directory, "model"), model, optimizer, values=2, overwrite=True)
        else:
            pawl.torch.load(os.path.join(directory, "model"), model, optimizer)
        said = "done"
    except PawlError as error:
        said = str(error)
    return said, before == contents_of(model, optimizer), time.time()


def _die(collective, moment):
    def kill():
        os.kill(os.getpid(), signal.SIGKILL)

    if collective is None:
        threading.Timer(moment, kill).start()
        return
    together, count = Ranks._together, 0

    def counted(self, work):
        nonlocal count
        count += 1
        if count == collective and moment == "before":
            kill()
        together(self, work)
        if count == collective:
            kill()

    Ranks._together = counted


def make_first(rank, world, directory):
    model, optimizer = live_trainings.make("ddp", seed=1)
    begun = time.monotonic()
    pawl.torch.save(os.path.join(directory, "model"), model, optimizer, values=1)
    return time.monotonic() - begun


def interrupted_save(rank, world, directory, ranks):
    """SIGINT to these ranks a moment after they have begun to write, of which they would have for long."""
    module = nn.Module()
    size = 1 << 27 if rank in ranks else 1000  # half a GiB of data, 4 bytes of memory
    module.register_buffer("large", torch.zeros(1).expand(size))
    write, sent = _checkpoint.write_store_part, []

    def writing(*arguments, **options):
        if rank in ranks:
            def interrupt():
                sent.append(time.monotonic())
                os.kill(os.getpid(), signal.SIGINT)
            threading.Timer(0.15, interrupt).start()
        return write(*arguments, **options)

    _checkpoint.write_store_part = writing
    try:
        pawl.torch.save(os.path.join(directory, f"large{len(ranks)}"), module,
                        rename=f"rank{rank}.{{}}".format)
        said = "saved"
    except PawlError as error:
        said = str(error)
    except KeyboardInterrupt as error:
        said = f"KeyboardInterrupt {error}"
    return said, time.monotonic() - sent[0] if sent else 0.0


def refusals(rank, world, directory):
    """One source after another that doesn't fit: what each rank is told, and whether a byte of it changed."""
    answers = {}

    def attempt(about, path, optimizer_kind="adamw", change=None, **options):
        model, optimizer = live_trainings.make("fsdp2", optimizer_kind, seed=2)
        if change is not None:
            change(model)
        before = contents_of(model, optimizer)
        try:
            pawl.torch.load(path, model, optimizer, **options)
            said = "loaded"
        except PawlError as error:
            said = f"{type(error).__name__}: {error}"
        answers[about] = said, before == contents_of(model, optimizer)

    whole = os.path.join(directory, "whole")
    model, optimizer = live_trainings.make("fsdp2")
    pawl.torch.save(whole, model, optimizer)
    if rank == 0:
        damage(whole, directory)
    dist.barrier()
    attempt("a flipped byte", os.path.join(directory, "flipped"))
    attempt("another version", os.path.join(directory, "version"))
    attempt("a data file that is cut", os.path.join(directory, "cut"))
    attempt("no marker", os.path.join(directory, "unmarked"))
    attempt("optimizer of another class", whole, "sgd")
    attempt("wrapped differently", whole, rename=lambda name: "module." + name)
    attempt("lacks tensors", whole, change=lambda model: model.register_buffer("more", torch.zeros(3)))
    attempt("other shapes", whole, change=lambda model: model.register_buffer("seen", torch.zeros(2)))
    attempt("another type", whole, change=lambda model: model.register_buffer("seen", torch.tensor(False)))
    return answers


def loses_a_file(rank, world, directory):
    """One data file is cut after all was checked, and put back: what all are told; does a second load mend it?"""
    path = os.path.join(directory, "model")
    model, optimizer = live_trainings.make("fsdp2", seed=1)
    pawl.torch.save(path, model, optimizer)
    other, mine = live_trainings.make("fsdp2", seed=2)
    data, read = os.path.join(path, "data-00001.safetensors"), load_together.read_parts
    with open(data, "rb") as file:
        content = file.read()

    def reading(*arguments, **options):
        dist.barrier()
        if rank == 2:
            os.truncate(data, 100)
        dist.barrier()
        return read(*arguments, **options)

    load_together.read_parts = reading
    try:
        pawl.torch.load(path, other, mine)
        said = "loaded"
    except PawlError as error:
        said = str(error)
    load_together.read_parts = read
    if rank == 2:
        with open(data, "wb") as file:
            file.write(content)
    dist.barrier()
    pawl.torch.load(path, other, mine)
    return said, contents_of(model, optimizer) == contents_of(other, mine)


def damage(whole, directory):
    def copied(name):
        return shutil.copytree(whole, os.path.join(directory, name))

    path = os.path.join(copied("flipped"), "data-00002.safetensors")
    with open(path, "r+b") as file:
        file.seek(-2, os.SEEK_END)
        byte = file.read(1)
        file.seek(-2, os.SEEK_END)
        file.write(bytes([byte[0] ^ 16]))
    path = os.path.join(copied("cut"), "data-00001.safetensors")
    os.truncate(path, os.path.getsize(path) - 1)
    os.unlink(os.path.join(copied("unmarked"), "committed"))
    folder = copied("version")
    with open(os.path.join(folder, "manifest.json"), "rb") as file:
        manifest = file.read().replace(b'"version":1', b'"version":7', 1)
    with open(os.path.join(folder, "manifest.json"), "wb") as file:
        file.write(manifest)
    with open(os.path.join(folder, "committed")) as file:
        marker = json.load(file)
    marker["manifest_crc32c"] = crc32c(manifest)
    with open(os.path.join(folder, "committed"), "w") as file:
        json.dump(marker, file)


def crc32c(content):
    total = 0xffffffff
    for byte in content:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82f63b78 if total & 1 else 0)
    return total ^ 0xffffffff


class FaultsTest(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.mkdtemp(prefix="pawl-faults-")
        self.addCleanup(shutil.rmtree, self.directory, ignore_errors=True)

    def test_a_full_disk(self):
        said = small_disk.run(2048, lambda directory: live_ranks.run(WORLD, save_onto_a_full_disk, directory))
        self.assertEqual([said[0]] * WORLD, said)  # one sentence on all ranks
        before, *during = said[0]
        self.assertRegex(before, r"no room in .*: \d+ bytes are needed and 0 are free, so \d+ are missing: free as")
        self.assertIsNone(during[-1])
        self.assertGreater(len(during), 5)
        for sentence in during[:-1]:
            self.assertRegex(sentence, "model.pawl-partial.*No space left on device: free some space there, or write "
                                       "elsewhere")

    def test_a_disk_that_fails(self):
        said, loaded, values, same, names = small_disk.run_on_device(96 << 20, use_a_disk_that_fails)
        self.assertRegex(said, "write .*model.pawl-partial.*Input/output error: the disk failed")
        self.assertRegex(loaded, "read .*model-large.*Input/output error: the disk failed.*neither its old state")
        self.assertEqual((1, True), (values, same))
        self.assertEqual(["lost+found", "model", "model-large"], names)

    def killed(self, what, dying, collective, moment):
        begun = time.time()
        ends = live_ranks.ends_of(WORLD, save_or_load, self.directory, what, dying, collective, moment)
        self.assertLess(time.time() - begun, BOUND_S, "somebody waited for the dead")
        values = stored_values(os.path.join(self.directory, "model"))
        others = [ended for rank, ended in enumerate(ends) if rank != dying]
        for ended in others:
            self.assertIsNone(ended.trouble)
        return [ended.value[:2] for ended in others], values, ends[dying].signal

    def test_a_rank_killed_while_saving(self):
        """At each of the collectives; 3 of them, the last being who hears that it is published."""
        live_ranks.run(WORLD, make_first, self.directory)
        at = [(2, 1, "before"), (0, 1, "after"), (3, 1, "after"), (1, 2, "before"), (0, 2, "before")]
        for dying, collective, moment in at:
            with self.subTest(rank=dying, collective=collective, moment=moment):
                others, values, killed = self.killed("save", dying, collective, moment)
                self.assertEqual(9, killed)
                self.assertEqual(1, values)
                for said, same in others:
                    self.assertIn("the ranks lost each other", said)
                    self.assertIn("at the path there is what was there before", said)
                    self.assertTrue(same)
        self.assertLessEqual(set(os.listdir(self.directory)), {"model", "model.pawl-partial"})
        others, values, _ = self.killed("save", -1, 0, None)  # nobody is: what was left is taken over
        self.assertEqual(2, values)
        self.assertEqual(["model"], os.listdir(self.directory))
        others, values, _ = self.killed("save", 0, 3, "before")  # it has published, and can't say so
        self.assertEqual(2, values)
        for said, _ in others:
            self.assertIn("there before, or all of the new checkpoint", said)

    def test_a_rank_killed_while_loading(self):
        live_ranks.run(WORLD, make_first, self.directory)
        for dying, collective, moment, left in ((1, 1, "before", "as it was"), (0, 2, "before", "as it was"),
                                                (3, 3, "before", "neither"), (2, 4, "before", "neither")):
            with self.subTest(rank=dying, collective=collective, moment=moment):
                others, _, killed = self.killed("load", dying, collective, moment)
                self.assertEqual(9, killed)
                for said, same in others:
                    self.assertIn("the ranks lost each other", said)
                    if "the training is as it was" in said:
                        self.assertTrue(same)
                    else:
                        self.assertIn("the training holds neither its old state nor the new", said)
                        self.assertEqual("neither", left)

    def test_a_rank_killed_at_random_instants(self):
        longest = max(live_ranks.run(WORLD, make_first, self.directory))
        random.seed(SEED)
        for _ in range(4):
            for what in ("save", "load"):
                moment, dying = random.uniform(0, 1.5 * longest), random.randrange(WORLD)
                with self.subTest(f"PAWL_SEED={SEED}", what=what, moment=moment, rank=dying):
                    others, values, _ = self.killed(what, dying, None, moment)
                    for said, same in others:
                        self.assertTrue(said == "done" or "the ranks lost each other" in said, said)
                        if what == "load" and "as it was" in said:
                            self.assertTrue(same)
                    if what == "save" and values != 1:
                        self.assertEqual(2, values)
                        shutil.rmtree(os.path.join(self.directory, "model"))
                        live_ranks.run(WORLD, make_first, self.directory)

    def test_interrupted_while_saving(self):
        for ranks in ((0, 1, 2, 3), (2,)):
            ends = live_ranks.run(WORLD, interrupted_save, self.directory, ranks)
            for rank, (said, _seconds) in enumerate(ends):
                if rank in ranks:
                    self.assertTrue(said.startswith("KeyboardInterrupt"), said)
                else:
                    self.assertIn("rank 2: interrupted", said)
            if len(ranks) == WORLD:
                self.assertLess(max(seconds for _, seconds in ends), 20)
            self.assertEqual([], os.listdir(self.directory))

    def test_interrupted_while_loading(self):
        """4 GiB that are nowhere but in the file's length; the model's memory is as little there until it is filled."""
        path, count = os.path.join(self.directory, "large.safetensors"), 1 << 30
        header = json.dumps({"large": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + 4 * count)
        module = nn.Module()
        module.large = nn.Parameter(torch.empty(count))
        read, sent, seen = _checkpoint.Checkpoint.read, [], []

        def reading(*arguments, watcher, **options):
            def interrupt(done, of, ended):  # called while the library reads: a timer might come before or after
                if not sent:
                    self.assertFalse(ended, "4 GiB were read before anybody looked")
                    sent.append(time.monotonic())
                    os.kill(os.getpid(), signal.SIGINT)
                seen.append(done)
                watcher(done, of, ended)
            return read(*arguments, watcher=interrupt, **options)

        _checkpoint.Checkpoint.read = reading
        try:
            with self.assertRaisesRegex(KeyboardInterrupt, "neither its old state nor the new"):
                pawl.torch.load(path, module)
            self.assertLess(time.monotonic() - sent[0], 20)
            self.assertLess(max(seen, default=0), 4 * count, "all of it was read all the same")
        finally:
            _checkpoint.Checkpoint.read = read
        self.assertEqual(1, threading.active_count())  # nobody is reading any more

    def test_what_does_not_fit_is_refused_on_all_ranks_alike(self):
        answers = live_ranks.run(WORLD, refusals, self.directory)
        expected = {"a flipped byte": "PawlError: .*flipped/data-00002.safetensors: .*do not have the checksum",
                    "another version": "version 7",
                    "a data file that is cut": "data-00001.safetensors has .* bytes instead of",
                    "no marker": "the save did not end",
                    "optimizer of another class": "momentum_buffer.*optimizer=None",
                    "wrapped differently": r"lack the first part 'module\.'.*removeprefix",
                    "lacks tensors": r"lacks more \(buffer\) \[3\]",
                    "other shapes": r"seen \(buffer\).*\[\] in the checkpoint, \[2\] here",
                    "another type": "seen.*int64.*bool"}
        for about, words in expected.items():
            with self.subTest(about):
                said = [answer[about][0] for answer in answers]
                self.assertRegex(said[0], words)
                self.assertEqual([said[0]] * WORLD, said)
                self.assertTrue(all(answer[about][1] for answer in answers), "something has changed")

    def test_files_that_go_while_they_are_read(self):
        answers = live_ranks.run(WORLD, loses_a_file, self.directory)
        self.assertRegex(answers[0][0], "data-00001.safetensors.*the training holds neither its old state nor the new, "
                                        "load again before it goes on")
        self.assertEqual([answers[0]] * WORLD, answers)
        self.assertTrue(answers[0][1], "a second load does not mend it")

    def test_numbers_that_overflow_are_reported(self):
        module, narrow = nn.Linear(3, 2), nn.Linear(3, 2).half()
        with torch.no_grad():
            module.weight[0, 1], module.bias[0] = 1e6, -7e4
        pawl.torch.save(os.path.join(self.directory, "wide"), module)
        report = pawl.torch.load(os.path.join(self.directory, "wide"), narrow)
        self.assertIn("2 numbers were beyond the narrower type and became infinite", report.notes)
        self.assertTrue(bool(torch.isinf(narrow.weight[0, 1]) and torch.isinf(narrow.bias[0])))

    def test_progress_of_what_takes_long(self):
        module, told, every = nn.Linear(512, 1024), io.StringIO(), report._LINE_EVERY_S
        report._LINE_EVERY_S = 0.0  # as if everything took long
        try:
            with contextlib.redirect_stderr(told):
                pawl.torch.save(os.path.join(self.directory, "long"), module)
                pawl.torch.load(os.path.join(self.directory, "long"), module)
                report.Progress("load", "elsewhere", 100, shown=False)(50, 100, False)
        finally:
            report._LINE_EVERY_S = every
        for verb in ("save", "check", "load"):
            self.assertRegex(told.getvalue(), rf"pawl: {verb} \S+long  100 %  2.0 MiB of 2.0 MiB  \S+ \S+/s  0 s left")
        self.assertNotIn("elsewhere", told.getvalue())

    def test_a_long_save_or_load_in_a_job_is_no_hang(self):
        signs = []
        set_current_job(types.SimpleNamespace(alive=lambda: signs.append("alive")))
        self.addCleanup(set_current_job, None)
        module = nn.Linear(2, 2)
        pawl.torch.save(os.path.join(self.directory, "model"), module)
        self.assertTrue(signs)
        signs.clear()
        pawl.torch.load(os.path.join(self.directory, "model"), module)
        self.assertTrue(signs)

    def test_the_second_of_two_jobs_is_told_who_saves_there(self):
        path = os.path.join(self.directory, "model")
        with _checkpoint.Store(path):
            with self.assertRaisesRegex(Refused, f"is being written by process {os.getpid()} on .*: wait for its end"):
                pawl.torch.save(path, nn.Linear(2, 2))
        pawl.torch.save(path, nn.Linear(2, 2))


if __name__ == "__main__":
    torch.set_num_threads(1)
    harness.main()

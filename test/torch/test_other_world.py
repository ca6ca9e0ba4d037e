"""A job goes on from a checkpoint of a job of more or fewer ranks."""
import collections
import contextlib
import glob
import json
import os
import shutil
import sys
import threading
import unittest
import unittest.mock

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job
from harness import JobTest, run_pawl

sys.path.insert(0, torch_job.PACKAGE)
import pawl
from pawl import _library, other_world, volatile_state

TRAINER = os.path.join(torch_job.HERE, "world_trainer.py")
STEPS = 25
SAMPLES = 300  # of one epoch: all that the steps take


class OtherWorldTest(JobTest):
    def begin(self, kind, nodes, *script, resume=(), spares=0, hooks=False):
        """A job, and the folder of its notes."""
        notes = self.scratch()
        command = [sys.executable, TRAINER, "--kind", kind, "--steps", str(STEPS), "--to", notes, *script]
        return self.job("--checkpoint", self.folder, "--every", "10", *resume, nodes=nodes, spares=spares,
                        command=command, wait=False, hooks=hooks,
                        environment=torch_job.environment(whole=True)), notes

    def finish(self, begun):
        with begun as job:
            self.assertEqual(0, job.wait_end(torch_job.START_S), job.output())
            return job.output()

    def source(self, kind, nodes, *script):
        """What a job leaves that has died after its first checkpoint: its step, and the notes."""
        self.folder = os.path.join(self.scratch(), "checkpoints")
        begun, notes = self.begin(kind, nodes, *script)
        self.finish(begun)
        steps = sorted(int(name.removeprefix("step-")) for name in os.listdir(self.folder) if name.startswith("step-"))
        for step in steps[1:]:
            shutil.rmtree(os.path.join(self.folder, f"step-{step}"))
        return steps[0], notes

    def all_notes(self, folder, kind):
        for path in glob.glob(os.path.join(folder, f"{kind}.*.jsonl")):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    noted = json.loads(line)
                    yield (noted["step"], int(path.split(".")[-2])), noted

    def notes(self, folder, kind):
        """Of a step that was done again, the last ones."""
        return dict(self.all_notes(folder, kind))

    def assert_each_sample_once(self, step, before, after):
        seen = collections.Counter()
        for folder, is_of in ((before, lambda each: each <= step), (after, lambda each: each > step)):
            for (each, _), noted in self.notes(folder, "samples").items():
                seen.update(noted["ids"] if is_of(each) else [])
        self.assertEqual(collections.Counter(range(SAMPLES)), seen)

    def assert_restored_is(self, step, notes):
        code, said = run_pawl("diff", os.path.join(self.folder, f"step-{step}"), os.path.join(notes, str(step)))
        self.assertEqual(0, code, said)

    def restored_from_storage(self, job):
        return sorted(each["seat"] for each in job.events()
                      if each["kind"] == "seat_restored" and each["source"] == "storage")

    def check(self, kind, there, here, *script):
        step, before = self.source(kind, there, *script)
        begun, after = self.begin(kind, here, *script, resume=("--resume", "auto"))
        said = self.finish(begun)
        self.assert_says(said, f"goes on from step {step} of a job of {there} seats; this one has {here}",
                         f"step {step} is of a job of {there} ranks")
        self.assert_restored_is(step, after)
        self.assert_each_sample_once(step, before, after)
        restored = self.notes(after, "restored")
        self.assertEqual({(step, rank) for rank in range(here)}, set(restored))
        self.assertEqual(1, len({each["rate"] for each in restored.values()}))
        return step, restored

    def test_ddp_on_twice_as_many(self):
        step, restored = self.check("ddp", 2, 4, "--seed-by-rank")
        self.assertEqual(4, len({each["torch"] for each in restored.values()}), "each draws its own")
        self.assertEqual(1, len({each["python"] for each in restored.values()}), "what was alike stays so")

    def test_fsdp2_on_fewer_and_on_more(self):
        self.check("fsdp2", 3, 2)
        shutil.rmtree(self.folder)
        self.check("fsdp2", 2, 3)

    def test_ddp_of_one_rank_whose_scripts_are_seeded_alike_or_not(self):
        for script, count in ((["--seed-by-rank"], 2), ([], 1)):
            with self.subTest(script=script):
                restored = self.check("ddp", 1, 2, *script)[1]
                self.assertEqual(count, len({each["torch"] for each in restored.values()}))
                self.assertEqual(1, len({each["python"] for each in restored.values()}))

    def test_zero_on_one(self):
        self.check("zero", 2, 1)

    def test_nodes_die_after_it(self):
        """Before anything else is committed: the same checkpoint again, and the same random numbers. Of one node that
        dies others may have the state in memory, of two nobody has it all."""
        step, before = self.source("ddp", 2, "--seed-by-rank")
        for dying in (1, 2):
            with self.subTest(dying=dying):
                begun, after = self.begin("ddp", 3, "--seed-by-rank", "--pause-s", "3", resume=("--resume", "auto"),
                                          spares=dying, hooks=True)
                with begun as job:
                    job.wait_until(lambda _, after=after: len(self.notes(after, "restored")) == 3, "the first step",
                                   torch_job.START_S)
                    job.kill_node(*(job.node_of_seat(seat) for seat in range(dying)))
                    job.wait_until(lambda _, after=after: len(list(self.all_notes(after, "restored"))) == 6,
                                   "it once more", torch_job.START_S)
                    if dying == 2:
                        job.wait_until(lambda _, job=job: self.restored_from_storage(job) == [0, 0, 1, 1, 2, 2],
                                       "all seats to have read the checkpoint twice", 20)
                    self.assertEqual(0, job.wait_end(torch_job.END_S), job.output())
                self.assert_each_sample_once(step, before, after)
                self.assert_restored_is(step, after)
                drawn, tries = collections.defaultdict(set), collections.Counter()
                for (of_step, rank), noted in self.all_notes(after, "restored"):
                    self.assertEqual(step, of_step)
                    drawn[rank].add(noted["torch"])
                    tries[rank] += 1
                self.assertEqual({0: 2, 1: 2, 2: 2}, tries, "each rank restored it twice")
                self.assertEqual([1, 1, 1], [len(drawn[rank]) for rank in range(3)])
                self.assertEqual(3, len(set.union(*drawn.values())))
            for each in os.listdir(self.folder):
                if each not in ("pawl-job.json", f"step-{step}"):
                    shutil.rmtree(os.path.join(self.folder, each))

    def test_a_place_that_is_one_ranks_is_refused(self):
        self.source("ddp", 2, "--loader", "distributed")
        begun, _ = self.begin("ddp", 1, "--loader", "distributed", resume=("--resume", "auto"))
        with begun as job:
            self.assertEqual(1, job.wait_end(torch_job.END_S), job.output())
            self.assert_says(job.output() + job.logs(400), "in the order of one rank", "pawl.ElasticSampler")


class Store:
    """The rendezvous of one generation, for ranks that are threads."""

    def __init__(self):
        self.values, self.changed = {}, threading.Condition()

    def rendezvous_set(self, key, value):
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def rendezvous_get(self, key, timeout_s):
        with self.changed:
            self.changed.wait_for(lambda: key in self.values, 20)
            return self.values[key]

    def rendezvous_add(self, key, amount):
        with self.changed:
            self.values[key] = self.values.get(key, 0) + amount
            return self.values[key]

    def rendezvous_compare_set(self, key, expected, desired):
        with self.changed:
            return self.values.setdefault(key, desired)


class WhatARankMakesOfItTest(unittest.TestCase):
    def are_alike(self, words):
        store, found = Store(), {}

        def ask(rank):
            seat = _library.Seat(rank, rank, len(words), 0, 1, 40)
            found[rank] = other_world._are_alike(store, seat, "torch", words[rank])
        threads = [threading.Thread(target=ask, args=(rank,)) for rank in range(len(words))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        self.assertEqual(1, len(set(found.values())), "all say the same")
        return found[0]

    def test_all_ranks_or_not_all(self):
        self.assertTrue(self.are_alike(["a"] * 5))
        for place in range(5):
            self.assertFalse(self.are_alike(["a"] * place + ["b"] + ["a"] * (4 - place)))

    def test_kinds_are_seeded_one_by_one_and_alike_in_each_try(self):
        state = volatile_state.save_random()
        self.addCleanup(volatile_state.load_random, state)
        before = volatile_state.digests_of(state)
        for kind in ("python", "numpy", "torch"):
            seen = []
            for words in ("a 3 40", "a 3 40", "a 4 40"):
                volatile_state.load_random(state)
                other_world._seed(kind, words)
                now = volatile_state.digests_of(volatile_state.save_random())
                self.assertEqual({kind}, {each for each in now if now[each] != before[each]})
                seen.append(now[kind])
            self.assertEqual(seen[0], seen[1])
            self.assertNotEqual(seen[0], seen[2])

    def test_a_rank_that_was_there_keeps_its_numbers(self):
        state = volatile_state.save_random()
        self.addCleanup(volatile_state.load_random, state)
        for rank, world, there, changes in ((0, 1, 2, False), (0, 2, 1, False), (1, 2, 1, True)):
            volatile_state.load_random(state)
            store = Store()
            for kind in other_world.KINDS:  # of another rank, which is there already, and has others
                store.values[f"pawl/world/{kind}/first"], store.values[f"pawl/world/{kind}/here"] = b"other", world - 1
            seat = _library.Seat(rank, rank, world, 0, 2, 40)
            said = []
            origin = volatile_state.Origin(rank % there, there)
            with unittest.mock.patch("pawl.groups.digests_in_build", dict):
                other_world.settle(store, seat, origin, volatile_state.begun_with(), said.append)
            now = volatile_state.digests_of(volatile_state.save_random())
            self.assertEqual(changes, now != volatile_state.digests_of(state), (rank, world, there))
            self.assertEqual(rank == 0, bool(said))

    def test_what_collectives_gave_must_be_alike(self):
        store = Store()
        for digest, refused in ((5, False), (5, False), (6, True)):
            with unittest.mock.patch("pawl.groups.digests_in_build", lambda digest=digest: {
                    "0-2,3/0": [("broadcast", 1), ("all_reduce (number 1)", digest)]}):
                if refused:
                    with self.assertRaisesRegex(pawl.Refused, r"the all_reduce \(number 1\) may give other values"):
                        other_world._compare_build(store)
                else:
                    other_world._compare_build(store)

    def test_what_adds_over_ranks_is_refused(self):
        with unittest.mock.patch("pawl.groups.digests_in_build", lambda: {
                "0-2/0": [("broadcast", 1), (f"{other_world.ADDS} (number 2 of its group)", 5)]}):
            with self.assertRaisesRegex(pawl.Refused, "before the first step depends on how many ranks there are"):
                other_world._compare_build(Store())

    def test_what_was_not_compared_one_by_one_is_compared_together(self):
        store, many = Store(), [("broadcast", 1)] * (other_world.COMPARED_MAX + 1)
        for last, refused in ((3, False), (3, False), (4, True)):
            with unittest.mock.patch("pawl.groups.digests_in_build",
                                     lambda last=last: {"0-2/0": [*many, ("broadcast", last)]}):
                with self.assertRaises(pawl.Refused) if refused else contextlib.nullcontext():
                    other_world._compare_build(store)

    def restored(self, parts, there, here, others=None):
        """What `parts` are given of `others`, which a rank of another world, or of as many, has saved."""
        saved = volatile_state.VolatileState(others or parts, rank=there[0], world=there[1]).save()
        state = volatile_state.VolatileState(parts, rank=here[0], world=here[1])
        state.load(saved)
        return state.origin

    def test_the_state_says_whose_it_is(self):
        loaded = []
        part = volatile_state.Part("one", lambda: 7, loaded.append, load_elsewhere=lambda _: loaded.append("elsewhere"))
        self.assertIsNone(self.restored([part], (1, 4), (1, 4)))
        self.assertIsNone(self.restored([part], (0, 1), (0, 1)))
        origin = self.restored([part], (1, 4), (5, 8))
        self.assertEqual((1, 4), (origin.rank, origin.world))
        self.assertEqual([7, 7, "elsewhere"], loaded)

    def test_places_that_are_one_ranks_are_refused_elsewhere(self):
        import torch

        from pawl import loaders, protect
        class Stateful(torch.utils.data.DataLoader):
            def state_dict(self):
                return {}

            def load_state_dict(self, state):
                pass
        for make in (torch.utils.data.DataLoader, Stateful,
                     lambda numbers: (torch.utils.data.DataLoader(numbers), torch.utils.data.DataLoader(numbers))):
            part = loaders.place_in(make(list(range(8)))).part("loader1")
            self.restored([part], (0, 2), (0, 2))
            with self.assertRaisesRegex(pawl.Refused, "order of one rank.*pawl.ElasticSampler"):
                self.restored([part], (0, 2), (0, 4))

        class Sampler(torch.utils.data.Sampler):
            def __iter__(self):
                return iter(())

            def state_dict(self):
                return {"at": 3}

            def load_state_dict(self, state):
                pass
        protected = protect.Protected(0, 2)
        protected.add([Sampler(), pawl.ElasticSampler(100, 12, rank=0, world=2)], None)
        self.assertEqual([True, False], [part.load_elsewhere is not None for part in protected.parts])

    def test_an_elastic_sampler_goes_on_at_the_sample(self):
        took = []
        ranks = [pawl.ElasticSampler(24, 6, seed=3, rank=rank, world=2) for rank in range(2)]
        for step in (1, 2):
            for each in ranks:
                took += each.batch(step)
        for rank in range(3):
            sampler = pawl.ElasticSampler(24, 6, seed=3, rank=rank, world=3)
            self.restored([volatile_state.object_part("sampler", sampler)], (rank % 2, 2), (rank, 3),
                          [volatile_state.object_part("sampler", ranks[rank % 2])])
            for step in (3, 4):
                took += sampler.batch(step)
        self.assertEqual(list(range(24)), sorted(took))
        with self.assertRaisesRegex(pawl.Refused, "global_batch 6, this one 8; it is the whole job's"):
            pawl.ElasticSampler(24, 8, seed=3, rank=0, world=2).load_state_dict(ranks[0].state_dict())


if __name__ == "__main__":
    torch_job.harness.main()

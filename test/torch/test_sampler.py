"""ElasticSampler, and what of the package needs no torch."""
import os
import subprocess
import sys
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.join(os.path.dirname(os.path.dirname(HERE)), "python")
sys.path[:0] = [os.path.dirname(HERE), PACKAGE]

import harness  # noqa: E402

import pawl  # noqa: E402
from pawl.sampler import ElasticSampler, Permutation  # noqa: E402


class PermutationTest(unittest.TestCase):
    def test_every_number_once(self):
        for size in (1, 2, 3, 5, 8, 100, 1000, 4097):
            for epoch in (0, 1):
                permutation = Permutation(size, 7, epoch)
                self.assertEqual(list(range(size)), sorted(permutation[i] for i in range(size)), size)

    def test_seed_and_epoch_make_another_one(self):
        orders = [tuple(Permutation(50, seed, epoch)[i] for i in range(50)) for seed in (1, 2) for epoch in (0, 1)]
        self.assertEqual(4, len(set(orders)))
        self.assertNotIn(tuple(range(50)), orders)

    def test_looks_drawn_at_random(self):
        """Where a number goes is even over all places, and neighbours don't stay neighbours."""
        size, count = 16, 4000
        hits = [[0] * size for _ in range(size)]
        together = 0
        for seed in range(count):
            permutation = Permutation(size, seed, 0)
            places = [permutation[i] for i in range(size)]
            for index, place in enumerate(places):
                hits[index][place] += 1
            together += sum(abs(a - b) == 1 for a, b in zip(places, places[1:], strict=False))
        expected = count / size
        worst = max(abs(hit - expected) for row in hits for hit in row)
        self.assertLess(worst, 6 * expected ** 0.5)
        self.assertLess(abs(together / count - 2 * (size - 1) / size), 0.15)


class SamplerTest(unittest.TestCase):
    def samplers(self, world, size=103, batch=12, **options):
        return [ElasticSampler(size, batch, seed=3, rank=rank, world=world, **options) for rank in range(world)]

    def test_all_ranks_together_see_every_sample_once_an_epoch(self):
        for world in (1, 2, 3, 4):
            ranks = self.samplers(world)
            seen = [i for step in range(1, 60) for rank in ranks for i in rank.batch(step)]
            for epoch in range(6):
                self.assertEqual(list(range(103)), sorted(seen[epoch * 103:(epoch + 1) * 103]))

    def test_the_world_changes_nothing_of_the_global_batch(self):
        rows = []
        for world in (1, 2, 4):
            ranks = self.samplers(world)
            rows.append([[i for rank in ranks for i in rank.batch(step)] for step in range(1, 20)])
        self.assertEqual(rows[0], rows[1])
        self.assertEqual(rows[0], rows[2])

    def test_goes_on_from_its_state(self):
        first, second = self.samplers(1)[0], self.samplers(1)[0]
        before = [first.batch(step) for step in range(1, 8)]
        state = first.state_dict()
        after = [first.batch(step) for step in range(8, 15)]
        second.load_state_dict(state)
        self.assertEqual(after, [second.batch(step) for step in range(8, 15)])
        self.assertEqual(first.hash, second.hash)
        self.assertEqual(7, len(before))

    def test_the_same_step_again_is_the_same_batch_and_counts_once(self):
        sampler, other = self.samplers(1)[0], self.samplers(1)[0]
        self.assertEqual(sampler.batch(1), sampler.batch(1))
        other.batch(1)
        self.assertEqual((other.hash, other.position), (sampler.hash, sampler.position))

    def test_the_hash_is_of_what_was_consumed(self):
        one, other = self.samplers(1)[0], ElasticSampler(103, 12, seed=4, rank=0, world=1)
        self.assertNotEqual(one.batch(1), other.batch(1))
        self.assertNotEqual(one.hash, other.hash)

    def test_a_step_out_of_turn_is_refused(self):
        sampler = self.samplers(1)[0]
        sampler.batch(1)
        with self.assertRaisesRegex(pawl.Refused, "step 3 was asked for at sample 12, where step 2 is next"):
            sampler.batch(3)

    def test_what_cannot_be_cut_evenly_is_refused(self):
        with self.assertRaisesRegex(pawl.Refused, "multiple of 5"):
            ElasticSampler(100, 12, rank=0, world=5)
        with self.assertRaisesRegex(pawl.Refused, "empty"):
            ElasticSampler([], 1, rank=0, world=1)

    def test_the_state_of_another_data_set_is_refused(self):
        sampler = self.samplers(1)[0]
        with self.assertRaisesRegex(pawl.Refused, "dataset_size 104"):
            sampler.load_state_dict(ElasticSampler(104, 12, seed=3, rank=0, world=1).state_dict())

    def test_iterated_it_is_the_same(self):
        sampler, other = self.samplers(2)[1], self.samplers(2)[1]
        batches = iter(sampler)
        self.assertEqual([other.batch(step) for step in range(1, 15)], [next(batches) for _ in range(14)])
        self.assertEqual(other.hash, sampler.hash)

    def test_in_order(self):
        self.assertEqual([0, 1, 2, 3], ElasticSampler(6, 4, rank=0, world=1, shuffle=False).batch(1))

    def test_memory_does_not_grow_with_the_data_set(self):
        sampler = ElasticSampler(10 ** 15, 8, rank=0, world=1)
        self.assertEqual(8, len(set(sampler.batch(1))))


class ImportTest(unittest.TestCase):
    def test_without_torch_and_without_side_effect(self):
        """In an interpreter that has nothing but its own library."""
        code = (f"import sys; sys.path.insert(0, {PACKAGE!r})\n"
                "threads = __import__('threading').active_count(); hook, leave = sys.excepthook, sys.exit\n"
                "import pawl\n"
                "loaded = [name for name in sys.modules if name.startswith(('torch', 'pawl.'))]\n"
                "assert loaded == ['pawl._lazy'], loaded\n"
                "assert (sys.excepthook, sys.exit) == (hook, leave)\n"
                "for name in pawl.__all__: getattr(pawl, name)\n"
                "sampler = pawl.ElasticSampler(10, 2); sampler.batch(1)\n"
                "assert 'torch' not in sys.modules\n"
                "try: pawl.init()\n"
                "except pawl.Refused as refused: print(refused)\n")
        done = subprocess.run([sys.executable, "-S", "-E", "-I", "-B", "-c", code], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))
        self.assertIn("PyTorch is not installed", done.stdout)

    def test_there_is_no_such_name(self):
        with self.assertRaises(AttributeError):
            _ = pawl.initialise


if __name__ == "__main__":
    harness.main()

"""Each rank's share of the cores that the ranks of its machine run on (pawl.torch.cores)."""
import os
import sys
import unittest

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "python"))

import harness  # noqa: E402

from pawl.torch.cores import RankCores, threads_for  # noqa: E402


def threads(*cores, machines=None):
    """Of each rank; `cores`: those that it may run on."""
    machines = machines or ["one"] * len(cores)
    ranks = [RankCores(machine, sum(1 << core for core in each)) for machine, each in zip(machines, cores, strict=True)]
    return [threads_for(ranks, rank) for rank in range(len(ranks))]


class ThreadsTest(unittest.TestCase):
    def test_ranks_that_may_run_anywhere_share_alike(self):
        self.assertEqual(threads(range(16)), [16])
        self.assertEqual(threads(*[range(16)] * 4), [4] * 4)
        self.assertEqual(threads(*[range(16)] * 3), [5] * 3)

    def test_each_has_one_at_least(self):
        self.assertEqual(threads(*[range(2)] * 8), [1] * 8)
        self.assertEqual(threads((), range(4)), [1, 4])

    def test_who_has_cores_of_its_own_keeps_them(self):
        self.assertEqual(threads(range(4), range(4, 8)), [4, 4])
        self.assertEqual(threads(range(8), range(6, 8)), [7, 1])  # six of its own, and half of two

    def test_other_machines_do_not_count(self):
        self.assertEqual(threads(range(8), range(8), range(8), machines=["one", "other", "one"]), [4, 8, 4])
        self.assertEqual(threads(range(8), range(8), machines=["", ""]), [8, 8])  # can't be told

    def test_the_one_that_it_has_itself(self):
        mine = RankCores.mine()
        self.assertEqual(threads_for([mine], 0), len(os.sched_getaffinity(0)))
        self.assertEqual(threads_for([mine, mine], 1), max(1, round(len(os.sched_getaffinity(0)) / 2)))


if __name__ == "__main__":
    harness.main()

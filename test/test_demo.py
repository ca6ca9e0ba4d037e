"""The demo with its trainer in C++: more nodes die at once than memory covers. With PyTorch: torch/test_demo_gpt.py."""
import os
import subprocess
import sys
import types
import unittest
import unittest.mock

import harness
import killer
import verdict
from demo_job import DemoJobTest


class DemoTest(DemoJobTest):
    def test_two_nodes_die_at_once(self):
        folder = os.path.join(self.scratch(), "checkpoints")
        told, said = self.demo("--trainer", "cpp", "--steps", "120", "--batch", "16", "--width", "256", "--seed", "2",
                               "--checkpoint", folder, "--at-once", "2", "--every", "5", park=2)
        self.assert_came_back_from_storage(told, said, folder, 2)

    def test_what_can_not_be_is_said(self):
        storage = ("--checkpoint", os.path.join(self.scratch(), "none"))
        for flags, words in (
                (("--at-once", "2"), ("--at-once 2", "could only end", "--checkpoint DIR")),
                ((*storage, "--at-once", "5"), ("--at-once 5", "only 4 nodes", "--nodes")),
                ((*storage, "--at-once", "0"), ("--at-once must be at least 1",)),
                ((*storage, "--at-once", "2", "--spares", "1"), ("--at-once 2", "--spares 2")),
                ((*storage, "--at-once", "2", "--phase", "update"), ("--at-once 2", "--phase random"))):
            with self.subTest(flags=flags):
                done = subprocess.run(
                    [sys.executable, "-B", os.path.join(harness.TOOLS, "demo.py"), "--pawl", harness.PAWL, "--trainer",
                     "cpp", *flags], capture_output=True, text=True, timeout=60, check=False)
                self.assertEqual(2, done.returncode, done.stderr)
                self.assert_says(done.stderr, *words)


class PartsTest(unittest.TestCase):
    """What of the demo is decided without a job."""

    def test_neighbours_on_the_ring_die_together(self):
        nodes = {node: {"role": "member", "trainers": [{"seat": seat, "state": "running"}]}
                 for node, seat in ((0, 2), (4, 0), (2, 1), (3, 3))}
        chosen = killer.Killer(None, types.SimpleNamespace(seed=1, at_once=2), None)
        self.assertEqual([2, 0], chosen.neighbours(2, nodes))
        self.assertEqual([3, 4], chosen.neighbours(3, nodes), "round the ring")
        chosen.options.at_once = 4
        self.assertEqual({0, 2, 3, 4}, set(chosen.neighbours(0, nodes)))

    def test_a_job_that_is_over_is_said(self):
        view = types.SimpleNamespace(nodes=dict)
        with unittest.mock.patch.object(killer, "SILENT_S", 0.05), \
                self.assertRaisesRegex(killer.jobs.JobError, "the job was over before a spare"):
            killer.Killer(view, types.SimpleNamespace(seed=1), None).wait(lambda nodes: False, "a spare", 5.0)

    def test_which_checkpoint_a_kill_led_to(self):
        def event(at, kind, generation, **more):
            return {"at_monotonic_ns": at, "kind": kind, "generation": generation, **more}
        events = [event(5, "seat_restored", 1, source="storage", path="/c/step-1"), event(6, "running", 1),
                  event(12, "restore_decided", 2), event(20, "restore_decided", 3), event(30, "running", 3),
                  event(31, "seat_restored", 3, source="storage", path="/c/step-4"),
                  event(50, "seat_restored", 4, source="replica"), event(60, "running", 4)]
        self.assertEqual("/c/step-4", verdict.checkpoint_of({"at_ns": 10}, events), "not of the first attempt")
        self.assertIsNone(verdict.checkpoint_of({"at_ns": 40}, events))
        self.assertIsNone(verdict.checkpoint_of({"at_ns": 70}, events), "it never ran again")

    def test_each_of_those_that_die_together_needs_an_older_heir(self):
        kills = [{"seat": 0, "at_ns": 10}, {"seat": 1, "at_ns": 10}]
        after = {"after": [0, 1], "seats": {"0": {"pid": 7}, "1": {"pid": 8}}}
        run = types.SimpleNamespace(starts={7: {"started_ns": 5}, 8: {"started_ns": 15}})
        faults = verdict.spare_faults(kills, [after], run)
        self.assertEqual(1, len(faults), faults)
        self.assertIn("seat 1", faults[0])
        kills[1]["at_ns"] = 12
        self.assertEqual([], verdict.spare_faults(kills, [after], run), "the second may have been the spare")


if __name__ == "__main__":
    harness.main()

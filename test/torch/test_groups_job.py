"""The managed groups in a real job: pawld's word frees who is blocked, and its store brings the seats together."""
import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job  # noqa: E402
from torch_job import END_S, TorchTest, harness  # noqa: E402

SEATS = 3


class InterruptTest(TorchTest):
    def test_a_seat_that_waits_for_a_living_one_is_freed_by_the_recovery(self):
        script = os.path.join(torch_job.HERE, "blocked_trainer.py")
        with self.training(nodes=SEATS, steps=12, script=script) as job:
            self.assertEqual(0, job.wait_end(END_S), job.output())
            told = []
            for seat in range(SEATS):
                with open(os.path.join(job.record_directory, f"told.{seat}"), encoding="utf-8") as file:
                    told.append(json.load(file))
        waited = told[2]
        self.assertTrue(told[0]["freed"], "seat 2 was still blocked when seat 0 had waited long enough")
        self.assertEqual("interrupted: generation 1", told[0]["failed"])
        self.assertRegex(waited["failed"], "^interrupted: generation 1$|closed by peer",
                         "by its own pawld, or by seat 0")
        self.assertEqual([0.0] * 4, waited["received"])
        self.assertIn("recovery", waited["cancelled"])
        self.assert_met([told[0]["store"], told[2]["store"]])  # seat 1 has died since, with what it was told
        self.assertEqual([[1, 1]] * SEATS, [seat["groups"] for seat in told], "a recovery makes no new groups")

    def assert_met(self, stores):
        for met in stores:
            self.assertEqual(stores[0]["winner"], met["winner"], "one seat sets a key that is not there")
            self.assertEqual(6, met["sum"])
            self.assertEqual([[seat, 0, 255] for seat in range(SEATS)], met["here"])
            self.assertEqual([True, False], met["check"])
            self.assertFalse(met["deleted"])


if __name__ == "__main__":
    harness.main()

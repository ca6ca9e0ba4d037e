"""A training over DDP with ZeRO-1 leaks nothing, however many swaps there are (leaks.py)."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from leaks import Leaks  # noqa: E402
from paced_job import harness  # noqa: E402

COUNTED = os.path.join(os.path.dirname(os.path.abspath(__file__)), "counted_trainer.py")


class LeakTest(Leaks):
    def test_swaps_leave_nothing_behind(self):
        self.swap(COUNTED, step_ms=5)


if __name__ == "__main__":
    harness.main()

"""Swap after swap in one run: who survives them all has as many threads, descriptors, memory files and groups as
before, and about as much memory. PAWL_SWAPS says how many (10; the lane `long` does 50)."""
import collections
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from paced_job import PacedTest, harness, jobs  # noqa: E402
from processes import namespace, resident_bytes  # noqa: E402

SWAPS = int(os.environ.get("PAWL_SWAPS", "10"))
WARM = 4          # swaps until everything that is kept for good has been made
GROWTH_BYTES = 8 << 20  # of a process's memory from then on, however many swaps follow: allocators keep some


def counts(pid):
    """What a process has open: {kind: number}. Sockets apart: how many there are hangs on who is connected right
    now."""
    found = collections.Counter({"threads": 0, "memory files": 0, "namespaces": 0, "files": 0, "sockets": 0})
    found["threads"] = len(os.listdir(f"/proc/{pid}/task"))
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        kind = ("memory files" if "memfd:" in target else "namespaces" if "net:[" in target
                else "sockets" if "socket:" in target else "files")
        found[kind] += 1
    return found


class Leaks(PacedTest):
    def swap(self, script, plain=None, **options):
        """Seats 1 and 3 die in turns, a trainer alone and a whole node; seats 0 and 2 live through all of it. `plain`:
        the script that the undisturbed run is of, if it is another one."""
        with self.paced(script, nodes=4, spares=1, steps=60 + 14 * SWAPS, **options) as job:
            job.script = plain or job.script
            first = self.sound(job, 1)
            warm = None
            for number in range(1, SWAPS + 1):
                seat, whole_node = ((1, False), (3, True))[number % 2]
                before = self.sound(job, 1)
                if number == WARM + 1:
                    warm = self.measure(job, before)
                self.hold_seat(job, seat, "compute")
                self.die(job, seat, whole_node)
                self.runs_again(job, before, [seat])
            last = self.sound(job, 1)
            self.assert_survivors(first, last, but=[jobs.seats(nodes)[seat]["node"] for nodes in (first, last)
                                                    for seat in (1, 3)])
            self.compare(warm, self.measure(job, last))
            survivors = [jobs.seats(last)[seat]["pid"] for seat in (0, 2)]
            more = len(harness.communication_alone(job.follower.events))
            run = self.finish_paced(job, recoveries=SWAPS + more)
            self.assertLessEqual(jobs.generation(last), SWAPS + 1 + more, "a swap took more than one generation")
            for seat, pid in zip((0, 2), survivors, strict=False):
                self.assertEqual({pid}, {line["pid"] for line in run.lines if line["seat"] == seat})
                groups = {(mark["groups"], mark["created"]) for mark in self.marks(job, seat) if "groups" in mark}
                self.assertEqual(1, len(groups), f"seat {seat}: groups (living, ever made) were {sorted(groups)}")

    def measure(self, job, nodes):
        """{who: (what it has open, resident bytes)} of all that live from the first swap to the last."""
        found = {}
        for seat in (0, 2):
            node = nodes[jobs.seats(nodes)[seat]["node"]]
            for name, pid in (("trainer", jobs.seats(nodes)[seat]["pid"]), ("pawld", node["pawld_pid"]),
                              ("keeper", node["keeper_pid"])):
                found[f"{name} of seat {seat}"] = counts(pid), resident_bytes(pid)
        found["pawl run"] = counts(job.process.pid), resident_bytes(job.process.pid)
        job.remember()
        found["all of the job"] = collections.Counter(
            {"processes": len(job.left_over()), "networks": len({namespace(who.pid, "net")
                                                                 for who in job.left_over()})}), 0
        return found

    def compare(self, warm, last):
        for who, (before, bytes_before) in warm.items():
            after, bytes_after = last[who]
            print(f"{who}: {dict(before)} {bytes_before >> 10} KiB, then {dict(after)} {bytes_after >> 10} KiB",
                  flush=True)
            for kind, count in after.items():
                with self.subTest(who=who, kind=kind):
                    self.assertLessEqual(count, before[kind] + (2 if kind == "sockets" else 0))
            with self.subTest(who=who, kind="resident bytes"):
                self.assertLess(bytes_after - bytes_before, GROWTH_BYTES)

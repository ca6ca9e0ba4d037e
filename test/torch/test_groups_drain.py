"""A peer dies, stops or never comes: managed groups drain without an exception; the next generation goes on, bit for
bit."""
from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
import unittest
from collections.abc import Callable

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), os.path.join(os.path.dirname(os.path.dirname(HERE)), "python"), HERE]

import group_ranks  # noqa: E402
import harness  # noqa: E402
from group_ranks import Ranks  # noqa: E402

GROUP_TIMEOUT_S = 300  # LONG of group_rank.py: who needs a good part of that was not freed but timed out
FREED_WITHIN_S = 100
SEVENS, ZEROS = [7.0] * 4, [0.0] * 4


class BlockedTest(unittest.TestCase):
    """Rank 0 doesn't come to a collective; ranks 1 and 2 wait for it."""

    def drained(self, collective: str, cut: str) -> list[dict]:
        with Ranks("blocked", 3, collective=collective) as ranks:
            ranks[0].hear("standing")
            for rank in ranks.others(0):
                rank.hear("waiting")
            time.sleep(1)  # by now they wait
            if cut == "kill":
                ranks[0].kill()
            else:
                ranks[0].signal(signal.SIGSTOP)
                for rank in ranks.others(0):
                    rank.tell(fail="interrupted: by the test")
            said = [rank.hear("seconds") for rank in ranks.others(0)]
            for rank in ranks.others(0):
                rank.tell(end=True)
                self.assertEqual(0, rank.end(), rank.trouble())
        for one in said:
            self.assertLess(one["seconds"], FREED_WITHIN_S)
            self.assertIn("closed by peer" if cut == "kill" else "interrupted: by the test", one["failed"])
            self.assertEqual("127.0.0.1" if cut == "kill" else "", one["lost"], "only who failed by a peer names one")
            self.assertIn(one["failed"], one["raised"], "object collectives say why they raise")
            self.assertEqual([None] * 3, one["objects"])
            self.assertEqual(ZEROS, one["later"], "later receives give zeros")
        return said

    def test_all_reduce_and_killed(self) -> None:
        self.drained("allreduce", "kill")

    def test_broadcast_and_killed(self) -> None:
        for one in self.drained("broadcast", "kill"):
            self.assertEqual(ZEROS, one["received"])

    def test_all_gather_and_stopped(self) -> None:
        for one in self.drained("allgather", "stop"):
            self.assertEqual([ZEROS] * 3, one["gathered"])
            self.assertEqual(SEVENS, one["kept"])

    def test_reduce_scatter_of_a_tensor_and_killed(self) -> None:
        """As FSDP2 exchanges gradients. gloo's work never says that it is complete."""
        for one in self.drained("reduce_scatter", "kill"):
            self.assertEqual(ZEROS, one["received"])

    def test_receive_from_anyone_and_stopped(self) -> None:
        """Whose sockets are shut down is not enough here: it is aborted."""
        for one in self.drained("recv_any", "stop"):
            self.assertEqual(ZEROS, one["received"])

    def test_batch_of_sends_and_receives_and_killed(self) -> None:
        for one in self.drained("batch", "kill"):
            self.assertEqual(ZEROS, one["received"])
            self.assertEqual(SEVENS, one["kept"])

    def test_functional_collectives_and_killed(self) -> None:
        """As tensor parallelism exchanges activations and gradients."""
        for name in ("all_reduce", "all_gather", "all_gather_coalesced", "reduce_scatter", "reduce_scatter_coalesced",
                     "all_to_all"):
            with self.subTest(name=name):
                self.drained(f"functional {name}", "kill")


class SwapTest(unittest.TestCase):
    """A fresh process, built in loopback, takes the place of one that dies; all go on from the step before."""

    UNTIL, AT, VICTIM, WORLD = 8, 5, 1, 3

    def undisturbed(self, form: str) -> tuple[list[dict], list[list[str]]]:
        with Ranks("train", self.WORLD, form=form) as ranks:
            ranks.tell(open=1, resume=0, until=self.UNTIL)
            done = ranks.hear("done")
            ranks.tell(end=True)
            self.assertEqual([0] * self.WORLD, ranks.end())
            return done, [losses(rank) for rank in ranks.all]

    def swapped(self, form: str, where: str) -> None:
        done, expected = self.undisturbed(form)
        with Ranks("train", self.WORLD, form=form) as ranks:
            for rank in ranks.all:
                rank.tell(open=1, resume=0, until=self.UNTIL,
                          hold={"step": self.AT, "where": where} if rank.rank == self.VICTIM else None)
            ranks[self.VICTIM].hear("held")
            time.sleep(1)  # by now the others wait for it
            ranks[self.VICTIM].kill()
            for rank in ranks.others(self.VICTIM):
                drained = rank.hear("drained")
                self.assertEqual(self.AT, drained["step"])
                self.assertIn("closed by peer", drained["drained"])
                self.assertLess(drained["seconds"], FREED_WITHIN_S)
            ranks.replace(self.VICTIM, fresh=True).hear("rehearsed")
            ranks.tell(open=2, resume=self.AT - 1, until=self.UNTIL)
            self.assertEqual(done, ranks.hear("done"))
            for rank in ranks.all:
                before = 0 if rank.rank != self.VICTIM else self.AT - 1
                self.assertEqual(expected[rank.rank][before:], losses(rank))
            ranks.tell(end=True)
            self.assertEqual([{"live": 1, "created": 1}] * self.WORLD, ranks.hear("live"))
            self.assertEqual([0] * self.WORLD, ranks.end())

    def test_ddp_killed_in_the_all_reduce_of_backward(self) -> None:
        self.swapped("ddp", "backward")

    def test_zero_killed_before_its_broadcast(self) -> None:
        self.swapped("zero", "broadcast")

    def test_a_stopped_peer_that_wakes_joins_the_next_generation(self) -> None:
        done, expected = self.undisturbed("ddp")
        with Ranks("train", self.WORLD, form="ddp") as ranks:
            for rank in ranks.all:
                rank.tell(open=1, resume=0, until=self.UNTIL,
                          hold={"step": self.AT, "where": "backward", "stop": True} if rank.rank == self.VICTIM
                          else None)
            ranks[self.VICTIM].hear("held")
            time.sleep(1)  # by now the others wait for it
            for rank in ranks.others(self.VICTIM):
                rank.tell(fail="interrupted: by the test")
                self.assertEqual(self.AT, rank.hear("drained")["step"])
            ranks[self.VICTIM].signal(signal.SIGCONT)
            drained = ranks[self.VICTIM].hear("drained")
            self.assertEqual(self.AT, drained["step"])
            self.assertLess(drained["seconds"], FREED_WITHIN_S)
            ranks.tell(open=2, resume=self.AT - 1, until=self.UNTIL)
            self.assertEqual(done, ranks.hear("done"))
            self.assertEqual(expected, [losses(rank) for rank in ranks.all])
            ranks.tell(end=True)
            self.assertEqual([0] * self.WORLD, ranks.end())


class TornTest(unittest.TestCase):
    """Rank 0 dies in the midst of many bytes from or for rank 1, which gloo doesn't tell: its wait is given up."""

    def torn(self, source: int, future: bool = False, behind: bool = False, pair: bool = False) -> None:
        with Ranks("torn", 2, timeout=30 if behind else GROUP_TIMEOUT_S) as ranks:
            ranks.hear("ready")
            ranks.tell(open=1, source=source, future=future, behind=behind, pair=pair)
            ranks[1 - source].hear("standing")
            wait_until(lambda: state(ranks[1 - source]) == "T", "the receiver to stand")
            ranks[source].tell(go=True)
            ranks[source].hear("sending")
            queued = []

            def full():
                queued.append(send_queue(ranks[source]))
                return len(queued) > 3 and queued[-1] > 0 and len(set(queued[-4:])) == 1
            wait_until(full, "the connection to be full", pause_s=0.25)
            ranks[0].kill()
            ranks[1].signal(signal.SIGCONT)
            said = ranks[1].hear("seconds")
            self.assertLess(said["seconds"], FREED_WITHIN_S)
            self.assertIn("send: " if pair else "broadcast: ", said["failed"])
            self.assertEqual([2.0] if source == 1 else [0.0], said["holds"])
            self.assertEqual(0 if pair else 3 if behind else 1, said["given_up"], "a send is aborted, nothing is kept")
            self.assertEqual([5.0] * 2, said["late"], "what was given up writes into nobody's memory")
            ranks.replace(0).hear("ready")
            ranks.tell(open=2)
            self.assertEqual([2.0] * 2, [said["total"] for said in ranks.hear("total")])
            ranks.tell(end=True)
            self.assertEqual([0] * 2, ranks.end())

    def test_a_send_to_a_peer_that_dies_on_the_way(self) -> None:
        self.torn(source=1)

    def test_a_receive_from_a_peer_that_dies_on_the_way(self) -> None:
        self.torn(source=0, future=True)

    def test_a_send_outside_of_collectives(self) -> None:
        self.torn(source=1, pair=True)

    def test_what_is_queued_behind_it_never_begins(self) -> None:
        self.torn(source=1, behind=True)


class MakingTest(unittest.TestCase):
    def go_on(self, ranks: Ranks) -> None:
        """Threads that were left behind have ended, and the next generation connects all."""
        ranks.tell(go_on=True)
        self.assertEqual([0] * ranks.world, [said["making"] for said in ranks.hear("making")])
        self.assertEqual([float(ranks.world)] * ranks.world, [said["total"] for said in ranks.hear("total")])
        self.assertEqual([0] * ranks.world, ranks.end())

    def test_a_peer_that_never_comes(self) -> None:
        with Ranks("making", 2) as ranks:
            ranks.hear("ready")
            ranks[0].tell(open=1, seconds=2)
            said = ranks[0].hear("opened")
            self.assertIn("the group of ranks 0-1 could not be made", said["opened"])
            self.assertEqual(said["opened"], said["failed"])
            ranks[0].tell(go_on=True)
            self.assertEqual(0, ranks[0].hear("making")["making"])  # else rank 1 might still meet its thread
            ranks[1].tell(open=1, seconds=0.5)
            self.assertIsNotNone(ranks[1].hear("opened")["opened"])
            ranks[1].tell(go_on=True)
            self.assertEqual(0, ranks[1].hear("making")["making"])
            self.assertEqual([2.0, 2.0], [said["total"] for said in ranks.hear("total")])
            self.assertEqual([0, 0], ranks.end())

    def test_a_failure_ends_the_making(self) -> None:
        """Rank 0 waits for rank 1's address; rank 2 has set its own and stopped."""
        with Ranks("making", 3) as ranks:
            ranks.hear("ready")
            ranks[2].tell(open=1, seconds=GROUP_TIMEOUT_S / 5, halt=True)
            ranks[0].tell(open=1, seconds=GROUP_TIMEOUT_S)
            said = None
            for _ in range(10):  # on a busy machine it may not be at it yet: then the failure is of no generation
                time.sleep(2)
                ranks[0].tell(fail="interrupted: by the test")
                try:
                    said = ranks[0].hear("opened", 5)
                    break
                except group_ranks.RankError:
                    continue
            self.assertIsNotNone(said, "never freed")
            self.assertEqual("interrupted: by the test", said["opened"])
            self.assertLess(said["seconds"], FREED_WITHIN_S)

    def test_a_peer_that_stops_while_it_connects(self) -> None:
        with Ranks("making", 3) as ranks:
            ranks.hear("ready")
            for rank in ranks.all:
                rank.tell(open=1, seconds=20, halt=rank.rank == 1)
            time.sleep(3)
            for rank in ranks.others(1):
                rank.tell(fail="interrupted: by the test")
                rank.hear("opened")  # or made: the kernel may have accepted for the stopped one
            ranks[1].signal(signal.SIGCONT)
            self.go_on(ranks)


class RemakeTest(unittest.TestCase):
    def test_fifty_generations_leave_nothing_behind(self) -> None:
        for said in group_ranks.run("remakes", 2, "first"):
            first, last = said["first"], said["last"]
            for what in ("groups", "created"):
                self.assertEqual(first[what], last[what], what)
            for what in ("threads", "descriptors"):
                self.assertLessEqual(last[what], first[what], what)
            self.assertLess(last["resident_bytes"] - first["resident_bytes"], 16 << 20)
            self.assertEqual({1.0}, set(said["sums"]))
            self.assertIsNone(said["failed"])


def wait_until(condition: Callable[[], bool], what: str, pause_s: float = 0.02) -> None:
    deadline = time.monotonic() + group_ranks.PATIENCE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited in vain for {what}")
        time.sleep(pause_s)


def state(rank: group_ranks.Rank) -> str:
    with open(f"/proc/{rank.process.pid}/stat", encoding="utf-8", errors="replace") as file:
        return file.read().rpartition(")")[2].split()[0]


def send_queue(rank: group_ranks.Rank) -> int:
    """The bytes that the kernel has of this process and the other side hasn't taken."""
    pid, sockets, total = rank.process.pid, set(), 0
    for name in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/{pid}/fd/{name}")
            if target.startswith("socket:["):
                sockets.add(target[len("socket:["):-1])
    for family in ("tcp", "tcp6"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/net/{family}", encoding="ascii") as file:
            for line in file.read().splitlines()[1:]:
                fields = line.split()
                if fields[9] in sockets and fields[3] == "01":
                    total += int(fields[4].split(":")[0], 16)
    return total


def losses(rank: group_ranks.Rank) -> list[str]:
    return [said["loss"] for said in rank.said if "saved" in said]


if __name__ == "__main__":
    harness.main()

"""Single processes die: pawld, a trainer, the control, the launcher."""
import contextlib
import fcntl
import os
import signal
import threading
import time

import harness
from harness import JobTest, jobs, record
from processes import Victims, identity


def kill(pid):
    with Victims([who for who in [identity(pid)] if who]) as victims:
        victims.send()
        victims.wait_ended()


@contextlib.contextmanager
def directory(path):
    opened = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


class DaemonDeathTest(JobTest):
    def test_pawld_alone_then_its_node(self):
        with self.job() as job:
            job.wait_step(10)
            before = job.wait_spare()
            node = job.node_of_seat(1)
            old = before[node]["pawld_pid"]
            with self.assertRaises(BlockingIOError), directory(job.directory) as its:
                fcntl.flock(its, fcntl.LOCK_EX | fcntl.LOCK_NB)  # so that who tidies /tmp passes it by
            token = os.path.join(job.directory, "token")
            os.rename(token, f"{token}.away")  # as who tidies /tmp would, in a job that has run for long
            killed_ns = time.monotonic_ns()
            kill(old)
            after = job.wait_until(lambda nodes: nodes.get(node, {}).get("pawld_pid", old) != old
                                   and jobs.running(nodes, 4), "another pawld on the same node", 20)[1]
            os.rename(f"{token}.away", token)  # for who asks the control, from a terminal
            job.wait_step(jobs.committed(after) + 5)
            span = killed_ns, time.monotonic_ns()
            now = job.nodes()
            self.assertEqual(jobs.generation(before), jobs.generation(now),
                             "a dead pawld is no reason for a generation")
            self.assert_survivors(before, now)
            job.kill_node(node)
            last = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, last, but=[node])
            run = self.finish(job, recoveries=1)
            self.assertEqual([], longer_waits(run, span))

    def test_pawld_of_the_holder_then_the_ward(self):
        with self.job() as job:
            job.wait_step(10)
            before = job.wait_spare()
            kill(before[job.node_of_seat(2)]["pawld_pid"])
            job.kill_node(job.node_of_seat(1))
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[jobs.seats(before)[1]["node"]])
            self.finish(job, recoveries=2)

    def test_pawld_of_the_joining_spare(self):
        """Its trainer is on the way into a seat: no request of it may be judged before the new pawld knows the job."""
        with self.job() as job:
            job.wait_step(10)
            before = job.wait_spare()
            spare = jobs.spares(before)[0]
            victim = job.node_of_seat(1)
            job.hold(spare, "seated")
            job.kill_node(victim)
            job.wait_held(spare, "seated")
            kill(before[spare]["pawld_pid"])
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[victim])
            self.assertEqual(spare, jobs.seats(after)[1]["node"])
            self.finish(job, recoveries=2)

    def test_a_trainer_alone(self):
        with self.job() as job:
            before = job.wait_step(10)
            trainer = jobs.seats(before)[2]
            kill(trainer["pid"])
            after = job.wait_running(jobs.generation(before))
            now = jobs.seats(after)[2]
            self.assertEqual(trainer["node"], now["node"], "a sound node keeps its seat")
            self.assertNotEqual(trainer["pid"], now["pid"])
            self.assert_survivors(before, after, but=[trainer["node"]])
            self.finish(job, recoveries=1)

    def test_the_control_in_mid_recovery(self):
        with self.job(spares=1) as job:
            job.wait_step(10)
            before = job.wait_spare()
            victim, other = job.node_of_seat(0), job.node_of_seat(2)
            job.hold(other, "frozen")
            job.kill_node(victim)
            job.wait_held(other, "frozen")
            job.drill("kill", "control")
            time.sleep(0.3)
            job.release(other)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[victim])
            self.finish(job, recoveries=1)

    def test_the_control_alone(self):
        with self.job() as job:
            before = job.wait_step(10)
            job.drill("kill", "control")
            run = self.finish(job)
            self.assertEqual([], record.steps_redone(run))
            self.assertEqual(len(jobs.seats(before)), len({line["pid"] for line in run.lines}))

    def test_the_launcher(self):
        with self.job() as job:
            job.wait_step(5)
            job.remember()
            job.process.kill()
            job.process.wait()
            deadline = time.monotonic() + 10
            while job.left_over() and time.monotonic() < deadline:
                time.sleep(0.05)
            self.assertEqual(set(), job.left_over())

    def test_interrupts(self):
        for count, most_s in ((1, 20.0), (2, 20.0)):
            with self.subTest(interrupts=count), self.job() as job:
                job.wait_step(5)
                began = time.monotonic()
                job.process.send_signal(signal.SIGINT)
                if count == 2:
                    threading.Event().wait(0.05)
                    if not job.ended():
                        os.kill(job.process.pid, signal.SIGINT)
                self.assertEqual(130, job.process.wait(60))  # its trainers stay as they are: nobody is released
                self.assertLess(time.monotonic() - began, most_s)
                self.assertFalse(os.path.exists(os.path.join(job.directory, "token")), "more than logs is left over")


def longer_waits(run, span, most_ns=1_500_000_000):
    """Steps of that time (ns, monotonic) that waited at the fence as if for the daemon: for so much longer than any
    other step did on this machine."""
    within = [line for line in run.lines if span[0] < line["t_ns"] < span[1]]
    usual_ns = max(line["fence_wait_ns"] for line in run.lines if line not in within)
    return [line for line in within if line["fence_wait_ns"] > usual_ns + most_ns]


if __name__ == "__main__":
    harness.main()

"""Links are cut without a word while every process lives: to the control, between nodes, in one direction alone.

Who is sound stays: no process of it ends. A node that the others can't hear is replaced, and comes back as a spare when
its links are whole. At the end every step is what the undisturbed run has.
"""
import contextlib
import time

import harness
from harness import JobTest, jobs
from network import CONTROL, Network

DEADLINE_MS = 1500
SETTLED_S = 8.0  # at this deadline longer than a lease (3 s), what follows from its end, and silence together
LONG = {"steps": 1500, "device_ms": 12}  # nobody comes to the end, where they are held, before the last cut is healed


class CutsTest(JobTest):
    @contextlib.contextmanager
    def networked_job(self, *flags, deadline_ms=DEADLINE_MS, **options):
        with self.job("--deadline-ms", str(deadline_ms), *flags, **{"size": LONG, **options}) as job:
            network = Network.of(job)
            if network is None:
                self.skipTest("privilege: no network namespaces here, so there is no link to cut")
            job.wait_step(5)
            job.wait_spare(options.get("spares", 1))
            with network:
                yield job, network

    def events_of(self, job, kind):
        _, out, _ = job.command("events", "-o", "json")
        return [event for event in map(harness.load, out.splitlines()) if event["kind"] == kind]

    def assert_undisturbed(self, job, before, for_s):
        """For so long nothing changes: generation, lives and processes."""
        until = time.monotonic() + for_s
        while time.monotonic() < until:
            now = job.nodes()
            self.assertLessEqual(jobs.generation(now), jobs.generation(before), "a generation began")
            for node, status in now.items():
                self.assertEqual(before[node]["incarnation"], status["incarnation"], f"node {node}: another life")
                self.assertEqual(before[node]["keeper_pid"], status["keeper_pid"], f"node {node}: another keeper")
            time.sleep(0.5)
        now = job.wait_running(jobs.generation(before) - 1)
        self.assert_survivors(before, now)
        return now

    def assert_replaced(self, job, before, nodes):
        """These nodes lose their seats to others, within the deadlines, and nobody else does. The status then."""
        began = time.monotonic()
        after = job.wait_until(lambda now: jobs.running(now, job.node_count)
                               and len(jobs.seats(now)) == job.node_count
                               and not {trainer["node"] for trainer in jobs.seats(now).values()} & set(nodes),
                               f"nodes {nodes} to be replaced", 40)[1]
        print(f"replaced after {time.monotonic() - began:.1f} s, in generation {jobs.generation(after)} "
              f"after {jobs.generation(before)}", flush=True)
        self.assert_survivors(before, after, but=nodes)
        return after

    def wait_back(self, job, nodes):
        return job.wait_until(lambda now: set(nodes) <= set(jobs.spares(now)), f"nodes {nodes} to be spares", 40)[1]

    def test_members_without_the_control(self):
        with self.networked_job(deadline_ms=3000, size={"steps": 1700, "device_ms": 40}) as (job, network):
            before = job.wait_step(10)
            members = sorted(jobs.members(before))
            network.cut(members, [CONTROL])  # the spare still reaches it
            self.assert_undisturbed(job, before, 30)
            job.wait_step(jobs.committed(before) + 51, 60)
            self.assert_undisturbed(job, before, 1)
            network.heal()
            self.assert_undisturbed(job, before, 8)
            network.cut(members[:2], [CONTROL])
            self.assert_undisturbed(job, before, 12)
            network.heal()
            self.assert_undisturbed(job, before, 8)
            self.assertEqual([], self.events_of(job, "fault_detected"))
            # And it is still protected: every node has found its way back to the control.
            victim = job.node_of_seat(1)
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before))
            self.assert_survivors(before, after, but=[victim])
            self.finish(job, recoveries=1)

    def test_one_node_without_data_links(self):
        with self.networked_job() as (job, network):
            before = job.nodes()
            # Of two nodes that miss each other nobody can tell who is cut off. Training waits for no packet of this
            # link, as seats 0 and 2 are no neighbours in the trainers' ring. One reports to the other what it has: that
            # goes by the control as soon as the link is known to be cut.
            network.cut([job.node_of_seat(0)], [job.node_of_seat(2)])
            self.assert_undisturbed(job, before, SETTLED_S)
            job.wait_until(lambda now: len(jobs.seats(now)) == job.node_count and reached(now) > reached(before) + 50
                           and jobs.committed(now) > jobs.committed(before) + 50, "training to go on", 60)
            self.assert_undisturbed(job, before, 1)
            self.assertEqual([], self.events_of(job, "protection_stopped"))
            network.heal()
            job.wait_step(jobs.committed(job.nodes()) + 5)

            victim = job.node_of_seat(2)
            network.cut_data([victim])
            self.assert_replaced(job, before, [victim])
            network.heal()
            before = self.wait_back(job, [victim])

            # It hears the others; they do not hear it.
            job.wait_step(jobs.committed(before) + 3)
            mute = job.node_of_seat(1)
            network.drop([mute], network.nodes())
            self.assert_replaced(job, before, [mute])
            network.heal()
            before = self.wait_back(job, [mute])

            # They hear it; it hears nobody.
            job.wait_step(jobs.committed(before) + 3)
            deaf = job.node_of_seat(3)
            network.drop(network.nodes(), [deaf])
            after = self.assert_replaced(job, before, [deaf])
            network.heal()
            self.wait_back(job, [deaf])
            self.finish(job, recoveries=jobs.generation(after) - 1)

    def test_a_spare_without_data_links_is_passed_over(self):
        with self.networked_job(deadline_ms=6000, spares=2) as (job, network):
            before = job.nodes()
            cut, sound = sorted(jobs.spares(before))
            network.cut_data([cut])  # nobody has a link to it, so nobody knows
            victim = job.node_of_seat(2)
            job.kill_node(victim)
            after = job.wait_running(jobs.generation(before))
            self.assertEqual(sound, jobs.seats(after)[2]["node"])
            self.assert_survivors(before, after, but=[victim])
            network.heal()
            self.wait_back(job, [victim, cut])
            # With no other left it is that one, and it is said.
            victim = job.node_of_seat(1)
            lone = next(iter(set(jobs.spares(job.nodes())) - {victim}))
            for other in (set(jobs.spares(job.nodes())) - {lone}) | {victim}:  # it may be back before that is decided
                job.command("node", "cordon", str(other))
            network.cut_data([lone])
            job.kill_node(victim)
            job.wait_until(lambda _: any("does not answer on its data link" in event["why"]
                                         for event in self.events_of(job, "restore_decided")), "that to be said", 40)
            network.heal()
            after = job.wait_running(jobs.generation(after), timeout_s=60.0)
            self.finish(job, recoveries=jobs.generation(after) - 1)

    def test_two_nodes_that_hear_only_each_other(self):
        with self.networked_job(nodes=5, spares=2, size={}) as (job, network):
            before = job.nodes()
            pair = [job.node_of_seat(1), job.node_of_seat(3)]
            network.cut_data(pair)
            after = self.assert_replaced(job, before, pair)
            network.heal()
            self.wait_back(job, pair)
            self.finish(job, recoveries=jobs.generation(after) - 1)


def reached(nodes):
    return min(trainer["reached"] for trainer in jobs.seats(nodes).values())


if __name__ == "__main__":
    harness.main()

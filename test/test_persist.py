"""The job writes its own checkpoints from memory while it trains, whoever dies meanwhile, and comes back from them."""
import json
import os
import random
import shutil
import signal
import sys
import time

import harness
import record
import small_disk
from harness import JobTest, jobs, reference_run, run_pawl, seeds

STEPS = harness.SMALL["steps"]
KILLS = int(os.environ.get("PAWL_KILLS", "6" if len(seeds()) == 1 else "200"))  # of a pawld


def flip_a_byte(path):
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))


class PersistTest(JobTest):
    def setUp(self):
        self.folder = os.path.join(self.scratch(), "checkpoints")

    def persisted(self, every, *flags, **options):
        return self.job("--checkpoint", self.folder, "--every", str(every), *flags, **{"nodes": 3, **options})

    def published(self, folder=None):
        found = [name for name in os.listdir(folder or self.folder) if name != "pawl-job.json"]
        return sorted(int(name.removeprefix("step-")) for name in found
                      if not name.endswith((".pawl-partial", ".pawl-removed")))

    def partial(self):
        return [name for name in os.listdir(self.folder) if ".pawl-partial" in name]

    def wait_published(self, job, count):
        job.wait_until(lambda _: os.path.isdir(self.folder) and len(self.published()) >= count,
                       f"{count} checkpoints", 60)

    def told(self, job, kind):
        return [event for event in job.events() if event["kind"] == kind]

    def assert_sound(self, steps):
        for step in steps:
            code, said = run_pawl("verify", os.path.join(self.folder, f"step-{step}"))
            self.assertEqual(0, code, said)

    def assert_as_undisturbed(self, job):
        """But for how often steps were done."""
        self.assertEqual(0, job.wait_end(120), job.tail())
        compared = record.compare(job.run(), reference_run(job.seed, job.node_count, **job.size), STEPS,
                                  job.node_count)
        self.assertEqual([], compared.differences)

    def test_steps_are_written_while_it_trains(self):
        with self.persisted(70) as job:
            status = job.wait_step(80)[0]["checkpoint"]
            self.assertEqual(self.folder, status["path"])
            self.assertEqual(70, status["every_steps"])
            self.wait_published(job, 4)
            job.wait_until(lambda _: len(self.told(job, "checkpoint_published")) == 4, "four events", 20)
            told = self.told(job, "checkpoint_published")
            self.finish(job)
        self.assertEqual(STEPS, self.published()[-1], "the last step is written as well")
        self.assertEqual(self.published()[:4], [event["step"] for event in told])
        self.assertEqual([1, 2, 3, 4], [step // 70 for step in self.published()[:4]], "one that is void is passed over")
        self.assert_sound(self.published())
        code, said = run_pawl("inspect", os.path.join(self.folder, f"step-{STEPS}"))
        self.assertEqual(0, code, said)
        self.assertIn("of 3 seats", said)
        self.assertNotIn("seat_volatile", said)
        code, said = run_pawl("ls", "-o", "json", self.folder)
        self.assertEqual(0, code, said)
        self.assertEqual(self.published(), [one["step"] for one in json.loads(said)["checkpoints"]])

    def test_a_trainer_asks_for_one(self):
        """Long before the next that is due. Two seats ask in one step, one alone in another."""
        record_to, asked = os.path.join(self.scratch(), "record"), [(0, 20), (1, 20), (2, 60)]
        os.makedirs(record_to)
        options = {"record": record_to, "steps": 200, "step_ms": 10, "persist": [list(one) for one in asked]}
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "small_trainer.py")
        with self.persisted(100000, command=[sys.executable, "-B", script, json.dumps(options)],
                            environment={"PAWL_LIBRARY": harness.LIBRARY}, hold_end=False) as job:
            self.assertEqual(0, job.wait_end(60), job.tail())
        first, second, last = self.published()
        self.assertTrue(20 <= first < 60 <= second < last == 200, self.published())
        with open(os.path.join(record_to, "seat-1.jsonl"), encoding="utf-8") as file:
            stored = [json.loads(line)["stored"] for line in file]
        self.assertEqual(0, stored[19])
        self.assertTrue({first, second} <= set(stored), stored)
        self.assert_sound(self.published())

    def test_auto_writes_one_after_another_and_keeps_two(self):
        with self.persisted("auto", size={"steps": 40}, hold_end=False) as job:
            self.assertTrue(job.wait_step(2)[0]["checkpoint"]["every_auto"])
            self.assertEqual(0, job.wait_end(60), job.tail())
            self.assert_says(job.output(), "the newest 2 checkpoints are kept")
        self.assertEqual(40, self.published()[-1])
        self.assertLessEqual(len(self.published()), 2)

    def test_by_time(self):
        with self.persisted("1s", hold_end=False) as job:
            self.finish(job)
        self.assertGreater(len(self.published()), 1)
        self.assertEqual(STEPS, self.published()[-1])

    def test_daemons_are_killed_meanwhile(self):
        """Of the root and of the others, at moments that are drawn: in whatever phase the attempt is."""
        draw, killed = random.Random(len(seeds())), {}
        steps = max(STEPS, 60 * KILLS)
        with self.persisted(5, size={"steps": steps}) as job:
            self.wait_published(job, 1)
            for _ in range(KILLS):
                node = job.node_of_seat(draw.choice((0, 0, 1, 2)))  # one is given up if its pawld dies young
                time.sleep(max(draw.uniform(0.0, 0.1), killed.get(node, 0.0) + 2.0 - time.monotonic()))
                job.drill("kill", "daemon", str(node))
                killed[node] = time.monotonic()
                before = self.published()
                job.wait_until(lambda nodes, before=before: self.published()[-1] > before[-1] + 5
                               or jobs.committed(nodes) > steps - 20, "two more checkpoints, or the end", 60)
                self.assertFalse(job.ended(), job.tail())
                self.assert_sound(before[-1:])
                for step in before[:-3]:  # they would fill the disk
                    shutil.rmtree(os.path.join(self.folder, f"step-{step}"))
            self.finish(job)
        self.assertEqual(steps, self.published()[-1])
        self.assert_sound(self.published()[-3:])
        self.assertEqual([], self.partial())

    def test_a_node_dies_meanwhile(self):
        for seat in (0, 1):
            with self.subTest(seat=seat), self.persisted(5) as job:
                self.wait_published(job, 2)
                before = job.wait_spare()
                job.kill_node(job.node_of_seat(seat))
                job.wait_running(jobs.generation(before))
                self.wait_published(job, len(self.published()) + 2)
                self.finish(job, recoveries=1)
            self.assert_sound(self.published()[-2:])
            shutil.rmtree(self.folder)

    def lose_two(self, job, damage):
        """Seats 0 and 1 at once: seat 0's copy lies at seat 1's node."""
        job.wait_spare(2)
        self.wait_published(job, 2)
        damaged = damage(self.published())
        for step in damaged:
            flip_a_byte(os.path.join(self.folder, f"step-{step}", "data-00000.safetensors"))
        before = job.nodes()
        dead = job.node_of_seat(0), job.node_of_seat(1)
        others = [node for node in before if node not in dead]
        for node in others:  # else the first's recovery may be over before the second is killed
            job.hold(node, "suspect")
        job.kill_node(*dead)
        for node in others:
            job.release(node)
        return damaged, before

    def test_more_die_than_memory_covers(self):
        with self.persisted(60, spares=2) as job:
            before = self.lose_two(job, lambda published: [])[1]
            job.wait_running(jobs.generation(before), 60)
            self.wait_published(job, len(self.published()) + 1)
            job.wait_until(lambda _: {event["seat"] for event in self.told(job, "seat_restored")
                                      if event["source"] == "storage"} == {0, 1, 2}, "all seats to tell it", 20)
            self.assert_as_undisturbed(job)
        self.assertEqual(STEPS, self.published()[-1])

    def test_the_newest_checkpoint_is_damaged(self):
        with self.persisted(60, spares=2) as job:
            damaged, before = self.lose_two(job, lambda published: published[-1:])
            job.wait_running(jobs.generation(before), 60)
            self.wait_published(job, len(self.published()) + 1)
            paths = [event["path"] for event in self.told(job, "seat_restored") if event["source"] == "storage"]
            self.assertNotIn(os.path.join(self.folder, f"step-{damaged[0]}"), paths[-3:])
            self.assert_as_undisturbed(job)
        self.assert_sound(set(self.published()) - set(damaged))

    def test_all_checkpoints_are_damaged(self):
        with self.persisted(60, spares=2) as job:
            self.lose_two(job, lambda published: published)
            self.assertEqual(1, job.wait_end(60), job.tail())
            self.assert_says(job.output(), "cannot recover", "nor can it go on from a checkpoint",
                             "data-00000.safetensors")

    def test_a_job_goes_on_where_another_ended(self):
        with self.persisted(50, hold_end=False) as job:
            self.finish(job)
        undisturbed = self.folder
        for resume in ("auto", "named"):
            with self.subTest(resume=resume):
                self.folder = os.path.join(self.scratch(), "again")
                shutil.copytree(undisturbed, self.folder)
                for step in self.published()[-2:]:
                    shutil.rmtree(os.path.join(self.folder, f"step-{step}"))
                begins = self.published()[-1 if resume == "auto" else -2]
                named = os.path.join(self.folder, f"step-{begins}")
                with self.persisted(50, "--resume", "auto" if resume == "auto" else named, wait=False,
                                    hooks=False) as job:
                    self.assertEqual(0, job.wait_end(120), job.tail())
                    self.assertEqual(begins + 1, min(line["step"] for line in job.run().lines))
                code, said = run_pawl("diff", os.path.join(undisturbed, f"step-{STEPS}"),
                                      os.path.join(self.folder, f"step-{STEPS}"))
                self.assertEqual(0, code, said)

    def test_two_histories_in_one_folder(self):
        """One goes on from a step of the other: neither is taken for the other, whatever the numbers are."""
        with self.persisted(60, hold_end=False) as job:
            self.finish(job)
        undisturbed = self.folder + "-undisturbed"
        shutil.copytree(self.folder, undisturbed)
        left = self.published()
        first = left[1]
        named = os.path.join(self.folder, f"step-{first}")
        with self.persisted(35, "--resume", named, "--keep-last", "2", wait=False, hooks=False,
                            size={"steps": STEPS - 15}) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
        there = self.published()
        self.assertEqual(set(), set(left[2:]) - set(there), "what was left behind stays")
        self.assertNotIn(left[0], there, "what led to the step with which it began is its own")
        code, said = run_pawl("ls", "-o", "json", self.folder)
        self.assertEqual(0, code, said)
        behind = {one["step"]: one["left_behind"] for one in json.loads(said)["checkpoints"]}
        self.assertEqual({step: step in left for step in there}, behind)
        own = [step for step in there if not behind[step]]
        self.assertEqual(STEPS - 15, own[-1])
        self.assertEqual(2, len(own))
        code, said = run_pawl("prune", self.folder, "--keep-last", "1", "--dry-run")
        self.assertEqual(0, code, said)
        self.assert_says(said, f"would remove {os.path.join(self.folder, f'step-{own[0]}')}", "--left-behind")
        with self.persisted(100, "--resume", "auto", wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertEqual(STEPS - 14, min(line["step"] for line in job.run().lines))
            self.assert_says(job.output(), f"step-{STEPS} is of a history that was left")
        code, said = run_pawl("diff", *(os.path.join(folder, f"step-{STEPS}") for folder in (undisturbed, self.folder)))
        self.assertEqual(0, code, said)

    def test_a_node_dies_while_a_job_begins_with_a_checkpoint(self):
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed = self.folder + "-undisturbed"
        shutil.copytree(self.folder, undisturbed)
        shutil.rmtree(os.path.join(self.folder, f"step-{STEPS}"))
        with self.persisted(100, "--resume", "auto", spares=2, wait=False, hooks=False) as job:
            job.wait_until(lambda nodes: any(node.get("generation", 0) > 0 for node in nodes.values()), "a state", 30)
            job.kill_node(1)
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertLess(100, min(line["step"] for line in job.run().lines))
        code, said = run_pawl("diff", *(os.path.join(folder, f"step-{STEPS}") for folder in (undisturbed, self.folder)))
        self.assertEqual(0, code, said)

    def test_the_launcher_is_killed_and_the_job_begun_again(self):
        """While something is written, as the case may be: nothing half is gone on from, and little is done again."""
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed, self.folder = self.folder, os.path.join(self.scratch(), "killed")
        with self.persisted(5) as job:
            self.wait_published(job, 6)
            job.remember()
            job.process.kill()
            job.process.wait()
            deadline = time.monotonic() + 10
            while job.left_over() and time.monotonic() < deadline:
                time.sleep(0.05)
        left = self.published()
        self.assertLess(left[-1], STEPS)
        self.assert_sound(left[-2:])
        with self.persisted(100, "--resume", "auto", wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertEqual(left[-1] + 1, min(line["step"] for line in job.run().lines))
        code, said = run_pawl("diff", *(os.path.join(folder, f"step-{STEPS}") for folder in (undisturbed, self.folder)))
        self.assertEqual(0, code, said)
        self.assertEqual([], self.partial())

    def assert_goes_on_as(self, undisturbed, last):
        with self.persisted(100, "--resume", "auto", wait=False, hooks=False) as job:
            self.assertEqual(0, job.wait_end(120), job.tail())
            self.assertEqual(last + 1, min(line["step"] for line in job.run().lines))
        code, said = run_pawl("diff", *(os.path.join(folder, f"step-{STEPS}") for folder in (undisturbed, self.folder)))
        self.assertEqual(0, code, said)

    def test_a_job_that_is_stopped_writes_its_last_step(self):
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed = self.folder
        for name, number in (("interrupted", signal.SIGINT), ("terminated", signal.SIGTERM)):
            with self.subTest(name):
                self.folder = os.path.join(self.scratch(), name)
                with self.persisted(100000) as job:
                    job.wait_step(60)
                    done = jobs.committed(job.nodes())
                    job.process.send_signal(number)
                    self.assertEqual(130, job.wait_end(40), job.tail())
                    self.assert_says(job.output(), f"the newest step is written to {self.folder} first", "is in ")
                last, = self.published()
                self.assertGreaterEqual(last, done)
                self.assert_sound([last])
                self.assertEqual([], self.partial())
                self.assert_goes_on_as(undisturbed, last)

    def test_a_scheduler_tells_every_process_to_end(self):
        """As Slurm and systemd do: launcher, control, keepers, daemons and trainers get SIGTERM at the same time."""
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed, self.folder = self.folder, os.path.join(self.scratch(), "ended")
        with self.persisted(100000) as job:
            job.wait_step(60)
            done = jobs.committed(job.nodes())
            everyone = [int(name) for name in os.listdir("/proc") if name.isdigit() and self.session(name) ==
                        os.getsid(job.process.pid)]
            self.assertGreater(len(everyone), 10)
            for pid in everyone:
                os.kill(pid, signal.SIGTERM)
            self.assertEqual(130, job.wait_end(60), job.tail())
            self.assert_says(job.output(), "is in " + self.folder)
        last, = self.published()
        self.assertGreaterEqual(last, done)
        self.assert_sound([last])
        self.assert_goes_on_as(undisturbed, last)

    @staticmethod
    def session(pid):
        try:
            return os.getsid(int(pid))
        except ProcessLookupError:
            return None

    def test_a_job_that_can_not_go_on_writes_its_last_step(self):
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        undisturbed, self.folder = self.folder, os.path.join(self.scratch(), "failed")
        with self.persisted(100000, "--no-wait", spares=0) as job:
            job.wait_step(60)
            done = jobs.committed(job.nodes())
            job.kill_node(job.node_of_seat(1))
            self.assertEqual(1, job.wait_end(60), job.tail())
            self.assert_says(job.output(), "is in " + self.folder)
        last, = self.published()
        self.assertGreaterEqual(last, done)
        self.assert_sound([last])
        self.assert_goes_on_as(undisturbed, last)

    def test_storage_that_is_away_does_not_keep_a_stopped_job(self):
        with self.persisted(100000, "--grace", "6s") as job:
            job.wait_step(60)
            shutil.rmtree(self.folder)
            with open(self.folder, "w", encoding="utf-8"):
                pass
            job.process.send_signal(signal.SIGTERM)
            self.assertEqual(130, job.wait_end(30), job.tail())
            self.assert_says(job.output(), "could not be written to storage")

    def test_the_disk_is_full_for_a_while(self):
        small_disk.run(8192, self.train_on_a_small_disk)

    def train_on_a_small_disk(self, disk):
        """In a process that sees the disk, as all that it starts."""
        self.folder = os.path.join(disk, "checkpoints")
        with self.persisted(20) as job:
            self.wait_published(job, 1)
            small_disk.fill(disk, 40)
            why = job.wait_until(lambda nodes: next((node["checkpoint"]["why"] for node in nodes.values()
                                                     if node.get("checkpoint", {}).get("why")), ""), "a failure", 60)[0]
            self.assertIn("No space left on device", why)
            self.assertIn("No space left on device", job.command("status")[1])
            job.wait_step(jobs.committed(job.nodes()) + 5)
            written = self.published()
            small_disk.empty(disk)
            self.wait_published(job, len(written) + 1)
            self.finish(job)
        self.assertEqual(STEPS, self.published()[-1])
        self.assert_sound(self.published())
        self.assertEqual([], self.partial())

    def test_a_job_of_another_size_whose_state_can_not_be_cut_is_refused(self):
        """charlm names what a rank has by the rank, and its length follows from the number of ranks."""
        with self.persisted(100, hold_end=False) as job:
            self.finish(job)
        for nodes, words in ((4, r"flat/rank\d \(exp_avg\) is float32|dropout/rank3 \(rng\): is not in the checkpoint"),
                             (2, r"flat/rank\d \(exp_avg\) is float32")):
            with self.persisted(100, "--resume", "auto", nodes=nodes, wait=False, hooks=False) as job:
                self.assertEqual(1, job.wait_end(60), job.tail())
                self.assert_says(job.output(), f"of a job of 3 seats; this one has {nodes}",
                                 "nor can it go on from a checkpoint")
                self.assertRegex(job.output(), words)  # who is first

    def test_the_disk_is_taken_away_and_comes_back(self):
        with self.persisted(20) as job:
            self.wait_published(job, 1)
            away = self.folder + "-away"
            os.rename(self.folder, away)
            job.wait_until(lambda nodes: any(node.get("checkpoint", {}).get("failures", 0) > 0
                                             for node in nodes.values()), "a failure", 60)
            os.rename(away, self.folder)
            self.wait_published(job, len(self.published()) + 1)
            self.finish(job)
        self.assertEqual(STEPS, self.published()[-1])

    def test_old_checkpoints_are_removed(self):
        """Whoever is killed meanwhile: the newest two stay, and each hundredth step."""
        with self.persisted(10, "--keep-last", "2", "--keep-every", "100") as job:
            self.wait_published(job, 2)
            for seat in (0, 1):
                before = self.published()[-1]
                job.drill("kill", "daemon", str(job.node_of_seat(seat)))
                job.wait_until(lambda _, before=before: self.published()[-1] > before + 20, "two more checkpoints", 60)
            self.finish(job)
        kept = self.published()
        self.assertEqual(STEPS, kept[-1])
        self.assertEqual([], [step for step in kept[:-2] if step % 100], kept)
        self.assertLessEqual(len(kept), 2 + STEPS // 100)
        self.assertEqual([], [name for name in os.listdir(self.folder) if name.endswith(".pawl-removed")])
        self.assert_sound(kept)

    def test_more_die_than_memory_covers_and_few_checkpoints_are_kept(self):
        with self.persisted(30, "--keep-last", "2", spares=2) as job:
            before = self.lose_two(job, lambda published: [])[1]
            job.wait_running(jobs.generation(before), 60)
            self.assert_as_undisturbed(job)
        self.assertEqual((2, STEPS), (len(self.published()), self.published()[-1]))

    def test_pruning_by_hand(self):
        with self.persisted(40, hold_end=False) as job:
            self.finish(job)
        there = self.published()
        flip = os.path.join(self.folder, f"step-{there[0]}", "data-00000.safetensors")
        os.truncate(flip, os.path.getsize(flip) - 1)
        prune = ("prune", self.folder, "--keep-last", "2", "-o", "json")
        code, said = run_pawl(*prune, "--dry-run")
        self.assertEqual(0, code, said)
        self.assertEqual(there[1:-2], sorted(one["step"] for one in json.loads(said)["removed"]))
        self.assertEqual(there, self.published(), "nothing was removed")
        code, said = run_pawl(*prune)
        self.assertEqual(0, code, said)
        self.assertEqual([there[0], *there[-2:]], self.published(), "a damaged one is left")
        code, said = run_pawl(*prune, "--damaged")
        self.assertEqual(0, code, said)
        self.assertEqual(there[-2:], self.published())
        self.assert_sound(there[-2:])
        self.assertEqual(3, run_pawl("prune", self.folder + "-none", "--keep-last", "1")[0])
        self.assertNotEqual(0, run_pawl("prune", self.folder, "--keep-last", "0")[0])

    def test_what_cannot_be_is_said(self):
        os.makedirs(os.path.join(self.folder, "step-40"))
        with open(os.path.join(self.folder, "pawl-job.json"), "w", encoding="utf-8") as file:
            json.dump({"job": "another", "token_digest": "12"}, file)
        for flags, words in (
                (["--checkpoint", self.folder], ["holds checkpoints of job another already", "--resume auto"]),
                (["--checkpoint", self.folder, "--every", "soon"], ["--every soon", "a number of steps", "auto"]),
                (["--checkpoint", self.folder, "--every", "0"], ["--every 0"]),
                (["--every", "5"], ["--checkpoint DIR"]),
                (["--grace", "5s"], ["--checkpoint DIR"]),
                (["--persist-bandwidth", "5MiB"], ["--checkpoint DIR"]),
                (["--checkpoint", self.folder + "-b", "--persist-bandwidth", "5KiB"], ["at least 1MiB"]),
                (["--keep-last", "5"], ["--checkpoint DIR"]),
                (["--checkpoint", self.folder, "--keep-last", "0"], ["--keep-last 0"]),
                (["--checkpoint", self.folder, "--keep-every", "5"], ["--keep-last K"]),
                (["--checkpoint", self.folder, "--grace", "5"], ["--grace 5", "60s"]),
                (["--resume", "auto"], ["--checkpoint DIR"]),
                (["--checkpoint", self.folder, "--resume", os.path.join(self.folder, "step-40")],
                 ["there is no checkpoint that a job wrote"]),
                (["--checkpoint", "/proc/checkpoints"], ["/proc/checkpoints"])):
            with self.subTest(flags=flags):
                started = time.monotonic()
                code, said = run_pawl("run", *flags, "--", harness.CHARLM, "--steps", "1")
                self.assertIn(code, (1, 2), said)
                self.assertLess(time.monotonic() - started, 10)
                self.assert_says(said, *words)


if __name__ == "__main__":
    harness.main()

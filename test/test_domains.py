"""Failure domains: nodes that are said to die together hold no copies of each other, and a whole rack may be lost."""
import json
import os
import subprocess
import tempfile

import harness
from harness import PAWL, JobTest, jobs

SHORT = {"steps": 150}
RACKS = "0-1 rack0\n2-3 rack1\n4-5 rack1   # spares\n"


class DomainsTest(JobTest):
    def domains(self, lines=RACKS):
        file = tempfile.NamedTemporaryFile("w", prefix="pawl-domains-", suffix=".txt", delete=False)
        self.addCleanup(os.remove, file.name)
        with file:
            file.write(lines)
        return file.name

    def in_racks(self, *flags):
        return self.job("--domains", self.domains(), "--no-restart-dead-nodes", *flags, nodes=4, spares=2, size=SHORT)

    def refused(self, words, *flags):
        done = subprocess.run([PAWL, "run", *flags, "--", "true"], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertEqual(2, done.returncode, done.stdout + done.stderr)
        for part in words:
            self.assertIn(part, done.stderr)

    def exposure(self, job, *flags):
        code, out, _ = job.command("exposure", "-o", "json", *flags)
        return code, json.loads(out)

    def test_a_rack_dies_with_one_copy_of_each_seat(self):
        with self.in_racks("--redundancy", "copies:1") as job:
            job.wait_step(8)
            before = job.wait_spare(2)
            code, now = self.exposure(job)
            self.assertEqual(0, code, now)
            self.assertEqual("copies:1", now["redundancy"]["policy"])
            self.assertEqual(2, now["redundancy"]["domains"])
            self.assertEqual([], now["redundancy"]["shared"])
            self.assertEqual([{"dead": [], "whole": True, "may_be_lost": 1, "weakest_seats": [0, 1, 2, 3]}],
                             now["survives"])
            racks = {one["domain"]: one["recoverable"] for one in now["cases"] if one["domain"]}
            self.assertEqual({"rack0": True, "rack1": True}, racks)
            _, after = self.exposure(job, "--if", "0,1")
            self.assertTrue(after["survives"][1]["whole"])
            self.assertEqual(0, after["survives"][1]["may_be_lost"])
            code, more = self.exposure(job, "--if", "0,2,3")
            self.assertEqual(4, code, more)
            self.assertFalse(more["survives"][1]["whole"])

            job.kill_node(0, 1)
            after = job.wait_running(jobs.generation(before), timeout_s=60.0)
            self.assert_survivors(before, after, but=(0, 1))
            # Both spares stand in rack1, so now all copies do: that is said.
            _, out, _ = job.command("status")
            self.assertIn("are both in failure domain rack1", out)
            self.assertIn("DOMAIN", out)
            job.wait_until(lambda _: self.exposure(job)[1]["survives"][0]["whole"], "all copies to be there again")
            _, now = self.exposure(job)
            self.assertEqual(0, now["survives"][0]["may_be_lost"])
            self.assertTrue(now["redundancy"]["shared"])
            self.finish(job, recoveries=2)

    def test_too_few_domains_are_refused_or_accepted(self):
        one = self.domains("0-5 rack0")
        flags = ("--standalone", "--nnodes", "2", "--spares", "0", "--domains")
        for words, more in ((["must lie in 2 failure domains", "--fewer-domains"], (one,)),
                            (["node 1 is in no line"], (self.domains("0 a"),)),
                            (["line 2: node 0 is in b, and above in a"], (self.domains("0-1 a\n0 b"),)),
                            (["--domains", "No such file"], ("/no/such/file",)),
                            (["--domains env", "in a file"], ("env",)),
                            (["possible are copies:K"], (one, "--redundancy", "ring")),
                            (["does not cut its own copies yet"], (one, "--redundancy", "cut:1")),
                            (["parity is not built yet"], (one, "--redundancy", "rs:4+2"))):
            with self.subTest(words=words):
                self.refused(words, *flags, *more)
        with self.job("--domains", one, "--fewer-domains", nodes=2, spares=0, size=SHORT) as job:
            job.wait_step(4)
            code, out, _ = job.command("status")
            self.assertEqual(4, code, out)
            self.assertIn("copies at nodes 0 and 1 are both in failure domain rack0", out)
            self.finish(job)


if __name__ == "__main__":
    harness.main()

"""State in the memory of a GPU: a node, then a trainer is killed, and every byte is right. On machines without a GPU it
is the fake driver's (test/fake_cuda), whose memory no CPU can touch; $FAKE_CUDA names its folder."""
import os

import harness
from harness import jobs
from state_job import StateJobTest

FAKE = os.path.abspath(os.environ.get("FAKE_CUDA", os.path.join(harness.ROOT, "build", "main", "fake_cuda")))


class GpuTest(StateJobTest):
    def gpu_job(self, **options):
        return self.state_job(size="24M", tensors=37, step_ms=60, trainer_flags=["--device", "cuda", "--touch", "0.2"],
                              environment={"LD_LIBRARY_PATH": FAKE}, **options)

    def test_a_spare_restores_into_its_gpu(self):
        with self.gpu_job(nodes=2, spares=1, steps=90) as job:
            job.wait_running(timeout_s=60)
            job.wait_spare(timeout_s=60)
            before = job.wait_step(10, 60)
            job.kill_node(job.node_of_seat(1))
            after = job.wait_running(jobs.generation(before), 60)
            self.assertGreater(min(status["resume"] for status in after.values() if "resume" in status), 0)
            ends = self.finish_bitwise(job, 2)
            self.assertEqual([1, 1], [ends[seat]["restores"] for seat in (0, 1)])
            self.assertTrue(all(end["captured"] > 20 for end in ends.values()), ends)

    def test_a_killed_trainer_restores_from_its_own_node(self):
        with self.gpu_job(nodes=2, spares=0, steps=90) as job:
            job.wait_running(timeout_s=60)
            before = job.wait_step(10, 60)
            os.kill(jobs.seats(before)[0]["pid"], 9)
            job.wait_running(jobs.generation(before), 60)
            ends = self.finish_bitwise(job, 2)
            self.assertEqual([1, 1], [ends[seat]["restores"] for seat in (0, 1)])


if __name__ == "__main__":
    harness.main()

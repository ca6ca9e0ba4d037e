"""Starts that can't succeed: a Python without PyTorch, or with another one than pawl was built for, two scripts in one
job. Each ends with a sentence that has the cause and the remedy, and no traceback. And one that can: processes that
nobody may look into."""
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from paced_job import PacedTest, harness  # noqa: E402
from torch_job import HERE, PACKAGE, START_S, TRAINER, environment, flags  # noqa: E402

# isort: split
from cluster import Cluster, control, token_file  # noqa: E402

ASKING = "import pawl\njob = pawl.init()\nprint('initialised')\n"  # knows nothing of torch


class StartTest(PacedTest):
    def setUp(self):
        self.scratch_folder = tempfile.mkdtemp(prefix="pawl-test-")
        self.addCleanup(shutil.rmtree, self.scratch_folder, True)

    def script(self, text):
        path = os.path.join(self.scratch_folder, "asking.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        return path

    def refused(self, *words, **extra):
        """A job of the script, and the script by itself: both say these words, and show no traceback."""
        script = self.script(ASKING)
        with self.job("--no-python", nodes=2, spares=0, wait=False,
                      command=[extra.get("PYTHON_EXEC", sys.executable), script],
                      environment={**environment(whole=True), **extra}) as job:
            self.assertEqual(1, job.wait_end(START_S), job.tail())
            said = job.output() + job.logs(400)
        self.assert_says(said, *words)
        self.assertNotIn("Traceback", said)
        self.assertNotIn("initialised", said)
        return said

    # Which torch.

    def bare_python(self):
        """A real environment of its own, without PyTorch."""
        folder = os.path.join(self.scratch_folder, "bare")
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, stdout=subprocess.DEVNULL)
        return os.path.join(folder, "bin", "python")

    def test_no_torch(self):
        bare = self.bare_python()
        self.refused("PyTorch is not installed", "pip install", "torch>=2.6", PYTHON_EXEC=bare)
        alone = subprocess.run([bare, self.script(ASKING)], env={**os.environ, "PYTHONPATH": PACKAGE},
                               capture_output=True,
                               text=True, check=False)
        self.assertEqual(1, alone.returncode)
        self.assert_says(alone.stderr, "PyTorch is not installed")
        self.assertNotIn("Traceback", alone.stderr)

    def test_a_torch_that_is_too_old(self):
        """Only its version is looked at, so a package of that version is enough."""
        bare = self.bare_python()
        packages = sysconfig.get_path("purelib", vars={"base": os.path.dirname(os.path.dirname(bare))})
        os.makedirs(os.path.join(packages, "torch", "distributed"))
        with open(os.path.join(packages, "torch", "__init__.py"), "w", encoding="utf-8") as file:
            file.write("__version__ = '2.5.1+cpu'\n")
        with open(os.path.join(packages, "torch", "distributed", "__init__.py"), "w", encoding="utf-8"):
            pass
        self.refused("2.5.1", "too old", "2.6 or later", PYTHON_EXEC=bare)

    def test_without_pawl_it_is_nccl_on_gpus_and_gloo_without(self):
        """torch says that there are GPUs; it need not be true, for nothing is computed."""
        script = self.script("""
import os
import sys
import pawl
import torch
import torch.distributed as dist
if sys.argv[1] != "0":
    torch.cuda.is_available, torch.cuda.device_count = lambda: True, lambda: int(sys.argv[1])
    torch.cuda.set_device = lambda device: print("set", device)
    make = dist.init_process_group
    def made(backend, **others):
        print(backend)
        make("gloo", **others)
    dist.init_process_group = made
print(pawl.init().device, dist.get_backend())
""")
        for gpus, rank, said in ((0, 0, "cpu gloo\n"), (0, 1, "cpu gloo\n"), (2, 1, "set cuda:1\nnccl\ncuda:1 gloo\n")):
            self.assertEqual((0, said, ""), self.alone(script, gpus, rank)[:3])
        for gpus, said in ((1, "torch sees 1 GPU on this"), (2, "torch sees 2 GPUs on this")):
            code, out, errors = self.alone(script, gpus, gpus)
            self.assertEqual((1, ""), (code, out))
            self.assert_says(errors, f"LOCAL_RANK is {gpus}", said, f"--nproc-per-node {gpus}", "CUDA_VISIBLE_DEVICES=")

    def alone(self, script, gpus, local_rank):
        """The script without `pawl run`: its code, output and errors."""
        bare = {name: value for name, value in os.environ.items()
                if not name.startswith(("PAWL_SOCKET", "MASTER", "RANK", "WORLD"))}
        done = subprocess.run([sys.executable, script, str(gpus)], capture_output=True, text=True, check=False,
                              env={**bare, "PYTHONPATH": PACKAGE, "LOCAL_RANK": str(local_rank)})
        return done.returncode, done.stdout, done.stderr

    def test_an_extension_for_another_torch(self):
        with open(os.environ["PAWL_C10D"], "rb") as file:
            content = file.read()
        version = re.search(rb"built for torch=([^ ;]+) ", content).group(1)
        other = os.path.join(self.scratch_folder, "other.so")
        with open(other, "wb") as file:  # equally long, so that the file stays what it is otherwise
            file.write(content.replace(b"torch=" + version, b"torch=9" + version[1:]))
        self.refused("was built for torch 9", "and this is torch", "pawl.build_extension", PAWL_C10D=other)

    # Which script.

    def test_two_scripts_in_one_job(self):
        """Two machines were started with different arguments: named with both, and nothing was trained."""
        saved = {name: os.environ.get(name) for name in environment(whole=True)}
        os.environ.update(environment(whole=True))
        self.addCleanup(lambda: [os.environ.pop(name) if value is None else os.environ.update({name: value})
                                 for name, value in saved.items()])
        with token_file() as (folder, token), control(folder, token) as address:
            cluster = Cluster(folder, address, token, 2)
            record = os.path.join(folder, "record")
            try:
                for rank, steps in enumerate((30, 40)):
                    cluster.start(rank, command=[TRAINER, *flags(steps=steps), "--record", record])
                codes = [machine.wait_end(START_S) for machine in cluster.machines.values()]
                self.assertNotIn(0, codes)
                said = "".join(machine.output() + machine.logs(400) for machine in cluster.machines.values())
            finally:
                cluster.close()
            self.assert_says(said, "two scripts in one job", "--steps 30", "--steps 40", "same script and arguments")
            self.assertNotIn("Traceback", said)
            self.assertEqual([], [name for name in os.listdir(record) if name.startswith("loss.")]
                             if os.path.isdir(record) else [])

    # Who may look.

    def test_processes_that_nobody_may_trace(self):
        """Blocked collectives are then freed by the trainers themselves: a swap is what it always is."""
        script = os.path.join(HERE, "counted_trainer.py")
        with self.paced(script, nodes=3, spares=1, steps=60, untraceable=True) as job:
            before = self.sound(job, 1)
            self.hold_seat(job, 1, "allreduce")
            self.die(job, 1, whole_node=True)
            self.runs_again(job, before, [1])
            self.finish_paced(job, recoveries=1)


if __name__ == "__main__":
    harness.main()

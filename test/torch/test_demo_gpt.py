"""The demo's GPT: the same script with pawl, without `pawl run` and without the package; the demo itself, with PyTorch
and where there is none; the lines of the README and of docs/user/protect.md."""
import ast
import difflib
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch_job  # noqa: E402
from torch_job import JobTest, harness, record  # noqa: E402

# isort: split
from demo_job import DemoJobTest  # noqa: E402
from reference import Reference, ReferenceFailed  # noqa: E402

EXAMPLES = os.path.join(harness.ROOT, "examples")
SCRIPT = os.path.join(EXAMPLES, "gpt", "train.py")
STEPS = 16


def read(*parts):
    with open(os.path.join(harness.ROOT, *parts), encoding="utf-8") as file:
        return file.read()


class ScriptTest(JobTest):
    def plain(self, package, *flags, script=SCRIPT):
        """The script on two ranks, started as torchrun would."""
        paths = [torch_job.PACKAGE, torch_job.LEAN] if package else [torch_job.LEAN]
        environment = {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1", "GLOO_SOCKET_IFNAME": "lo",
                       "PYTHONPATH": os.pathsep.join(paths)}
        return Reference([sys.executable, script, *flags], self.scratch(), 2, environment).start().wait(240)

    def test_pawl_adds_fewer_than_fifteen_lines(self):
        source = read("examples", "gpt", "train.py")
        lines = source.splitlines()
        marked = {number for number, line in enumerate(lines, 1) if line.endswith("# pawl")}
        self.assertLess(len(marked), 15)
        named = {node.lineno for node in ast.walk(ast.parse(source))
                 if isinstance(node, ast.Name) and node.id in ("pawl", "job")
                 or isinstance(node, ast.Import) and node.names[0].name == "pawl"}
        self.assertEqual(set(), named - marked, "lines that need pawl and aren't marked")

    def test_without_pawl_it_is_plain_training(self):
        flags = ["--steps", str(STEPS), "--seed", "5"]
        without_package, outside_pawl_run = self.plain(False, *flags), self.plain(True, *flags)
        for run in (without_package, outside_pawl_run):
            self.assertEqual({("gloo", False)}, {(start["backend"], start["libpawl_mapped"])
                                                 for start in run.starts.values()})
        compared = record.compare(outside_pawl_run, without_package, STEPS, 2)
        self.assertEqual([], compared.differences)
        self.assertEqual(2 * STEPS, compared.losses_compared)
        scale = [tensor["hash"] for tensor in without_package.finals[0]["tensors"] if tensor["role"] == "scale"]
        other = self.plain(False, *flags, "--overflow-step", "0")
        self.assertNotEqual(scale, [tensor["hash"] for tensor in other.finals[0]["tensors"]
                                    if tensor["role"] == "scale"],
                            "the scaler skipped no step")
        self.assertFalse(record.compare(other, without_package, STEPS, 2).equal(), "this comparison can't fail")

    def test_data_that_is_missing_or_empty(self):
        empty = os.path.join(self.scratch(), "empty")
        open(empty, "wb").close()
        for data, words in ((empty, "too little text"), ("/no/such/text", "No such file")):
            with self.subTest(data=data), self.assertRaises(ReferenceFailed) as failed:
                self.plain(False, "--data", data)
            self.assert_says(str(failed.exception), data, words)
            self.assertNotIn("Traceback", str(failed.exception))

    def test_the_lines_of_the_readme(self):
        shown = read("docs", "user", "protect.md").split("```diff\n")[1].split("```")[0].splitlines()
        made = list(difflib.unified_diff(read("examples", "minimal", "train.py").splitlines(),
                                         read("examples", "minimal", "protected.py").splitlines(), lineterm="",
                                         n=0))[2:]
        self.assertEqual([line for line in made if not line.startswith("@@")],
                         [line for line in shown if line[:1] in "+-"])
        protected = [line.strip() for line in read("examples", "minimal", "protected.py").splitlines()]
        for line in read("README.md").split("```python\n")[1].split("```")[0].splitlines():
            self.assertIn(line.split("#")[0].strip(), protected)
        with self.job("--keep", nodes=2, spares=0, wait=False, hooks=False,
                      environment=torch_job.environment(whole=True),
                      command=[os.path.join(EXAMPLES, "minimal", "protected.py")]) as job:
            self.assertEqual(0, job.wait_end(240), job.output())
            said = [line for line in job.logs(10000).splitlines() if line.startswith("step ")]
        self.assertEqual(16, len(said), said)
        self.assertLess(float(said[-1].split()[-1]), 0.3, "it learned nothing")


class DemoTest(DemoJobTest):
    def test_the_gpt_loses_its_first_node(self):
        told, said = self.demo("--trainer", "gpt", "--seed", "3", "--steps", "90", "--node", "0", park=1,
                               patience_s=torch_job.START_S)
        self.assertEqual(("bitwise equal", "gpt", []), (told["verdict"], told["trainer"], told["faults"]))
        self.assertEqual([0], [kill["node"] for kill in told["kills"]])
        self.assertGreaterEqual(told["losses_compared"], 4 * 90)
        self.assertTrue(told["survivors_same_process"] and told["samples_exact"])
        self.assertLessEqual({"weight", "exp_avg", "exp_avg_sq", "step", "scale"}, set(told["tensor_roles"]))
        self.assert_says(said, "bitwise equal", "survivors", "spare parked")

    def test_the_gpt_loses_two_nodes_at_once(self):
        folder = os.path.join(self.scratch(), "checkpoints")
        told, said = self.demo("--trainer", "gpt", "--seed", "3", "--steps", "60", "--nodes", "3", "--checkpoint",
                               folder, "--at-once", "2", park=2, patience_s=torch_job.START_S)
        self.assertEqual("gpt", told["trainer"])
        self.assert_came_back_from_storage(told, said, folder, 2)

    def test_where_pytorch_is_left_out(self):
        told, said = self.demo("--steps", "60", "--kills", "0", environment={"PAWL_WITHOUT_TORCH": "1"})
        self.assertEqual(("bitwise equal", "cpp"), (told["verdict"], told["trainer"]))
        self.assert_says(said, "not the gpt but the c++ trainer", "PAWL_WITHOUT_TORCH")


if __name__ == "__main__":
    harness.main()

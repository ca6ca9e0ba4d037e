"""What one parallelism saved, another loads and goes on with: a cover of the matrix (test/torch/matrix).

Each of PyTorch's own parallelisms saves one of three models and loads each of them: weights, buffers, moments and steps
bitwise what was saved, the rates too, and the next losses those of the training that never stopped; once into bf16.
"""
import os
import pathlib
import subprocess
import sys
import unittest

try:
    import torch  # noqa: F401
except ImportError:
    print("PyTorch is not there: tools/setup-torch")
    sys.exit(77)

RUN = pathlib.Path(__file__).resolve().parent / "matrix" / "run"


class MatrixCover(unittest.TestCase):
    def test_every_parallelism_goes_on_from_others(self):
        ran = subprocess.run([sys.executable, "-B", RUN, "--pairs", "cover"], capture_output=True, text=True,
                             timeout=600, env=os.environ | {"PYTHON_EXEC": sys.executable})
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        self.assertEqual(ran.stdout.splitlines()[-1], "19 passed, 0 failed, 0 skipped", ran.stdout)


if __name__ == "__main__":
    unittest.main()

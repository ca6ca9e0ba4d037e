"""Prints, as JSON, what a build against this Python's torch needs to know (read by CMakeLists.txt)."""

import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

import torch  # noqa: E402

from pawl import build_extension  # noqa: E402

if build_extension.release(str(torch.__version__)) < build_extension.TORCH_MIN:
    sys.exit(f"torch {torch.__version__} is too old")
facts = build_extension.torch_facts(torch)
print(json.dumps({"includes": ";".join(facts.includes), "libraries": facts.libraries,
                  "definitions": ";".join(facts.definitions)}))

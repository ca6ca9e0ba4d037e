"""Prints, as JSON, what a build against this Python's torch needs to know (read by CMakeLists.txt)."""

import json
import os
import sys
import sysconfig

import torch
from torch.utils.cpp_extension import include_paths

folders = [*include_paths(), sysconfig.get_paths()["include"]]
facts = {
    "version": torch.__version__,
    "abi": int(torch._C._GLIBCXX_USE_CXX11_ABI),
    "python": sys.implementation.cache_tag,
    "includes": ";".join(folders),
    "libraries": os.path.join(os.path.dirname(torch.__file__), "lib"),
}
if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
    sys.exit(f"torch {torch.__version__} is too old")
print(json.dumps(facts))

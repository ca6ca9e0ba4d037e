"""What `pawl doctor --python` looks at in this interpreter: Python, the package, its libraries, torch, the extension.

    python -m pawl.doctor COMMAND-VERSION    # prints a JSON list of {check, verdict, found, remedy}

The command asks an interpreter without this package by itself. Nothing is built here, and nothing is changed.
"""
from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator

from pawl import _checkpoint, _extension, _library, build_extension
from pawl._version import version
from pawl.errors import Refused

Finding = dict[str, str]


def finding(check: str, verdict: str, found: str, remedy: str = "") -> Finding:
    """`verdict`: OK, WARN or FAIL, as all of `pawl doctor`'s."""
    return {"check": check, "verdict": verdict, "found": found, "remedy": remedy}


def findings(command_version: str) -> Iterator[Finding]:
    yield finding("python", "OK", f"{sys.executable}, {'.'.join(map(str, sys.version_info[:3]))}")
    yield _package(command_version)
    yield _libraries()
    try:
        torch = build_extension.usable_torch()
    except Refused as error:
        yield finding("torch", "FAIL", str(error), _install_torch())
        return
    yield finding("torch", "OK", f"{torch.__version__}, {os.path.dirname(str(torch.__file__))}")
    yield _built(build_extension.torch_facts(torch))


def _package(command_version: str) -> Finding:
    found = f"{version}, {os.path.dirname(os.path.abspath(__file__))}"
    if version != command_version:
        return finding("pawl", "FAIL", f"{found}; the command is {command_version}",
                       "install both from one wheel, and see that PYTHONPATH and PATH name no other one")
    return finding("pawl", "OK", found)


def _libraries() -> Finding:
    found = []
    for find in (_library.find_library, _checkpoint.find_library):
        try:
            path = find()
            ctypes.CDLL(path)
            found.append(path)
        except (Refused, OSError) as error:
            return finding("libraries", "FAIL", str(error), f"install pawl's wheel again ({sys.executable} -m pip "
                           "install --force-reinstall --no-deps pawl-*.whl); on a system older than the wheel needs "
                           "(its METADATA says), build it there: make wheel")
    return finding("libraries", "OK", " and ".join(found))


def _install_torch() -> str:
    try:  # pip -U leaves one that is new enough as it is, also if it can't be imported
        broken = build_extension.release(importlib.metadata.version("torch")) >= build_extension.TORCH_MIN
    except importlib.metadata.PackageNotFoundError:
        broken = False
    least = ".".join(map(str, build_extension.TORCH_MIN))
    return f"{sys.executable} -m pip install {'--force-reinstall' if broken else '-U'} 'torch>={least}'"


def _built(facts: build_extension.Facts) -> Finding:
    how = f"{sys.executable} -m pawl.build_extension"
    try:
        named = _extension.named()
        if named is not None:
            _extension.judge(named, facts)
        path = named or _extension.built(facts)
        if path is not None:
            _extension.load()
            return finding("extension", "OK", str(path))
        build_extension.check(facts)
    except Refused as error:
        remedy = "unset PAWL_C10D, or name one built for this torch" if os.environ.get("PAWL_C10D") else f"then: {how}"
        return finding("extension", "FAIL", str(error), remedy)
    return finding("extension", "WARN", f"not built yet; {build_extension.compiler()[0]} is there to build it",
                   f"the first training does it, in a minute or two; to do it now: {how}")


if __name__ == "__main__":
    print(json.dumps(list(findings(sys.argv[1]))))

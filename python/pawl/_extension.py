"""Finds, checks and loads pawl_c10d, the extension that holds the managed group (python/c10d).

It is built for one torch and one Python, and its file names both. Any other is rejected before it is loaded, since it
would end the process. $PAWL_C10D names it; else it is the one of the checkout's build/lib, if that was built for this
torch; else it is built when it is first needed, and kept (build_extension.py).
Loading imports torch; importing this module does not.
"""
from __future__ import annotations

import functools
import importlib.util
import os
import re
import sys
from pathlib import Path
from types import ModuleType

from pawl import build_extension
from pawl.build_extension import NAME, Facts, release
from pawl.errors import Refused

_BUILT_FOR = re.compile(rb"pawl_c10d built for torch=([^ ;]+) abi=(\d) python=([^ ;]+);")


@functools.cache
def load() -> ModuleType:
    """The extension; `Refused` with cause and remedy where it can't be used."""
    facts = build_extension.torch_facts(build_extension.usable_torch())
    path = named() or find(facts)
    judge(path, facts)
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path} is not an extension module: {_remedy(path)}")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Refused(f"{path} can't be loaded: {error}; {_remedy(path)}") from None
    sys.modules[NAME] = module
    return module


def _remedy(path: Path) -> str:
    """What brings one that fits, where the one at `path` doesn't."""
    if os.environ.get("PAWL_C10D"):
        return (f"unset PAWL_C10D, or set it to what `{sys.executable} -m pawl.build_extension` prints, which builds "
                f"it for this Python and this machine")
    if path == _of_the_checkout():
        return "`make build` in the checkout builds it for the Python that the set-up chose"
    return (f"remove {path.parent}, and build it for this Python and this machine: {sys.executable} -m "
            f"pawl.build_extension")


def _of_the_checkout() -> Path:
    return Path(__file__).resolve().parents[2] / "build" / "lib" / f"{NAME}.so"


def named() -> Path | None:
    """$PAWL_C10D. Refused if it names nothing."""
    path = os.environ.get("PAWL_C10D")
    if path and not os.path.isfile(path):
        raise Refused(f"PAWL_C10D={path}: there is no such file; unset it, or name the extension that was built")
    return Path(path) if path else None


def built(facts: Facts) -> Path | None:
    """One that is there and fits: the checkout's, or the one that was kept."""
    checkout = _of_the_checkout()
    if os.path.isfile(checkout):
        try:
            judge(checkout, facts)
            return checkout
        except Refused:
            pass
    folder = build_extension.sources()
    kept = build_extension.place(facts, folder) if folder else None
    return kept if kept is not None and os.path.isfile(kept) else None


def find(facts: Facts) -> Path:
    """One that fits; built here if there is none. Refused if that can't be."""
    path = built(facts)
    if path is not None:
        return path
    folder = build_extension.sources()
    if folder is None:
        raise Refused("pawl's extension for torch isn't there, and neither are its sources: install pawl's wheel again "
                      "(python -m pip install --force-reinstall --no-deps pawl-*.whl)")
    return build_extension.ensure(facts, folder)


def judge(path: Path, facts: Facts) -> None:
    """Refuses a file that was built for another torch, C++ ABI or Python than those that run here."""
    built_for = _BUILT_FOR.search(path.read_bytes())
    if built_for is None:
        raise Refused(f"{path} isn't pawl's extension: {_remedy(path)}")
    version, abi, python = (part.decode() for part in built_for.groups())
    remedy = _remedy(path)
    if release(version) != release(facts.version):
        raise Refused(f"{path} was built for torch {version}, and this is torch {facts.version}; {remedy}")
    if bool(int(abi)) != facts.abi:
        raise Refused(f"{path} was built for torch with _GLIBCXX_USE_CXX11_ABI={abi}, this one has the other; {remedy}")
    if python != facts.python:
        raise Refused(f"{path} was built for {python}, and this is {facts.python}; {remedy}")

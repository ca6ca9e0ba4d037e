"""Finds, checks and loads pawl_c10d, the extension that holds the managed group (python/c10d).

It is built for one torch and one Python, and its file names both. Any other is rejected before it is loaded, since it
would end the process. Searched at $PAWL_C10D, beside this package, and in the checkout's build/lib.
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

from pawl.errors import Refused

NAME = "pawl_c10d"
TORCH_MIN = (2, 6)
_BUILT_FOR = re.compile(rb"pawl_c10d built for torch=([^ ;]+) abi=(\d) python=([^ ;]+);")
_HOW_TO_BUILD = "`make build` in the checkout builds it for the Python that the set-up chose"


@functools.cache
def load() -> ModuleType:
    """The extension; `Refused` with cause and remedy where it can't be used."""
    torch_version, torch_abi = _torch()
    path = find()
    judge(path, torch_version, torch_abi)
    spec = importlib.util.spec_from_file_location(NAME, path)
    if spec is None or spec.loader is None:
        raise Refused(f"{path} is not an extension module: {_HOW_TO_BUILD}")
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Refused(f"{path} can't be loaded: {error}; {_HOW_TO_BUILD}") from None
    sys.modules[NAME] = module
    return module


def find() -> Path:
    """Where the extension lies; `Refused` if nowhere."""
    named = os.environ.get("PAWL_C10D")
    package = Path(__file__).resolve().parent
    places = [Path(named)] if named else [package / f"{NAME}.so",
                                          package.parent.parent / "build" / "lib" / f"{NAME}.so"]
    for place in places:
        if place.is_file():
            return place
    if named:
        raise Refused(f"PAWL_C10D={named}: there is no such file; unset it, or name the extension that was built")
    raise Refused(f"pawl's extension for torch isn't built: {_HOW_TO_BUILD} (looked for "
                  f"{' and '.join(map(str, places))})")


def judge(path: Path, torch_version: str, torch_abi: bool) -> None:
    """Refuses a file that was built for another torch, C++ ABI or Python than those that run here."""
    built_for = _BUILT_FOR.search(path.read_bytes())
    if built_for is None:
        raise Refused(f"{path} isn't pawl's extension: {_HOW_TO_BUILD}")
    version, abi, python = (part.decode() for part in built_for.groups())
    remedy = f"build it for this Python: {_HOW_TO_BUILD}"
    if _release(version) != _release(torch_version):
        raise Refused(f"{path} was built for torch {version}, and this is torch {torch_version}; {remedy}")
    if bool(int(abi)) != torch_abi:
        raise Refused(f"{path} was built for torch with _GLIBCXX_USE_CXX11_ABI={abi}, this one has the other; {remedy}")
    if python != sys.implementation.cache_tag:
        raise Refused(f"{path} was built for {python}, and this is {sys.implementation.cache_tag}; {remedy}")


def _torch() -> tuple[str, bool]:
    try:
        import torch
        import torch.distributed
    except ImportError as error:
        raise Refused(f"torch can't be imported ({error}): install it, or run with the Python of the set-up "
                      f"(.venv/bin/python)") from None
    version = str(torch.__version__)
    if _release(version)[:2] < TORCH_MIN:
        raise Refused(f"torch {version} is too old: pawl needs 2.6 or later")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        raise Refused(f"torch {version} was built without torch.distributed and gloo, which pawl's groups need; "
                      f"install a wheel of pytorch.org")
    return version, bool(torch._C._GLIBCXX_USE_CXX11_ABI)


def _release(version: str) -> tuple[int, ...]:
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    return tuple(int(part) for part in numbers.group().split(".")) if numbers else ()

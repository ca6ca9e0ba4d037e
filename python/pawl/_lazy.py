"""Names of a package that are loaded when they are used."""
from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """A package's __getattr__ and __dir__: `homes` says which of its modules has each name."""
    own = sys.modules[package].__dict__

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        own[name] = value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        return value

    return get, lambda: sorted({*own, *homes})

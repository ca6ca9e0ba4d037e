"""pawl's version: that of the checkout which this package is part of, else that of the installed package."""
import importlib.metadata
import pathlib
import re


def _read() -> str:
    header = pathlib.Path(__file__).resolve().parents[2] / "include" / "pawl" / "version.h"
    if not header.is_file():
        return importlib.metadata.version("pawl")
    return ".".join(re.findall(r"^#define PAWL_VERSION_[A-Z]+ (\d+)$", header.read_text(), re.MULTILINE))


__version__ = version = _read()

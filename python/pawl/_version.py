"""pawl's version: that of the checkout which this package is part of, else that of the installed package."""
import importlib.metadata
import pathlib
import re


def _read() -> str:
    header = pathlib.Path(__file__).resolve().parents[2] / "include" / "pawl" / "version.h"
    if not header.is_file():
        try:
            return importlib.metadata.version("pawl")
        except importlib.metadata.PackageNotFoundError:  # the folder was copied, without its checkout or pip
            return "unknown"
    return ".".join(re.findall(r"^#define PAWL_VERSION_[A-Z]+ (\d+)$", header.read_text(), re.MULTILINE))


__version__ = version = _read()

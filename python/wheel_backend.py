"""Makes pawl's wheel of what `make build` has built: the package, both libraries, the command, the libraries of the
system that these use and not every machine has, and the sources of the extension for torch, which is built where the
wheel is installed. Nothing but Python's own modules is needed, so it also works where no package index is.

    make wheel                                        # build/wheel/pawl-VERSION-py3-none-linux_x86_64.whl
    pip install ./python                              # the same, installed at once
    python3 python/wheel_backend.py --build BUILD OUT # of the programs and libraries in BUILD/bin and BUILD/lib

The tag promises no more than is true: this machine's kind, and the C library that METADATA names, or a later one.
"""
from __future__ import annotations

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = ("libpawl.so.0", "libpawl_checkpoint.so.0")
# What every Linux machine with Python and torch has: the C and C++ libraries, zlib, the loader.
OF_THE_SYSTEM = re.compile(r"(linux-vdso|ld-linux.*|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z|resolv))\.so(\.\d+)*$")
_NEEDED = re.compile(r"^\s*(\S+) => (\S+|not found)", re.MULTILINE)
_SYMBOLS = re.compile(r"\b(GLIBC|GLIBCXX)_(\d+(?:\.\d+)+)\b")


# What pip calls ---------------------------------------------------------------------------------------------------

def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: str | None = None) -> str:
    """PEP 517; the wheel's file name."""
    return make(ROOT / "build", Path(wheel_directory)).name


# The wheel --------------------------------------------------------------------------------------------------------

def make(build: Path, output: Path) -> Path:
    for needed in (build / "bin" / "pawl", *(build / "lib" / name for name in LIBRARIES)):
        if not needed.exists():
            sys.exit(f"{needed} is not there: run `make build` in {ROOT} first")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        needs = fill(build, root / "pawl")
        name = write_metadata(root, needs)
        output.mkdir(parents=True, exist_ok=True)
        wheel = output / name
        unfinished = output / f".{name}.unfinished"
        pack(root, unfinished)
        os.replace(unfinished, wheel)
    return wheel


def fill(build: Path, package: Path) -> str:
    """Everything that the package's folder holds. What of the C and C++ libraries it needs, in words."""
    shutil.copytree(ROOT / "python" / "pawl", package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "python" / "c10d", package / "_c10d", ignore=lambda _, names: [
        name for name in names if not name.endswith((".cc", ".h"))])
    (package / "bin").mkdir()
    binaries = [(build / "bin" / "pawl", package / "bin" / "pawl"),
                *((build / "lib" / name, package / name) for name in LIBRARIES)]
    bundled: dict[str, Path] = {}
    for source, _ in binaries:
        bundled |= libraries_of(source)
    (package / "libs").mkdir()
    copy_licences(bundled.values(), package / "libs" / "licences")
    binaries += [(path, package / "libs" / name) for name, path in sorted(bundled.items())]
    versions: dict[str, tuple[int, ...]] = {}
    for source, target in binaries:
        # The debugging information is half of the bytes; names of functions stay.
        subprocess.run(["strip", "--strip-debug", "-o", target, source.resolve()], check=True)
        target.chmod(0o755)
        for library, version in versions_needed(target):
            versions[library] = max(versions.get(library, ()), version)
    return " and ".join(f"{library} {'.'.join(map(str, versions[library]))}" for library in sorted(versions))


def libraries_of(binary: Path) -> dict[str, Path]:
    """Those that it uses, directly or not, and that not every machine has."""
    listed = subprocess.run(["ldd", binary], check=True, capture_output=True, text=True).stdout
    found = {}
    for name, path in _NEEDED.findall(listed):
        if OF_THE_SYSTEM.match(os.path.basename(name)):
            continue
        if not os.path.isabs(path):
            sys.exit(f"{binary} needs {name}, which isn't on this machine")
        found[name] = Path(path)
    return found


def copy_licences(libraries: Iterable[Path], folder: Path) -> None:
    """Of the system's packages that they come from; where no dpkg is, none."""
    folder.mkdir()
    if shutil.which("dpkg-query") is None:
        return
    for path in libraries:
        for name in {str(path), str(path.resolve()), str(path.resolve()).removeprefix("/usr")}:
            found = subprocess.run(["dpkg-query", "--search", name], capture_output=True, text=True, check=False).stdout
            package = found.partition(":")[0]
            text = Path("/usr/share/doc") / package / "copyright"
            if package and text.is_file():
                shutil.copyfile(text, folder / package)


def versions_needed(binary: Path) -> list[tuple[str, tuple[int, ...]]]:
    symbols = subprocess.run(["readelf", "--version-info", "--wide", binary], check=True, capture_output=True,
                             text=True).stdout
    needs = symbols.partition("Version needs section")[2]
    return [(library, tuple(map(int, version.split(".")))) for library, version in _SYMBOLS.findall(needs)]


def version() -> str:
    """What include/pawl/version.h says: the only place where it is written."""
    text = (ROOT / "include" / "pawl" / "version.h").read_text(encoding="utf-8")
    return ".".join(re.findall(r"^#define PAWL_VERSION_[A-Z]+ (\d+)$", text, re.MULTILINE))


def write_metadata(root: Path, needs: str) -> str:
    """The wheel's file name."""
    with open(ROOT / "python" / "pyproject.toml", "rb") as file:
        project = tomllib.load(file)["project"]
    platform = re.sub(r"[-.]", "_", sysconfig.get_platform())
    tag = f"py3-none-{platform}"
    about = root / f"{project['name']}-{version()}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {version()}\nSummary: {project['description']}\n"
        f"License: {project['license']['text']}\nRequires-Python: {project['requires-python']}\n"
        f"\nNeeds {needs} of the system, or later ones.\n\nTrainings in PyTorch need torch 2.6 or later, and g++\n"
        "where their first job is started: pawl's extension for torch is then built once, and kept.\n",
        encoding="utf-8")
    (about / "WHEEL").write_text(f"Wheel-Version: 1.0\nGenerator: pawl\nRoot-Is-Purelib: false\nTag: {tag}\n",
                                 encoding="utf-8")
    (about / "entry_points.txt").write_text("[console_scripts]\npawl = pawl._command:main\n", encoding="utf-8")
    shutil.copy2(ROOT / "LICENSE", about / "LICENSE")
    return f"{project['name']}-{version()}-{tag}.whl"


def pack(root: Path, wheel: Path) -> None:
    """Equal input gives equal bytes."""
    record = next(root.glob("*.dist-info")) / "RECORD"
    lines = []
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            name, content = file.relative_to(root).as_posix(), file.read_bytes()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines.append(f"{name},sha256={digest},{len(content)}\n")
            add(archive, name, content, 0o755 if os.access(file, os.X_OK) else 0o644)
        name = record.relative_to(root).as_posix()
        add(archive, name, "".join([*lines, f"{name},,\n"]).encode(), 0o644)


def add(archive: zipfile.ZipFile, name: str, content: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name)  # of 1980
    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, (0o100000 | mode) << 16
    archive.writestr(entry, content)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="holds bin/pawl and lib/libpawl.so.0")
    parser.add_argument("output", type=Path, help="the folder for the wheel")
    given = parser.parse_args()
    wheel = make(given.build, given.output)
    with zipfile.ZipFile(wheel) as archive:
        about = archive.read(f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/METADATA").decode()
    print(f"{wheel} ({wheel.stat().st_size >> 20} MiB): {about.partition(chr(10) * 2)[2].splitlines()[0]}")


if __name__ == "__main__":
    main()

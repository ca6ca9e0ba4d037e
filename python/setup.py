"""`pip install ./python`, in a checkout where `make build` was run: the package with its libraries beside it, and with
the extension for the torch of the environment that it is installed into. Without a torch there it is installed without
the extension, and says so when the extension is needed. Metadata: pyproject.toml."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

ROOT = pathlib.Path(__file__).resolve().parent.parent
LIBRARIES = [ROOT / "build" / "lib" / name for name in ("libpawl.so.0", "libpawl_checkpoint.so.0")]


def outside_environment() -> dict[str, str]:
    """Without what hides the installed torch while pip builds."""
    return {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "PYTHONNOUSERSITE")}


def build_extension(folder: pathlib.Path) -> None:
    has_torch = subprocess.run([sys.executable, "-c", "import torch"], env=outside_environment(), capture_output=True,
                               check=False).returncode == 0
    if not has_torch:
        print("pawl: there is no torch in this environment: installed without the extension for it", file=sys.stderr)
        return
    with tempfile.TemporaryDirectory() as tree:
        configure = ["cmake", "-S", str(ROOT), "-B", tree, "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                     f"-DPAWL_PYTHON={sys.executable}", f"-DPAWL_OUTPUT_DIR={tree}"]
        subprocess.run(configure, env=outside_environment(), check=True)
        subprocess.run(["cmake", "--build", tree, "--target", "pawl_c10d", "--parallel", "2"],
                       env=outside_environment(),
                       check=True)
        shutil.copy2(pathlib.Path(tree) / "lib" / "pawl_c10d.so", folder)


class BuildWithLibraries(build_py):
    def run(self) -> None:
        for library in LIBRARIES:
            if not library.exists():
                sys.exit(f"{library} is not there: run `make build` in {ROOT} first")
        super().run()
        folder = pathlib.Path(self.build_lib) / "pawl"
        for library in LIBRARIES:
            shutil.copy2(library, folder / library.name)
        build_extension(folder)


class BinaryDistribution(Distribution):
    def has_ext_modules(self) -> bool:
        return True


def version() -> str:
    """What include/pawl/version.h says: the only place where it is written."""
    text = (ROOT / "include" / "pawl" / "version.h").read_text()
    return ".".join(re.findall(r"^#define PAWL_VERSION_[A-Z]+ (\d+)$", text, re.MULTILINE))


setup(version=version(), cmdclass={"build_py": BuildWithLibraries}, distclass=BinaryDistribution)

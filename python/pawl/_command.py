"""The command `pawl` of an installed wheel: hands over to the program in this package, and has the job's scripts run by
this interpreter, as torchrun does ($PYTHON_EXEC names another one)."""
from __future__ import annotations

import os
import sys
from pathlib import Path


def program() -> Path | None:
    """The package's own, or the one that the checkout built; None: there is neither."""
    package = Path(__file__).resolve().parent
    for place in (package / "bin" / "pawl", package.parent.parent / "build" / "bin" / "pawl"):
        if place.is_file():
            return place
    return None


def main() -> None:
    found = program()
    if found is None:
        sys.exit(f"pawl: its program isn't in {Path(__file__).resolve().parent}: install pawl's wheel again")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    try:
        os.execv(found, ["pawl", *sys.argv[1:]])
    except OSError as error:  # built for another processor, or unpacked without the right to run it
        sys.exit(f"pawl: {found} can't be started: {error.strerror}")


if __name__ == "__main__":
    main()

"""Whether modules of a package import each other in a circle. Types count: imports below `if TYPE_CHECKING` and inside
of functions are imports like all others.

    python tools/python_imports.py python/pawl      # exit code 1, and the circles, if there are any

A package's __init__ is imported by every module in it and by none for a name, so it takes no part unless it is imported
for a name that is its own.
"""
from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path


def modules_of(package: Path) -> dict[str, Path]:
    """Each module's name, and its file."""
    found = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(module: str, file: Path, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that it imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")
            if file.name != "__init__.py":
                base = base[:-1]
            parts = base[:len(base) - node.level + 1] if node.level else []
            origin = ".".join(parts + ([node.module] if node.module else []))
            for alias in node.names:
                below = f"{origin}.{alias.name}"
                found.add(below if below in modules else origin)
    return {name for name in found if name in modules and name != module}


def circles(graph: dict[str, set[str]]) -> Iterator[list[str]]:
    """Each set of modules that reach each other, by Tarjan's algorithm."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []

    def visit(name: str) -> Iterator[list[str]]:
        number[name] = low[name] = len(number)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in number:
                yield from visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], number[other])
        if low[name] == number[name]:
            members = stack[stack.index(name):]
            del stack[len(stack) - len(members):]
            if len(members) > 1:
                yield members

    for name in sorted(graph):
        if name not in number:
            yield from visit(name)


def main(folders: list[str]) -> int:
    failed = 0
    for folder in folders:
        modules = modules_of(Path(folder))
        graph = {name: imports_of(name, file, modules) for name, file in modules.items()}
        for members in circles(graph):
            failed = 1
            print(f"{folder}: these modules import each other in a circle: {', '.join(members)}")
            for name in members:
                print(f"  {name} imports {', '.join(sorted(graph[name] & set(members)))}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

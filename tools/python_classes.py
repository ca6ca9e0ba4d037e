"""Whether a class of a package has more than a reader keeps in mind: 40 methods, or 20 fields of its own.

    python tools/python_classes.py python/pawl      # exit code 1, and the classes, if there are any

A field is what the class's body or its methods assign (`self.name`), and no base class of the package does.
"""
from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

METHODS_MAX, FIELDS_MAX = 40, 20


def fields_of(node: ast.ClassDef) -> set[str]:
    found = {each.target.id for each in node.body
             if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)}
    for each in ast.walk(node):
        if (isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name)
                and each.value.id == "self"):
            found.add(each.attr)
    return found


def methods_of(node: ast.ClassDef) -> int:
    return sum(isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)) for each in node.body)


def classes_in(package: Path) -> dict[str, tuple[Path, ast.ClassDef]]:
    return {node.name: (file, node) for file in sorted(package.rglob("*.py"))
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ClassDef)}


def findings(classes: dict[str, tuple[Path, ast.ClassDef]]) -> Iterator[str]:
    def inherited(node: ast.ClassDef) -> set[str]:
        bases = [classes[base.id][1] for base in node.bases if isinstance(base, ast.Name) and base.id in classes]
        return {field for base in bases for field in fields_of(base) | inherited(base)}

    for name, (file, node) in classes.items():
        methods, fields = methods_of(node), len(fields_of(node) - inherited(node))
        if methods > METHODS_MAX or fields > FIELDS_MAX:
            yield (f"{file}:{node.lineno}: {name} has {methods} methods and {fields} fields of its own; at most "
                   f"{METHODS_MAX} and {FIELDS_MAX}: split it by idea")


def main() -> int:
    found = list(findings(classes_in(Path(sys.argv[1]))))
    print("".join(f"{each}\n" for each in found), end="")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

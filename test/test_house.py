"""Breaks the rules of the tree on purpose, in a copy of src/, and expects the checks to say so.

An include of a later room, a type of two meanings, a class that is too large, a clock that pawld reads by itself, a
standard header that is missing and a compiler's warning must each fail.
"""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent


def check_tree(root):
    run = subprocess.run([sys.executable, "-B", ROOT / "tools" / "check-tree", "--root", root, "--base", "HEAD"],
                         capture_output=True, text=True)
    return run.returncode, run.stdout


def expect_fault(root, path, text, words):
    place = root / "src" / path
    place.write_text(text)
    code, output = check_tree(root)
    place.unlink()
    assert code == 1 and words in output, (path, code, output)


def expect_warning_is_error(folder):
    commands = pathlib.Path(os.environ["PAWL_TREE"]) / "compile_commands.json"
    entry = next(entry for entry in json.loads(commands.read_text()) if entry["file"].endswith("src/base/result.cc"))
    command = shlex.split(entry["command"])
    source = folder / "warned.cc"
    command[command.index("-c") + 1] = str(source)
    place = command.index("-o")
    command[place:place + 2] = ["-fsyntax-only"]
    source.write_text("int answer() { return 42; }\n")
    run = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    source.write_text("int answer() { int unused = 1; return 42; }\n")
    run = subprocess.run(command, cwd=entry["directory"], capture_output=True, text=True)
    assert run.returncode != 0 and "unused" in run.stderr, run.stderr


def main():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        shutil.copytree(ROOT / "src", root / "src")
        code, output = check_tree(root)
        assert code == 0, output
        expect_fault(root, "base/upward.cc", '#include "tensor/box.h"\n', "comes after base in reading order")
        expect_fault(root, "base/upward.h", '#include "tensor/box.h"\n', "comes after base in reading order")
        expect_fault(root, "checkpoint/view/upward.cc", '#include "job/snapshot/arena.h"\n',
                     "comes after checkpoint/view")
        expect_fault(root, "job/layout/again.h",
                     "namespace pawl::job {\nstruct Box {\n  int size = 0;\n};\n}  // namespace\n",
                     "Box is defined 2 times")
        fields = "".join(f"  int field_{number} = 0;\n" for number in range(21))
        expect_fault(root, "base/large.h", f"namespace pawl {{\nstruct Large {{\n{fields}}};\n}}\n",
                     "Large has 21 fields")
        methods = "".join(f"  void method_{number}();\n" for number in range(41))
        expect_fault(root, "base/large.h", f"namespace pawl {{\nclass Large {{\n public:\n{methods}}};\n}}\n",
                     "Large has 0 fields and 41 methods")
        for own_way in ("Deadline deadline = Deadline::in(seconds(1));", "real_clock().sleep(pause());",
                        "std::thread thread(run);"):
            expect_fault(root, "job/daemon/own_way.cc", f"void f() {{\n  {own_way}\n}}\n",
                         "touches the world only through")
        expect_fault(root, "job/daemon/own_way.cc", "#include <unistd.h>\n", "touches the world only through")
        expect_fault(root, "base/least.cc", "int least(int a, int b) { return std::min(a, b); }\n",
                     "does not include <algorithm>")
        expect_warning_is_error(root)
    print("each broken rule was found")


if __name__ == "__main__":
    main()

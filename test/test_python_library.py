"""Python's side of the C interface (python/pawl/_library.py, _checkpoint.py), without PyTorch and without a job.

Its ctypes structures have the fields, offsets and sizes of the C structs. $PAWL_C_STRUCTS is the program that prints
those (c_structs.c), $PAWL_LIBRARY is libpawl.
"""

import ctypes
import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))

from pawl import _checkpoint, _library  # noqa: E402
from pawl.errors import Refused, TimedOut  # noqa: E402

MIRRORS = {
    "pawl_attach_options": _library._Options,
    "pawl_seat": _library._Seat,
    "pawl_tensor": _library._Tensor,
    "pawl_fence_report": _library._FenceReport,
    "pawl_checkpoint_open_options": _checkpoint._OpenOptions,
    "pawl_checkpoint_request": _checkpoint._Request,
    "pawl_checkpoint_access_options": _checkpoint._AccessOptions,
    "pawl_checkpoint_report": _checkpoint._Report,
    "pawl_checkpoint_store_options": _checkpoint._StoreOptions,
    "pawl_checkpoint_store_piece": _checkpoint._Piece,
    "pawl_checkpoint_held_piece": _checkpoint._HeldPiece,
    "pawl_checkpoint_division_options": _checkpoint._DivisionOptions,
}
NOT_MIRRORED = {"pawl_event"}  # the C++ side of the process groups polls events


def structs_of_headers():
    """Each struct's fields, in order, as the headers declare them."""
    found = {}
    for name in ("pawl.h", "checkpoint.h"):
        text = re.sub(r"/\*.*?\*/", " ", (ROOT / "include" / "pawl" / name).read_text(), flags=re.DOTALL)
        for struct, body in re.findall(r"typedef struct (\w+) \{(.*?)\} \1;", text, flags=re.DOTALL):
            found[struct] = [re.fullmatch(r"[\w\s*]*?(\w+)\s*(?:\[\d+\])?", field.strip())[1]
                             for field in body.split(";") if field.strip()]
    return found


def structs_of_compiler():
    """Size, and name, offset and size of each field, as $PAWL_C_STRUCTS prints them."""
    sizes, fields = {}, {}
    printed = subprocess.run([os.environ["PAWL_C_STRUCTS"]], capture_output=True, text=True, check=True).stdout
    for line in printed.splitlines():
        name, *numbers = line.split()
        if "." in name:
            struct, field = name.split(".")
            fields[struct].append((field, int(numbers[0]), int(numbers[1])))
        else:
            sizes[name], fields[name] = int(numbers[0]), []
    return sizes, fields


def structure_classes(of=_library.SizedStructure):
    for each in of.__subclasses__():
        yield each
        yield from structure_classes(each)


class TestStructures(unittest.TestCase):
    def test_c_structs_prints_every_field(self):
        _, fields = structs_of_compiler()
        self.assertEqual(structs_of_headers(), {struct: [name for name, _, _ in fields[struct]] for struct in fields},
                         "test/c_structs.c does not list what the headers declare")

    def test_ctypes_has_the_layout_of_c(self):
        sizes, fields = structs_of_compiler()
        for struct, mirror in MIRRORS.items():
            names = [field[0] for base in reversed(mirror.__mro__) for field in vars(base).get("_fields_", [])]
            found = [(name, getattr(mirror, name).offset, getattr(mirror, name).size) for name in names]
            self.assertEqual(fields[struct], found, f"{mirror.__name__} differs from {struct}")
            self.assertEqual(sizes[struct], ctypes.sizeof(mirror), f"{mirror.__name__} differs from {struct}")

    def test_each_struct_has_a_mirror_that_is_compared(self):
        self.assertEqual(set(structs_of_headers()), MIRRORS.keys() | NOT_MIRRORED)
        self.assertEqual(set(structure_classes()), set(MIRRORS.values()))


class TestRendezvousValues(unittest.TestCase):
    """With PAWL=off the rendezvous works within this process."""

    def setUp(self):
        os.environ["PAWL"] = "off"
        self.addCleanup(os.environ.pop, "PAWL")
        self.trainer = _library.Trainer()
        self.addCleanup(self.trainer.detach)

    def test_get_answers_values_of_any_length(self):
        for size in (0, 1, _library.VALUE_BYTES, _library.VALUE_BYTES + 1, 3_000_000):
            value = os.urandom(size)
            self.trainer.rendezvous_set("key", value)
            self.assertEqual(value, self.trainer.rendezvous_get("key", 5.0))
        with self.assertRaises(TimedOut):
            self.trainer.rendezvous_get("nothing", 0.01)

    def test_compare_set_answers_values_of_any_length(self):
        long, longer = b"a" * 200_000, b"b" * 300_000
        self.assertEqual(long, self.trainer.rendezvous_compare_set("key", b"", long))
        self.assertEqual(long, self.trainer.rendezvous_compare_set("key", b"other", b"desired"))
        self.assertEqual(longer, self.trainer.rendezvous_compare_set("key", long, longer))
        self.assertEqual(longer, self.trainer.rendezvous_get("key", 5.0))

    def test_a_value_that_grows_meanwhile_is_asked_for_again(self):
        lengths = [5, 9, 9]
        rooms = []

        def call(value, size):
            rooms.append(size._obj.value)
            size._obj.value = lengths.pop(0)
            if size._obj.value > rooms[-1]:
                return _library._Status.INVALID
            ctypes.memmove(value, b"ninebytes", 9)
            return _library._Status.OK

        self.assertEqual(b"ninebytes", self.trainer._value(call, 1))
        self.assertEqual([1, 5, 9], rooms)

    def test_another_error_is_not_asked_again(self):
        calls = []

        def call(value, size):
            calls.append(value)
            return _library._Status.INVALID

        with self.assertRaises(Refused):
            self.trainer._value(call, 1)
        self.assertEqual(1, len(calls))


if __name__ == "__main__":
    unittest.main()

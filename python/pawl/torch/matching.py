"""Which tensor of a checkpoint each piece of a training comes from. Pure: decides, reads nothing.

Names must agree; a tied tensor counts under each of its names. Roles must agree, with two exceptions:
 * formats that don't distinguish buffers from weights have one where the other is wanted;
 * a `master` replaces a weight where it has more precision: the wanted type is wider than the stored weight's. A weight
   replaces a `master` that isn't stored.
Shapes must be equal; a number may be stored with one element. Types may differ where only precision is lost.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pawl._checkpoint import Checkpoint, Tensor
from pawl.torch.pieces import BUFFER, EXTRA_STATE, WEIGHT, Piece

MASTER = "master"
OF_THE_MODEL = (WEIGHT, BUFFER, EXTRA_STATE)
DIRECT = ("float32", "float16", "bfloat16")  # among these the library casts while it reads
_FLOATS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 16, "float8_e4m3fn": 8, "float8_e5m2": 8,
           "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8}
_INTEGERS = {"int8": (1, 8), "int16": (1, 16), "int32": (1, 32), "int64": (1, 64), "uint8": (0, 8), "uint16": (0, 16),
             "uint32": (0, 32), "uint64": (0, 64), "bool": (0, 1)}


@dataclass
class Match:
    """A piece, and the tensor it comes from."""

    piece: Piece
    source: Tensor

    @property
    def is_cast(self) -> bool:
        return self.piece.dtype != self.source.dtype

    @property
    def is_number(self) -> bool:
        """One element where the shapes may differ in form, and any number may become any other that equals it."""
        return is_number(self.piece) and _count(self.source.shape) == 1


@dataclass
class Matching:
    """What came of it."""

    matches: list[Match] = field(default_factory=list)
    missing: list[Piece] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)  # sentences: shapes and types that don't go together
    used: set[int] = field(default_factory=set)      # tensors of the checkpoint, with those that stand for the same
    notes: list[str] = field(default_factory=list)


def is_number(piece: Piece) -> bool:
    return piece.role not in OF_THE_MODEL and _count(piece.shape) == 1 and len(piece.shape) <= 1


class Sources:
    """A checkpoint's tensors by name and role."""

    def __init__(self, checkpoint: Checkpoint, aliases: dict[str, str]) -> None:
        """`aliases`: the training's own, tied name to the one that is listed."""
        self._tensors = {(tensor.name, tensor.role): tensor for tensor in checkpoint.tensors}
        self._roles: dict[str, set[str]] = {}
        for tensor in checkpoint.tensors:
            self._roles.setdefault(tensor.name, set()).add(tensor.role)
        self._kept = checkpoint.aliases
        self._also: dict[str, list[str]] = {}
        for alias, kept in aliases.items():
            self._also.setdefault(kept, []).append(alias)

    def names_for(self, name: str) -> list[str]:
        """The names under which the checkpoint may hold it."""
        tied = [name, *self._also.get(name, [])]
        return list(dict.fromkeys([*tied, *(self._kept[each] for each in tied if each in self._kept)]))

    def find(self, piece: Piece) -> Tensor | None:
        for name in self.names_for(piece.name):
            found = self._find(name, piece)
            if found is not None:
                return found
        return None

    def _find(self, name: str, piece: Piece) -> Tensor | None:
        found = self._tensors.get((name, piece.role))
        if piece.role == WEIGHT:
            master = self._tensors.get((name, MASTER))
            if found is None:
                found = self._tensors.get((name, BUFFER)) or master
            elif master is not None and _says_more(master.dtype, found.dtype, piece.dtype):
                found = master
        elif found is None and piece.role in (BUFFER, MASTER):
            found = self._tensors.get((name, WEIGHT))
        return found

    def has_state(self, name: str) -> bool:
        """Whether an optimizer's state is stored for the parameter."""
        return any(role not in OF_THE_MODEL and role != MASTER
                   for each in self.names_for(name) for role in self._roles.get(each, ()))

    def same_as(self, piece: Piece) -> list[Tensor]:
        """What is used up with a piece: its tensor under all its names, and of a weight in all forms."""
        roles = (WEIGHT, BUFFER, MASTER) if piece.role in OF_THE_MODEL else (piece.role,)
        keys = [(name, role) for name in self.names_for(piece.name) for role in (piece.role, *roles)]
        return [self._tensors[key] for key in dict.fromkeys(keys) if key in self._tensors]


def match(pieces: Sequence[Piece], sources: Sources) -> Matching:
    """Finds each piece's source and says what speaks against it."""
    found = Matching()
    for piece in pieces:
        source = sources.find(piece)
        if source is None:
            found.missing.append(piece)
            continue
        each = Match(piece, source)
        fault = _fault_of(each)
        if fault:
            found.faults.append(f"{piece}: {fault}")
        found.matches.append(each)
        found.used.add(source.index)
        same = sources.same_as(piece)
        found.used.update(tensor.index for tensor in same)
        others = sorted({tensor.name for tensor in same if tensor.role == source.role} - {source.name})
        if others:
            found.notes.append(f"{piece} is one tensor here and is stored as {', '.join([source.name, *others])}: the "
                               f"first is taken")
    return found


def _fault_of(each: Match) -> str:
    piece, source = each.piece, each.source
    if each.is_number:
        return "" if piece.dtype in _known() and source.dtype in _known() else _types(each)
    if tuple(piece.shape) != tuple(source.shape):
        return f"{list(source.shape)} in the checkpoint, {list(piece.shape)} here"
    return "" if can_become(source.dtype, piece.dtype) else _types(each)


def _types(each: Match) -> str:
    return (f"{each.source.dtype} {list(each.source.shape)} in the checkpoint, {each.piece.dtype} "
            f"{list(each.piece.shape)} here: these types aren't cast")


def can_become(stored: str, wanted: str) -> bool:
    """Equal, both floating-point, or an integer type that holds all of the other."""
    if stored == wanted:
        return True
    if stored in _FLOATS and wanted in _FLOATS:
        return True
    if stored in _INTEGERS and wanted in _INTEGERS:
        (signed, bits), (to_signed, to_bits) = _INTEGERS[stored], _INTEGERS[wanted]
        return to_bits - to_signed >= bits - signed and to_signed >= signed and wanted != "bool"
    return False


def _known() -> set[str]:
    return {*_FLOATS, *_INTEGERS}


def _says_more(master: str, weight: str, wanted: str) -> bool:
    return _FLOATS.get(master, 0) > _FLOATS.get(weight, 0) and _FLOATS.get(wanted, 0) > _FLOATS.get(weight, 0)


def _count(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count

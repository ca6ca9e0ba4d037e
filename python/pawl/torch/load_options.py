"""What load() was asked for, beside the training: `Hints` for callers, `LoadOptions` for pawl's own modules."""
from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pawl.errors import Refused

_Names = Sequence[str] | Sequence[Sequence[str]]
_NAMES = ("auto", "stored", "huggingface", "megatron")


@dataclass(frozen=True)
class Hints:
    """What a checkpoint doesn't say and load() can't detect. Give only what an error asks for.

    names                      "stored"; "huggingface" or "megatron": rename to these; "auto": rename where the stored
                               names aren't the training's and the others are
    parameter_names            names in the optimizer's order, a list or a list for each of its groups, or the path of a
                               file of them: for optimizer state that is keyed by number, where the file doesn't name
                               it and the live optimizer's groups are others. Of several optimizers: a dict of such
                               lists, by what leads to each in the checkpoint; or of one whose state is named, and
                               may be of several models, what leads to its own: {"optG": "netG"}
    group_order                where the live optimizer has the checkpoint's groups in another order: for each group of
                               the checkpoint, which of the live ones it is; [1, 0] for two that are reversed. Right
                               only if each group's parameters are in the same order
    tag                        which of several checkpoints in a folder
    family, attention_heads, query_groups, head_size, vocabulary   the model's: renaming needs them where the
                               checkpoint doesn't say them

    Errors name the flag of `pawl convert`: --param-names is parameter_names, --heads attention_heads; the others have
    the same name.

    Fails: Refused for unknown `names`.
    """

    names: str = "auto"
    parameter_names: str | os.PathLike[str] | _Names | Mapping[str, _Names | str] | None = None
    group_order: Sequence[int] | None = None
    tag: str | None = None
    family: str | None = None
    attention_heads: int | None = None
    query_groups: int | None = None
    head_size: int | None = None
    vocabulary: int | None = None

    def __post_init__(self) -> None:
        if self.names not in _NAMES:
            raise Refused(f"names={self.names!r} is unknown: use auto, stored, huggingface or megatron")
        if self.group_order is not None and sorted(self.group_order) != list(range(len(self.group_order))):
            raise Refused(f"group_order={list(self.group_order)}: name each of the groups once, from 0")


@dataclass
class LoadOptions:
    """What load() was asked for, beside the training."""

    path: str
    strict: bool
    hints: Hints
    trusted_copy: int | None
    check_replicas: bool
    verify: bool | str
    names_file: str | None = None  # of NamesFile, while it lasts

    def __post_init__(self) -> None:
        if not isinstance(self.verify, bool) and self.verify != "reading":
            raise Refused(f"verify={self.verify!r} is unknown: use True, False or 'reading'")

    @property
    def open(self) -> dict[str, Any]:
        """Options of pawl_checkpoint_open, all but the names to rename to."""
        hints = self.hints
        return {"tag": hints.tag, "family": hints.family, "attention_heads": hints.attention_heads,
                "query_groups": hints.query_groups, "head_size": hints.head_size, "vocabulary": hints.vocabulary,
                "parameter_names_file": self.names_file}


class NamesFile:
    """The path of a file of names: the one that was given, or one of the given names for the time being."""

    def __init__(self, given: Any) -> None:
        """`given`: as Hints.parameter_names, or a list of them for several optimizers."""
        self._given = given
        self._made: str | None = None

    def __enter__(self) -> str | None:
        if self._given is None or isinstance(self._given, (str, os.PathLike)):
            return None if self._given is None else os.fspath(self._given)
        handle, self._made = tempfile.mkstemp(prefix="pawl-names-", suffix=".json")
        with os.fdopen(handle, "w") as file:
            json.dump(self._given, file, default=list)
        return self._made

    def __exit__(self, *_: object) -> None:
        if self._made is not None:
            os.unlink(self._made)

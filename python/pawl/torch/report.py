"""What a load came to."""
from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Report:
    """Tensors are named "<name> (<role>)". `matched`, `missing`, `created` and `cast` are of this rank; `unused` is
    what no rank took."""

    path: str
    format: str                                        # of the checkpoint, in words
    matched: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)   # wanted and not in the checkpoint: they are as they were
    unused: list[str] = field(default_factory=list)    # in the checkpoint and wanted by no rank
    cast: list[str] = field(default_factory=list)      # of another type in the checkpoint than here
    created: int = 0                                   # parameters that had no optimizer state, and have it now
    values: Any = None                                 # what was given to save() as values=
    engine: Any = None                                 # what pawl.deepspeed.save() stored of the engine's own
    notes: list[str] = field(default_factory=list)     # sentences
    bytes_loaded: int = 0                              # of this rank's tensors
    bytes_read: int = 0                                # by this rank, from files
    bytes_received: int = 0                            # by this rank, from others that hold the same

    def __str__(self) -> str:
        parts = [f"{len(self.matched)} tensors from {self.path} ({self.format})"]
        parts += [f"{len(of)} {what}" for of, what in ((self.missing, "missing"), (self.unused, "unused"),
                                                       (self.cast, "cast")) if of]
        return "loaded " + ", ".join(parts) + "".join(f"\nnote: {note}" for note in self.notes)


def first_of(sentences: list[str], count: int = 5) -> str:
    """The first few, and how many more there are."""
    more = f"; and {len(sentences) - count} more" if len(sentences) > count else ""
    return "; ".join(sentences[:count]) + more

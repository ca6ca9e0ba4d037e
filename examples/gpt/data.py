"""Text, and batches of it. A training that is to go on where it stopped has its place in the data among its state."""
import hashlib
import pathlib
import sysconfig
from typing import Any

import torch
from torch import Tensor

TEXT_BYTES_MAX = 8 << 20


def read_text(path: str | None, bytes_min: int) -> Tensor:
    """The bytes of a file, or of all text below a folder in the order of the names; without a path the sources of the
    Python standard library, which are on every machine that can run this. Raises ValueError, with a sentence."""
    if path is None:
        files = sorted(pathlib.Path(sysconfig.get_path("stdlib")).glob("*.py"))
    elif pathlib.Path(path).is_dir():
        files = sorted(file for file in pathlib.Path(path).rglob("*") if file.is_file())
    else:
        files = [pathlib.Path(path)]
    text = bytearray()
    for file in files:
        if len(text) >= TEXT_BYTES_MAX:
            break
        try:
            with file.open("rb") as opened:
                content = opened.read(TEXT_BYTES_MAX - len(text))
        except OSError as error:
            if len(files) == 1:
                raise ValueError(f"--data {path}: {error.strerror}") from error
            continue
        if len(files) == 1 or b"\0" not in content[:4096]:  # a folder may hold pictures too
            text += content
    if len(text) < bytes_min:
        raise ValueError(f"--data {path or '(default)'} has too little text: {len(text)} bytes, at least {bytes_min} are "
                         "needed; name a text file, or a folder of them")
    return torch.frombuffer(text, dtype=torch.uint8)


class Batches:
    """Random places in a text. Every sample has an id, counted over the whole run and all ranks; its place follows from
    the seed and the id alone. `hash` is over the ids and places of all samples used so far, the same on every rank."""

    def __init__(self, text: Tensor, batch: int, context: int, seed: int) -> None:
        self.text, self.batch, self.context, self.seed = text, batch, context, seed
        self.position = 0  # the next sample's id
        self.hash = ""

    def next(self, rank: int, world: int) -> tuple[Tensor, Tensor]:
        """This rank's part of the next global batch: inputs, and the bytes that follow each of them."""
        total = self.batch * world
        generator = torch.Generator().manual_seed((self.seed << 40) + self.position)
        places = torch.randint(len(self.text) - self.context, (total,), generator=generator)
        used = f"{self.hash} {self.position} {places.tolist()}"
        self.hash = hashlib.blake2b(used.encode(), digest_size=8).hexdigest()
        self.position += total
        mine = places[rank * self.batch:(rank + 1) * self.batch]
        windows = self.text[mine[:, None] + torch.arange(self.context + 1)].long()
        return windows[:, :-1], windows[:, 1:]

    def state_dict(self) -> dict[str, Any]:
        return {"position": self.position, "hash": self.hash}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.position, self.hash = state["position"], state["hash"]

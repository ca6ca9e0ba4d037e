"""What a checkpoint of the job has beside tensors: hyperparameters, get_extra_state(), the step, names of tied tensors.

pawld writes committed steps to storage straight from the slots, and knows nothing of the script. So rank 0 declares a
blob, `values.json` (include/pawl/pawl.h, pawl_blob_add), where the environment variable PAWL_CHECKPOINT says that the
job stores checkpoints. What always holds: its bytes are a JSON object {"values": ..., "aliases": ...}, and "values" is
what pawl.torch.save(model, optimizer, values={"step": N}) would store after the step that has just ended. What JSON
can't hold, or has no room, is left out and told of once; no window is void for it. A restore takes nothing from it. It
is saved before each step, so what doesn't change is kept as text. The training thread's.
"""
from __future__ import annotations

import ctypes
import itertools
import json
import operator
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pawl.errors import Refused
from pawl.extra_state import ExtraState

if TYPE_CHECKING:
    from pawl.protect import Protected

BLOB = "values.json"
ROOM_GRAIN = 4096
_NO_VALUES = ("params", "param_names")  # of a group
_UNCHANGING = (bool, int, float, str, type(None))


def are_wanted() -> bool:
    """Whether the job stores checkpoints."""
    return bool(os.environ.get("PAWL_CHECKPOINT"))


class Text(bytes):
    """As a blob's save gives it."""

    def write_to(self, address: int) -> None:
        ctypes.memmove(address, self, len(self))


class CheckpointValues:
    """Of one seat."""

    def __init__(self, protected: Protected, done: Callable[[], int], say: Callable[[str], None]) -> None:
        """Of what is protected, once all of it is declared. `done`: the last step that is done."""
        import torch
        self._done, self._say = done, say
        self._said: set[str] = set()
        names = {id(parameter): name for name, parameter in protected.parameters()}
        self._groups = [_Group(number, group, names, self._say_once) for optimizer in protected.optimizers
                        for number, group in enumerate(optimizer.param_groups)]
        self._extra = [part.last for part in protected.parts if isinstance(part, ExtraState)]
        self._framework = _text(f"torch {torch.__version__}")
        self._aliases = _text(aliases(protected))

    def room(self) -> int:
        """For twice as much as there is now: bytes."""
        return (2 * len(self.text()) // ROOM_GRAIN + 1) * ROOM_GRAIN

    def save_within(self, room: int) -> Text:
        """In `room` bytes, whatever has to be left out."""
        text = self.text()
        if len(text) <= room:
            return text
        for left_out, groups in (("what get_extra_state() gives", None), ("hyperparameters, too,", [])):
            self._say_once(f"the room of {room} bytes for the values of a checkpoint has become too small: {left_out} "
                           f"will be missing in it")
            text = self._joined("{}", groups)
            if len(text) <= room:
                return text
        return Text(b"{}")

    def load(self, _data: Any) -> None:
        """The objects have their own state from elsewhere (volatile_state.py)."""

    def text(self) -> Text:
        return self._joined(self._extra_state())

    def _joined(self, extra_state: str, groups: list[str] | None = None) -> Text:
        groups = [group.text() for group in self._groups] if groups is None else groups
        return Text((f'{{"values":{{"user":{{"step":{self._done()}}},"param_groups":[{",".join(groups)}],"extra_state":'
                     f'{extra_state},"framework":{self._framework},"dcp":null}},"aliases":{self._aliases}}}').encode())

    def _extra_state(self) -> str:
        """As the volatile state had it just now, which is declared before this."""
        if not self._extra:
            return "{}"
        import torch

        from pawl.torch.json_values import as_json
        found = {}
        for name, value in itertools.chain.from_iterable(last.items() for last in self._extra):
            try:
                if isinstance(value, torch.Tensor):
                    raise Refused(f"{name}: get_extra_state() gives a tensor, and only numbers, texts, lists and dicts "
                                  f"of them are kept for a checkpoint")
                if value is not None:
                    found[name] = as_json(f"{name}: what get_extra_state() gives", value)
            except Refused as refused:
                self._say_once(f"checkpoints will lack a value: {refused}")
        return _text(found)

    def _say_once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            self._say(sentence)


class _Group:
    """A param group, as text."""

    def __init__(self, number: int, group: dict[str, Any], names: dict[int, str],
                 say_once: Callable[[str], None]) -> None:
        """`names`: of parameters by their ids."""
        self._number, self._group, self._say_once = number, group, say_once
        self._names = _text([names[id(parameter)] for parameter in group["params"]])
        self._seen: list[Any] = []  # keys and values of which _text was made; empty: it must be made anew
        self._made = ""

    def text(self) -> str:
        now = [*self._group, *self._group.values()]
        if len(now) != len(self._seen) or not all(map(operator.is_, now, self._seen)):
            self._made = self._make()
            self._seen = now if all(map(_is_unchanging, self._group.items())) else []
        return self._made

    def _make(self) -> str:
        from pawl.torch.json_values import as_json
        values = {}
        for key, value in self._group.items():
            if key not in _NO_VALUES:
                about = f"param group {self._number}: {key}"
                try:
                    values[key] = as_json(about, value)
                    json.dumps(key)
                except (Refused, TypeError) as why:
                    self._say_once(f"checkpoints will lack a value: {why}")
        return f'{_text(values)[:-1]}{"," if values else ""}"params":{self._names}}}'


def _is_unchanging(item: tuple[Any, Any]) -> bool:
    key, value = item
    return key in _NO_VALUES or type(value) in _UNCHANGING or (
        type(value) is tuple and all(type(each) in _UNCHANGING for each in value))


def aliases(protected: Protected) -> dict[str, str]:
    """Further names of tensors that have several: the one that is declared. Modules have their shards."""
    from pawl.protect import named_in
    kept = {id(parameter): name for name, parameter in protected.parameters()}
    kept.update((id(each.tensor), each.name) for each in protected.buffers())
    found = {}
    for prefix, module in protected.modules:
        for name, tensor in named_in(module):
            known = kept.get(id(tensor), prefix + name)
            if known != prefix + name:
                found[prefix + name] = known
    return found


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))

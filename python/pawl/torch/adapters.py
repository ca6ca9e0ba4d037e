"""PEFT's adapters: under which names a checkpoint of one has the parameters of a live PeftModel.

PEFT saves an adapter without the model below it, and without the adapter's own name: "lora_A.default.weight" is stored
as "lora_A.weight". PEFT itself is asked for the names, so that every kind of adapter is right.
"""
from __future__ import annotations

import os
from collections.abc import Callable, Set
from typing import Any

import torch

from pawl.torch.matching import OF_THE_MODEL, Matching
from pawl.torch.module_names import listed, module_prefixes
from pawl.torch.report import first_of

_CONFIG = "adapter_config.json"  # beside each adapter that PEFT saved


class Adapter:
    """The active adapter of a live model."""

    def __init__(self, stored_names: dict[str, str], trained: set[str]) -> None:
        self._stored = stored_names  # by the live name
        self._trained = trained  # live names

    @classmethod
    def of(cls, path: str | os.PathLike[str], model: Any, names: Callable[[], Set[str]]) -> Adapter | None:
        """None where the checkpoint is no adapter's, or the model has none. `names`: those of the checkpoint, asked for
        where PEFT's own file is not beside it, as of what was converted."""
        modules = [each for each in listed(model) if isinstance(each, torch.nn.Module)]  # others layout_of() refuses
        live = [each for module in modules for prefix, each in module_prefixes(module)
                if not prefix and any(base.__name__ == "PeftModel" for base in type(each).__mro__)]
        if len(live) != 1:
            return None
        [module] = live
        name = module.active_adapter  # PEFT puts adapters with a name of their own into folders of that name
        trained = {name for name, parameter in module.named_parameters() if parameter.requires_grad}
        has_config = any(os.path.exists(os.path.join(os.fspath(path), below, _CONFIG)) for below in ("", name))
        known = None if has_config else names()
        if known is not None and any(f".{name}." in each and each in known for each, _ in module.named_parameters()):
            return None  # it has the live names
        import peft
        tensors = module.state_dict(keep_vars=True)
        saved = peft.get_peft_model_state_dict(module, state_dict=tensors, adapter_name=name,
                                               save_embedding_layers=False)
        stored_names = {_name_of(tensor, tensors): stored for stored, tensor in saved.items()}
        renamed = {live for live, stored in stored_names.items() if live != stored}  # trained biases below keep theirs
        if known is not None and not (saved and renamed.isdisjoint(known) and known >= set(saved)):
            return None  # likewise, or it is no adapter's
        return cls(stored_names, trained)

    def rename(self, name: str) -> str:
        """As the checkpoint has it; names of the model below stay."""
        return self._stored.get(name, name)

    def leave_the_base(self, found: Matching, notes: list[str]) -> None:
        """What the checkpoint lacks of the model below the adapter stays as it is, and a note says so. What is trained
        there, beside the adapter, is missing."""
        mine = set(self._stored.values())
        is_base = [piece.role in OF_THE_MODEL and piece.name not in mine and piece.name not in self._trained
                   for piece in found.missing]
        base = [piece.name for piece, is_it in zip(found.missing, is_base, strict=True) if is_it]
        found.missing = [piece for piece, is_it in zip(found.missing, is_base, strict=True) if not is_it]
        if base:
            notes.append(f"the checkpoint is an adapter's: {len(base)} tensors of the model below it stay as they are: "
                         f"{first_of(base, 2)}")


def _name_of(saved: torch.Tensor, tensors: dict[str, torch.Tensor]) -> str:
    """Of a live tensor that PEFT would save: itself, or (a prompt's) a copy of it. Empty: of none."""
    same = [name for name, tensor in tensors.items() if tensor is saved]
    if not same:
        same = [name for name, tensor in tensors.items()
                if tensor.shape == saved.shape and tensor.dtype == saved.dtype
                and torch.equal(tensor.to(saved.device), saved)]
    return same[0] if len(same) == 1 else ""

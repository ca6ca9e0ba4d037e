"""What a checkpoint of pawl's holds beside tensors is JSON: numbers, texts, and lists and dicts of them."""
from __future__ import annotations

import math
from typing import Any

import torch

from pawl.errors import Refused
from pawl.torch.placement import is_dtensor

_PLAIN = (bool, int, float, str, type(None))


def as_json(about: str, value: Any) -> Any:
    """Numbers, texts and lists of them. A tensor of one element is its number. Fails: Refused."""
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not is_dtensor(value):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        raise Refused(f"{about} is {value}, which JSON can't represent")
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (list, tuple)):
        return [as_json(about, each) for each in value]
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: as_json(about, each) for key, each in value.items()}
    raise Refused(f"{about} is a {type(value).__name__}: only numbers, texts, lists and dicts of them can be stored")

"""A 3D checkpoint as DeepSpeed's pipeline engine writes it: tensor parallel 2, pipeline 2, ZeRO-1 over 2, bf16.

    make(folder, bytes): what it holds then, as Made

The files, their keys and the order of parameters are those of DeepSpeed's BF16_Optimizer, so that its own converter
takes the folder; DeepSpeed isn't needed to make them: its one class that is pickled is stood in for by name. A GPT with
a vocabulary that is padded, column- and row-parallel matrices, and norms that both tensor-parallel ranks hold.
"""
from __future__ import annotations

import dataclasses
import hashlib
import math
import multiprocessing
import os
import pathlib
import sys
import types

import torch

TP, PP, DP = 2, 2, 2
LAYERS, VOCABULARY, PADDED = 8, 8100, 8192
TAG = "global_step3"
_NOISE = 1 << 24  # elements; tensors are windows of it
_STATES = ("fp32", "exp_avg", "exp_avg_sq")


@dataclasses.dataclass
class Made:
    folder: pathlib.Path
    parameters: int
    optimizer_files: list[pathlib.Path]  # what becomes the universal folder
    tensor_bytes_max: int


@dataclasses.dataclass
class _Parameter:
    name: str
    shape: tuple[int, ...]  # of this tensor-parallel rank's part
    replicated: bool
    file: int               # the number of its layer file
    key: str                # in there


def _hidden_for(size_bytes: int) -> int:
    """12 bytes a parameter; 12 h^2 of them a layer, and two matrices of the vocabulary."""
    layer, rest, parameters = 12 * LAYERS, 2 * PADDED, size_bytes / 12
    hidden = (math.sqrt(rest * rest + 4 * layer * parameters) - rest) / (2 * layer)
    return max(64, round(hidden / 64) * 64)


def _layer(number: int, hidden: int) -> list[_Parameter]:
    cut, inner = hidden // TP, 4 * hidden // TP
    wanted = [("input_layernorm.weight", (hidden,), True), ("input_layernorm.bias", (hidden,), True),
              ("attn_qkv.weight", (3 * cut, hidden), False), ("attn_qkv.bias", (3 * cut,), False),
              ("attn_dense.weight", (hidden, cut), False), ("attn_dense.bias", (hidden,), True),
              ("post_layernorm.weight", (hidden,), True), ("post_layernorm.bias", (hidden,), True),
              ("mlp_up.weight", (inner, hidden), False), ("mlp_up.bias", (inner,), False),
              ("mlp_down.weight", (hidden, inner), False), ("mlp_down.bias", (hidden,), True)]
    return [_Parameter(f"{number}.{key}", shape, same, number, key) for key, shape, same in wanted]


def _stage(pp: int, hidden: int) -> list[_Parameter]:
    """Layer 0 is a bare function, 1 the embedding, then the blocks, the norm and the head."""
    each = LAYERS // PP
    found = [parameter for number in range(2 + pp * each, 2 + (pp + 1) * each) for parameter in _layer(number, hidden)]
    if pp == 0:
        key = "word_embeddings.weight"
        found.insert(0, _Parameter(f"1.{key}", (PADDED // TP, hidden), False, 1, key))
    if pp == PP - 1:
        norm, head = LAYERS + 2, LAYERS + 3
        found += [_Parameter(f"{norm}.{key}", (hidden,), True, norm, key) for key in ("weight", "bias")]
        found.append(_Parameter(f"{head}.lm_head.weight", (PADDED // TP, hidden), False, head, "lm_head.weight"))
    return found


INFO = {
    "universal_checkpoint_version": 0.2,
    "vocabulary_parameter_patterns": [r"\d+\.word_embeddings\.weight", r"\d+\.lm_head\.weight"],
    "original_vocab_size": VOCABULARY, "padded_vocab_size": PADDED,
    "tp_replicated_parameter_patterns": [r"\d+\.input_layernorm\.", r"\d+\.post_layernorm\.", r"\d+\.attn_dense\.bias",
                                         r"\d+\.mlp_down\.bias", r"\d+\.(weight|bias)$"],
    "parameter_with_row_parallelism_patterns": [r"\d+\.attn_dense\.weight", r"\d+\.mlp_down\.weight"],
}


def _stand_in() -> type:
    """The class that DeepSpeed's files name, under its name."""
    path = "deepspeed.utils.tensor_fragment"
    made = dataclasses.make_dataclass("fragment_address", [("numel", int), ("start", int)])
    made.__module__ = path
    for name in ("deepspeed", "deepspeed.utils", path):
        sys.modules[name] = types.ModuleType(name)
    sys.modules[path].fragment_address = made  # type: ignore[attr-defined]
    return made


class _Values:
    """The same numbers for the same tensor, whoever asks; noise, so that no disk is faster with it."""

    def __init__(self) -> None:
        noise = torch.randn(_NOISE, generator=torch.Generator().manual_seed(6)) * 0.02
        self._noise = torch.cat([noise, noise])

    def fill(self, out: torch.Tensor, parameter: _Parameter, tp: int, state: str) -> None:
        who = f"{parameter.name} {0 if parameter.replicated else tp} {state}"
        first = int.from_bytes(hashlib.blake2b(who.encode(), digest_size=4).digest(), "little") % _NOISE
        for begin in range(0, out.numel(), _NOISE):
            part = out[begin:begin + _NOISE]
            part.copy_(self._noise[first:first + part.numel()])
        if state == "exp_avg_sq":
            out.abs_()


def _groups(stage: list[_Parameter]) -> list[list[_Parameter]]:
    return [[each for each in stage if len(each.shape) > 1], [each for each in stage if len(each.shape) == 1]]


def _flat(group: list[_Parameter], tp: int, state: str, values: _Values) -> torch.Tensor:
    numbers = sum(math.prod(each.shape) for each in group)
    flat = torch.zeros(-(-numbers // (2 * DP)) * 2 * DP)
    at = 0
    for each in group:
        values.fill(flat[at:at + math.prod(each.shape)], each, tp, state)
        at += math.prod(each.shape)
    return flat


def _mapping(group: list[_Parameter], begin: int, end: int, address: type) -> dict[str, object]:
    found, at = {}, 0
    for each in group:
        first, last = max(at, begin), min(at + math.prod(each.shape), end)
        if first < last:
            found[each.name] = address(numel=last - first, start=first - begin)
        at += math.prod(each.shape)
    return found


_CONFIG = {"train_batch_size": 8, "zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
           "data_types": {"grad_accum_dtype": "fp32"}}
_ADAM = {"lr": 3e-4, "betas": (0.9, 0.95), "eps": 1e-8, "amsgrad": False, "maximize": False, "foreach": None,
         "capturable": False, "differentiable": False, "fused": None, "decoupled_weight_decay": True}


def _write_optimizer(folder: pathlib.Path, mp: int, dp: int, groups: list[list[_Parameter]],
                     flats: list[dict[str, torch.Tensor]], address: type) -> pathlib.Path:
    parts, mappings, paddings = [], [], []
    for group, flat in zip(groups, flats, strict=True):
        part = flat["fp32"].numel() // DP
        parts.append({state: flat[state][dp * part:(dp + 1) * part].clone() for state in _STATES})
        mappings.append(_mapping(group, dp * part, (dp + 1) * part, address))
        numbers = sum(math.prod(each.shape) for each in group)
        paddings.append(max(0, flat["fp32"].numel() - numbers) if dp == DP - 1 else 0)
    inner = {"state": {i: {"step": torch.tensor(3.0), "exp_avg": part["exp_avg"], "exp_avg_sq": part["exp_avg_sq"]}
                       for i, part in enumerate(parts)},
             "param_groups": [{"weight_decay": decay, **_ADAM, "params": [i]} for i, decay in enumerate((0.1, 0.0))]}
    path = folder / f"bf16_zero_pp_rank_{dp}_mp_rank_{mp:02d}_optim_states.pt"
    torch.save({"optimizer_state_dict": {
        "clip_grad": 1.0, "base_optimizer_state": inner,
        "single_partition_of_fp32_groups": [part["fp32"] for part in parts], "group_paddings": paddings,
        "partition_count": [DP] * len(groups), "ds_version": "0.19.8", "param_slice_mappings": mappings,
    }, "ds_config": _CONFIG, "ds_version": "0.19.8"}, path)
    return path


def _write_model(folder: pathlib.Path, mp: int, tp: int, groups: list[list[_Parameter]],
                 flats: list[dict[str, torch.Tensor]]) -> None:
    shapes = [{each.name: torch.Size(each.shape) for each in group} for group in groups]
    torch.save({
        "module": None, "buffer_names": [], "optimizer": None, "param_shapes": shapes, "frozen_param_shapes": None,
        "shared_params": {}, "frozen_param_fragments": None, "lr_scheduler": None, "data_sampler": None,
        "random_ltd": None, "skipped_steps": 0, "global_steps": 3, "global_samples": 24, "dp_world_size": DP,
        "mp_world_size": TP * PP, "checkpoint_parallel_dimensions": {"pp_degree": PP, "tp_degree": TP},
        "ds_config": _CONFIG, "ds_version": "0.19.8", "iteration": 3, "universal_checkpoint_info": INFO,
    }, folder / f"mp_rank_{mp:02d}_model_states.pt")
    layers: dict[int, dict[str, torch.Tensor]] = {}
    for group, flat in zip(groups, flats, strict=True):
        at = 0
        for each in group:
            count = math.prod(each.shape)
            weight = flat["fp32"][at:at + count].view(each.shape).bfloat16()
            layers.setdefault(each.file, {})[each.key] = weight
            at += count
    for number, layer in layers.items():
        torch.save(layer, folder / f"layer_{number:02d}-model_{tp:02d}-model_states.pt")


def _write_rank(folder: pathlib.Path, mp: int, hidden: int) -> list[pathlib.Path]:
    """All files of one model-parallel rank, which counts pipeline stages first."""
    torch.set_num_threads(1)
    address, values, (pp, tp) = _stand_in(), _Values(), divmod(mp, TP)
    groups = _groups(_stage(pp, hidden))
    flats = [{state: _flat(group, tp, state, values) for state in _STATES} for group in groups]
    _write_model(folder, mp, tp, groups, flats)
    return [_write_optimizer(folder, mp, dp, groups, flats, address) for dp in range(DP)]


def make(root: pathlib.Path, size_bytes: int, processes: int = 2) -> Made:
    """Below `root`, with about so many bytes of optimizer state. Forks: call it before there are threads."""
    hidden = _hidden_for(size_bytes)
    folder = root / TAG
    folder.mkdir(parents=True)
    with multiprocessing.get_context("fork").Pool(processes, maxtasksperchild=1) as pool:
        files = pool.starmap(_write_rank, [(folder, mp, hidden) for mp in range(TP * PP)], chunksize=1)
    (root / "latest").write_text(TAG)
    os.sync()
    parameters = sum(math.prod(each.shape) * (1 if each.replicated else TP) for pp in range(PP)
                     for each in _stage(pp, hidden))
    return Made(folder, parameters, [path for each in files for path in each],
                4 * hidden * max(4 * hidden, VOCABULARY))

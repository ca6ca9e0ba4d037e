"""An engine of DeepSpeed whose save_checkpoint and load_checkpoint are pawl's: programs that call these need one line.

    engine, *_ = deepspeed.initialize(...)
    pawl.deepspeed.attach(engine)
    engine.save_checkpoint("run", client_state={"epoch": 3})   # run/global_step1200, and run/latest after it
    path, client_state = engine.load_checkpoint("run")         # under any stage, on any number of ranks
"""
from __future__ import annotations

import os
from typing import Any

from pawl.deepspeed.loading import load
from pawl.deepspeed.partitions import check_engine
from pawl.deepspeed.saving import save
from pawl.errors import Refused
from pawl.torch.ranks import Ranks

_LATEST, _MARKER = "latest", "committed"


def attach(engine: Any) -> Any:
    """Replaces the two methods of this engine; the answer is the engine. Their arguments are DeepSpeed's.

    save_checkpoint writes `<save_dir>/<tag>` in pawl's store, replacing an older one of that tag, and then the file
    `latest`: at any instant it names a checkpoint that is whole. load_checkpoint takes what lies there: of pawl's
    store, by pawl; what DeepSpeed wrote, by DeepSpeed's own method. load_module_strict=False loads what fits.
    Fails: Refused where pawl doesn't know the engine.
    """
    check_engine(engine)
    theirs = engine.load_checkpoint

    def save_checkpoint(save_dir: str, tag: Any = None, client_state: Any = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> bool:
        tag = str(tag) if tag is not None else f"global_step{engine.global_steps}"
        ranks = Ranks(None)
        ranks.first(lambda: os.makedirs(save_dir, exist_ok=True))
        save(engine, os.path.join(save_dir, tag), client_state or {}, overwrite=True,
             frozen_parameters=not exclude_frozen_parameters)
        if save_latest:
            ranks.first(lambda: _write_latest(save_dir, tag))
        return True

    def load_checkpoint(load_dir: str, tag: Any = None, load_module_strict: bool = True,
                        load_optimizer_states: bool = True, load_lr_scheduler_states: bool = True,
                        load_module_only: bool = False, custom_load_fn: Any = None) -> tuple[str | None, Any]:
        ranks = Ranks(None)
        path = ranks.first(lambda: _path_of_ours(load_dir, tag))
        if path is None:
            answer: tuple[str | None, Any] = theirs(load_dir, tag, load_module_strict, load_optimizer_states,
                                                    load_lr_scheduler_states, load_module_only, custom_load_fn)
            return answer
        if custom_load_fn is not None:
            raise Refused("custom_load_fn loads what DeepSpeed wrote: use pawl.deepspeed.load() and rename= for a "
                          "checkpoint of pawl's")
        whole = not load_module_only
        report = load(engine, path, strict=load_module_strict, optimizer_state=load_optimizer_states and whole,
                      scheduler=load_lr_scheduler_states and whole, counters=whole)
        return path, report.values

    engine.save_checkpoint = save_checkpoint
    engine.load_checkpoint = load_checkpoint
    return engine


def _path_of_ours(folder: str, tag: Any) -> str | None:
    """The checkpoint's path, if it is of pawl's store."""
    if tag is None:
        try:
            with open(os.path.join(folder, _LATEST), encoding="utf-8") as file:
                tag = file.read().strip()
        except FileNotFoundError:
            return None  # DeepSpeed's method warns, and answers None
    path = os.path.join(folder, str(tag))
    return path if os.path.exists(os.path.join(path, _MARKER)) else None


def _write_latest(folder: str, tag: str) -> None:
    """Whole or not at all, and on the disk."""
    path = os.path.join(folder, _LATEST)
    with open(f"{path}.pawl-partial", "w", encoding="utf-8") as file:
        file.write(tag)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)

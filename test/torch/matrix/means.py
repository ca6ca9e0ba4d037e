"""By what a checkpoint is saved and loaded. `pawl` is what the matrix is about. `dcp` is PyTorch's own, which proves
the harness: where it can do a pair the comparison must pass.
"""
import os
import pathlib
import shutil
import subprocess

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.optim import ZeroRedundancyOptimizer


def save(means: str, path: pathlib.Path, training) -> None:
    if hasattr(training, "engine"):
        training.save(path)
    elif means == "dcp":
        save_dcp(path, training)
    else:
        import pawl.torch
        pawl.torch.save(path, training.model, training.optimizer, overwrite=True)


def load(means: str, path: pathlib.Path, source: str, scratch: pathlib.Path, build) -> tuple[object, list[str]]:
    """A training built anew with the checkpoint in it, and what is to be noted."""
    training = build()
    if means == "dcp":
        load_dcp(path, training)
        return training, []
    if hasattr(training, "engine"):
        universal(path, scratch / f"from_{source}", training)
        return training, []
    import pawl.torch
    report = pawl.torch.load(path, training.model, training.optimizer)
    return training, [] if not report.missing else [f"missing: {list(report.missing)[:5]}"]


def universal(path: pathlib.Path, scratch: pathlib.Path, training) -> None:
    """`pawl convert` to DeepSpeed's universal folder, which DeepSpeed itself loads."""
    if dist.get_rank() == 0:
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        command = [os.environ["PAWL"], "convert", str(path), str(scratch / "step_universal"), "--to", "universal"]
        ran = subprocess.run(command, capture_output=True, text=True)
        if ran.returncode != 0:
            raise RuntimeError(f"pawl convert: {ran.stderr.strip() or ran.stdout.strip()}")
    dist.barrier()
    training.load_universal(scratch / "step_universal")


def state_of(training):
    model, optimizer = get_state_dict(training.model, training.optimizer)
    return {"model": model, "optimizer": optimizer}


def save_dcp(path: pathlib.Path, training) -> None:
    if isinstance(training.optimizer, ZeroRedundancyOptimizer):
        return  # PyTorch has no way for that; the losses are still compared
    dcp.save(state_of(training), checkpoint_id=path)


def load_dcp(path: pathlib.Path, training) -> None:
    state = state_of(training)
    dcp.load(state, checkpoint_id=path)
    set_state_dict(training.model, training.optimizer, model_state_dict=state["model"],
                   optim_state_dict=state["optimizer"])

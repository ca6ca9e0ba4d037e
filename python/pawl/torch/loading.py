"""Loading any checkpoint into a live training, whatever layout either has: straight into the tensors' own memory.

    report = pawl.torch.load("run/global_step1200", model, optimizer)

The source is anything that pawl opens: torch.save, PyTorch DCP, DeepSpeed, Megatron-Core, Hugging Face, safetensors,
pawl's own store. The training is anything that pawl.torch.layout reads. What always holds:
 * everything is checked before anything is written: names, shapes, types, holes, the checkpoint's own problems and
   checksums, on all ranks. What one rank rejects, all reject, and nothing has changed: no weight, no state, no
   hyperparameter. Only what goes wrong after that (files that can't be read, a rank that dies, Ctrl-C) leaves a model
   that is loaded in part: then every rank raises, and the error says so. No rank returns before all have loaded all;
 * strict is the default: missing tensors, and tensors that nobody wants, are errors that name them;
 * what several ranks hold is read once and passed on, and so is what ranks of one machine would pick out of the same
   files in short runs. Where layouts agree, reading is all that happens.
Collectives: all ranks of `group` call load() with the same arguments, between steps.
"""
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from pawl._checkpoint import Checkpoint
from pawl.errors import Refused
from pawl.torch.adapters import Adapter
from pawl.torch.layout import layout_of
from pawl.torch.load_options import Hints, LoadOptions, NamesFile
from pawl.torch.load_plan import LoadPlan, check_plan, is_of_optimizer, open_for
from pawl.torch.load_together import load_planned
from pawl.torch.load_values import set_extra_state
from pawl.torch.matching import MASTER, OF_THE_MODEL, Sources, match
from pawl.torch.optimizer_state import CreatedState, inner
from pawl.torch.pieces import Layout, piece_of_number
from pawl.torch.ranks import Ranks
from pawl.torch.report import Report, first_of

_AS_IT_WAS = "nothing was loaded, the training is as it was"


def load(path: str | os.PathLike[str], model: Any, optimizer: Any = None, *, strict: bool = True,
         group: dist.ProcessGroup | None = None, rename: Callable[[str], str] | None = None, hints: Hints | None = None,
         trusted_copy: int | None = None, check_replicas: bool = True, verify: bool | str = True) -> Report:
    """Fills the training that all ranks of `group` (None: the default one; no group: this process alone) hold.

    model, optimizer, rename   as for pawl.torch.save; rename may also lead to the checkpoint's names. Of PEFT's
                               adapters the names are known, and the model below may be missing. An optimizer
                               without state gets it. Its hyperparameters are set, by the parameters' names, where the
                               checkpoint has them (pawl's store, torch.save, DCP, DeepSpeed; numbers, texts and short
                               lists of them); else they stay, and the report's notes say so.
    strict                     False: missing tensors stay as they are, extra ones are not read; both are reported.
                               Shapes and types that don't fit are errors in any case.
    hints                      what the checkpoint doesn't say: names, heads, tag, family (pawl.torch.Hints)
    trusted_copy               which stored replica to take where they differ
    check_replicas             False: stored replicas aren't compared before one of each is read
    verify                     when the checksums that the checkpoint has are checked (pawl's store, torch.save, DCP,
                               DeepSpeed, Megatron-Core; safetensors has none). True: first, in a pass of its own, so
                               that nothing has changed where a byte is damaged. "reading": of what is read, mostly
                               with no second pass; a damaged byte is found when the training has it already, and the
                               error says so. False: never

    Fails, with one error on all ranks: Refused where another call can succeed; PawlError for the rest.
    """
    hints = hints or Hints()
    options = LoadOptions(os.fspath(path), strict, hints, trusted_copy, check_replicas, verify)
    ranks, created = Ranks(group, _AS_IT_WAS), CreatedState()
    plans: list[LoadPlan] = []
    done = False
    try:
        with NamesFile(hints.parameter_names) as options.names_file:
            report = load_planned(options, ranks, lambda: _plan(options, model, optimizer, rename, created), plans)
        done = True
        report.created = len(created)
        return report
    finally:
        for plan in plans:
            plan.checkpoint.close()
        if not done and not any(plan.began for plan in plans):
            created.take_back()


def _plan(options: LoadOptions, model: Any, optimizer: Any, rename: Callable[[str], str] | None,
          created: CreatedState) -> LoadPlan:
    adapter = Adapter.of(options.path, model, lambda: _names_in(options))
    if adapter and rename is None:
        rename = adapter.rename
    layout = layout_of(model, optimizer, rename=rename)
    checkpoint = open_for(options, layout)
    try:
        notes: list[str] = []
        if layout.optimizers:
            layout = _with_state(layout, Sources(checkpoint, layout.aliases), created, notes,
                                 lambda: layout_of(model, optimizer, rename=rename))
            _check_any_state(options, checkpoint, layout)
        numbers = [(piece_of_number(number), number) for number in layout.numbers]
        found = match(layout.pieces + [piece for piece, _ in numbers], Sources(checkpoint, layout.aliases))
        if adapter:
            adapter.leave_the_base(found, notes)
        plan = LoadPlan(checkpoint, layout, found, numbers=numbers, notes=notes)
        plan.give_back = lambda extra: set_extra_state(model, extra, rename or (lambda name: name))
        check_plan(options, plan)
        return plan
    except BaseException:
        checkpoint.close()
        raise


def _names_in(options: LoadOptions) -> set[str]:
    with Checkpoint(options.path, **options.open) as checkpoint:
        return {tensor.name for tensor in checkpoint.tensors}


def _with_state(layout: Layout, sources: Sources, created: CreatedState, notes: list[str],
                look: Callable[[], Layout]) -> Layout:
    """State for each parameter of the optimizers that has none here and has some in the checkpoint."""
    names_of: dict[int, list[str]] = {}
    for name, parameter in layout.parameters.items():
        names_of.setdefault(id(parameter), []).append(name)
    stateless: list[str] = []
    for optimizer in layout.optimizers:
        inner_optimizer = inner(optimizer)
        lacking = [parameter for each in inner_optimizer.param_groups for parameter in each["params"]
                   if not inner_optimizer.state.get(parameter)]
        stored = [parameter for parameter in lacking
                  if any(sources.has_state(name) for name in names_of.get(id(parameter), ()))]
        stateless += [name for parameter in lacking for name in names_of.get(id(parameter), ())
                      if not sources.has_state(name)]
        created.create(inner_optimizer, stored)
    if stateless:
        notes.append(f"no optimizer state in the checkpoint, and none here, for {first_of(stateless)}")
    return look() if len(created) else layout


def _check_any_state(options: LoadOptions, checkpoint: Checkpoint, layout: Layout) -> None:
    """An optimizer that keeps state is not to begin anew in silence. What pawl saved without state had none."""
    values = checkpoint.values if isinstance(checkpoint.values, dict) else {}
    if not options.strict or values.get("param_groups") or any(is_of_optimizer(each) for each in checkpoint.problems):
        return  # what has a problem is refused with its reason
    if any(tensor.role not in OF_THE_MODEL and tensor.role != MASTER for tensor in checkpoint.tensors):
        return
    for optimizer in layout.optimizers:
        if CreatedState.keeps_state(inner(optimizer)):
            raise Refused(f"{options.path} ({checkpoint.format}) has no optimizer state for the "
                          f"{type(optimizer).__name__}: load it without one (optimizer=None), or with strict=False")

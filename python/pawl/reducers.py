"""The reducers of DistributedDataParallel: in which buckets they exchange gradients, and what a broken backward leaves.

A reducer lays its buckets anew once, in the order in which rank 0 came to the gradients of its first backward. Who is
built anew after a loss would lay them later than the others, alone, or in another order; and torch can only mend a
backward that an exception has left by laying them once more. So the buckets are a part of what is restored (Layouts),
on each seat by itself. A process that can't put them back raises BuildAnew once: another one takes its seat, whose
reducers are new. All that is private to torch about reducers is here. The training thread's.
"""
from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from pawl import made_ddp, volatile_state
from pawl.errors import BuildAnew, Refused

Buckets = list[list[int]]  # numbers of parameters
LOGGED = "rebuilt_per_bucket_param_indices"
LOG_EACH, LOG_RARELY = 1, 100  # iterations; torch's own is the second


class Layouts:
    """Of these modules. `alone()`: collectives mean nothing in its context. Torch does not tell the buckets of sparse
    gradients that were just laid, so modules that have some are left as DDP has them."""

    def __init__(self, modules: list[Any], alone: Callable[[], AbstractContextManager[Any]]) -> None:
        self._modules = [each for each in modules if not made_ddp.has_sparse_gradients(each)]
        self._alone = alone
        self._known: tuple[list[bool], bytes] | None = None  # which are laid, and what was saved
        self._in_use = False  # they have trained in a step that was captured, or were restored

    def are_laid(self) -> bool:
        return all(is_laid(module) for module in self._modules)

    def lay(self) -> None:
        """On all ranks at the end of each step: what DDP would do in its next forward, however many steps later that
        is, so that it is done or not when the step is captured."""
        for module in self._modules:
            if not is_laid(module):
                lay_buckets(module)

    def part(self) -> volatile_state.Part:
        return volatile_state.Part("buckets", self._save, self._load)

    def _save(self) -> bytes:
        self._in_use = True
        laid = [is_laid(module) for module in self._modules]
        if self._known is None or self._known[0] != laid:
            layouts = list(zip(laid, map(_buckets, self._modules), strict=True))
            self._known = laid, zlib.compress(json.dumps(layouts).encode())
        return self._known[1]

    def _load(self, saved: bytes) -> None:
        self._known = None
        for module, (laid, buckets) in zip(self._modules, json.loads(zlib.decompress(saved)), strict=False):
            if is_broken(module) or is_laid(module) != laid or _buckets(module) != buckets:
                self._put_back(module, laid, buckets)
        self._in_use = True

    def _put_back(self, module: Any, laid: bool, buckets: Buckets) -> None:
        """Fails: BuildAnew; Refused, in a process that was built anew."""
        if not laid and not is_laid(module) and _buckets(module) == buckets:
            _reset(module)  # only a backward is broken
            return
        if self._in_use and (_is_in_pieces(module) or not laid and is_laid(module)):
            raise BuildAnew("DDP laid its buckets in a step that is lost")  # perhaps by half of rank 0's order
        with self._alone():
            why = _lay_as(module, laid, buckets)
        if why is None:
            return
        if self._in_use:
            raise BuildAnew(why)
        raise Refused(f"{why}, not even in a new process: start the job again, and keep the order of declaration: "
                      f"DistributedDataParallel(..., find_unused_parameters=True)")


def buckets(module: Any) -> list[list[Any]]:
    """The parameters of each bucket, in the order in which gradients are exchanged."""
    parameters = made_ddp.numbered(module)
    return [[parameters[number] for number in bucket] for bucket in _buckets(module)]


def _buckets(module: Any) -> Buckets:
    """As they lie now."""
    if is_laid(module):
        return _logged(module)
    numbers = {id(parameter): number for number, parameter in enumerate(made_ddp.numbered(module))}
    return [[numbers[id(parameter)] for parameter in bucket.parameters()] for bucket in _told_by(module)]


def _logged(module: Any) -> Buckets:
    """Of laid ones. Where they were laid more than once, torch's buckets go on telling their first parameters; its log,
    brought up to date, tells where they are."""
    _log(module)
    return [[int(number) for number in bucket.split()] for bucket in module._get_ddp_logging_data()[LOGGED].split(",")]


def _log(module: Any) -> None:
    """Torch writes buckets into its log where it has seen, since it did so last, that they weren't laid."""
    module._set_ddp_runtime_logging_sample_rate(LOG_EACH)
    module.logger.set_runtime_stats_and_log()
    module._set_ddp_runtime_logging_sample_rate(LOG_RARELY)


def _is_in_pieces(module: Any) -> bool:
    """Whether a parameter is in no bucket, or in two."""
    return sorted(number for bucket in _buckets(module) for number in bucket) != [
        *range(len(made_ddp.numbered(module)))]


def _told_by(module: Any) -> list[Any]:
    """Of those that aren't laid. Torch tells of a bucket with zeros as large as its gradients, which here take no
    memory."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoZeros(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _types: Any, arguments: Any = (), keywords: Any = None) -> Any:
            if function is torch.ops.aten.zeros_like.default and arguments[0].layout is torch.strided:
                return arguments[0].new_zeros(()).expand(arguments[0].shape)
            return function(*arguments, **(keywords or {}))
    with NoZeros():
        return list(module.reducer._get_zeros_like_grad_buckets())


def is_laid(module: Any) -> bool:
    return bool(module._has_rebuilt_buckets)


def lay_buckets(module: Any) -> str | None:
    """As DDP's next forward would, if this module is one that does it at all. Answers why not."""
    if not _lays(module):
        return None
    lay = getattr(module.reducer, "_rebuild_buckets", None)
    if lay is None:
        return "this version of torch can't lay DDP's buckets outside of a step"
    try:
        laid = lay()
    except (TypeError, RuntimeError) as error:
        return f"DDP's buckets can't be laid: {error}"
    if laid is not True:
        return "DDP has no new order for its buckets"
    module._has_rebuilt_buckets = True
    return None


def _lays(module: Any) -> bool:
    return not module.find_unused_parameters or module.static_graph


def is_broken(module: Any) -> bool:
    """Whether an exception has left a backward, so that DDP still waits for the rest of it."""
    try:
        module.reducer._check_reducer_finalized()
    except RuntimeError:
        return True
    return False


def _reset(module: Any) -> None:
    """DDP begins its next backward anew, and will lay its buckets after it."""
    module.reducer._reset_state()
    module._has_rebuilt_buckets = False
    _log(module)


def _lay_as(module: Any, laid: bool, buckets: Buckets) -> str | None:
    """By a backward in which gradients come in this order, none of which anything is computed from. Answers why not."""
    import torch

    class Backward(torch.autograd.Function):
        @staticmethod
        def forward(_context: Any, value: Any) -> Any:
            return value.clone()

        @staticmethod
        def backward(_context: Any, gradient: Any) -> Any:
            for bucket in buckets:
                for number in bucket:
                    module.reducer._autograd_hook(number)
            return gradient

    _reset(module)
    if not _lays(module):
        return None
    try:
        module.reducer.prepare_for_forward()
        module.reducer.prepare_for_backward([])
        with torch.enable_grad():
            Backward.apply(torch.zeros((), requires_grad=True)).backward()
        why = lay_buckets(module)
    except RuntimeError as error:
        why = f"{error}"
    for parameter in made_ddp.numbered(module):
        parameter.grad = None
    if why is not None or _buckets(module) != buckets:
        return f"DDP's buckets can't be laid as they were{f' ({why})' if why else ''}"
    if not laid:
        _reset(module)
    return None

"""Modules that tensor parallelism has cut with values of another rank, as parallelize_module() does from rank 0.

A seat that is built anew cuts alone, and has other values then; a restore puts back what is protected. So before the
first step each such module must be protected, and each copy of one. The training thread's.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from pawl import sharded
from pawl.errors import Refused

_MARK = "_pawl_exchanged"  # in a module, and its copies: names of tensors that came from another rank
_running: list[list[Any]] = []  # for each distribute_module() that runs: what was exchanged in it
_any = False


def watched_module(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around torch's distribute_module()."""
    @functools.wraps(original)
    def distribute(module: Any, *args: Any, **kwargs: Any) -> Any:
        _running.append([])
        try:
            return original(module, *args, **kwargs)
        finally:
            _mark(module, {_address(each) for each in _running.pop()})

    return distribute


def watched_tensor(original: Callable[..., Any]) -> Callable[..., Any]:
    """Around torch's distribute_tensor(), which exchanges unless `src_data_rank` is None or the tensor is on meta."""
    @functools.wraps(original)
    def distribute(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        if _running and kwargs.get("src_data_rank", 0) is not None and not made.is_meta and made.device_mesh.size() > 1:
            _running[-1].append(made)
        return made

    return distribute


def _mark(module: Any, exchanged: set[int]) -> None:
    global _any
    for each in module.modules() if exchanged else ():
        names = [name for name, tensor in _dtensors(each) if _address(tensor) in exchanged]
        if names:
            each.__dict__[_MARK] = [*each.__dict__.get(_MARK, ()), *names]
            _any = True


def forget() -> None:
    """What a rehearsal cut. torch may hold it for longer (FSDP2 and the compiler do), and nobody uses it: a script that
    uses what it has cut and does not protect is refused in its first seat, long before it rehearses."""
    global _any
    if _any:
        for each in sharded.living_modules():
            each.__dict__.pop(_MARK, None)
    _any = False


def refuse_unprotected(protected: Iterable[Any], gathered: dict[int, Any]) -> None:
    """`protected`: all tensors that a restore puts back; `gathered`: the shards of some, by the id of what FSDP2 has in
    their places now. Fails: Refused, by the first name that is not protected."""
    if not _any:
        return
    modules = sharded.living_modules()
    known = {_address(each) for each in protected}
    left = [(module, name) for module in modules if _MARK in module.__dict__ for name, tensor in _dtensors(module)
            if name in module.__dict__[_MARK] and not _is_known(gathered.get(id(tensor), tensor), known)]
    if left:
        paths = _paths(modules)
        first = min(f"{paths[id(module)]}.{name}" for module, name in left)
        more = f", and {len(left) - 1} more," if len(left) > 1 else ""
        raise Refused(f"{first}{more} was cut over the ranks with values of another rank, and is not protected: a seat "
                      f"that is built anew after a loss could not get them. Give the module to job.protect(), or load "
                      f"its weights on every rank and cut it with parallelize_module(..., src_data_rank=None)")


def _is_known(tensor: Any, known: set[int]) -> bool:
    return sharded.memory_of(tensor).numel() == 0 or _address(tensor) in known


def _dtensors(module: Any) -> list[tuple[str, Any]]:
    return [(name, each) for table in (module._parameters, module._buffers) for name, each in table.items()
            if sharded.is_dtensor(each)]


def _address(tensor: Any) -> int:
    return int(sharded.memory_of(tensor).data_ptr())


def _paths(modules: list[Any]) -> dict[int, str]:
    """Of each module by its id, from the outermost one around it."""
    paths: dict[int, str] = {}
    for outer in modules:
        for path, module in outer.named_modules():
            name = f"{type(outer).__name__}.{path}".rstrip(".")
            paths[id(module)] = max(paths.get(id(module), ""), name, key=lambda each: each.count("."))
    return paths

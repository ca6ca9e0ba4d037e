"""Compilers take longer than a step: while torch.compile compiles, this process is not taken for hanging.

The first blocks of a compiled model take minutes, in which no collective and no edge of a step shows that the process
lives; all ranks would be ended, and begin again, for ever. Not longer than an hour: a compiler may hang, too. One
thread while something is compiled.
"""
from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

BEAT_S = 1.0
COMPILE_MAX_S = 3600.0


def _compiler() -> Any:
    """torch._dynamo, if the script has loaded it."""
    package = sys.modules.get("torch._dynamo")
    return package if hasattr(package, "__file__") else None


def is_loaded() -> bool:
    return _compiler() is not None


def untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compiled code calls and does not contain. Before the script has loaded the compiler: as it is."""
    compiler = _compiler()
    return function if compiler is None else compiler.disable(function)


def forget() -> None:
    """What is compiled. torch keeps ranks and groups in it as constants, and nothing shows that they have changed: who
    gets a seat after its rehearsal compiles anew what an imported module defines."""
    compiler = _compiler()
    if compiler is not None:
        compiler.reset()


class CompileWatch:
    """Of the process, for its job. `see()` and `close()` are the training thread's."""

    def __init__(self) -> None:
        self._alive: Callable[[], None] = lambda: None
        self._ended = threading.Event()

    def see(self, alive: Callable[[], None]) -> None:
        """`alive` is called while torch._dynamo compiles, in another thread. Cheap: to be called whenever the script
        may have loaded the compiler, or reset it, which forgets who listens."""
        self._alive = alive
        if _compiler() is None:
            return
        from torch._dynamo.callback import callback_handler
        if self._begin not in callback_handler.start_callbacks:
            callback_handler.register_start_callback(self._begin)
            callback_handler.register_end_callback(self._end)

    def close(self) -> None:
        self._end()
        package = sys.modules.get("torch._dynamo.callback")
        handler = getattr(package, "callback_handler", None)
        if handler is not None and self._begin in handler.start_callbacks:
            handler.remove_start_callback(self._begin)
            handler.remove_end_callback(self._end)

    def _begin(self, *_: object) -> None:
        self._ended.set()
        self._ended = threading.Event()
        threading.Thread(target=self._beat, args=(self._ended,), name="pawl-compile", daemon=True).start()

    def _end(self, *_: object) -> None:
        self._ended.set()

    def _beat(self, ended: threading.Event) -> None:
        for _ in range(int(COMPILE_MAX_S / BEAT_S)):
            if ended.wait(BEAT_S):
                return
            self._alive()


watch = CompileWatch()

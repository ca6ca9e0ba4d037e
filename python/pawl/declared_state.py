"""The layout of one seat: what is declared to libpawl, once lazy state exists, and what may change about it later.

What always holds: all seats declare after the same step; afterwards the script may put a declared tensor elsewhere, and
nothing else. The state that is no declared tensor lies in one blob (volatile_state.py), whose room all seats agree on
before the first step. The training thread's.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pawl import checkpoint_values, script_exit, sharded, volatile_state
from pawl._library import Lifetime, Placement
from pawl.errors import Refused
from pawl.optimizer_numbers import OptimizerNumbers
from pawl.protect import Held, Protected, Unchanged, dtype_number, memory_order

if TYPE_CHECKING:
    from pawl._library import Trainer
    from pawl.build_log import BuildLog
    from pawl.windows import Windows


class DeclaredState:
    def __init__(self, trainer: Trainer, protected: Protected, windows: Windows, room: int,
                 own_parts: Callable[[], list[volatile_state.Part]], done: Callable[[], int]) -> None:
        """`room`: the least bytes for the blob. `own_parts`: pawl's own, which the blob begins with. `done`: the last
        step that is done."""
        self._trainer, self._protected, self._windows = trainer, protected, windows
        self._room, self._own_parts, self._done = room, own_parts, done
        self._unchanged: Unchanged | None = None
        self._numbers: OptimizerNumbers | None = None
        self.volatile: volatile_state.VolatileState | None = None
        self.begun_with: dict[str, str] = {}  # other_world.settle()
        self.held: list[Held] = []
        self.declared = self.sealed = False

    def agree_on_room(self, build: BuildLog) -> None:
        """That of the seat that needs most. A seat that is built later may find its script's state larger or smaller by
        now: it gets the room of the snapshot that it restores (pawl.h, pawl_blob_add), so nobody need tell it."""
        import torch
        import torch.distributed as dist
        self.begun_with = volatile_state.begun_with()
        room = torch.tensor([volatile_state.room_for(self._protected.parts, self._room)])
        with build.paused():
            dist.all_reduce(room, dist.ReduceOp.MAX)
        self._room = int(room.item())

    def seal(self, build: BuildLog) -> None:
        """Idempotent: a recovery may end it halfway. Fails: Refused; Recover, Stop."""
        if not self.declared:
            self._declare()
            build.tell_big(self.held)
        if not self.sealed:
            self._trainer.layout_seal()
            self.sealed = True

    @property
    def origin(self) -> volatile_state.Origin | None:
        """Of the state that was restored last; None: of as many ranks."""
        return self.volatile.origin if self.volatile is not None else None

    def gradient_order(self) -> list[str]:
        """Of DDP; none before a model is built."""
        return self._protected.gradient_order() if self.declared else []

    def check_unchanged(self) -> None:
        """While no window is open: tensors that were replaced are told to libpawl, anything else is an error."""
        assert self._unchanged is not None
        self._protected.reshard()
        change = self._unchanged.first_change()
        if change is not None:
            raise Refused(f"the model or its optimizer changed after it was protected: {change}")
        for held in self._unchanged.moved():
            self._trainer.tensor_rebind(held.index, held.address)

    def about_to_open(self, last: bool) -> None:
        """A window, of the state as it is now. `last`: no step follows."""
        assert self.volatile is not None
        self.volatile.ending = last
        if self._numbers is not None:
            self._numbers.update()

    def _declare(self) -> None:
        self._protected.refuse_hooks()  # of hooks that came later
        self._protected.reshard()
        self.held = self._protected.held()
        self._protected.declared(self.held)
        meshes: dict[Any, int] = {None: self._trainer.mesh_add("data", [("dp", self._protected.world)])}
        for held in self.held:
            memory = sharded.memory_of(held.tensor)
            order, number = memory_order(memory), dtype_number(memory)
            assert order is not None and number is not None  # what has none is refused before
            axes = held.axes
            if axes is not None and axes not in meshes:
                meshes[axes] = self._trainer.mesh_add(f"shards{len(meshes)}", axes)
            held.index = self._trainer.tensor_add(held.name, held.role, number, tuple(memory.shape), held.address,
                                                  region=held.region, mesh=meshes[axes], placement=held.placement,
                                                  lifetime=held.lifetime, equal_axes=held.equal_axes, order=order)
        self.volatile = volatile_state.VolatileState([*self._own_parts(), *self._protected.parts], script_exit.say,
                                                     self._protected.rank, self._protected.world)
        self._trainer.blob_add(f"volatile/rank{self._protected.rank}", self._room, self.volatile.save_within,
                               self.volatile.load)
        if checkpoint_values.are_wanted():
            self._declare_numbers(meshes[None])
        if checkpoint_values.are_wanted() and self._protected.rank == 0:
            values = checkpoint_values.CheckpointValues(self._protected, self._done, script_exit.say)
            self._trainer.blob_add(checkpoint_values.BLOB, values.room(), values.save_within, values.load)
        self._windows.declare(self.held)
        self._unchanged = Unchanged(self._protected, self.held)
        self.declared = True

    def _declare_numbers(self, mesh: int) -> None:
        self._numbers = OptimizerNumbers(self._protected)
        for each in self._numbers.held:
            number = dtype_number(each.tensor)
            assert number is not None
            self._trainer.tensor_add(each.name, each.role, number, (), each.tensor.data_ptr(), mesh=mesh,
                                     placement=Placement.UNIQUE, lifetime=Lifetime.VOLATILE)

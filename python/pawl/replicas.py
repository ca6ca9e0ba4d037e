"""Whether what DDP keeps equal on all ranks is equal: compared after a loss, when something that the script does not
protect (a learning rate, a clipping norm) may steer one rank otherwise than the others.

Compared are the optimizers' settings, and some elements of each parameter and of its optimizer's state, where DDP or
the replicas of HSDP have them alike. Nothing else is: buffers, random numbers and shards are each rank's own. Elements
count as equal that differ as little as other processors may make them. Of each step the first rank that comes puts
what it has at the rendezvous, and the others compare. That is done beside the training thread, which takes the
elements, asks later what came of it, and waits for nobody.

What always holds: a difference is an error only in the first steps after a loss, only where that was not different in
the state that was restored, only where ranks were found equal before it, and only under DDP or HSDP. Of ranks that have
nothing but shards of their own, settings that differ are told. A script whose ranks differ by its own doing has that
told once. What a rank's own loss may steer (ReduceLROnPlateau) can differ at any time, and is told, too.
"""
from __future__ import annotations

import hashlib
import itertools
import json
import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from pawl import sharded, volatile_state
from pawl._library import Placement
from pawl.errors import PawlError, Recover, Refused, Stop
from pawl.protect import Held, Protected, is_zero, storage_order

WINDOWS, EACH = 8, 1000  # so many captured steps are compared after a loss, and later one of so many steps
ELEMENTS, TENSORS_MAX = 8, 192  # of each tensor; of a step: a comparison takes less than a millisecond
ALL = -1
SHOWN_MAX = 3
SAMPLES_S = 20.0  # for the samples of another rank, which it puts there at once
# How far elements may lie apart, as a part of the tensor's greatest, by the bytes of one.
_APART = {8: 1e-6, 4: 1e-4, 2: 0.03, 1: 0.3}


class Rendezvous(Protocol):
    """Of libpawl's trainer; each call from any thread."""

    def rendezvous_compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes: ...
    def rendezvous_set(self, key: str, value: bytes) -> None: ...
    def rendezvous_get(self, key: str, timeout_s: float) -> bytes: ...
    def rendezvous_delete(self, key: str) -> None: ...


class Samples:
    """Elements of tensors that have a place in the layout, as they are when they are taken."""

    def __init__(self, held: Iterable[Held]) -> None:
        by_type: dict[Any, list[Held]] = {}
        for each in held:
            by_type.setdefault(_kind_of(each), []).append(each)
        self.held = [each for some in by_type.values() for each in some]
        self.turns = -(-len(self.held) // TENSORS_MAX)
        self._views: dict[int, tuple[list[int], list[list[Any]]]] = {}  # of each turn: addresses; elements by type

    def of(self, turn: int) -> list[Held]:
        """Those whose turn it is: of many tensors, some in each, and ALL of them in one."""
        if turn == ALL or not self.held:
            return self.held
        return self.held[turn % self.turns::self.turns]

    def forget(self) -> None:
        """What was sampled, which may be memory that the script has given up."""
        self._views.clear()

    def take(self, turn: int) -> list[Any]:
        """A copy of elements of each of them: tensors, by type."""
        import torch
        held = self.of(turn)
        addresses = [each.address for each in held]
        turn = ALL if turn == ALL else turn % max(1, self.turns)
        if turn not in self._views or self._views[turn][0] != addresses:
            by_type: dict[Any, list[Any]] = {}
            for each in held:
                by_type.setdefault(_kind_of(each), []).append(_some_of(each))
            self._views[turn] = addresses, list(by_type.values())
        return [torch.cat(views) for views in self._views[turn][1]]


def _kind_of(held: Held) -> tuple[Any, Any]:
    """What is taken together: of one type, on one device."""
    return held.memory.dtype, held.memory.device


def when_taken(taken: list[Any]) -> Callable[[], None]:
    """Until then what is taken is not there yet, if the device still has to do it. Asked for in the thread that takes,
    waited for in any."""
    device = next((each.device for each in taken if each.device.type == "cuda"), None)
    if device is None:
        return lambda: None
    import torch
    done = torch.cuda.Event()
    done.record(torch.cuda.current_stream(device))
    return done.synchronize


def bytes_of(taken: list[Any]) -> bytes:
    import torch
    return b"".join(each.cpu().view(torch.uint8).numpy().tobytes() for each in taken)


def rows_of(taken: list[Any], content: bytes) -> list[list[float]]:
    """Of each tensor, from the bytes of what another rank has taken likewise."""
    import torch
    rows, at = [], 0
    for each in taken:
        values = torch.frombuffer(bytearray(content[at:at + each.nbytes]), dtype=each.dtype)
        rows += values.view(-1, ELEMENTS).double().tolist()
        at += each.nbytes
    return rows


def _some_of(held: Held) -> Any:
    """From all over it; a small one's first, again and again."""
    view = storage_order(held.memory)
    assert view is not None
    flat = view.reshape(-1)
    count = flat.numel()
    return flat[::count // ELEMENTS][:ELEMENTS] if count >= ELEMENTS else flat[:1].expand(ELEMENTS)


class Replicas:
    """Of one seat. The training thread's."""

    def __init__(self, protected: Protected, rendezvous: Rendezvous, say: Callable[[str], None], warns: bool) -> None:
        """`warns`: a difference is told, and no error."""
        self._protected, self._rendezvous, self._say, self._warns = protected, rendezvous, say, warns
        self._samples = Samples(())
        self._group = ""          # ranks with the same key hold the same
        self._since: int | None = None  # the step before the first that is compared without a break
        self._restored = False    # in this job there was a loss
        self._equal = False       # ranks were found equal before it
        self._differing: set[str] = set()  # told
        self._captured = self._last = 0  # steps since the job began or was restored; the last one's number
        self._baseline_due = False
        self._life = 0            # grows with each loss
        self._claimed = ""        # the key of the last comparison that this rank began
        self._asking: threading.Thread | None = None
        self._answer: tuple[str, bool] | None = None  # what differs, and whether that is an error

    def restored(self, step: int) -> None:
        self._since, self._restored, self._captured = step, True, 0
        self._life += 1
        self._answer, self._baseline_due = None, True

    def part(self) -> volatile_state.Part:
        """What is known, for who takes the seat over."""
        def load(saved: dict[str, Any]) -> None:
            self._equal, self._differing = saved["equal"], set(saved["differing"])
        return volatile_state.Part("replicas", lambda: {"equal": self._equal, "differing": sorted(self._differing)},
                                   load)

    def begin(self, step: int, held: list[Held]) -> None:
        """Before a block: the last comparison is judged, and what differs in a state that was restored is the script's
        own doing. Fails: Refused, by name."""
        self._see_answer()
        if self._baseline_due:
            self._baseline_due = False
            self._ask_beside(step, held, ALL, baseline=True)

    def compare(self, step: int, held: list[Held]) -> None:
        """The state of this step is what there is, in the tensors of the layout, and is captured. Never waits."""
        self._since = step - 1 if self._since is None else self._since
        before, self._last = self._last, step
        self._captured += 1
        if self._captured <= max(WINDOWS, self._samples.turns):
            self._ask_beside(step, held, self._captured)
        elif step // EACH != before // EACH:
            self._ask_beside(step, held, step // EACH)
        else:
            self._samples.forget()

    def _ask_beside(self, step: int, held: list[Held], turn: int, baseline: bool = False) -> None:
        if self._asking is not None:
            return
        if not self._group:
            self._choose(held)
        mine = {"rank": self._protected.rank, "step": step, "turn": turn, "equal": self._equal,
                "differing": sorted(self._differing), "restored": self._restored, "baseline": baseline,
                "young": self._captured <= max(WINDOWS, self._samples.turns), "settings": self._settings()}
        self._answer, taken = None, self._samples.take(turn)
        self._asking = threading.Thread(target=self._ask, args=(step, mine, taken, when_taken(taken), self._life),
                                        name="pawl-replicas", daemon=True)
        self._asking.start()

    def _see_answer(self) -> None:
        if self._asking is None or self._asking.is_alive():
            return
        self._asking = None
        answer, self._answer = self._answer, None
        if answer is None:
            return
        said, is_error = answer
        if not is_error:
            self._say(said)
            return
        raise Refused(f"{said}. They were equal before the loss, so something that steers the training is not "
                      f"protected. `pawl drill` finds out what: pass it to job.protect(...), and start again from a "
                      f"checkpoint of step {self._since} or before")

    def end(self, timeout_s: float) -> bool:
        """Whether nobody asks any more."""
        if self._asking is not None:
            self._asking.join(timeout_s)
        return self._asking is None or not self._asking.is_alive()

    def _choose(self, held: list[Held]) -> None:
        replicated = {id(parameter) for module in self._protected.ddp_modules()
                      for name, parameter in module.module.named_parameters()
                      if name not in getattr(module, "parameters_to_ignore", ())}
        zero = {id(each) for each in self._protected.optimizers if is_zero(each)}
        self._samples = Samples(each for each in held if each.memory.numel() and self._is_alike(each, replicated, zero))
        layout = [(each.name, each.role, repr(each.region)) for each in self._samples.held]
        self._group = hashlib.sha256(json.dumps(layout).encode()).hexdigest()[:16]

    def _is_alike(self, held: Held, replicated: set[int], zero: set[int]) -> bool:
        parameter = held.tensor if held.optimizer is None else held.parameter
        if held.is_buffer or id(held.optimizer) in zero:
            return False
        if held.region is None:
            return id(parameter) in replicated and held.placement is Placement.REPLICATE
        return sharded.has_replicas(self._protected.sharded) and held.tensor.placements[0].is_replicate()

    def _settings(self) -> dict[str, list[Any]]:
        found = {}
        for number, optimizer in enumerate(self._protected.optimizers):
            for key in dict.fromkeys(key for group in optimizer.param_groups for key in group if key != "params"):
                values = [_plain(group.get(key)) for group in optimizer.param_groups]
                if any(value is not None for value in values):
                    which = f" {number}" if len(self._protected.optimizers) > 1 else ""
                    found[f"{key} of {type(optimizer).__name__}{which}"] = values
        return found

    # Beside the training thread.

    def _ask(self, step: int, mine: dict[str, Any], taken: list[Any], there: Callable[[], None], life: int) -> None:
        there()
        key = f"pawl/replicas/{self._group}/{step}/{mine['turn']}"
        content = bytes_of(taken)
        brief = hashlib.sha256(json.dumps(mine["settings"]).encode() + content).hexdigest()
        claim = f"{mine['rank']} {brief}"
        if life != self._life:
            return
        try:
            found = self._rendezvous.rendezvous_compare_set(key, b"", claim.encode()).decode()
            if found == claim:
                self._rendezvous.rendezvous_set(key + "/whole", json.dumps(mine).encode() + b"\n" + content)
                self._forget_claimed(key)
            elif found.split()[1] == brief:
                self._equal = self._equal or not mine["restored"]
            else:
                head, _, others = self._rendezvous.rendezvous_get(key + "/whole", SAMPLES_S).partition(b"\n")
                self._see({**json.loads(head), "elements": rows_of(taken, others)},
                          {**mine, "elements": rows_of(taken, content)}, life)
        except (PawlError, Recover, Stop):
            pass  # a loss, the end, or the other died before it told: the next step is compared again

    def _forget_claimed(self, key: str) -> None:
        """The one before, for which nobody comes any more: the rendezvous keeps what is not deleted."""
        before, self._claimed = self._claimed, key
        for each in (before, before + "/whole") if before else ():
            self._rendezvous.rendezvous_delete(each)

    def _see(self, theirs: dict[str, Any], mine: dict[str, Any], life: int) -> None:
        found = self._differences(theirs, mine)
        if life != self._life:
            return
        self._differing |= set(theirs["differing"])
        if mine["baseline"]:
            self._differing |= set(found)
            return
        self._equal = self._equal or theirs["equal"] or not (mine["restored"] or found)
        new = {name: said for name, said in found.items() if name not in self._differing}
        if not new:
            return
        alike = bool(self._samples.held)  # else nothing but custom has their settings equal
        is_error = (alike and mine["restored"] and mine["young"] and self._equal and not self._warns and
                    not self._protected.follows_metrics())
        if not is_error:
            self._differing |= set(new)
        shown = "; ".join(itertools.islice(new.values(), SHOWN_MAX))
        more = f"; and {len(new) - SHOWN_MAX} more" if len(new) > SHOWN_MAX else ""
        what = "what DDP and replicas have alike" if alike else "what steers the training"
        self._answer = (f"after step {mine['step']} ranks {theirs['rank']} and {mine['rank']} differ in {what}: "
                        f"{shown}{more}", is_error)

    def _differences(self, theirs: dict[str, Any], mine: dict[str, Any]) -> dict[str, str]:
        found = {}
        for name in mine["settings"]:
            ours, other = mine["settings"][name], theirs["settings"].get(name)
            if other is not None and repr(ours) != repr(other):
                pair = next(((a, b) for a, b in zip(other, ours, strict=False) if repr(a) != repr(b)), (other, ours))
                found[name] = f"{name} is {pair[0]} and {pair[1]}"
        for each, ours, other in zip(self._samples.of(mine["turn"]), mine["elements"], theirs["elements"], strict=True):
            if are_apart(ours, other, each.memory):
                found[f"{each.name} ({each.role})"] = f"{each.name} ({each.role})"
        return found


def are_apart(ours: list[float], theirs: list[float], tensor: Any) -> bool:
    """Elements of a tensor of two ranks, by more than processors may differ."""
    if repr(ours) == repr(theirs):
        return False
    if not tensor.dtype.is_floating_point:
        return True
    greatest = max(abs(each) for each in (*ours, *theirs))
    limit = _APART[tensor.element_size()] * greatest
    return not all(a == b or abs(a - b) <= limit or (a != a and b != b) for a, b in zip(ours, theirs, strict=True))


def _plain(value: Any) -> Any:
    """As JSON has it; None: it isn't plain."""
    if type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list) and len(value) <= ELEMENTS:
        return [_plain(each) for each in value]
    if getattr(value, "ndim", 1) == 0 and hasattr(value, "item"):
        return value.item()
    return None

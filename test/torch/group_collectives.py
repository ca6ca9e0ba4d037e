"""Every collective of torch.distributed, as a function of (group, rank, world) -> tensors; and the comparison of two
groups.

Inputs are drawn per rank, equal for both groups, so a managed group must give bit for bit what plain gloo gives.
"""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import AllgatherOptions, AllreduceCoalescedOptions, ReduceScatterOptions

Case = Callable[[dist.ProcessGroup, int, int], object]
CASES: dict[str, Case] = {}


def case(function: Case) -> Case:
    CASES[function.__name__] = function
    return function


def draw(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(77 + rank))
    return (tensor * 10).to(dtype)


def _reduce_case(op: str, dtype: torch.dtype) -> None:
    def all_reduce(group: dist.ProcessGroup, rank: int, world: int) -> object:
        tensor = draw(rank, 5, 3, dtype=dtype)
        dist.all_reduce(tensor, op=getattr(dist.ReduceOp, op), group=group)
        return tensor

    CASES[f"all_reduce {op} {dtype}"] = all_reduce


for _op in ("SUM", "PRODUCT", "MIN", "MAX"):
    for _dtype in (torch.float32, torch.float64, torch.int64, torch.bfloat16):
        _reduce_case(_op, _dtype)
for _op in ("BAND", "BOR", "BXOR"):
    _reduce_case(_op, torch.int32)


@case
def all_reduce_large(group, rank, world):
    tensor = draw(rank, 300_000)
    dist.all_reduce(tensor, group=group)
    return tensor


@case
def all_reduce_future(group, rank, world):
    tensor = draw(rank, 9)
    return dist.all_reduce(tensor, group=group,
                           async_op=True).get_future().then(lambda done: done.value()[0] * 2).wait()


@case
def all_reduce_work(group, rank, world):
    tensor = draw(rank, 9)
    work = dist.all_reduce(tensor, group=group, async_op=True)
    work.wait()
    assert work.is_completed() and work.is_success()
    return [tensor, *work.result()]


@case
def all_reduce_empty(group, rank, world):
    tensor = torch.zeros(0)
    dist.all_reduce(tensor, group=group)
    return tensor


@case
def all_reduce_coalesced(group, rank, world):
    tensors = [draw(rank, 4), draw(rank + 9, 3, 2)]
    group.allreduce_coalesced(tensors, AllreduceCoalescedOptions()).wait()
    return tensors


@case
def all_reduce_sparse(group, rank, world):
    indices = torch.tensor([[rank, (rank + 1) % world]])
    tensor = torch.sparse_coo_tensor(indices, draw(rank, 2), (world,)).coalesce()
    work = group.allreduce([tensor])
    work.wait()
    return [one.to_dense() for one in work.result()]


@case
def reduce(group, rank, world):
    tensor = draw(rank, 6)
    dist.reduce(tensor, group=group, group_dst=world - 1)
    return tensor if rank == world - 1 else None


@case
def broadcast(group, rank, world):
    tensor = draw(rank, 6)
    dist.broadcast(tensor, group=group, group_src=1)
    return tensor


@case
def all_gather(group, rank, world):
    parts = [torch.empty(3, 2) for _ in range(world)]
    dist.all_gather(parts, draw(rank, 3, 2), group=group)
    return parts


@case
def all_gather_into_tensor(group, rank, world):
    output = torch.empty(world * 3, 2)
    dist.all_gather_into_tensor(output, draw(rank, 3, 2), group=group)
    return output


@case
def all_gather_into_tensor_in_place(group, rank, world):
    output = torch.zeros(world * 4)
    own = output[rank * 4:(rank + 1) * 4]
    own.copy_(draw(rank, 4))
    dist.all_gather_into_tensor(output, own, group=group, async_op=True).wait()
    return output


@case
def all_gather_into_tensor_coalesced(group, rank, world):
    outputs = [torch.empty(world * 3), torch.empty(world * 2)]
    group.allgather_into_tensor_coalesced(outputs, [draw(rank, 3), draw(rank, 2)], AllgatherOptions()).wait()
    return outputs


@case
def all_gather_coalesced(group, rank, world):
    outputs = [[torch.empty(3), torch.empty(2)] for _ in range(world)]
    group.allgather_coalesced(outputs, [draw(rank, 3), draw(rank, 2)], AllgatherOptions()).wait()
    return outputs


@case
def gather(group, rank, world):
    parts = [torch.empty(3) for _ in range(world)] if rank == 0 else None
    dist.gather(draw(rank, 3), parts, group=group, group_dst=0)
    return parts


@case
def scatter(group, rank, world):
    output = torch.empty(3)
    dist.scatter(output, [draw(part, 3) for part in range(world)] if rank == 1 else None, group=group, group_src=1)
    return output


@case
def reduce_scatter(group, rank, world):
    output = torch.empty(3)
    dist.reduce_scatter(output, [draw(rank * 10 + part, 3) for part in range(world)], group=group)
    return output


@case
def reduce_scatter_tensor(group, rank, world):
    output = torch.empty(2, 3)
    dist.reduce_scatter_tensor(output, draw(rank, 2 * world, 3), group=group, async_op=True).wait()
    return output


@case
def reduce_scatter_tensor_coalesced(group, rank, world):
    outputs = [torch.empty(3), torch.empty(2)]
    inputs = [draw(rank, 3 * world), draw(rank, 2 * world)]
    group.reduce_scatter_tensor_coalesced(outputs, inputs, ReduceScatterOptions()).wait()
    return outputs


@case
def all_to_all(group, rank, world):
    outputs = [torch.empty(2) for _ in range(world)]
    dist.all_to_all(outputs, [draw(rank * 10 + part, 2) for part in range(world)], group=group)
    return outputs


@case
def all_to_all_single(group, rank, world):
    output = torch.empty(world * 2)
    dist.all_to_all_single(output, draw(rank, world * 2), group=group)
    return output


@case
def all_to_all_single_uneven(group, rank, world):
    splits = [part + 1 for part in range(world)]
    output = torch.empty((rank + 1) * world)
    dist.all_to_all_single(output, draw(rank, sum(splits)), [rank + 1] * world, splits, group=group)
    return output


@case
def send_and_recv(group, rank, world):
    received = torch.empty(4)
    work = dist.isend(draw(rank, 4), group=group, group_dst=(rank + 1) % world)
    source = dist.recv(received, group=group, group_src=(rank - 1) % world)
    work.wait()
    return [received, torch.tensor(source)]


@case
def recv_from_anyone(group, rank, world):
    received = torch.empty(4)
    work = dist.isend(draw(rank, 4), group=group, group_dst=(rank + 1) % world, tag=5)
    anyone = group.recv_anysource([received], 5)
    anyone.wait()
    work.wait()
    return [received, torch.tensor(anyone._source_rank())]


@case
def batch_isend_irecv(group, rank, world):
    received = torch.empty(4)
    operations = [dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % world),
                  dist.P2POp(dist.isend, draw(rank, 4), group=group, group_peer=(rank + 1) % world)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received


@case
def barrier(group, rank, world):
    dist.barrier(group=group)
    group.barrier().wait()


@case
def all_gather_object(group, rank, world):
    objects = [None] * world
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank}, group=group)
    return objects


@case
def gather_object(group, rank, world):
    objects = [None] * world if rank == 0 else None
    dist.gather_object(("from", rank), objects, group=group, group_dst=0)
    return objects


@case
def broadcast_object_list(group, rank, world):
    objects = [rank, {"of": rank}]
    dist.broadcast_object_list(objects, group=group, group_src=1)
    return objects


@case
def scatter_object_list(group, rank, world):
    output = [None]
    dist.scatter_object_list(output, [f"for {part}" for part in range(world)] if rank == 0 else None, group=group,
                             group_src=0)
    return output


@case
def send_and_recv_object_list(group, rank, world):
    objects = [None]
    if rank == 0:
        dist.send_object_list([{"a": 1}], group=group, group_dst=1)
    elif rank == 1:
        dist.recv_object_list(objects, group=group, group_src=0)
    return objects


@case
def functional_collectives(group, rank, world):
    gathered = functional.all_gather_tensor(draw(rank, 3), 0, group)
    reduced = functional.all_reduce(draw(rank, 3), "sum", group)
    scattered = functional.reduce_scatter_tensor(draw(rank, 2 * world), "sum", 0, group)
    swapped = functional.all_to_all_single(draw(rank, world), None, None, group)
    return [one + 0 for one in (gathered, reduced, scattered, swapped)]


@case
def many_in_flight(group, rank, world):
    tensors = [draw(rank + number, 50) for number in range(40)]
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
    return tensors


def _plain(result: object) -> object:
    """Bytes for tensors, so that equal means bit for bit."""
    if isinstance(result, torch.Tensor):
        raw = result.detach().contiguous().reshape(-1)
        return [str(raw.dtype), list(result.shape), raw.view(torch.uint8).tolist() if raw.numel() else []]
    if isinstance(result, (list, tuple)):
        return [_plain(one) for one in result]
    return result


def _run(one: Case, group: dist.ProcessGroup, rank: int, world: int) -> object:
    try:
        return _plain(one(group, rank, world))
    except Exception as error:  # a collective that gloo lacks: the managed group lacks it in the same way
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def compare(rank: int, world: int, managed: dist.ProcessGroup,
            plain: dist.ProcessGroup) -> tuple[list[str], dict[str, list[str]]]:
    """Names of the cases that gave equal results, and what those gave that did not."""
    same, differing = [], {}
    for name, one in CASES.items():
        ours, theirs = _run(one, managed, rank, world), _run(one, plain, rank, world)
        if ours == theirs:
            same.append(name if not isinstance(theirs, str) else f"{name} ({theirs})")
        else:
            differing[name] = [repr(ours)[:300], repr(theirs)[:300]]
    return same, differing

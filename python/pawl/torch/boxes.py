"""Boxes of a tensor's index space: which one a rank holds of a DTensor, and which boxes a flat interval covers.

Pure, and free of torch: shapes are tuples of ints, row-major. The rules are those of src/tensor/{placement,box};
test/torch/test_layout.py compares them with what PyTorch really cuts.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True, order=True)
class Box:
    """A box of a tensor: where it begins and how large it is, along each dimension. A number has no dimension."""

    begin: Shape
    size: Shape

    @property
    def count(self) -> int:
        """Elements in it."""
        return prod(self.size)


@dataclass(frozen=True)
class Cut:
    """One entry of a DTensor's placements, for the mesh's axis of that place. `dimension` None: replicated."""

    dimension: int | None = None
    split_factor: int = 1  # of torch's _StridedShard: into how many parts later axes have cut the dimension before

    def __str__(self) -> str:
        if self.dimension is None:
            return "Replicate()"
        return f"Shard({self.dimension})" if self.split_factor == 1 else (
            f"_StridedShard({self.dimension}, split_factor={self.split_factor})")


def whole(shape: Shape) -> Box:
    return Box((0,) * len(shape), shape)


def order_of_cuts(mesh: Shape, cuts: Sequence[Cut]) -> list[int] | None:
    """The mesh's axes that cut, in the order in which they do; None: no order fits the split factors.

    From the last axis to the first: each goes before the later axes of its dimension, but for those that its split
    factor says have cut before it.
    """
    order: list[int] = []
    for axis in reversed(range(len(cuts))):
        cut = cuts[axis]
        if cut.dimension is None:
            continue
        at, factor = 0, 1
        while at < len(order) and factor != cut.split_factor:
            if cuts[order[at]].dimension == cut.dimension:
                factor *= mesh[order[at]]
            at += 1
        if factor != cut.split_factor:
            return None
        order.insert(at, axis)
    return order


def box_at(shape: Shape, mesh: Shape, coordinate: Sequence[int], cuts: Sequence[Cut], order: Sequence[int]) -> Box:
    """What the rank at `coordinate` holds: each cut is torch's chunk, ceil(n / parts) but for the last parts."""
    begin, size = [0] * len(shape), list(shape)
    for axis in order:
        dimension = cuts[axis].dimension
        assert dimension is not None
        chunk = -(-size[dimension] // mesh[axis])
        first = min(size[dimension], coordinate[axis] * chunk)
        last = min(size[dimension], first + chunk)
        begin[dimension] += first
        size[dimension] = last - first
    return Box(tuple(begin), tuple(size))


def boxes_of_interval(shape: Shape, begin: int, end: int) -> Iterator[tuple[Box, int]]:
    """The elements `begin` to `end` of a flattened tensor as few boxes, in order, each with its first element."""
    at = begin
    while at < end:
        block, dimension = 1, len(shape)  # the largest dense block that begins here and ends in time
        while dimension > 0 and at % (block * shape[dimension - 1]) == 0 and at + block * shape[dimension - 1] <= end:
            dimension -= 1
            block *= shape[dimension]
        count = block
        place, rest = [0] * len(shape), at
        for d in reversed(range(len(shape))):
            rest, place[d] = divmod(rest, shape[d])
        size = [1] * dimension + list(shape[dimension:])
        if dimension > 0:  # as many of them as there are in a row
            along = min((end - at) // block, shape[dimension - 1] - place[dimension - 1])
            size[dimension - 1] = along
            count = block * along
        yield Box(tuple(place), tuple(size)), at
        at += count


def rows_between(box: Box, first: int, last: int) -> Box | None:
    """The part of a box from row `first` to row `last`, rows along its first dimension that has more than one; None:
    it has none."""
    dimension = next((d for d, extent in enumerate(box.size) if extent > 1), None)
    if dimension is None or first >= last:
        return None
    begin, size = list(box.begin), list(box.size)
    begin[dimension] += first
    size[dimension] = last - first
    return Box(tuple(begin), tuple(size))


def rows_of(box: Box) -> int:
    """How many rows `rows_between` counts; 1 where there are none to part."""
    return next((extent for extent in box.size if extent > 1), 1)

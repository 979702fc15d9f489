"""Boxes: hyper-rectangles of a full tensor, their intersections, and flat ranges cut into them.

A rank's part of a tensor is a list of boxes, laid end to end in memory, each in row-major order. A ZeRO shard
is a flat range over that memory. Everything a checkpoint does (save, load, reshard, export) is intersecting
and copying boxes. Pure arithmetic: no numpy, no torch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod


@dataclass(frozen=True)
class Box:
    """Where a hyper-rectangle starts in the full tensor, and its extent; `()`, `()` is a scalar."""

    offset: tuple[int, ...]
    size: tuple[int, ...]

    @classmethod
    def full(cls, shape: Sequence[int]) -> "Box":
        """The box that is the whole tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def volume(self) -> int:
        """The number of elements."""
        return prod(self.size)

    @property
    def end(self) -> tuple[int, ...]:
        """One past the last index in every dim."""
        return tuple(o + s for o, s in zip(self.offset, self.size, strict=True))

    def intersect(self, other: "Box") -> "Box | None":
        """The common box, or None when it would hold nothing."""
        start = tuple(map(max, self.offset, other.offset))
        size = tuple(b - a for a, b in zip(start, map(min, self.end, other.end), strict=True))
        return Box(start, size) if all(s > 0 for s in size) else None

    def run(self, within: "Box") -> int | None:
        """Where this box starts in the memory of `within`, when it is one unbroken run there, else None.

        >>> Box((2, 0), (3, 4)).run(Box((0, 0), (8, 4))), Box((2, 0), (3, 2)).run(Box((0, 0), (8, 4)))
        (8, None)
        """
        start, step, broken = 0, 1, False
        dims = list(zip(self.offset, self.size, within.offset, within.size, strict=True))
        for offset, size, base, extent in reversed(dims):
            if broken and size > 1:
                return None
            broken = broken or size < extent
            start += (offset - base) * step
            step *= extent
        return start

    def slices(self, within: "Box") -> tuple[slice, ...]:
        """Indexes this box in an array that holds `within`."""
        starts = (o - w for o, w in zip(self.offset, within.offset, strict=True))
        return tuple(slice(a, a + s) for a, s in zip(starts, self.size, strict=True))


def cut(box: Box, start: int, stop: int) -> list[Box]:
    """The elements `start:stop` of a box's row-major order, as at most 2(n-1)+1 boxes in that order.

    >>> [b.size for b in cut(Box.full((4, 3)), 2, 10)]
    [(1, 1), (2, 3), (1, 1)]
    """
    if start >= stop:
        return []
    if (start, stop) == (0, box.volume):
        return [box]
    if len(box.size) == 1:
        return [Box((box.offset[0] + start,), (stop - start,))]
    row = box.volume // box.size[0]
    first, last = -(-start // row), stop // row  # whole rows are first:last
    if first > last:  # within one row
        return _within_row(box, last, start - last * row, stop - last * row)
    whole = Box((box.offset[0] + first, *box.offset[1:]), (last - first, *box.size[1:]))
    head = _within_row(box, first - 1, start - (first - 1) * row, row) if start < first * row else []
    tail = _within_row(box, last, 0, stop - last * row) if stop > last * row else []
    return head + [whole] * (last > first) + tail


def _within_row(box: Box, row: int, start: int, stop: int) -> list[Box]:
    inner = cut(Box(box.offset[1:], box.size[1:]), start, stop)
    return [Box((box.offset[0] + row, *b.offset), (1, *b.size)) for b in inner]


@dataclass(frozen=True)
class Piece:
    """Elements `start:stop` of a box's row-major order, standing at `position` in some flat memory."""

    box: Box
    start: int
    stop: int
    position: int


def pieces(boxes: Sequence[Box], start: int, stop: int) -> Iterator[Piece]:
    """Cuts the flat range `start:stop` over boxes laid end to end; positions count from `start`."""
    began = 0
    for box in boxes:
        a, b = max(start, began), min(stop, began + box.volume)
        if a < b:
            yield Piece(box, a - began, b - began, a - start)
        began += box.volume


@dataclass(frozen=True)
class Placed:
    """A whole box standing at `position` in some flat memory, row-major."""

    box: Box
    position: int


def placed(boxes: Sequence[Box], start: int, stop: int) -> list[Placed]:
    """The flat range `start:stop` over boxes laid end to end, as whole boxes; positions count from it."""
    found = []
    for piece in pieces(boxes, start, stop):
        position = piece.position
        for box in cut(piece.box, piece.start, piece.stop):
            found.append(Placed(box, position))
            position += box.volume
    return found

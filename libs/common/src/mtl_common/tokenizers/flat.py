"""Flat ids: those of many texts end to end, and where each text begins. No token is ever a Python object."""

from collections.abc import Callable, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Flat = tuple[NDArray[np.uint32], NDArray[np.int64]]
Encode = Callable[[Sequence[str]], Flat]


def flatten(lists: Sequence[Sequence[int]]) -> Flat:
    """Lists of ids -> the ids end to end, and where each begins.

    >>> flatten([[5, 6], [], [7]])[1].tolist()
    [0, 2, 2, 3]
    """
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return np.fromiter(chain.from_iterable(lists), np.uint32, int(offsets[-1])), offsets


def same(one: Flat, other: Flat) -> bool:
    """Whether the ids are the same, text by text."""
    return np.array_equal(one[0], other[0]) and np.array_equal(one[1], other[1])


def merged(chosen: NDArray[np.bool_], one: Flat, other: Flat) -> Flat:
    """The ids of all texts in order: the next of `one` where `chosen`, else the next of `other`.

    >>> merged(np.array([True, False, True]), flatten([[1], [3, 4]]), flatten([[2]]))[0].tolist()
    [1, 2, 3, 4]
    """
    lengths = np.empty(len(chosen), np.int64)
    lengths[chosen], lengths[~chosen] = np.diff(one[1]), np.diff(other[1])
    owner = np.repeat(chosen, lengths)
    ids = np.empty(len(owner), np.uint32)
    ids[owner], ids[~owner] = one[0], other[0]
    return ids, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def gathered(
    ids: NDArray[np.uint32], starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.uint32]:
    """The spans `ids[start : start + length]` end to end.

    >>> gathered(np.arange(9, dtype=np.uint32), np.array([7, 0]), np.array([2, 3])).tolist()
    [7, 8, 0, 1, 2]
    """
    ends = np.cumsum(lengths)
    shift = starts - (ends - lengths)
    spans: NDArray[np.uint32] = ids[np.arange(ends[-1] if len(ends) else 0) + np.repeat(shift, lengths)]
    return spans

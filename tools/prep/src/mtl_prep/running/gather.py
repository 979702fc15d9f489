"""Documents from several pieces, in any order, as batches."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch, Sentences

FEED = 1 << 21  # tokens of a batch at most; a longer document is alone and not copied

Integers = NDArray[np.int64]


def _bounds(offsets: Sequence[Integers], piece: Integers, row: Integers) -> tuple[Integers, Integers]:
    """Where each document (n,) begins and ends in its piece, given every piece's offsets."""
    starts, ends = np.empty(len(row), np.int64), np.empty(len(row), np.int64)
    for number in np.unique(piece):
        chosen = piece == number
        starts[chosen] = offsets[number][row[chosen]]
        ends[chosen] = offsets[number][row[chosen] + 1]
    return starts, ends


def _joined(
    values: Sequence[NDArray[Any]], offsets: Sequence[Integers], piece: Integers, row: Integers
) -> tuple[NDArray[Any], Integers]:
    """The values of documents end to end, and where each begins and the last ends."""
    starts, ends = _bounds(offsets, piece, row)
    parts = [
        values[number][start:end]
        for number, start, end in zip(piece.tolist(), starts.tolist(), ends.tolist(), strict=True)
    ]
    return np.concatenate(parts), np.concatenate([[0], np.cumsum(ends - starts)])


def _column(columns: Sequence[NDArray[Any]], piece: Integers, row: Integers) -> NDArray[Any]:
    out = np.empty(len(row), columns[0].dtype)
    for number in np.unique(piece):
        chosen = piece == number
        out[chosen] = columns[number][row[chosen]]
    return out


def _batch(pieces: Sequence[Batch], piece: Integers, row: Integers) -> Batch:
    if len(row) == 1:
        alone: Batch = pieces[int(piece[0])]
        return alone.part(int(row[0]), int(row[0]) + 1)
    token_offsets = [found.offsets for found in pieces]
    ids, offsets = _joined([found.ids for found in pieces], token_offsets, piece, row)
    loss = [found.loss for found in pieces if found.loss is not None]
    sentences = [found.sentences for found in pieces if found.sentences is not None]
    starts = [found.starts for found in sentences]
    return Batch(
        ids=ids,
        offsets=offsets,
        source=_column([found.source for found in pieces], piece, row),
        record=_column([found.record for found in pieces], piece, row),
        loss=_joined(loss, token_offsets, piece, row)[0] if loss else None,
        sentences=Sentences(*_joined(starts, [found.offsets for found in sentences], piece, row))
        if sentences
        else None,
    )


def gather(pieces: Sequence[Batch], piece: Integers, row: Integers) -> Iterator[Batch]:
    """The documents `row` (n,) of the pieces numbered `piece` (n,), in this order.

    All pieces have the same of the optional columns.
    """
    starts, ends = _bounds([found.offsets for found in pieces], piece, row)
    size = np.cumsum(ends - starts)
    first = 0
    while first < len(row):
        before = size[first - 1] if first else 0
        last = max(first + 1, int(np.searchsorted(size, before + FEED, "right")))
        yield _batch(pieces, piece[first:last], row[first:last])
        first = last

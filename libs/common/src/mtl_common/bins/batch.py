"""Documents on their way into and out of shards: ids end to end, and what belongs to each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _bounds(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lengths (n,) -> where each begins and the last ends, (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of some documents begin, in tokens from the beginning of their document."""

    starts: NDArray[np.uint32]  # (sentences,), the first of every document is 0
    offsets: NDArray[np.int64]  # (documents + 1,) into `starts`, the first is 0

    def part(self, first: int, last: int) -> "Sentences":
        """Those of the documents `first:last`."""
        offsets = self.offsets[first : last + 1]
        return Sentences(self.starts[offsets[0] : offsets[-1]], offsets - offsets[0])

    def keep(self, chosen: NDArray[np.bool_]) -> "Sentences":
        """Those of the documents where `chosen` (documents,) is true."""
        counts = np.diff(self.offsets)
        return Sentences(self.starts[np.repeat(chosen, counts)], _bounds(counts[chosen]))


@dataclass(frozen=True)
class Batch:
    """Some documents: ids end to end, where each begins and the last ends, and where each came from.

    `loss` is 1 where a token counts as a label; without it all do. All batches of a shard have the same of
    the two optional columns.
    """

    ids: NDArray[Any]  # (tokens,) uint16 or uint32
    offsets: NDArray[np.int64]  # (documents + 1,), the first is 0
    source: NDArray[np.uint32]  # (documents,)
    record: NDArray[np.uint64]  # (documents,)
    loss: NDArray[np.uint8] | None = None  # (tokens,)
    sentences: Sentences | None = None

    def part(self, first: int, last: int) -> "Batch":
        """The documents `first:last`; no ids are copied."""
        offsets, rows = self.offsets[first : last + 1], slice(first, last)
        tokens = slice(offsets[0], offsets[-1])
        return Batch(
            ids=self.ids[tokens],
            offsets=offsets - offsets[0],
            source=self.source[rows],
            record=self.record[rows],
            loss=None if self.loss is None else self.loss[tokens],
            sentences=None if self.sentences is None else self.sentences.part(first, last),
        )

    def keep(self, chosen: NDArray[np.bool_]) -> "Batch":
        """The documents where `chosen` (documents,) is true."""
        if chosen.all():
            return self
        lengths = np.diff(self.offsets)
        tokens = np.repeat(chosen, lengths)
        return Batch(
            ids=self.ids[tokens],
            offsets=_bounds(lengths[chosen]),
            source=self.source[chosen],
            record=self.record[chosen],
            loss=None if self.loss is None else self.loss[tokens],
            sentences=None if self.sentences is None else self.sentences.keep(chosen),
        )

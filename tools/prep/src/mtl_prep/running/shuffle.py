"""All documents of a corpus in an order that a seed decides, in bounded memory.

A document's key is a hash of the seed and of its place in the corpus: the order depends on nothing else, not
on units, processes or restarts. First as many documents as memory allows are sorted by their keys, a run at a
time; then each range of keys is brought together from all runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch, Shard
from mtl_prep.running.gather import gather
from mtl_prep.running.pieces import Pieces, Span

PIECE_TOKENS = 1 << 24  # of a run, and of a range of keys
MOST_PIECES = 4096  # of either kind; beyond it they grow

GOLDEN = np.uint64(0x9E3779B97F4A7C15)  # the constants of splitmix64
FIRST, SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)

Keys = NDArray[np.uint64]


@dataclass(frozen=True)
class Run:
    """Sorts the documents of some spans by key; `ranges` is how many ranges of keys there will be."""

    number: int
    spans: tuple[Span, ...]
    seed: int
    ranges: int

    @property
    def name(self) -> str:
        """The name of the piece that it makes."""
        return f"run-{self.number:05d}"


@dataclass(frozen=True)
class Range:
    """Brings the documents of one range of keys together from all runs, in the order of keys."""

    number: int
    runs: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the piece that it makes."""
        return f"range-{self.number:05d}"


def _mixed(bits: Keys) -> Keys:
    """splitmix64's mixing of 64 bits, a bijection."""
    bits = (bits ^ (bits >> np.uint64(30))) * FIRST
    bits = (bits ^ (bits >> np.uint64(27))) * SECOND
    return bits ^ (bits >> np.uint64(31))


def keys(seed: int, source: NDArray[np.uint32], record: NDArray[np.uint64]) -> Keys:
    """The (n,) keys of documents from their places."""
    state = np.full(len(record), seed, np.uint64)
    for part in (source.astype(np.uint64), record):
        state = _mixed(_mixed(state + GOLDEN) ^ part)
    return state


def piece_tokens(total: int, least: int) -> int:
    """How many tokens a run and a range of keys should hold."""
    return max(least, -(-total // MOST_PIECES))


def _in_order(seed: int, found: Sequence[Batch]) -> tuple[Iterator[Batch], Keys]:
    """The documents of some batches in the order of their keys, equal keys by place, and those keys."""
    source = np.concatenate([batch.source for batch in found])
    record = np.concatenate([batch.record for batch in found])
    unordered = keys(seed, source, record)
    order = np.lexsort((record, source, unordered))
    counts = [len(batch.record) for batch in found]
    piece = np.repeat(np.arange(len(found)), counts)
    row = np.concatenate([np.arange(count) for count in counts])
    return gather(found, piece[order], row[order]), unordered[order]


def _borders(ranges: int) -> Keys:
    """(ranges - 1,) the first key of every range but the first."""
    return np.array([-(-(number << 64) // ranges) for number in range(1, ranges)], np.uint64)


def sort(task: Run, pieces: Pieces) -> Shard:
    """Makes a run; notes at which document each range of keys begins and the last one ends."""
    batches, ordered = _in_order(task.seed, [pieces.batch(span) for span in task.spans])
    cuts = [0, *np.searchsorted(ordered, _borders(task.ranges)).tolist(), len(ordered)]
    return pieces.write(task.name, batches, {"cuts": cuts})


def _slices(task: Range, pieces: Pieces) -> Iterator[Span]:
    """The documents of the range in every run that has some."""
    for number in range(task.runs):
        name = Run(number, (), task.seed, 0).name
        first, last = pieces.note(name)["cuts"][task.number : task.number + 2]
        if last > first:
            yield Span(name, first, last, 0)


def merge(task: Range, pieces: Pieces) -> Shard:
    """Makes the piece of one range of keys."""
    found = [pieces.batch(span) for span in _slices(task, pieces)]
    return pieces.write(task.name, _in_order(task.seed, found)[0] if found else (), {})

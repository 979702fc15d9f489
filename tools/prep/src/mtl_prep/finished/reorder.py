"""All documents of several bins in the order of a seed: the order of one run over their corpora by that seed.

Documents are put into ranges of keys on the disk, sixteen bytes each, then sorted a range at a time and read
where they lie, so memory does not follow their number.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch, Bins, Sizes
from mtl_prep.running.gather import gather
from mtl_prep.running.shuffle import keys

RANGE_TOKENS = 1 << 24
MOST_RANGES = 4096  # beyond it they grow
KEYS = 1 << 18  # documents whose keys are made together

Keys = NDArray[np.uint64]
Integers = NDArray[np.int64]


def _bits(tokens: int, of_a_range: int) -> int:
    """The first bits of a key that say in which range it is."""
    return min(-(-tokens // of_a_range), MOST_RANGES).bit_length() - 1


def _range_of(found: Keys, bits: int) -> Integers:
    """(n,) the range of each key, of 2 to the `bits` that share them evenly."""
    return (found >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(found), np.int64)


class _Ranges:
    """Documents by range of their keys, in nameless files."""

    def __init__(self, counts: Integers, directory: Path, stack: ExitStack) -> None:
        self._bounds = np.concatenate([[0], np.cumsum(counts)])
        self._next = self._bounds[:-1].copy()
        self._bits = len(counts).bit_length() - 1
        self._keys = self._column(np.uint64, directory, stack)
        self._documents = self._column(np.int64, directory, stack)

    def _column(self, dtype: Any, directory: Path, stack: ExitStack) -> NDArray[Any]:
        file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115, closed by the stack
        stack.enter_context(file)
        return np.memmap(file, dtype, "w+", shape=(int(self._bounds[-1]),))

    def add(self, found: Keys, first: int) -> None:
        """The next documents (n,), `first` being the number of the first."""
        ranges = _range_of(found, self._bits)
        order = np.argsort(ranges, kind="stable")
        counts = np.bincount(ranges, minlength=len(self._next))
        before = np.cumsum(counts) - counts  # in this call, of each range
        ranges = ranges[order]
        places = self._next[ranges] + np.arange(len(order)) - before[ranges]
        self._keys[places], self._documents[places] = found[order], first + order
        self._next += counts

    def __iter__(self) -> Iterator[tuple[Keys, Integers]]:
        """Keys and numbers of the documents of every range, (n,) each."""
        for number in range(len(self._next)):
            part = slice(self._bounds[number], self._bounds[number + 1])
            yield np.array(self._keys[part]), np.array(self._documents[part])


class Reordered:
    """All documents of `inputs` in the order of a seed; its files in `directory` have no names."""

    def __init__(
        self, inputs: Sequence[Bins], seed: int, directory: Path, range_tokens: int = RANGE_TOKENS
    ) -> None:
        views = [[bins.shard(i) for i in range(len(bins.manifest.shards))] for bins in inputs]
        before = [0, *accumulate(len(bins.manifest.sources) for bins in inputs)]
        self._shards = [view.whole for of_one in views for view in of_one]
        self._shift = np.repeat(before[:-1], [len(of_one) for of_one in views]).astype(np.uint32)
        self._first = np.array([0, *accumulate(len(shard.record) for shard in self._shards)])
        self._stack = ExitStack()
        self._ranges = self._sorted(seed, _bits(sum(bins.tokens for bins in inputs), range_tokens), directory)

    def _keys(self, seed: int) -> Iterator[Keys]:
        for shard, shift in zip(self._shards, self._shift, strict=True):
            for first in range(0, len(shard.record), KEYS):
                rows = slice(first, first + KEYS)
                yield keys(seed, shard.source[rows] + shift, shard.record[rows])

    def _sorted(self, seed: int, bits: int, directory: Path) -> _Ranges:
        counts, first = np.zeros(1 << bits, np.int64), 0
        for found in self._keys(seed):
            counts += np.bincount(_range_of(found, bits), minlength=1 << bits)
        ranges = _Ranges(counts, directory, self._stack)
        for found in self._keys(seed):
            ranges.add(found, first)
            first += len(found)
        return ranges

    def _picked(self, column: str, shard: Integers, row: Integers) -> NDArray[Any]:
        """A column's values at these rows of these shards, (n,) each."""
        get = attrgetter(column)
        out = np.empty(len(row), get(self._shards[0]).dtype)
        for number in np.unique(shard):
            chosen = shard == number
            out[chosen] = get(self._shards[number])[row[chosen]]
        return out

    def _places(self) -> Iterator[tuple[Integers, Integers]]:
        """Shard and row of the documents, some (n,) at a time, in the order of their keys."""
        for found, documents in self._ranges:
            shard = np.searchsorted(self._first, documents, "right") - 1
            row = documents - self._first[shard]
            source, record = (self._picked(column, shard, row) for column in ("source", "record"))
            order = np.lexsort((record, source + self._shift[shard], found))
            yield shard[order], row[order]

    def _lengths(self, offsets: str, shard: Integers, row: Integers) -> Integers:
        return np.asarray(self._picked(offsets, shard, row + 1) - self._picked(offsets, shard, row))

    def sizes(self, limit: int) -> Sizes:
        """How large shards of at most `limit` tokens will be; reads no ids."""
        sizes, some = Sizes(limit), self._shards[0]
        for shard, row in self._places():
            lengths = self._lengths("offsets", shard, row)
            inner = None if some.sentences is None else self._lengths("sentences.offsets", shard, row)
            sizes.add(lengths, inner, some.loss is not None)
        return sizes

    def batches(self) -> Iterator[Batch]:
        """The documents, their sources numbered through."""
        for shard, row in self._places():
            first = 0
            for batch in gather(self._shards, shard, row):
                last = first + len(batch.record)
                yield replace(batch, source=batch.source + self._shift[shard[first:last]])
                first = last

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

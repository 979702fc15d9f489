"""A random choice of documents: as bins, or as text for people to read.

A document is in when its number is small enough, so the same seed gives the same documents, and a smaller
sample is part of a larger one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Batch, Bins, Manifest, staged
from mtl_common.errors import UsageError
from mtl_common.tokenizers import Tokenizer
from mtl_prep.finished.divide import divide
from mtl_prep.finished.draw import Draw
from mtl_prep.finished.reading import batches, opened, tokenizer_of

WAITING = 1 << 16  # documents that wait to be compared


@dataclass(frozen=True)
class Size:
    """How much to choose: a number of documents, or whole documents up to a number of tokens."""

    documents: int = 0
    tokens: int | None = None

    @property
    def limit(self) -> int:
        """The number asked for."""
        return self.documents if self.tokens is None else self.tokens

    def __str__(self) -> str:
        return f"{self.documents:,} documents" if self.tokens is None else f"{self.tokens:,} tokens"


@dataclass(frozen=True)
class Run:
    """Neighbouring tokens that all count as labels or all do not, special ones by their names."""

    text: str
    counts: bool


@dataclass(frozen=True)
class Document:
    """One document, as text and by its place; `text` may be its beginning.

    `runs` tell which of it counts as labels, special tokens included; there are none where everything counts.
    """

    number: int
    source: str
    record: int
    tokens: int
    text: str
    runs: tuple[Run, ...] = ()


class _Smallest:
    """The documents with the smallest numbers whose weights fit a limit, and one more; no others are kept."""

    def __init__(self, limit: int) -> None:
        self._limit, self.fitting = limit, 0
        self.numbers, self._weights = np.empty(0, np.uint64), np.empty(0, np.int64)
        self._waiting: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []
        self._count, self._cutoff = 0, np.uint64(2**64 - 1)

    def add(self, numbers: NDArray[np.uint64], weights: NDArray[np.int64]) -> None:
        """Takes documents in."""
        near = numbers <= self._cutoff
        self._waiting.append((numbers[near], weights[near]))
        self._count += int(near.sum())
        if self._count > len(self.numbers) + WAITING:
            self.settle()

    def settle(self) -> None:
        """Keeps the smallest. The first that does not fit stays, to rule out all that come after it."""
        numbers, weights = zip((self.numbers, self._weights), *self._waiting, strict=True)
        order = np.argsort(np.concatenate(numbers))
        total = np.cumsum(np.concatenate(weights)[order])
        self.fitting = int(np.searchsorted(total, self._limit, "right"))
        kept = order[: self.fitting + 1]
        self.numbers, self._weights = np.concatenate(numbers)[kept], np.concatenate(weights)[kept]
        if len(kept) > self.fitting:
            self._cutoff = self.numbers[-1]
        self._waiting, self._count = [], 0


class _Choice:
    """Which documents of a batch are in."""

    def __init__(self, bins: Bins, size: Size, seed: int) -> None:
        self._draw = Draw(bins, seed)
        smallest = _Smallest(size.limit)
        for _, batch in batches(bins):
            lengths = np.diff(batch.offsets)
            smallest.add(self._draw(batch), np.ones_like(lengths) if size.tokens is None else lengths)
        smallest.settle()
        if not smallest.fitting:
            raise UsageError(f"{size} are too few for any document; ask for more")
        self._largest = smallest.numbers[smallest.fitting - 1]

    def __call__(self, batch: Batch) -> NDArray[np.bool_]:
        return np.asarray(self._draw(batch) <= self._largest)


def sample(path: Path, size: Size, seed: int, out: Path) -> Manifest:
    """Makes bins of a random choice; raises UsageError when `out` exists or no document is that short."""
    bins = opened(path)
    choice = _Choice(bins, size, seed)
    note = {"sample": f"{size} by seed {seed}"}
    with staged(out) as place:
        (manifest,) = divide(bins, [place], [note], lambda batch, _: choice(batch).astype(np.int64) - 1)
    return manifest


def _runs(tokenizer: Tokenizer, ids: NDArray[Any], loss: NDArray[np.uint8]) -> Iterator[Run]:
    edges = np.flatnonzero(np.diff(loss)) + 1
    for run, counts in zip(np.split(ids, edges), np.split(loss, edges), strict=True):
        pieces = (tokenizer.piece(id, special=True) for id in run.tolist())
        yield Run(b"".join(pieces).decode("utf-8", "replace"), bool(counts[0]))


def documents(bins: Bins, size: Size, seed: int, begins: int | None = None) -> Iterator[Document]:
    """A random choice as text, in the order of the bins; of each all, or the first `begins` tokens."""
    choice, tokenizer, sources = _Choice(bins, size, seed), tokenizer_of(bins), bins.manifest.sources
    for first, batch in batches(bins):
        for row in np.flatnonzero(choice(batch)).tolist():
            start, stop = batch.offsets[row : row + 2].tolist()
            shown = slice(start, stop if begins is None else min(stop, start + begins))
            yield Document(
                number=first + row,
                source=sources[batch.source[row]].path,
                record=int(batch.record[row]),
                tokens=stop - start,
                text=tokenizer.decode(batch.ids[shown].tolist()),
                runs=()
                if batch.loss is None
                else tuple(_runs(tokenizer, batch.ids[shown], batch.loss[shown])),
            )

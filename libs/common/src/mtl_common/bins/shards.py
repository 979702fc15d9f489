"""Cuts a stream of documents into the shards of a directory, by token counts alone."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins.arrow import Size
from mtl_common.bins.batch import Batch
from mtl_common.bins.manifest import Shard
from mtl_common.bins.writer import ShardWriter


class _Cuts:
    """Where shards of at most `limit` tokens end in a stream of documents; a longer one stands alone."""

    def __init__(self, limit: int) -> None:
        self._limit, self._held, self._is_empty = limit, 0, True

    def parts(self, offsets: NDArray[np.int64]) -> Iterator[tuple[int, int, bool]]:
        """The next documents, by their (documents + 1,) offsets: which a shard takes, and whether it ends."""
        first, count = 0, len(offsets) - 1
        while first < count:
            room = self._limit - self._held
            fitting = int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            last = max(fitting, first + 1 if self._is_empty else first)
            ends = last < count
            yield first, last, ends
            self._held = 0 if ends else self._held + int(offsets[last] - offsets[first])
            self._is_empty, first = ends, last


class Sizes:
    """How much each shard will hold, of documents whose lengths are known before they are written."""

    def __init__(self, limit: int) -> None:
        self._cuts = _Cuts(limit)
        self._shards: list[Size] = []
        self._is_open = False

    def add(
        self, lengths: NDArray[np.int64], sentences: NDArray[np.int64] | None = None, has_loss: bool = False
    ) -> None:
        """The next documents (n,): their tokens, and their sentences where they are kept."""
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        for first, last, ends in self._cuts.parts(offsets):
            if not self._is_open:
                self._shards.append(Size(0, 0, has_loss, None if sentences is None else 0))
            old = self._shards[-1]
            self._shards[-1] = replace(
                old,
                documents=old.documents + last - first,
                tokens=old.tokens + int(offsets[last] - offsets[first]),
                sentences=None
                if sentences is None
                else (old.sentences or 0) + int(sentences[first:last].sum()),
            )
            self._is_open = not ends

    def add_batch(self, batch: Batch) -> None:
        """The next documents; none of their ids are read."""
        sentences = None if batch.sentences is None else np.diff(batch.sentences.offsets)
        self.add(np.diff(batch.offsets), sentences, batch.loss is not None)

    @property
    def shards(self) -> tuple[Size, ...]:
        """The size of every shard."""
        return tuple(self._shards)


class Shards:
    """Shards of at most `limit` tokens, filled one after the other; a longer document stands alone.

    The same documents give the same files, however they are batched. Where the `sizes` of all are known,
    every byte is written once.
    """

    def __init__(
        self,
        directory: Path,
        dtype: str,
        about: Mapping[str, str],
        limit: int,
        sizes: Sequence[Size] | None = None,
    ) -> None:
        self._directory, self._dtype, self._about, self._sizes = directory, dtype, about, sizes
        self._cuts = _Cuts(limit)
        self._done: list[Shard] = []
        self._open: ShardWriter | None = None
        self._stack = ExitStack()

    def append(self, batch: Batch) -> None:
        """Adds documents; raises TypeError for ids of another type, or other columns than before."""
        for first, last, ends in self._cuts.parts(batch.offsets):
            if last > first:
                self._writer().append(batch.part(first, last))
            if ends:
                self._close()

    def finish(self) -> tuple[Shard, ...]:
        """Writes what is left; gives what the manifest says of all shards."""
        self._close()
        return tuple(self._done)

    def _writer(self) -> ShardWriter:
        if self._open is None:
            number = len(self._done)
            path = self._directory / f"shard-{number:05d}.arrow"
            size = None if self._sizes is None else self._sizes[number]
            self._open = self._stack.enter_context(ShardWriter(path, self._dtype, self._about, size))
        return self._open

    def _close(self) -> None:
        if self._open:
            self._done.append(self._open.finish())
            self._open = None
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

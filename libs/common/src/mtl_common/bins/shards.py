"""Cuts a stream of documents into the shards of a directory, by token counts alone."""

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from mtl_common.bins.columns import Batch
from mtl_common.bins.manifest import Shard
from mtl_common.bins.writer import ShardWriter


class Shards:
    """Shards of at most `limit` tokens, filled one after the other; a longer document stands alone.

    The same documents give the same files, however they are batched.
    """

    def __init__(self, directory: Path, dtype: str, about: Mapping[str, str], limit: int) -> None:
        self._directory, self._dtype, self._about, self._limit = directory, dtype, about, limit
        self._done: list[Shard] = []
        self._open: ShardWriter | None = None
        self._stack = ExitStack()

    def append(self, batch: Batch) -> None:
        """Adds documents; raises TypeError for ids of another type, or other columns than before."""
        first, count = 0, len(batch.record)
        while first < count:
            room = self._limit - (self._open.tokens if self._open else 0)
            fitting = int(np.searchsorted(batch.offsets, batch.offsets[first] + room, "right")) - 1
            last = max(fitting, first if self._open else first + 1)
            if last > first:
                self._writer().append(batch.part(first, last))
            if last < count:
                self._close()
            first = last

    def finish(self) -> tuple[Shard, ...]:
        """Writes what is left; gives what the manifest says of all shards."""
        self._close()
        return tuple(self._done)

    def _writer(self) -> ShardWriter:
        if self._open is None:
            path = self._directory / f"shard-{len(self._done):05d}.arrow"
            self._open = self._stack.enter_context(ShardWriter(path, self._dtype, self._about))
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

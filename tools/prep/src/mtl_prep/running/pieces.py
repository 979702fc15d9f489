"""The files of finished pieces of work: where they lie, and how their documents are read back."""

import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.bins import Batch, Shard, ShardView, write_shard
from mtl_prep.journal import Journal

WORK = "_work"
DIRECTORIES = 256  # that pieces are spread over: file systems are slow with very many files in one


@dataclass(frozen=True)
class Span:
    """Documents `first:last` of a piece, whose lines begin at line `line` of their file."""

    piece: str
    first: int
    last: int
    line: int


class Pieces:
    """The pieces of one run below `out`, as the journal knows them; ids are of type `dtype`."""

    def __init__(self, out: Path, dtype: str, journal: Journal) -> None:
        self._directory, self._dtype, self._journal = out / WORK, dtype, journal

    def path(self, name: str) -> Path:
        """Where the file of a piece lies."""
        return self._directory / self._place(name)

    @staticmethod
    def _place(name: str) -> str:
        return f"{zlib.crc32(name.encode()) % DIRECTORIES:02x}/{name}.arrow"

    def is_there(self, name: str) -> bool:
        """Whether a noted piece has its file, and all of it; a loss of power can cut one."""
        try:
            found = os.stat(f"{self._directory}/{self._place(name)}")  # a Path costs more than the look
            return bool(found.st_size == self._journal.read(name)["shard"]["size"])
        except FileNotFoundError:
            return False

    def note(self, name: str) -> dict[str, Any]:
        """What the journal says of a piece."""
        return self._journal.read(name)

    def write(self, name: str, batches: Iterable[Batch], more: Mapping[str, Any]) -> Shard:
        """Writes a piece, then notes it, with `more` to remember."""
        path = self.path(name)
        path.parent.mkdir(exist_ok=True)
        shard = write_shard(path, self._dtype, batches)
        self._journal.write(name, {"shard": shard.model_dump(), **more})
        return shard

    def view(self, name: str) -> ShardView:
        """The columns of a piece."""
        shard = Shard.model_validate(self._journal.read(name)["shard"])
        return ShardView(self.path(name), shard, self._dtype, shuffled=False)

    def batch(self, span: Span) -> Batch:
        """The documents of a span, their records numbered by the line of the whole file."""
        batch = self.view(span.piece).batch(span.first, span.last)
        return replace(batch, record=batch.record + np.uint64(span.line))

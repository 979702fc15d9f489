"""Writes one shard file: the columns as Arrow IPC, under its name only when it is complete on the disk."""

import io
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import xxhash

from mtl_common.bins.columns import Batch, Columns
from mtl_common.bins.manifest import Shard

OFFSETS = {"tokens": "offsets", "sentences": "sentence_offsets"}  # those of `loss` are those of `tokens`


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is written, from its first byte to its last."""

    def __init__(self, file: BinaryIO) -> None:
        self.hash, self._file = xxhash.xxh3_128(), file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self._file.write(data)


def _write_arrow(path: Path, batch: Any) -> str:
    """Writes a file that is on the disk when this returns; gives its hash."""
    import pyarrow as pa

    with path.open("wb") as file:
        hashed = _Hashed(file)
        with pa.ipc.new_file(hashed, batch.schema) as writer:
            writer.write_batch(batch)
        file.flush()
        os.fsync(file.fileno())
    return hashed.hash.hexdigest()


def positions(path: Path) -> dict[str, int]:
    """Where the buffers of a shard lie in its file."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as source:
        start = source.read_buffer().address
        batch = pa.ipc.open_file(source).get_batch(0)
        buffers = {}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            # the last buffer of an array holds its values, the second one of a list where each row begins
            buffers[name] = column.buffers()[-1]
            if name in OFFSETS:
                buffers[OFFSETS[name]] = column.buffers()[1]
        return {f"{name}_at": buffer.address - start if buffer else 0 for name, buffer in buffers.items()}


class ShardWriter:
    """Writes one shard file: complete on the disk under its name after `finish`, and not there before.

    `about` is kept in the schema's metadata. The same documents give the same bytes, however batched.
    """

    def __init__(self, path: Path, dtype: str, about: Mapping[str, str] | None = None) -> None:
        self._path, self._about = path, about or {}
        self._columns = Columns(path.parent, dtype)

    @property
    def tokens(self) -> int:
        """How many tokens it holds so far."""
        return self._columns.count

    def append(self, batch: Batch) -> None:
        """Adds documents; raises TypeError for ids of another type."""
        self._columns.append(batch)

    def finish(self) -> Shard:
        """Writes the file; gives what the manifest says of it."""
        staged = self._path.with_name(f".{self._path.name}.{os.getpid()}.tmp")
        try:
            digest = _write_arrow(staged, self._columns.record_batch(self._about))
            facts = self._columns.sums() | self._columns.hashes() | positions(staged)
            size = staged.stat().st_size
            os.replace(staged, self._path)
        finally:
            staged.unlink(missing_ok=True)
        return Shard.model_validate({"file": self._path.name, "size": size, "xxh3": digest} | facts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._columns.close()


def write_shard(
    path: Path, dtype: str, batches: Iterable[Batch], about: Mapping[str, str] | None = None
) -> Shard:
    """Writes documents as one shard file; see ShardWriter."""
    with ShardWriter(path, dtype, about) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.finish()

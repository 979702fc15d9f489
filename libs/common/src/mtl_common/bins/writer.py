"""Writes one shard file from batches of documents, in little memory whatever its size."""

import io
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_common.bins.manifest import Shard


@dataclass(frozen=True)
class Batch:
    """Some documents: ids end to end, where each begins and the last ends, and where each came from."""

    ids: NDArray[Any]  # (tokens,) uint16 or uint32
    offsets: NDArray[np.int64]  # (documents + 1,), the first is 0
    source: NDArray[np.uint32]  # (documents,)
    record: NDArray[np.uint64]  # (documents,)


class _Column:
    """A growing buffer in a nameless file, hashed as it grows: a kill leaves nothing behind."""

    def __init__(self, directory: Path, dtype: str) -> None:
        self.dtype, self.size, self.hash = np.dtype(dtype), 0, xxhash.xxh3_128()
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115, closed by close()

    def append(self, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values, self.dtype).view(np.uint8).data
        self._file.write(data)
        self.hash.update(data)
        self.size += data.nbytes

    def buffer(self) -> Any:
        import pyarrow as pa

        self._file.flush()
        if not self.size:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))

    def close(self) -> None:
        self._file.close()


class _Columns:
    """The four columns of a shard, and its sums."""

    def __init__(self, directory: Path, dtype: str) -> None:
        self.tokens, self.offsets = _Column(directory, dtype), _Column(directory, "int64")
        self.source, self.record = _Column(directory, "uint32"), _Column(directory, "uint64")
        self.documents = self.count = self.largest = 0
        self.offsets.append(np.zeros(1, np.int64))

    def append(self, batch: Batch) -> None:
        if batch.ids.dtype != self.tokens.dtype:
            raise TypeError(f"ids of type {batch.ids.dtype} for a shard of {self.tokens.dtype}")
        self.tokens.append(batch.ids)
        self.offsets.append(batch.offsets[1:] + self.count)
        self.source.append(batch.source)
        self.record.append(batch.record)
        self.count += len(batch.ids)
        self.documents += len(batch.record)
        self.largest = max(self.largest, int(batch.ids.max(initial=0)))

    def sums(self) -> dict[str, Any]:
        return {"documents": self.documents, "tokens": self.count, "largest_id": self.largest}

    def hashes(self) -> dict[str, Any]:
        return {"xxh3_tokens": self.tokens.hash.hexdigest(), "xxh3_offsets": self.offsets.hash.hexdigest()}

    def close(self) -> None:
        for column in (self.tokens, self.offsets, self.source, self.record):
            column.close()


def _record_batch(columns: _Columns, about: Mapping[str, str]) -> Any:
    """The columns as one Arrow record batch, without a copy."""
    import pyarrow as pa

    item = pa.from_numpy_dtype(columns.tokens.dtype)
    kinds = {
        "tokens": pa.large_list(pa.field("item", item, nullable=False)),
        "source": pa.uint32(),
        "record": pa.uint64(),
    }
    facts = {"mtl.documents": str(columns.documents), "mtl.tokens": str(columns.count), **about}
    facts |= {f"mtl.{name}": digest for name, digest in columns.hashes().items()}
    schema = pa.schema([pa.field(n, k, nullable=False) for n, k in kinds.items()], metadata=facts)
    values = pa.Array.from_buffers(item, columns.count, [None, columns.tokens.buffer()])
    lists = pa.Array.from_buffers(
        kinds["tokens"], columns.documents, [None, columns.offsets.buffer()], children=[values]
    )
    numbers = [
        pa.Array.from_buffers(kinds[name], columns.documents, [None, column.buffer()])
        for name, column in [("source", columns.source), ("record", columns.record)]
    ]
    return pa.RecordBatch.from_arrays([lists, *numbers], schema=schema)


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
        tokens, numbers = batch["tokens"], {name: batch[name].buffers()[1] for name in ("source", "record")}
        # a list array holds [validity, offsets, validity of the values, values]
        buffers = {"tokens": tokens.buffers()[3], "offsets": tokens.buffers()[1], **numbers}
        return {f"{name}_at": buffer.address - start if buffer else 0 for name, buffer in buffers.items()}


class ShardWriter:
    """Writes one shard file: complete on the disk under its name after `finish`, and not there before.

    `about` is kept in the schema's metadata. The same documents give the same bytes, however batched.
    """

    def __init__(self, path: Path, dtype: str, about: Mapping[str, str] | None = None) -> None:
        self._path, self._about = path, about or {}
        self._columns = _Columns(path.parent, dtype)

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
            digest = _write_arrow(staged, _record_batch(self._columns, self._about))
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

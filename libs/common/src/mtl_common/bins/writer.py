"""Writes one shard file: the columns as Arrow IPC, under its name only when it is complete on the disk."""

import io
import mmap
import os
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Protocol, Self

import xxhash

from mtl_common.bins.arrow import (
    NO_HASH,
    UNHASHED,
    Size,
    facts,
    frame,
    positions,
    record_batch,
    write_batch,
)
from mtl_common.bins.batch import Batch
from mtl_common.bins.columns import Column, Columns
from mtl_common.bins.manifest import Shard

READ = 1 << 22  # bytes hashed together


class _Hashed(io.RawIOBase):
    """A file that is hashed as it is written, from its first byte to its last."""

    def __init__(self, file: BinaryIO) -> None:
        self.hash, self._file = xxhash.xxh3_128(), file

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.hash.update(data)
        return self._file.write(data)


class _Plan(Protocol):
    """How columns become a file."""

    def column(self, name: str, dtype: str) -> Column:
        """A new column."""

    def write(self, columns: Columns, about: Mapping[str, str]) -> str:
        """Makes the file of them; gives its hash."""


class _Loose:
    """Columns of unknown length: each grows in a nameless file, so that a kill leaves nothing behind."""

    def __init__(self, path: Path, dtype: str, stack: ExitStack) -> None:
        self._path, self._dtype, self._stack = path, dtype, stack
        self._files: dict[str, BinaryIO] = {}

    def column(self, name: str, dtype: str) -> Column:
        file = tempfile.TemporaryFile(dir=self._path.parent, buffering=0)  # noqa: SIM115, closed by the stack
        self._files[name] = self._stack.enter_context(file)
        return Column(file.fileno(), dtype)

    def write(self, columns: Columns, about: Mapping[str, str]) -> str:
        buffers = {name: self._buffer(file) for name, file in self._files.items()}
        batch = record_batch(columns.size, self._dtype, buffers, facts(columns.size, about, columns.hashes()))
        with self._path.open("wb") as file:
            hashed = _Hashed(file)
            write_batch(hashed, batch)
            file.flush()
            os.fsync(file.fileno())
        return hashed.hash.hexdigest()

    @staticmethod
    def _buffer(file: BinaryIO) -> Any:
        import pyarrow as pa

        if not os.fstat(file.fileno()).st_size:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))


class _Placed:
    """Columns of known length: each is written once, where it stands in the file."""

    def __init__(
        self, path: Path, dtype: str, about: Mapping[str, str], size: Size, stack: ExitStack
    ) -> None:
        self._path, self._dtype, self._size = path, dtype, size
        hashes = {name: NO_HASH for name in size.counts() if name not in UNHASHED}
        self._frame = frame(size, dtype, facts(size, about, hashes))
        self._file = stack.enter_context(path.open("wb+", buffering=0))

    def column(self, name: str, dtype: str) -> Column:
        return Column(self._file.fileno(), dtype, self._frame.places.get(name, ()))

    def write(self, columns: Columns, about: Mapping[str, str]) -> str:
        if columns.size != self._size:
            raise ValueError(f"{self._path.name} was to hold {self._size}, not {columns.size}")
        for at, data in frame(self._size, self._dtype, facts(self._size, about, columns.hashes())).parts:
            os.pwrite(self._file.fileno(), data, at)
        os.fsync(self._file.fileno())
        return self._hash()

    def _hash(self) -> str:
        digest = xxhash.xxh3_128()
        self._file.seek(0)
        while data := self._file.read(READ):
            digest.update(data)
        return digest.hexdigest()


class ShardWriter:
    """Writes one shard file: complete on the disk under its name after `finish`, and not there before.

    `about` is kept in the schema's metadata. The same documents give the same bytes, however batched, and
    whether or not their `size` is told beforehand; told, every byte is written once instead of twice.
    """

    def __init__(
        self, path: Path, dtype: str, about: Mapping[str, str] | None = None, size: Size | None = None
    ) -> None:
        self._path, self._about = path, about or {}
        self._staged = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        self._stack = ExitStack()
        self._stack.callback(self._staged.unlink, missing_ok=True)
        self._plan: _Plan = (
            _Loose(self._staged, dtype, self._stack)
            if size is None
            else _Placed(self._staged, dtype, self._about, size, self._stack)
        )
        self._columns = Columns(dtype, self._plan.column)

    @property
    def tokens(self) -> int:
        """How many tokens it holds so far."""
        return self._columns.count

    def append(self, batch: Batch) -> None:
        """Adds documents; raises TypeError for ids of another type."""
        self._columns.append(batch)

    def finish(self) -> Shard:
        """Writes the file; gives what the manifest says of it.

        Raises ValueError when it holds another amount than was told.
        """
        digest = self._plan.write(self._columns, self._about)
        hashes = {f"xxh3_{name}": found for name, found in self._columns.hashes().items()}
        found = self._columns.sums() | hashes | positions(self._staged)
        size = self._staged.stat().st_size
        os.replace(self._staged, self._path)
        return Shard.model_validate({"file": self._path.name, "size": size, "xxh3": digest} | found)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()


def write_shard(
    path: Path,
    dtype: str,
    batches: Iterable[Batch],
    about: Mapping[str, str] | None = None,
    size: Size | None = None,
) -> Shard:
    """Writes documents as one shard file; see ShardWriter."""
    with ShardWriter(path, dtype, about, size) as writer:
        for batch in batches:
            writer.append(batch)
        return writer.finish()

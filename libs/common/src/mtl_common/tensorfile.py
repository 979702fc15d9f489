"""Files in the safetensors layout: a fast sequential writer, and reads of byte ranges.

The layout (https://github.com/huggingface/safetensors): 8 bytes of header length, little-endian; a JSON
header padded with spaces; the tensors' bytes, row-major, without holes. The header's room is reserved at the
start and filled in when the file is finished, so that tensors stream through one small buffer. Large writes
bypass the page cache where the file system allows it: they are several times faster than `write()` followed
by `fsync()`, and leave the memory to others. Bytes only: no numpy, no torch, and never a pickle.
"""

import errno
import json
import mmap
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import xxhash
from typing_extensions import Buffer

from mtl_common.errors import CheckpointError

BLOCK = 1 << 20  # bytes that share one hash
HEADER = 1 << 16  # bytes reserved for a header whose entries are not known beforehand
_ALIGNED = 4096  # what direct writes must be a multiple of
_BUFFER = 8 << 20
_LARGEST_HEADER = 100_000_000  # the safetensors library refuses more

_CODES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}
_NAMES = {code: name for name, code in _CODES.items()}
ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8}


@dataclass(frozen=True)
class Entry:
    """A tensor in a file: `dtype` is one of ITEM_BYTES, or the file's own code for any other; bytes
    `start:stop` of the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int


def digest(data: Buffer) -> str:
    """The xxh3-128 of some bytes, in hexadecimal."""
    return xxhash.xxh3_128_hexdigest(memoryview(data))


def file_digest(path: Path) -> str:
    """The xxh3-128 of a whole file."""
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while data := file.read(BLOCK):
            state.update(data)
    return state.hexdigest()


def flush_directory(path: Path) -> None:
    """Makes the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, data: Buffer) -> None:
    """Writes a small file and waits until it is on the disk."""
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def header_bytes(entries: Mapping[str, Entry], origin: int, room: int | None = None) -> bytes:
    """The header of a file whose tensors' bytes start at `origin`, padded with spaces to `room` bytes.

    Without a room it takes what it needs, rounded up so that the tensors start at a multiple of 4096.
    """
    table = {
        name: {
            "dtype": _CODES.get(entry.dtype, entry.dtype),
            "shape": entry.shape,
            "data_offsets": [entry.start - origin, entry.stop - origin],
        }
        for name, entry in entries.items()
    }
    text = json.dumps({"__metadata__": {"format": "pt"}, **table}, separators=(",", ":")).encode()
    room = room or -(-(len(text) + 8) // _ALIGNED) * _ALIGNED
    assert len(text) + 8 <= room, (len(text), room)
    return (room - 8).to_bytes(8, "little") + text.ljust(room - 8)


def _create(path: Path) -> tuple[int, bool]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    direct = getattr(os, "O_DIRECT", 0)
    if direct:
        with suppress(OSError):
            return os.open(path, flags | direct, 0o644), True
    return os.open(path, flags, 0o644), False


def _write_at(descriptor: int, data: memoryview, position: int) -> None:
    while len(data):
        written = os.pwrite(descriptor, data, position)
        data, position = data[written:], position + written


class _Output:
    """A file written directly where the file system allows it, else through the page cache."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file, self._direct = _create(path)

    def write(self, buffer: memoryview, filled: int, position: int) -> None:
        """Writes the first `filled` bytes of an aligned buffer; direct writes fill up the last page."""
        length = -(-filled // _ALIGNED) * _ALIGNED if self._direct else filled
        try:
            _write_at(self._file, buffer[:length], position)
        except OSError as error:
            if not self._direct or error.errno != errno.EINVAL:
                error.filename = str(self._path)
                raise
            self._stop_direct()  # some network file systems refuse only at the first write
            _write_at(self._file, buffer[:filled], position)

    def finish(self, header: memoryview, size: int) -> None:
        """Cuts the file to its size, writes the header and waits for the disk."""
        if self._direct:
            os.ftruncate(self._file, size)
            self._stop_direct()
        _write_at(self._file, header, 0)
        os.fsync(self._file)

    def close(self) -> None:
        """Closes the file; a second time does nothing."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _stop_direct(self) -> None:
        os.close(self._file)
        self._file, self._direct = os.open(self._path, os.O_WRONLY), False


class TensorFileWriter:
    """Writes one file from front to back: `write` data, then `finish` with the table of what was written.

    While one buffer is on its way to the disk the next one is hashed and filled. Extra memory: the two
    buffers, 16 MiB. A failing disk raises OSError.
    """

    def __init__(self, path: Path, header: int = HEADER) -> None:
        assert header % _ALIGNED == 0, header
        self.path = path
        self.header = header
        self.position = header
        self._output = _Output(path)
        self._thread = ThreadPoolExecutor(1)
        self._writing: Future[None] | None = None
        # Anonymous maps are page-aligned, as direct writes must be.
        self._buffer, self._other = (memoryview(mmap.mmap(-1, _BUFFER)) for _ in range(2))
        self._filled = 0
        self._flushed = header

    def write(self, data: Buffer) -> list[str]:
        """Appends data; returns the hash of each BLOCK of it."""
        view = memoryview(data).cast("B")
        hashes = []
        for start in range(0, len(view), BLOCK):
            block = view[start : start + BLOCK]
            hashes.append(digest(block))
            self._append(block)
        self.position += len(view)
        return hashes

    def finish(self, entries: Mapping[str, Entry]) -> str:
        """Writes what is left and the header, waits for the disk, closes; returns the hash of the header."""
        header = header_bytes(entries, self.header, self.header)
        self._flush()
        self._wait()
        self._output.finish(memoryview(header), self.position)
        self.close()
        return digest(header)

    def close(self) -> None:
        """Ends the thread and closes the file; without `finish` the file is of no use."""
        self._thread.shutdown()
        self._output.close()

    def _append(self, block: memoryview) -> None:
        while len(block):
            taken = min(len(self._buffer) - self._filled, len(block))
            self._buffer[self._filled : self._filled + taken] = block[:taken]
            self._filled += taken
            block = block[taken:]
            if self._filled == len(self._buffer):
                self._flush()

    def _flush(self) -> None:
        self._wait()
        self._writing = self._thread.submit(self._output.write, self._buffer, self._filled, self._flushed)
        self._buffer, self._other = self._other, self._buffer
        self._flushed += self._filled
        self._filled = 0

    def _wait(self) -> None:
        if self._writing:
            self._writing.result()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class TensorFileReader:
    """Reads byte ranges of one file; several threads may share it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is missing; restore the file or use another checkpoint") from None

    def read_into(self, position: int, into: memoryview) -> None:
        """Fills `into` with the bytes at `position`; raises CheckpointError when the file ends before."""
        while len(into):
            count = os.preadv(self._file, [into], position)
            if not count:
                raise CheckpointError(
                    f"{self.path} is truncated at byte {position}; restore it or use another checkpoint"
                )
            into, position = into[count:], position + count

    def close(self) -> None:
        """Closes the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_header(path: Path) -> dict[str, Entry]:
    """The tensors of any safetensors file; raises CheckpointError, naming the file, for anything else."""
    with TensorFileReader(path) as file:
        size = path.stat().st_size
        prefix = bytearray(8)
        file.read_into(0, memoryview(prefix))
        length = int.from_bytes(prefix, "little")
        if length > min(size - 8, _LARGEST_HEADER):
            raise CheckpointError(
                f"{path} is not a safetensors file, or is truncated: its header would not fit in it"
            )
        text = bytearray(length)
        file.read_into(8, memoryview(text))
    try:
        entries = dict(_parse(json.loads(text), 8 + length))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise CheckpointError(f"{path} is not a safetensors file: its header cannot be read") from None
    end = max((entry.stop for entry in entries.values()), default=0)
    if end > size:
        raise CheckpointError(f"{path} is truncated: {size} bytes of {end}; copy the file again")
    return entries


def _parse(table: Mapping[str, Any], origin: int) -> Iterator[tuple[str, Entry]]:
    for name, record in table.items():
        if name != "__metadata__":
            start, stop = record["data_offsets"]
            code = record["dtype"]
            dtype, shape = _NAMES.get(code, code), tuple(record["shape"])
            length = prod(shape) * ITEM_BYTES[dtype] if dtype in ITEM_BYTES else stop - start
            if start < 0 or length < 0 or stop - start != length:
                raise ValueError(name)
            yield name, Entry(dtype, shape, origin + start, origin + stop)

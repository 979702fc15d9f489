"""Megatron's pair of files: PREFIX.bin, all ids end to end, and PREFIX.idx, where documents begin.

The index, little endian: nine bytes of magic, uint64 version 1, uint8 code of the id type, uint64 sequences,
uint64 documents + 1; then int32 lengths and int64 byte positions of the sequences, int64 first sequence of
each document and the end; last, in multimodal files only, an int8 mode a sequence.
"""

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins.reader import Bins, ShardView
from mtl_common.bins.staged import check_free
from mtl_common.errors import DataError

MAGIC = b"MMIDIDX\x00\x00"
HEAD = struct.Struct("<9sQBQQ")
CODES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 6: "float64", 7: "float32", 8: "uint16"}
PIECE = 1 << 22  # ids, sequences or documents handled together
RUN = 1 << 16  # documents of a part at most
LONGEST = 2**31 - 1  # tokens of a sequence: its length is an int32


def files_of(prefix: Path) -> tuple[Path, Path]:
    """The .bin and the .idx that a prefix, or the name of one of the two, stands for."""
    bare = prefix.with_suffix("") if prefix.suffix in (".bin", ".idx") else prefix
    return bare.with_name(f"{bare.name}.bin"), bare.with_name(f"{bare.name}.idx")


def _sequence_starts(view: ShardView) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first token of every sequence of a shard, and the first sequence of every document.

    A document is one sequence, or one for each of its sentences.
    """
    if view.sentences is None or view.sentence_offsets is None:
        return view.offsets[:-1], np.arange(len(view.record))
    counts = np.diff(view.sentence_offsets)
    return np.repeat(view.offsets[:-1], counts) + view.sentences, view.sentence_offsets[:-1]


def _lengths(bins: Bins) -> Iterator[NDArray[np.int32]]:
    for index in range(len(bins.manifest.shards)):
        view = bins.shard(index)
        lengths = np.diff(_sequence_starts(view)[0], append=len(view.tokens))
        if lengths.max(initial=0) > LONGEST:
            raise DataError(
                f"a document of {bins.path} has over {LONGEST:,} tokens, more than an .idx can tell"
            )
        yield lengths.astype("<i4")


def _pointers(bins: Bins) -> Iterator[NDArray[np.int64]]:
    before, item = 0, bins.dtype.itemsize
    for index, shard in enumerate(bins.manifest.shards):
        starts, _ = _sequence_starts(bins.shard(index))
        yield ((before + starts) * item).astype("<i8")
        before += shard.tokens


def _documents(bins: Bins) -> Iterator[NDArray[np.int64]]:
    before = 0
    for index in range(len(bins.manifest.shards)):
        starts, first = _sequence_starts(bins.shard(index))
        yield (before + first).astype("<i8")
        before += len(starts)
    yield np.array([before], "<i8")


def _write_index(path: Path, bins: Bins) -> None:
    shards = bins.manifest.shards
    sequences = sum(shard.documents if shard.sentences is None else shard.sentences for shard in shards)
    # there is no code for uint32; ids below 2^31 are the same bits as int32
    code = {"uint16": 8, "uint32": 4}[bins.dtype.name]
    with path.open("wb") as file:
        file.write(HEAD.pack(MAGIC, 1, code, sequences, len(bins) + 1))
        for section in (_lengths, _pointers, _documents):
            for values in section(bins):
                file.write(values.data)
        file.flush()
        os.fsync(file.fileno())


def _write_ids(path: Path, bins: Bins) -> Iterator[int]:
    with path.open("wb") as file:
        for index in range(len(bins.manifest.shards)):
            tokens = bins.shard(index).tokens
            for start in range(0, len(tokens), PIECE):
                file.write(tokens[start : start + PIECE].data)
                yield len(tokens[start : start + PIECE])
        file.flush()
        os.fsync(file.fileno())


def write(bins: Bins, prefix: Path) -> Iterator[int]:
    """Writes bins as a pair that megatron-core's IndexedDataset opens; yields the tokens of every step.

    Bins that keep the beginnings of sentences give a sequence for each. Neither file is there before both are
    whole. Raises UsageError when one exists, DataError for a document of 2^31 tokens or more.
    """
    ids, index = files_of(prefix)
    for path in (ids, index):
        check_free(path)
    if bins.vocab_size > 2**31:
        raise DataError(f"the ids of {bins.path} do not fit int32, the widest type of an .idx that is of use")
    parts = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in (ids, index)}
    try:
        _write_index(parts[index], bins)
        yield from _write_ids(parts[ids], bins)
        for path, part in parts.items():
            os.replace(part, path)
    finally:
        for part in parts.values():
            part.unlink(missing_ok=True)


class Pair:
    """A pair of files, mapped.

    `lengths` (sequences,) int32, `documents` (documents + 1,) int64: document i is the sequences
    `documents[i]:documents[i + 1]`; `ids` (tokens,) of the file's type; `modes` (sequences,) or None.

    Raises DataError, naming the file, for what is no whole pair of integers.
    """

    def __init__(self, prefix: Path) -> None:
        self.bin, self.idx = files_of(prefix)
        for path in (self.bin, self.idx):
            if not path.is_file():
                raise DataError(f"{path} is missing; a Megatron dataset is PREFIX.bin and PREFIX.idx")
        memory = np.memmap(self.idx, np.uint8, "r") if self.idx.stat().st_size else np.empty(0, np.uint8)
        self.dtype, sequences, ends = self._head(bytes(memory[: HEAD.size]))
        sizes = [4 * sequences, 8 * sequences, 8 * ends, sequences]
        at = [HEAD.size, *(HEAD.size + sum(sizes[: i + 1]) for i in range(4))]
        if len(memory) not in (at[3], at[4]):
            raise DataError(f"{self.idx} has {len(memory):,} bytes, not {at[3]:,}; it is damaged")
        self.lengths = memory[at[0] : at[1]].view("<i4")
        self._pointers = memory[at[1] : at[2]].view("<i8")
        self.documents = memory[at[2] : at[3]].view("<i8")
        self.modes = memory[at[3] :].view(np.int8) if len(memory) == at[4] and sequences else None
        self.ids = self._ids()
        self._check()

    def __len__(self) -> int:
        return len(self.documents) - 1

    def _head(self, data: bytes) -> tuple[np.dtype[Any], int, int]:
        if len(data) < HEAD.size or not data.startswith(MAGIC):
            raise DataError(f"{self.idx} is no index of a Megatron dataset")
        _, number, code, sequences, ends = HEAD.unpack(data)
        name = CODES.get(code, f"code {code}")
        if number != 1 or "int" not in name:
            raise DataError(f"{self.idx} is version {number} of {name}; version 1 of an integer type is read")
        return np.dtype(name).newbyteorder("<"), sequences, ends

    def _ids(self) -> NDArray[Any]:
        size, count = self.bin.stat().st_size, int(self.lengths.sum(dtype=np.int64))
        if size != count * self.dtype.itemsize:
            raise DataError(
                f"{self.bin} has {size:,} bytes, its index tells of {count * self.dtype.itemsize:,}; "
                "it is damaged, or belongs to another index"
            )
        return np.memmap(self.bin, self.dtype, "r") if count else np.empty(0, self.dtype)

    def _check(self) -> None:
        """Raises DataError unless sequences follow one another in the .bin, and documents in them."""
        before, sequences = 0, len(self.lengths)
        for start in range(0, sequences, PIECE):
            lengths = self.lengths[start : start + PIECE].astype(np.int64)
            ends = before + np.cumsum(lengths) * self.dtype.itemsize
            pointers = self._pointers[start : start + PIECE]
            if lengths.min() < 0 or not np.array_equal(pointers, ends - lengths * self.dtype.itemsize):
                raise DataError(f"the sequences of {self.idx} do not follow one another in {self.bin}")
            before = int(ends[-1])
        bounds = self.documents
        rising = all((np.diff(bounds[i : i + PIECE + 1]) >= 0).all() for i in range(0, len(bounds), PIECE))
        if not len(bounds) or (bounds[0], bounds[-1]) != (0, sequences) or not rising:
            raise DataError(f"the documents of {self.idx} are not its sequences; it is damaged")

    @property
    def in_sequences(self) -> bool:
        """Whether any document is not one sequence."""
        numbers = (np.arange(i, min(i + PIECE, len(self) + 1)) for i in range(0, len(self) + 1, PIECE))
        return not all(np.array_equal(self.documents[part[0] : part[-1] + 1], part) for part in numbers)

    def first_token(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) sequences -> (n,) where each begins in `ids`; the one after the last is the end."""
        inside = sequences < len(self.lengths)
        found = np.full(len(sequences), len(self.ids), np.int64)
        found[inside] = self._pointers[sequences[inside]] // self.dtype.itemsize
        return found

    def parts(self) -> Iterator[tuple[int, int]]:
        """Runs of documents, `first:last`, of about PIECE tokens; a longer document is alone."""
        first = 0
        while first < len(self):
            tokens = self.first_token(self.documents[first : first + RUN + 1])
            last = first + max(1, int(np.searchsorted(tokens, tokens[0] + PIECE, "right")) - 1)
            yield first, last
            first = last

"""The Arrow form of a shard: its columns as one record batch, and where each of them lies in the file.

How much a shard holds decides its layout to the byte, so its columns can be written where they belong before
anything else of the file is there.
"""

import io
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.bins.batch import Batch

KINDS = {
    "offsets": "int64",
    "source": "uint32",
    "record": "uint64",
    "loss": "uint8",
    "sentences": "uint32",
    "sentence_offsets": "int64",
}
OFFSETS = {"tokens": "offsets", "loss": "offsets", "sentences": "sentence_offsets"}
UNHASHED = ("source", "record")  # they have no hash of their own in the manifest
NO_HASH = "0" * 32


@dataclass(frozen=True)
class Size:
    """How much a shard holds, and of which columns; without `sentences` it has none of those."""

    documents: int = 0
    tokens: int = 0
    has_loss: bool = False
    sentences: int | None = None

    def counts(self) -> dict[str, int]:
        """How many values every column has."""
        bounds = self.documents + 1
        counts = {
            "tokens": self.tokens,
            "offsets": bounds,
            "source": self.documents,
            "record": self.documents,
        }
        if self.has_loss:
            counts["loss"] = self.tokens
        if self.sentences is not None:
            counts |= {"sentences": self.sentences, "sentence_offsets": bounds}
        return counts


def size_of(batches: Iterable[Batch]) -> Size:
    """How much some documents are; reads none of their ids."""
    size = Size()
    for batch in batches:
        more = None if batch.sentences is None else len(batch.sentences.starts)
        size = Size(
            documents=size.documents + len(batch.record),
            tokens=size.tokens + len(batch.ids),
            has_loss=batch.loss is not None,
            sentences=None if more is None else (size.sentences or 0) + more,
        )
    return size


def facts(size: Size, about: Mapping[str, str], hashes: Mapping[str, str]) -> dict[str, str]:
    """What the schema says of the shard: `about` its bins, its sums, and the hashes of its columns."""
    sums = {"mtl.documents": str(size.documents), "mtl.tokens": str(size.tokens)}
    return {**sums, **about, **{f"mtl.xxh3_{name}": digest for name, digest in hashes.items()}}


def record_batch(size: Size, dtype: str, buffers: Mapping[str, Any], facts: Mapping[str, str]) -> Any:
    """The columns, given as Arrow buffers by name, as one record batch, without a copy."""
    import pyarrow as pa

    kinds, counts = {"tokens": dtype, **KINDS}, size.counts()

    def values(name: str) -> Any:
        kind = pa.from_numpy_dtype(np.dtype(kinds[name]))
        return pa.Array.from_buffers(kind, counts[name], [None, buffers[name]])

    def lists(name: str) -> Any:
        items = values(name)
        kind = pa.large_list(pa.field("item", items.type, nullable=False))
        return pa.Array.from_buffers(kind, size.documents, [None, buffers[OFFSETS[name]]], children=[items])

    fields = {
        name: lists(name) if name in OFFSETS else values(name)
        for name in counts
        if name not in OFFSETS.values()
    }
    schema = [pa.field(name, column.type, nullable=False) for name, column in fields.items()]
    return pa.RecordBatch.from_arrays(list(fields.values()), schema=pa.schema(schema, metadata=facts))


def write_batch(sink: Any, batch: Any) -> None:
    """Writes a record batch as an Arrow file."""
    import pyarrow as pa

    with pa.ipc.new_file(sink, batch.schema) as writer:
        writer.write_batch(batch)


@dataclass(frozen=True)
class Frame:
    """A shard file without its columns: where each begins, and all that stands between them.

    The offsets of the tokens stand a second time where the loss has some.
    """

    places: dict[str, tuple[int, ...]]
    parts: tuple[tuple[int, bytes], ...]


class _Places(io.RawIOBase):
    """A file that keeps where columns would be written, known by their addresses, and the rest."""

    def __init__(self, columns: Mapping[int, str]) -> None:
        self._columns, self._at = columns, 0
        self.places: dict[str, tuple[int, ...]] = dict.fromkeys(columns.values(), ())
        self.parts: list[tuple[int, bytes]] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        name = self._columns.get(getattr(data, "address", 0))
        if name is None:
            self.parts.append((self._at, bytes(data)))
        else:
            self.places[name] = (*self.places[name], self._at)
        self._at += len(data)
        return len(data)


def frame(size: Size, dtype: str, facts: Mapping[str, str]) -> Frame:
    """The frame of a shard; `facts` must be as long as those that it has in the end."""
    import pyarrow as pa

    kinds = {"tokens": dtype, **KINDS}
    # zeros that nothing reads, and so no memory holds; only the last of the offsets is looked at
    columns = {name: np.zeros(count, kinds[name]) for name, count in size.counts().items()}
    columns["offsets"][-1] = size.tokens
    if size.sentences is not None:
        columns["sentence_offsets"][-1] = size.sentences
    buffers = {name: pa.py_buffer(values) for name, values in columns.items()}
    found = _Places({buffer.address: name for name, buffer in buffers.items() if buffer.size})
    write_batch(found, record_batch(size, dtype, buffers, facts))
    return Frame(found.places, tuple(found.parts))


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
            if name in OFFSETS and name != "loss":  # its offsets are those of the tokens
                buffers[OFFSETS[name]] = column.buffers()[1]
        return {f"{name}_at": buffer.address - start if buffer else 0 for name, buffer in buffers.items()}

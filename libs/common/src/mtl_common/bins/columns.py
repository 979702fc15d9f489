"""The columns of a shard as they grow, in little memory whatever its size, and their Arrow form."""

import mmap
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

KINDS = {
    "offsets": "int64",
    "source": "uint32",
    "record": "uint64",
    "loss": "uint8",
    "sentences": "uint32",
    "sentence_offsets": "int64",
}


def _bounds(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Lengths (n,) -> where each begins and the last ends, (n + 1,)."""
    return np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True)
class Sentences:
    """Where the sentences of some documents begin, in tokens from the beginning of their document."""

    starts: NDArray[np.uint32]  # (sentences,), the first of every document is 0
    offsets: NDArray[np.int64]  # (documents + 1,) into `starts`, the first is 0

    def part(self, first: int, last: int) -> "Sentences":
        """Those of the documents `first:last`."""
        offsets = self.offsets[first : last + 1]
        return Sentences(self.starts[offsets[0] : offsets[-1]], offsets - offsets[0])

    def keep(self, chosen: NDArray[np.bool_]) -> "Sentences":
        """Those of the documents where `chosen` (documents,) is true."""
        counts = np.diff(self.offsets)
        return Sentences(self.starts[np.repeat(chosen, counts)], _bounds(counts[chosen]))


@dataclass(frozen=True)
class Batch:
    """Some documents: ids end to end, where each begins and the last ends, and where each came from.

    `loss` is 1 where a token counts as a label; without it all do. All batches of a shard have the same of
    the two optional columns.
    """

    ids: NDArray[Any]  # (tokens,) uint16 or uint32
    offsets: NDArray[np.int64]  # (documents + 1,), the first is 0
    source: NDArray[np.uint32]  # (documents,)
    record: NDArray[np.uint64]  # (documents,)
    loss: NDArray[np.uint8] | None = None  # (tokens,)
    sentences: Sentences | None = None

    def part(self, first: int, last: int) -> "Batch":
        """The documents `first:last`; no ids are copied."""
        offsets, rows = self.offsets[first : last + 1], slice(first, last)
        tokens = slice(offsets[0], offsets[-1])
        return Batch(
            ids=self.ids[tokens],
            offsets=offsets - offsets[0],
            source=self.source[rows],
            record=self.record[rows],
            loss=None if self.loss is None else self.loss[tokens],
            sentences=None if self.sentences is None else self.sentences.part(first, last),
        )

    def keep(self, chosen: NDArray[np.bool_]) -> "Batch":
        """The documents where `chosen` (documents,) is true."""
        if chosen.all():
            return self
        lengths = np.diff(self.offsets)
        tokens = np.repeat(chosen, lengths)
        return Batch(
            ids=self.ids[tokens],
            offsets=_bounds(lengths[chosen]),
            source=self.source[chosen],
            record=self.record[chosen],
            loss=None if self.loss is None else self.loss[tokens],
            sentences=None if self.sentences is None else self.sentences.keep(chosen),
        )


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

    def __len__(self) -> int:
        return self.size // self.dtype.itemsize

    def buffer(self) -> Any:
        import pyarrow as pa

        self._file.flush()
        if not self.size:
            return pa.py_buffer(b"")
        return pa.py_buffer(mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ))

    def array(self) -> Any:
        """The column as an Arrow array, without a copy."""
        import pyarrow as pa

        return pa.Array.from_buffers(pa.from_numpy_dtype(self.dtype), len(self), [None, self.buffer()])

    def close(self) -> None:
        self._file.close()


def _columns_of(batch: Batch) -> dict[str, NDArray[Any]]:
    """Name -> values of every column of a batch; offsets are of the batch, without their 0."""
    columns = {
        "tokens": batch.ids,
        "offsets": batch.offsets[1:],
        "source": batch.source,
        "record": batch.record,
    }
    if batch.loss is not None:
        columns["loss"] = batch.loss
    if batch.sentences is not None:
        columns |= {
            "sentences": batch.sentences.starts,
            "sentence_offsets": batch.sentences.offsets[1:],
        }
    return columns


class Columns:
    """The columns of a shard, and its sums; the first batch says which of the optional ones there are."""

    def __init__(self, directory: Path, dtype: str) -> None:
        self._directory, self._kinds = directory, {"tokens": dtype, **KINDS}
        self._columns: dict[str, _Column] = {}
        self.documents = self.count = self._largest = self._counted = self._alone = 0
        self._open(("tokens", "offsets", "source", "record"))

    def _open(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._columns:
                self._columns[name] = _Column(self._directory, self._kinds[name])
                if name.endswith("offsets"):
                    self._columns[name].append(np.zeros(1, np.int64))

    def append(self, batch: Batch) -> None:
        """Adds documents; raises TypeError for ids of another type, or other columns than before."""
        given, wanted = _columns_of(batch), self._kinds["tokens"]
        if batch.ids.dtype != wanted:
            raise TypeError(f"ids of type {batch.ids.dtype} for a shard of {wanted}")
        if not self.documents:
            self._open(given)
        if given.keys() != self._columns.keys():
            raise TypeError(f"a batch of {', '.join(given)} for a shard of {', '.join(self._columns)}")
        before = {"offsets": self.count}
        if batch.sentences is not None:
            before["sentence_offsets"] = len(self._columns["sentences"])
        for name, values in given.items():
            self._columns[name].append(values + before[name] if name in before else values)
        self._add_up(batch)

    def _add_up(self, batch: Batch) -> None:
        self.count += len(batch.ids)
        self.documents += len(batch.record)
        self._largest = max(self._largest, int(batch.ids.max(initial=0)))
        if batch.loss is not None:
            self._counted += int(batch.loss.sum(dtype=np.int64))
        if batch.sentences is not None:
            self._alone += int((np.diff(batch.sentences.offsets) == 1).sum())

    def sums(self) -> dict[str, Any]:
        """The counts of the manifest's entry."""
        sums = {"documents": self.documents, "tokens": self.count, "largest_id": self._largest}
        if "loss" in self._columns:
            sums["loss_tokens"] = self._counted
        if "sentences" in self._columns:
            sums |= {"sentences": len(self._columns["sentences"]), "one_sentence": self._alone}
        return sums

    def hashes(self) -> dict[str, str]:
        """The hashes of the columns that have one of their own in the manifest."""
        hashed = self._columns.keys() - {"source", "record"}
        return {
            f"xxh3_{name}": self._columns[name].hash.hexdigest() for name in self._kinds if name in hashed
        }

    def _fields(self) -> Iterator[tuple[str, Any]]:
        yield "tokens", self._lists("tokens", "offsets")
        yield "source", self._columns["source"].array()
        yield "record", self._columns["record"].array()
        if "loss" in self._columns:
            yield "loss", self._lists("loss", "offsets")
        if "sentences" in self._columns:
            yield "sentences", self._lists("sentences", "sentence_offsets")

    def _lists(self, values: str, offsets: str) -> Any:
        import pyarrow as pa

        items = self._columns[values].array()
        kind = pa.large_list(pa.field("item", items.type, nullable=False))
        bounds = self._columns[offsets].buffer()
        return pa.Array.from_buffers(kind, self.documents, [None, bounds], children=[items])

    def record_batch(self, about: Mapping[str, str]) -> Any:
        """The columns as one Arrow record batch, without a copy."""
        import pyarrow as pa

        facts = {"mtl.documents": str(self.documents), "mtl.tokens": str(self.count), **about}
        facts |= {f"mtl.{name}": digest for name, digest in self.hashes().items()}
        fields = dict(self._fields())
        kinds = [pa.field(name, column.type, nullable=False) for name, column in fields.items()]
        return pa.RecordBatch.from_arrays(list(fields.values()), schema=pa.schema(kinds, metadata=facts))

    def close(self) -> None:
        """Gives the files back."""
        for column in self._columns.values():
            column.close()

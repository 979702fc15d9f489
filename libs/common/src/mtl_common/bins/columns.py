"""The columns of a shard as they grow, hashed and summed up, in little memory whatever its size."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_common.bins.arrow import KINDS, UNHASHED, Size
from mtl_common.bins.batch import Batch


class Column:
    """A growing stretch of a file, or the same in several places of it, hashed as it grows."""

    def __init__(self, file: int, dtype: str, places: Sequence[int] = (0,)) -> None:
        self.dtype, self.size, self.hash = np.dtype(dtype), 0, xxhash.xxh3_128()
        self._file, self._places = file, places

    def append(self, values: NDArray[Any]) -> None:
        """Writes values (n,) after those before."""
        data = np.ascontiguousarray(values, self.dtype).view(np.uint8).data
        self.hash.update(data)
        for place in self._places:
            self._write(data, place + self.size)
        self.size += data.nbytes

    def _write(self, data: memoryview, at: int) -> None:
        while data:  # a call takes no more than 2 GiB
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written

    def __len__(self) -> int:
        return self.size // self.dtype.itemsize


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
    """The columns of a shard, and its sums; the first batch says which of the optional ones there are.

    `open_column` makes a column of a name and an id type.
    """

    def __init__(self, dtype: str, open_column: Callable[[str, str], Column]) -> None:
        self._kinds, self._open_column = {"tokens": dtype, **KINDS}, open_column
        self._columns: dict[str, Column] = {}
        self.documents = self.count = self._largest = self._counted = self._alone = 0
        self._open(("tokens", "offsets", "source", "record"))

    def _open(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._columns:
                self._columns[name] = self._open_column(name, self._kinds[name])
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

    @property
    def size(self) -> Size:
        """How much there is so far."""
        sentences = len(self._columns["sentences"]) if "sentences" in self._columns else None
        return Size(self.documents, self.count, "loss" in self._columns, sentences)

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
        hashed = (name for name in self._kinds if name in self._columns and name not in UNHASHED)
        return {name: self._columns[name].hash.hexdigest() for name in hashed}

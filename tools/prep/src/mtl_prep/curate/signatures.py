"""The signatures of a corpus on the disk, a file for each unit, step and array."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate.files import durable

COMPARED = "compared"  # the array that tells which documents a step compares


def path_of(directory: Path, unit: str, step: int, name: str) -> Path:
    """The file of one array of a unit."""
    return directory / f"{unit}.{step}.{name}.npy"


def save(path: Path, array: NDArray[Any]) -> None:
    """Writes an array that is on the disk when this returns."""
    with durable(path) as file:
        np.save(file, np.ascontiguousarray(array))


class UnitSignatures:
    """The signatures that a step has given all documents, unit after unit."""

    def __init__(self, directory: Path, units: Sequence[tuple[str, int]], step: int) -> None:
        self._paths = [(directory, name, step) for name, _ in units]
        self._offsets = np.concatenate([[0], np.cumsum([count for _, count in units], dtype=np.int64)])

    def _open(self, unit: int, name: str) -> NDArray[Any]:
        return np.asarray(np.load(path_of(*self._paths[unit], name), mmap_mode="r"))

    def row(self, name: str, index: int) -> NDArray[Any]:
        """(documents,) row `index` of an array of shape (rows, documents)."""
        return np.concatenate([self._open(unit, name)[index] for unit in range(len(self._paths))])

    def columns(self, name: str, documents: NDArray[np.int64]) -> NDArray[Any]:
        """(rows, n) the columns of some ascending documents, of an array of shape (rows, documents)."""
        bounds = np.searchsorted(documents, self._offsets)
        parts = [
            self._open(unit, name)[:, documents[first:last] - self._offsets[unit]]
            for unit, (first, last) in enumerate(pairwise(bounds))
            if first < last
        ]
        return np.concatenate(parts, 1)

"""Where documents stand: by their place in a unit, or in the corpus."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mtl_prep.corpus.units import Unit
from mtl_prep.curate.examine import PLACES
from mtl_prep.curate.samples import draw
from mtl_prep.curate.signatures import path_of


class Places:
    """The files and records of all documents.

    `units` tells of every unit the place of its first document in the corpus, and the line it begins at;
    `names` are those of the sources.
    """

    def __init__(self, directory: Path, units: Mapping[str, tuple[int, int]], names: Sequence[str]) -> None:
        self._directory, self._units, self._names = directory, units, names
        self._order = sorted(units)
        self._firsts = np.array([units[name][0] for name in self._order], np.int64)

    def of(self, unit: Unit, place: int) -> tuple[str, int]:
        """The file and record of a document of a unit."""
        found = unit.documents
        if found.giant is not None and place == len(found.places):
            source, record = found.giant.source, found.giant.record
        else:
            source, record = found.places[place]
        return self._names[source], record + self._units[unit.name][1]

    def at(self, document: int) -> tuple[str, int]:
        """The file and record of a document of the corpus, which costs a look into a file."""
        index = int(np.searchsorted(self._firsts, document, "right")) - 1
        name = self._order[index]
        places = np.load(path_of(self._directory, name, 0, PLACES), mmap_mode="r")
        source, record = places[:, document - self._firsts[index]].tolist()
        return self._names[source], record + self._units[name][1]

    def draw(self, unit: Unit, place: int) -> int:
        """The number that decides whether a document is in a sample."""
        return draw(*self.of(unit, place))

"""Some documents on their way through the steps, and what has become of each."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.corpus.units import Unit
from mtl_prep.curate.batch import Batch, Mask
from mtl_prep.curate.facts import KEPT, Edit
from mtl_prep.curate.signatures import COMPARED
from mtl_prep.curate.step import GlobalStep, Judge, Step, Verdict

CHARACTERS = 1 << 20  # of a chunk at least: many, for what is done once for each; few, for the caches
CROWDED = 0.5  # share of wanted characters in a batch, below which they get one of their own
NOTHING_LEFT = "nothing left"

Number = int  # of a step, from 1


@dataclass(frozen=True)
class View:
    """Some documents of a chunk as a batch: `rows` (n,), ascending, and which of all (documents,)."""

    rows: NDArray[np.int64]
    among: Mask
    batch: Batch

    def serves(self, wanted: Mask, characters: int) -> bool:
        """Whether it has all wanted documents (documents,), and few others."""
        enough = characters >= CROWDED * self.batch.lengths.sum()
        return bool(enough and not np.any(wanted & ~self.among))


class Chunk:
    """Documents with their records, and their fates: 0, or the step at which each goes, and why."""

    def __init__(
        self, first: int, texts: list[str], records: list[dict[str, Any]], sources: list[str]
    ) -> None:
        self.first = first  # place of the first document in its unit
        self.texts, self.records, self.sources = texts, records, sources
        self.fates: NDArray[np.uint8] = np.zeros(len(texts), np.uint8)
        self.reasons = [""] * len(texts)
        self.edits: dict[int, Counter[Edit]] = {}  # of documents that have any
        self._lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self._views: list[View] = []  # at most one of many documents, and one of few

    def _wanted(self, step: Step) -> Mask:
        """(documents,) which ones are still there and meant by the step."""
        return np.asarray(self.fates == KEPT) & step.wants_each(self.records, self.sources)

    def _view(self, wanted: Mask) -> View:
        """A batch of these documents and perhaps some others."""
        characters = int(self._lengths[wanted].sum())
        for view in self._views:
            if view.serves(wanted, characters):
                return view
        rows = np.flatnonzero(wanted)
        view = View(rows, wanted, Batch([self.texts[row] for row in rows.tolist()]))
        self._views = [*self._views[:1], view]
        return view

    def judge(self, number: Number, step: Step, judge: Judge) -> None:
        """Takes a step."""
        wanted = self._wanted(step)
        if wanted.any():
            view = self._view(wanted)
            mask = wanted[view.rows]
            self._take(number, judge.judge(view.batch, mask), view.rows, mask)

    def sign(self, step: GlobalStep) -> dict[str, NDArray[Any]]:
        """(rows, documents) the signatures; `compared` (1, documents) tells which documents have any."""
        wanted = self._wanted(step)
        view = self._view(wanted)
        signed = {COMPARED: wanted[np.newaxis]}
        for name, array in step.sign(view.batch).items():
            signed[name] = np.zeros((len(array), len(self.texts)), array.dtype)
            signed[name][:, wanted] = array[:, wanted[view.rows]]
        return signed

    def _take(self, number: Number, verdict: Verdict, rows: NDArray[np.int64], wanted: Mask) -> None:
        for gone in np.flatnonzero(wanted & (verdict.reason > 0)).tolist():
            self._remove(int(rows[gone]), number, verdict.why(gone))
        for i, text in verdict.texts.items():
            row = int(rows[i])
            if wanted[i] and not self.fates[row]:
                self.texts[row], self._lengths[row] = text, len(text)
                self._views = []
                if not text:
                    self._remove(row, number, NOTHING_LEFT)
        for i, keys in verdict.keys.items():
            self.records[int(rows[i])] |= keys
        for i, kinds in verdict.edits.items():
            if wanted[i]:
                self._edit(int(rows[i]), number, kinds)
        for key, value in verdict.masks.items():
            self._mask(number, rows[wanted], key, value)

    def _edit(self, row: int, number: Number, kinds: Mapping[str, int]) -> None:
        """Counts what a step changed in a document."""
        counts = self.edits.setdefault(row, Counter())
        counts.update({(number, kind): count for kind, count in kinds.items()})

    def _mask(self, number: Number, rows: NDArray[np.int64], key: str, value: str) -> None:
        """Gives a key another value wherever it is."""
        for row in rows[self.fates[rows] == KEPT].tolist():
            if self.records[row].get(key, value) != value:
                self.records[row][key] = value
                self._edit(row, number, {key: 1})

    def _remove(self, row: int, number: Number, reason: str) -> None:
        self.fates[row], self.reasons[row] = number, reason


def chunks(unit: Unit, names: Sequence[str]) -> Iterator[Chunk]:
    """The documents of a unit in order, some at a time; `names` are those of all sources.

    Steps add keys to the records of the unit.
    """
    found, first, size = unit.documents, 0, 0
    for i, text in enumerate(found.texts, 1):
        size += len(text)
        if size >= CHARACTERS or i == len(found.texts):
            sources = [names[source] for source, _ in found.places[first:i]]
            yield Chunk(first, found.texts[first:i], found.wholes[first:i], sources)
            first, size = i, 0

"""Some documents on their way through the steps, and what has become of each."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate.batch import Batch, Mask
from mtl_prep.curate.signatures import COMPARED
from mtl_prep.curate.step import GlobalStep, Judge, Step, Verdict
from mtl_prep.units import Unit

CHARACTERS = 1 << 18  # of a chunk at least; its views then fit the processor's caches
CROWDED = 0.5  # share of characters still there, below which a batch is made anew
NOTHING_LEFT = "nothing left"

Number = int  # of a step, from 1


class Chunk:
    """Documents with their records, and their fates: 0, or the step at which each goes, and why."""

    def __init__(
        self, first: int, texts: list[str], records: list[dict[str, Any]], sources: list[str]
    ) -> None:
        self.first = first  # place of the first document in its unit
        self.texts, self.records, self.sources = texts, records, sources
        self.fates: NDArray[np.uint8] = np.zeros(len(texts), np.uint8)
        self.reasons = [""] * len(texts)
        self.edits: dict[Number, Counter[str]] = {}
        self._rows = np.arange(len(texts))  # the documents of the batch

    @cached_property
    def _batch(self) -> Batch:
        return Batch([self.texts[row] for row in self._rows])

    def leave_out(self, fates: NDArray[np.uint8]) -> None:
        """Takes over fates (documents,) that are known already."""
        self.fates[:] = fates
        self._make_anew()

    def _wanted(self, step: Step) -> Mask:
        """(documents of the batch,) which are still there and meant by the step."""
        wanted: Mask = self.fates[self._rows] == 0
        if step.only or step.unless:
            for i in np.flatnonzero(wanted):
                row = self._rows[i]
                wanted[i] = step.wants(self.records[row], self.sources[row])
        return wanted

    def judge(self, number: Number, step: Step, judge: Judge) -> None:
        """Takes a step."""
        wanted = self._wanted(step)
        if wanted.any():
            self._take(number, judge.judge(self._batch, wanted), wanted)

    def sign(self, step: GlobalStep) -> dict[str, NDArray[Any]]:
        """(rows, documents) the signatures; `compared` (1, documents) tells which documents have any."""
        wanted = self._wanted(step)
        signed = {COMPARED: np.zeros((1, len(self.texts)), bool)}
        signed[COMPARED][:, self._rows[wanted]] = True
        for name, array in step.sign(self._batch).items():
            signed[name] = np.zeros((len(array), len(self.texts)), array.dtype)
            signed[name][:, self._rows[wanted]] = array[:, wanted]
        return signed

    def _take(self, number: Number, verdict: Verdict, wanted: Mask) -> None:
        for gone in np.flatnonzero(wanted & (verdict.reason > 0)).tolist():
            self._remove(int(self._rows[gone]), number, verdict.why(gone))
        for i, text in verdict.texts.items():
            row = int(self._rows[i])
            if wanted[i] and not self.fates[row]:
                self.texts[row] = text
                if not text:
                    self._remove(row, number, NOTHING_LEFT)
        for i, keys in verdict.keys.items():
            self.records[self._rows[i]] |= keys
        edits = self.edits.setdefault(number, Counter())
        edits.update(verdict.edits)
        for key, value in verdict.masks.items():
            edits[key] += self._mask(wanted, key, value)
        sizes = self._batch.lengths
        if verdict.texts or sizes[self.fates[self._rows] == 0].sum() < CROWDED * sizes.sum():
            self._make_anew()

    def _mask(self, wanted: Mask, key: str, value: str) -> int:
        """Gives a key another value wherever it is; how often it was."""
        records = [self.records[row] for row in self._rows[wanted] if self.fates[row] == 0]
        having = [record for record in records if record.get(key, value) != value]
        for record in having:
            record[key] = value
        return len(having)

    def _remove(self, row: int, number: Number, reason: str) -> None:
        self.fates[row], self.reasons[row] = number, reason

    def _make_anew(self) -> None:
        self._rows = np.flatnonzero(self.fates == 0)
        self.__dict__.pop("_batch", None)


def chunks(unit: Unit, names: Sequence[str]) -> Iterator[Chunk]:
    """The documents of a unit in order, some at a time; `names` are those of all sources."""
    found, first, size = unit.documents, 0, 0
    for i, text in enumerate(found.texts, 1):
        size += len(text)
        if size >= CHARACTERS or i == len(found.texts):
            sources = [names[source] for source, _ in found.places[first:i]]
            # records are copied: steps add keys to them
            records = [dict(record) for record in found.wholes[first:i]]
            yield Chunk(first, found.texts[first:i], records, sources)
            first, size = i, 0

"""The sample of what each step removed, with reasons, as it is shown to people.

The samples of comparisons hold only documents that no later step would remove: the others were not written.
"""

import json
from collections.abc import Iterator, Sequence
from heapq import nsmallest
from itertools import groupby, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mtl_prep.corpus.long_json import add_long_json
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import Reading
from mtl_prep.curate.batch import Mask
from mtl_prep.curate.facts import facts_of
from mtl_prep.curate.judged import judged
from mtl_prep.curate.recipe import Recipe
from mtl_prep.curate.samples import SHOWN, SIZE, Drawn, drawn_of, numbers
from mtl_prep.curate.shards import lines_of
from mtl_prep.curate.step import GlobalStep
from mtl_prep.curate.totals import Decided
from mtl_prep.running.tally import Unit


class Found(NamedTuple):
    """A document that a local step removed, as it is shown, and the number that decides."""

    number: int
    shown: dict[str, Any]


class Repeat(NamedTuple):
    """A document of a unit that repeats an original of the corpus, and the number that decides."""

    number: int
    unit: str
    document: int
    original: int
    source: str
    record: int


def _in_order(repeat: Repeat) -> tuple[str, int]:
    return repeat.unit, repeat.document


class Removed:
    """The samples while units are added; `units` are all of the corpus."""

    def __init__(self, directory: Path, reading: Reading, recipe: Recipe, units: Sequence[Unit]) -> None:
        self._directory, self._reading, self._recipe, self._units = directory, reading, recipe, units
        self._firsts = np.concatenate([[0], np.cumsum([unit.documents for unit in units])])
        self._found: dict[int, list[Found]] = {}
        self._repeats: dict[int, list[Repeat]] = {}

    def add(self, unit: Decided) -> None:
        """Takes in those of a unit that may be in a sample."""
        for step, drawn in drawn_of(self._directory, unit.name).items():
            own = [d for d in drawn if unit.fates[d.place] == step and unit.originals[d.place] < 0]
            found = [Found(one.number, self._shown(unit, one)) for one in own]
            self._found[step] = nsmallest(SIZE, self._found.get(step, []) + found, key=lambda one: one.number)
        written = (unit.originals >= 0) & (unit.facts["size"] > 0)
        for step in np.unique(unit.fates[written]).tolist():
            earlier, repeats = self._repeats.get(step, []), self._repeats_of(unit, step, written)
            self._repeats[step] = nsmallest(SIZE, earlier + repeats, key=lambda one: one.number)

    def _repeats_of(self, unit: Decided, step: int, written: Mask) -> list[Repeat]:
        documents = np.flatnonzero(written & (unit.fates == step))
        drawn = numbers(unit.name, documents)
        some = np.argsort(drawn, kind="stable")[:SIZE]
        return [
            Repeat(number, unit.name, document, int(unit.originals[document]), *self._place(unit, document))
            for number, document in zip(drawn[some].tolist(), documents[some].tolist(), strict=True)
        ]

    def _shown(self, unit: Decided, drawn: Drawn) -> dict[str, Any]:
        source, record = self._place(unit, drawn.place)
        return {"source": source, "record": record, "reason": unit.why(drawn.place), "text": drawn.text}

    def _place(self, unit: Decided, document: int) -> tuple[str, int]:
        fact = unit.facts[document]
        return self._reading.sources[int(fact["source"])].name, int(fact["record"]) + unit.line

    def _original(self, document: int) -> str:
        """Where a document of the corpus stands."""
        index = int(np.searchsorted(self._firsts, document, "right")) - 1
        unit = self._units[index]
        fact = facts_of(self._directory, unit.name)[document - self._firsts[index]]
        return f"{self._reading.sources[int(fact['source'])].name} record {int(fact['record']) + unit.line}"

    def of(self, number: int) -> list[dict[str, Any]]:
        """The sample of a step."""
        step = self._recipe.steps[number - 1][1]
        if not isinstance(step, GlobalStep):
            return [one.shown for one in self._found.get(number, [])]
        repeats = self._repeats.get(number, [])
        texts = self._texts(repeats)
        return [
            {
                "source": one.source,
                "record": one.record,
                "reason": f"{step.reason} {self._original(one.original)}",
                "text": texts[one],
            }
            for one in repeats
        ]

    def _texts(self, repeats: list[Repeat]) -> dict[Repeat, str]:
        """How documents begin that were written down; each unit is read once."""
        key, found = judged(self._reading), dict[Repeat, str]()
        for unit, several in groupby(sorted(repeats, key=_in_order), key=lambda one: one.unit):
            own = {one.document: one for one in several}
            large = facts_of(self._directory, unit)["large"]
            for document in (d for d in own if large[d]):
                found[own[document]] = self._beginning(unit, document)
            for document, pieces in lines_of(self._directory, unit, (d for d in own if not large[d])):
                record = json.loads(b"".join(pieces))  # orjson takes no half surrogate pairs
                found[own[document]] = key.of(record)[:SHOWN]
        return found

    def _beginning(self, unit: str, document: int) -> str:
        """How a large document begins, read in pieces."""

        def line() -> Iterator[bytes]:
            for _, pieces in lines_of(self._directory, unit, [document]):
                yield from pieces

        found = Documents()
        add_long_json(found, 0, 0, line, self._reading.rules)
        texts = found.texts if found.giant is None else found.giant.pieces()
        return "".join(islice(texts, 1))[:SHOWN]

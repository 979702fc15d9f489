"""What became of all documents of a corpus when it is decided: sums by step, reason and source."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_common import bins
from mtl_prep.curate.decide import Decision
from mtl_prep.curate.facts import KEPT, Edit, Facts, edits_of, facts_of
from mtl_prep.curate.manifest import Source, StepSums, Sum
from mtl_prep.curate.recipe import Recipe, kind_of
from mtl_prep.journal import Journal
from mtl_prep.running.tally import Unit

REPEATED = "repeated"  # the reason of all comparisons

Why = tuple[int, str]  # the number of a step, and its reason


@dataclass(frozen=True)
class Decided:
    """A unit whose documents are decided: `facts`, and `fates` and `originals` as in `Decision` (documents,).

    `first` is the place of the first one in the corpus, `line` the line of its file that the unit begins at,
    `reasons` are what facts tell by number, `kinds` what edits do.
    """

    name: str
    first: int
    line: int
    facts: Facts
    fates: NDArray[np.uint8]
    originals: NDArray[np.int64]
    reasons: list[str]
    kinds: list[Edit]

    @property
    def kept(self) -> NDArray[np.bool_]:
        """(documents,) which ones stay."""
        return np.asarray(self.fates == KEPT)

    def why(self, document: int) -> str:
        """The reason why a document goes."""
        return REPEATED if self.originals[document] >= 0 else self.reasons[self.facts["reason"][document]]


def units_decided(directory: Path, units: Sequence[Unit], decision: Decision) -> Iterator[Decided]:
    """All units in the order of the corpus."""
    first, journal = 0, Journal(directory)
    for unit in units:
        place = slice(first, first + unit.documents)
        note = journal.read(unit.name)
        yield Decided(
            unit.name,
            first,
            unit.line,
            facts_of(directory, unit.name),
            decision.fates[place],
            decision.originals[place],
            note["reasons"],
            [(step, kind) for step, kind in note["edits"]],
        )
        first = place.stop


class Totals:
    """The sums over all units."""

    def __init__(self) -> None:
        self.characters = self.large = 0  # of kept documents; how many of them were too large
        self._removed: dict[Why, list[int]] = {}  # documents, characters
        self._edits: Counter[Edit] = Counter()
        self._by_source: Counter[tuple[int, int]] = Counter()  # source, step or KEPT -> documents

    def add(self, unit: Decided, directory: Path) -> None:
        """Counts a unit."""
        facts, kept = unit.facts, unit.kept
        self.characters += int(facts["written"][kept].sum())
        self.large += int(facts["large"][kept].sum())
        self._edits.update(edits_of(directory, unit.name, unit.kinds, kept))
        pairs, counts = np.unique(np.stack([facts["source"], unit.fates]), axis=1, return_counts=True)
        self._by_source.update(Counter(dict(zip(map(tuple, pairs.T.tolist()), counts.tolist(), strict=True))))
        self._count_removed(unit)

    def _count_removed(self, unit: Decided) -> None:
        gone = np.flatnonzero(~unit.kept)
        reasons = np.where(unit.originals[gone] >= 0, -1, unit.facts["reason"][gone])
        _, first, which = np.unique(
            np.stack([unit.fates[gone], reasons]), axis=1, return_index=True, return_inverse=True
        )
        documents, characters = np.bincount(which), np.bincount(which, unit.facts["read"][gone])
        for i, document in enumerate(gone[first].tolist()):
            sums = self._removed.setdefault((int(unit.fates[document]), unit.why(document)), [0, 0])
            sums[0] += int(documents[i])
            sums[1] += int(characters[i])

    def steps(self, recipe: Recipe, documents: int) -> Iterator[StepSums]:
        """What each step did; `documents` enter the first one."""
        for number, (name, step) in enumerate(recipe.steps, 1):
            own = {why: sums for (by, why), sums in self._removed.items() if by == number}
            reasons = sorted(own.items(), key=lambda item: (-item[1][0], item[0]))
            removed = {reason: Sum(documents=n, characters=size) for reason, (n, size) in reasons}
            edits = {kind: n for (by, kind), n in sorted(self._edits.items()) if by == number and n}
            sums = StepSums(name=name, kind=kind_of(step), entered=documents, removed=removed, edits=edits)
            documents -= sums.documents
            yield sums

    def described(self, index: int, source: bins.Source, steps: Sequence[StepSums]) -> Source:
        """A source as the manifest lists it."""
        counts = {number: self._by_source[index, number] for number in range(len(steps) + 1)}
        removed = {step.name: counts[number] for number, step in enumerate(steps, 1) if counts[number]}
        return Source(**source.model_dump(), kept=counts[KEPT], removed=removed)

"""The sums over all units of a clean corpus."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from mtl_common import bins
from mtl_prep.curate.account import KEPT
from mtl_prep.curate.manifest import Source, StepSums, Sum
from mtl_prep.curate.recipe import Recipe, kind_of
from mtl_prep.curate.samples import Drawn, smallest
from mtl_prep.journal import Journal


class Totals:
    """Everything the second reading counted; `units` are names and bytes of what stays, in order."""

    def __init__(self, directory: Path) -> None:
        self.units: list[tuple[str, int]] = []
        self.characters = self.large = 0
        self.drawn: dict[int, list[Drawn]] = {}
        self._removed: dict[int, dict[str, list[int]]] = {}
        self._edits: dict[int, Counter[str]] = {}
        self._by_source: dict[int, Counter[int]] = {}
        journal = Journal(directory)
        for name in journal.names("unit-"):
            self._add(name, journal)

    def _add(self, name: str, journal: Journal) -> None:
        note = journal.read(name)
        self.units.append((name, note["bytes"]))
        self.characters += note["characters"]
        self.large += note["large"]
        for step, reasons in note["removed"].items():
            sums = self._removed.setdefault(int(step), {})
            for reason, (documents, characters) in reasons.items():
                before = sums.get(reason, [0, 0])
                sums[reason] = [before[0] + documents, before[1] + characters]
        for step, kinds in note["edits"].items():
            self._edits.setdefault(int(step), Counter()).update(kinds)
        for source, step, documents in note["by_source"]:
            self._by_source.setdefault(source, Counter())[step] += documents
        for step, drawn in note["drawn"].items():
            earlier = self.drawn.get(int(step), [])
            self.drawn[int(step)] = smallest([*earlier, *((number, shown) for number, shown in drawn)])

    def steps(self, recipe: Recipe, documents: int) -> Iterator[StepSums]:
        """What each step did; `documents` enter the first one."""
        for number, (name, step) in enumerate(recipe.steps, 1):
            reasons = sorted(self._removed.get(number, {}).items(), key=lambda item: (-item[1][0], item[0]))
            removed = {reason: Sum(documents=n, characters=size) for reason, (n, size) in reasons}
            edits = {kind: n for kind, n in sorted(self._edits.get(number, {}).items()) if n}
            sums = StepSums(name=name, kind=kind_of(step), entered=documents, removed=removed, edits=edits)
            documents -= sums.documents
            yield sums

    def described(self, index: int, source: bins.Source, steps: Sequence[StepSums]) -> Source:
        """A source as the manifest lists it."""
        counts = self._by_source.get(index, Counter())
        removed = {step.name: counts[number] for number, step in enumerate(steps, 1) if counts[number]}
        return Source(**source.model_dump(), kept=counts[KEPT], removed=removed)

"""What became of the documents of a unit: sums by step, reason and source, and who was removed."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from mtl_prep.curate.chunk import Chunk

KEPT = 0  # in place of a step's number
REPEATED = "repeated"  # the reason of all comparisons

Gone = tuple[int, str]  # place in its unit, reason


@dataclass
class Account:
    """The sums of one unit."""

    removed: dict[int, dict[str, list[int]]] = field(
        default_factory=dict
    )  # step, reason -> documents, characters
    by_source: Counter[tuple[int, int]] = field(default_factory=Counter)  # source, step or KEPT -> documents
    edits: dict[int, Counter[str]] = field(default_factory=dict)  # step -> kind -> replacements
    gone: dict[int, list[Gone]] = field(default_factory=dict)  # step -> documents
    characters: int = 0  # of what is kept
    large: int = 0  # kept documents that were not judged
    size: int = 0  # bytes of what is kept, as JSON lines

    def add(self, chunk: Chunk, sources: list[int], lengths: list[int]) -> None:
        """Counts documents; sources and lengths are those they had when they were read."""
        self.edited(chunk)
        self.by_source.update(zip(sources, chunk.fates.tolist(), strict=True))
        for i, fate in enumerate(chunk.fates.tolist()):
            if fate == KEPT:
                self.characters += len(chunk.texts[i])
            else:
                self.lose(fate, (chunk.first + i, chunk.reasons[i]), lengths[i])

    def edited(self, chunk: Chunk) -> None:
        """Counts what was changed in documents."""
        for number, kinds in chunk.edits.items():
            self.edits.setdefault(number, Counter()).update(kinds)

    def lose(self, step: int, gone: Gone, length: int) -> None:
        """Counts a document that a step removes."""
        sums = self.removed.setdefault(step, {}).setdefault(gone[1], [0, 0])
        sums[0] += 1
        sums[1] += length
        self.gone.setdefault(step, []).append(gone)

    def written(self) -> dict[str, Any]:
        """As the journal keeps it."""
        return {
            "characters": self.characters,
            "bytes": self.size,
            "large": self.large,
            "removed": {str(step): reasons for step, reasons in self.removed.items()},
            "by_source": [[*key, count] for key, count in sorted(self.by_source.items())],
            "edits": {str(step): kinds for step, kinds in self.edits.items() if kinds.total()},
        }

"""What is known of every document of a unit once it was examined, as it lies on the disk."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate.signatures import path_of, save

KEPT = 0  # in place of a step's number
NAME, EDITS = "facts", "edits"

Facts = NDArray[np.void]
Edit = tuple[int, str]  # the number of a step, and what it changes

FACTS = np.dtype(
    [
        ("fate", "u1"),  # the local step that removes it, or KEPT
        ("reason", "<u2"),  # which of the unit's reasons
        ("large", "?"),  # whether it was too large to be judged
        ("traced", "?"),  # whether its record tells itself where it comes from
        ("source", "<u4"),
        ("record", "<u8"),  # counted from where the unit begins in its file
        ("read", "<u8"),  # characters as it was read
        ("written", "<u8"),  # and as it may be written
        ("size", "<u8"),  # bytes of it as a line of JSON, 0 when a step removes it
    ]
)


@dataclass
class Sheet:
    """The facts of a unit while they are gathered, in the order of its documents."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=lambda: {"": 0})
    edits: list[tuple[int, Edit, int]] = field(default_factory=list)  # document, what, how often

    def reason(self, text: str) -> int:
        """The number of a reason."""
        return self.reasons.setdefault(text, len(self.reasons))

    def edited(self, document: int, edits: Mapping[Edit, int]) -> None:
        """Notes what was changed in a document."""
        self.edits += [(document, edit, count) for edit, count in edits.items() if count]

    @property
    def kinds(self) -> list[Edit]:
        """All that was changed in any document."""
        return sorted({edit for _, edit, _ in self.edits})

    def save(self, directory: Path, unit: str) -> None:
        """Puts it on the disk, but for the reasons and kinds."""
        save(path_of(directory, unit, 0, NAME), np.array(self.rows, FACTS))
        number = {edit: i for i, edit in enumerate(self.kinds)}
        rows = [(document, number[edit], count) for document, edit, count in self.edits]
        save(path_of(directory, unit, 0, EDITS), np.array(rows, np.int64).reshape(-1, 3))


def facts_of(directory: Path, unit: str) -> Facts:
    """(documents,) the facts of a unit."""
    return np.asarray(np.load(path_of(directory, unit, 0, NAME), mmap_mode="r"))


def edits_of(directory: Path, unit: str, kinds: list[Edit], kept: NDArray[np.bool_]) -> Counter[Edit]:
    """How often what was changed in those documents of a unit that are kept (documents,)."""
    document, kind, count = np.load(path_of(directory, unit, 0, EDITS)).T
    of_kept = kept[document]
    sums = np.bincount(kind[of_kept], count[of_kept], minlength=len(kinds))
    return Counter(dict(zip(kinds, sums.astype(int).tolist(), strict=True)))

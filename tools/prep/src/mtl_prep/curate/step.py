"""What all steps have in common: their settings, which documents they look at, and what they say."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, StrictFloat, StrictInt

from mtl_common.config import Settings
from mtl_prep.curate.batch import Batch, Mask

Count = Annotated[StrictInt, Field(ge=0)] | Literal[False]
Share = Annotated[StrictFloat, Field(ge=0)] | Literal[False]
SOURCE = "source"
PATTERN = frozenset("*?[")
MEANT = 4096  # answers that are remembered


class Verdict:
    """What a step says of the documents of a batch: which go and why, which have a new text or new keys.

    `masks` are values for keys of all records that have these; `edits` counts what was
    changed in a document, by kind.
    """

    def __init__(self, documents: int) -> None:
        self.reasons: list[str] = [""]
        self.reason: NDArray[np.uint8] = np.zeros(documents, np.uint8)
        self.texts: dict[int, str] = {}
        self.keys: dict[int, dict[str, Any]] = {}
        self.masks: dict[str, str] = {}
        self.edits: dict[int, Counter[str]] = {}

    def remove(self, documents: NDArray[Any], reason: str) -> None:
        """Lets documents go (a mask or indices), but for those that go for an earlier reason."""
        self.reasons.append(reason)
        mask = np.zeros(len(self.reason), bool)
        mask[documents] = True
        self.reason[mask & (self.reason == 0)] = len(self.reasons) - 1

    def edit(self, document: int, kind: str, count: int = 1) -> None:
        """Counts changes in a document."""
        self.edits.setdefault(document, Counter())[kind] += count

    def why(self, document: int) -> str:
        """The reason why a document goes, empty for one that stays."""
        return self.reasons[int(self.reason[document])]


class Judge(Protocol):
    """A step at work in one process."""

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """What becomes of the documents; those not in `wanted` (documents,) may be passed over."""


def _matches(value: Any, asked: Any) -> bool:
    """Whether a record's value is the asked one, one of several, or like a pattern with * and ?."""
    if value == asked:
        return True
    if isinstance(asked, list | tuple):
        return any(_matches(value, one) for one in asked)
    return (
        isinstance(asked, str)
        and isinstance(value, str)
        and not PATTERN.isdisjoint(asked)
        and fnmatchcase(value, asked)
    )


class Step(Settings):
    """The settings of a step.

    A document is looked at when its record has all values of `only`, and none of `unless`: keys of the record
    (and `source`, the path of its file), each with a value, a pattern such as `*.py`, or a list of them.
    """

    only: dict[str, Any] = Field(default_factory=dict)
    unless: dict[str, Any] = Field(default_factory=dict)

    def wants(self, record: Mapping[str, Any], source: str) -> bool:
        """Whether the document of a record is looked at."""
        return self._has_all(tuple(source if key == SOURCE else record.get(key) for key in self._asked))

    def wants_each(self, records: Sequence[Mapping[str, Any]], sources: Sequence[str]) -> Mask:
        """(documents,) which documents are looked at."""
        if not self._asked:
            return np.ones(len(records), bool)
        meant = lru_cache(MEANT, typed=True)(self._has_all)
        found = np.empty(len(records), bool)
        for i, (record, source) in enumerate(zip(records, sources, strict=True)):
            values = tuple(source if key == SOURCE else record.get(key) for key in self._asked)
            try:
                found[i] = meant(values)
            except TypeError:  # a list or an object
                found[i] = self._has_all(values)
        return found

    @cached_property
    def _asked(self) -> tuple[str, ...]:
        """The keys whose values decide."""
        return (*self.only, *self.unless)

    def _has_all(self, values: tuple[Any, ...]) -> bool:
        """Whether the values of the keys asked for are those of a document that is looked at."""
        has = [*map(_matches, values, (*self.only.values(), *self.unless.values()))]
        return all(has[: len(self.only)]) and not any(has[len(self.only) :])

    def inputs(self, base: Path) -> list[Path]:
        """The files that decide what it does; `base` is where relative paths begin."""
        return []


class LocalStep(Step):
    """A step that looks at one document at a time."""

    @abstractmethod
    def begin(self, base: Path) -> Judge:
        """The step at work; raises DataError for files it cannot use, UsageError for a missing library."""


class Signatures(Protocol):
    """The signatures of all documents of a corpus, which lie on the disk by unit."""

    def row(self, name: str, index: int) -> NDArray[Any]:
        """(documents,) row `index` of an array of shape (rows, documents)."""

    def columns(self, name: str, documents: NDArray[np.int64]) -> NDArray[Any]:
        """(rows, n) the columns of some documents, of an array of shape (rows, documents)."""


class GlobalStep(Step):
    """A step that compares documents: each gets a signature, and one decision is made of all signatures."""

    reason: ClassVar[str]

    @abstractmethod
    def sign(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Arrays of shape (rows, documents) by name, one column for each document."""

    def sign_pieces(self, pieces: Iterator[str]) -> dict[str, NDArray[Any]] | None:
        """The arrays of one document in pieces, (rows, 1); None where such a one cannot be compared."""
        return None

    @abstractmethod
    def originals(self, signatures: Signatures, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """(n,) ascending documents -> (n,) the earlier document that each repeats, or itself if it stays."""

"""Documents, and what gives none: each record of a corpus is a document, or is counted for a reason."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

EMPTY = "empty"
NOT_UTF8 = "not UTF-8"
HAS_NUL = "NUL bytes"
NOT_JSON = "not JSON"
NOT_OBJECT = "not an object"
NO_TEXT = "no text"
NOT_STRING = "text not a string"
NOT_ROW = "another number of fields"
OTHER = "other content"
NOT_ENCODABLE = "not encodable"
LONE_SURROGATE = "lone surrogate"
PASSED = frozenset({EMPTY, OTHER})  # nothing to mend: only counted, and not held against --max-bad
SHOWN = 1000  # bytes of a bad record that are kept

Place = tuple[int, int]  # source, record
Bad = tuple[int, int, str, str]  # source, record, reason, the start of what stands there


@dataclass(frozen=True)
class Giant:
    """One document that is too large to hold: its text comes in pieces, from the start at each call.

    It was read through before it is offered, so it is a good record and its pieces raise no BadRecordError.
    U+FFFD already stands where something was mended; line ends of a plain text are LF. `whole` gives the JSON
    record that it stands in, with no text in its place.
    """

    source: int
    record: int
    pieces: Callable[[], Iterator[str]]
    whole: Callable[[], dict[str, Any]] = dict


@dataclass
class Documents:
    """Texts with their place, and the records that gave none; `giant`, if any, is a document after all texts.

    `wholes` are the JSON records or rows that the texts stand in, empty for other texts. `passed` and
    `repaired` count by source and reason; only what is bad is kept one by one.
    """

    texts: list[str] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    wholes: list[dict[str, Any]] = field(default_factory=list)
    giant: Giant | None = None
    bad: list[Bad] = field(default_factory=list)
    passed: Counter[tuple[int, str]] = field(default_factory=Counter)
    repaired: Counter[tuple[int, str]] = field(default_factory=Counter)
    lines: int = 0

    @property
    def records(self) -> int:
        """How many records were read."""
        return len(self.texts) + (self.giant is not None) + len(self.bad) + self.passed.total()

    def add(self, source: int, record: int, text: str, whole: dict[str, Any] | None = None) -> None:
        """Takes a text in; one that is empty is no document."""
        if text:
            self.texts.append(text)
            self.places.append((source, record))
            self.wholes.append(whole or {})
        else:
            self.passed[source, EMPTY] += 1

    def refuse(self, source: int, record: int, reason: str, raw: bytes = b"") -> None:
        """Counts a record that gives no document; `raw` is what a person needs to see to mend it."""
        if reason in PASSED:
            self.passed[source, reason] += 1
        else:
            self.bad.append((source, record, reason, raw[:SHOWN].decode("utf-8", "backslashreplace")))

    def mend(self, source: int, what: str) -> None:
        """Counts a record that was mended."""
        self.repaired[source, what] += 1

    def take(self, others: "Documents", line: int) -> None:
        """Takes in, as the last ones, documents of a file whose lines are counted from its line `line`."""
        self.texts += others.texts
        self.places += [(source, line + record) for source, record in others.places]
        self.wholes += others.wholes
        if others.giant is not None:
            self.giant = replace(others.giant, record=line + others.giant.record)
        self.bad += [(source, line + record, why, raw) for source, record, why, raw in others.bad]
        self.passed.update(others.passed)
        self.repaired.update(others.repaired)

    def by_source(self) -> dict[int, int]:
        """Source -> how many records were read of it."""
        counts = Counter(source for source, _ in self.places)
        counts.update(source for source, *_ in self.bad)
        for (source, _), count in self.passed.items():
            counts[source] += count
        if self.giant is not None:
            counts[self.giant.source] += 1
        return dict(counts)

    def reasons(self) -> Counter[str]:
        """Why records gave no document, and how often."""
        counts = Counter(reason for _, _, reason, _ in self.bad)
        for (_, reason), count in self.passed.items():
            counts[reason] += count
        return counts

    def trouble(self) -> dict[str, list[Any]]:
        """What a journal keeps of the records that gave no document, or a mended one."""
        passed, repaired = ([[*key, n] for key, n in c.items()] for c in (self.passed, self.repaired))
        return {"bad": sorted(self.bad), "passed": passed, "repaired": repaired}


class BadRecordError(Exception):
    """A record without a document; its message is the reason."""

"""From bytes to documents: JSON lines and whole texts, each record a document or bad for a counted reason."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from mtl_prep.corpus import Source
from mtl_prep.unpack import unpacked

BOM = b"\xef\xbb\xbf"
EMPTY = "empty"
NOT_UTF8 = "not UTF-8"
NOT_JSON = "not JSON"
NOT_OBJECT = "not an object"
NO_TEXT = "no text"
NOT_STRING = "text not a string"
NOT_ENCODABLE = "not encodable"
LONE_SURROGATE = "lone surrogate"
PASSED = frozenset({EMPTY})  # no documents, and nothing to mend: counted, and not held against anyone
SHOWN = 1000  # bytes of a bad record that are kept

Place = tuple[int, int]  # source, record
Bad = tuple[int, int, str, str]  # source, record, reason, the start of what stands there


@dataclass(frozen=True)
class Block:
    """The lines of a source that start in one part of its bytes, and how much of the file they stand for."""

    part: int
    data: bytes
    consumed: int


@dataclass(frozen=True)
class Giant:
    """One document that is too large to hold: its text comes in pieces, from the start at each call.

    It was read through before it is offered, so it is a good record and its pieces raise no BadRecordError.
    U+FFFD already stands where something was mended; line ends of a plain text are LF.
    """

    source: int
    record: int
    pieces: Callable[[], Iterator[str]]


@dataclass
class Documents:
    """Texts with their place, and the records that gave none; `giant`, if any, is a document after all texts.

    `wholes` are the records that the texts stand in, empty for files that are a text alone. `passed` and
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
        return {"bad": self.bad, "passed": passed, "repaired": repaired}


class BadRecordError(Exception):
    """A record without a document; its message is the reason."""


def whole_lines(source: Source, part: int, part_bytes: int) -> Block:
    """The lines of a file as it is that start in the given part of it."""
    start, stop = part * part_bytes, min((part + 1) * part_bytes, source.size)
    with source.path.open("rb") as file:
        file.seek(max(start - 1, 0))
        begin = start + len(file.readline()) - 1 if start else 0
        if begin >= stop:
            return Block(part, b"", stop - start)
        data = file.read(stop - begin)
        if not data.endswith(b"\n"):
            data += file.readline()
    return Block(part, data, stop - start)


def packed_lines(source: Source, part_bytes: int) -> Iterator[Block]:
    """The same parts of a packed file, one after the other; the last one may be empty."""
    pending, at, part, read, told = bytearray(), 0, 0, 0, 0

    def note(position: int) -> None:
        nonlocal read
        read = position

    for piece in unpacked(source.path, source.packing, note):
        pending += piece
        # a part ends with the first line end at its last byte or later; after a longer line some are empty
        while (room := (part + 1) * part_bytes - at) <= 0 or pending.find(b"\n", room - 1) >= 0:
            end = pending.find(b"\n", room - 1) + 1 if room > 0 else 0
            yield Block(part, bytes(pending[:end]), read - told)
            del pending[:end]
            at, part, told = at + end, part + 1, read
    yield Block(part, bytes(pending), source.size - told)


def _mended(text: str) -> str:
    """Halves of surrogate pairs joined where they meet, and U+FFFD where they stand alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _second_look(line: bytes, key: str) -> dict[str, Any] | None:
    """The record of a line that is not plainly good, None for a blank one; json reads more than orjson."""
    if not line.strip():
        return None
    try:
        record = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise BadRecordError(NOT_UTF8) from None
    except (ValueError, RecursionError):
        raise BadRecordError(NOT_JSON) from None
    if not isinstance(record, dict):
        raise BadRecordError(NOT_OBJECT)
    if key not in record:
        raise BadRecordError(NO_TEXT)
    if not isinstance(record[key], str):
        raise BadRecordError(NOT_STRING)
    return record


def _add_line(found: Documents, source: int, number: int, line: bytes, key: str) -> None:
    try:
        record = _second_look(line, key)
    except BadRecordError as bad:
        found.refuse(source, number, str(bad), line)
        return
    if record is None:
        return
    mended = _mended(record[key])
    if mended != record[key]:
        found.mend(source, LONE_SURROGATE)
    found.add(source, number, mended, record)


def from_lines(data: bytes, source: int, key: str) -> Documents:
    """The documents of JSON lines; a record is numbered by its line, from 0, blank lines counted."""
    found, loads = Documents(), orjson.loads
    lines = data.removeprefix(BOM).split(b"\n")
    found.lines = len(lines) - (not lines[-1])
    for number, line in enumerate(lines):
        try:
            record = loads(line)
            text = record[key]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
            text = None
        if type(text) is str:
            found.add(source, number, text, record)
        else:
            _add_line(found, source, number, line, key)
    return found


def from_texts(sources: list[tuple[int, Source]], raw: Callable[[int, bytes], None]) -> Documents:
    """The documents of whole files, line ends made LF; `raw` is shown the bytes on the disk."""
    found = Documents()
    for index, source in sources:
        content = b"".join(unpacked(source.path, source.packing))
        raw(index, source.path.read_bytes() if source.packing else content)
        try:
            text = content.removeprefix(BOM).decode("utf-8")
        except UnicodeDecodeError:
            found.refuse(index, 0, NOT_UTF8, content)
        else:
            found.add(index, 0, text.replace("\r\n", "\n"))
    return found


def documents(sources: tuple[Source, ...], key: str, part_bytes: int) -> Iterator[Documents]:
    """All documents of a corpus in order, a part of the corpus at a time."""
    for index, source in enumerate(sources):
        if source.kind == "text":
            yield from_texts([(index, source)], lambda *_: None)
        elif source.packing:
            yield from (from_lines(block.data, index, key) for block in packed_lines(source, part_bytes))
        else:
            parts = range(-(-source.size // part_bytes))
            yield from (from_lines(whole_lines(source, p, part_bytes).data, index, key) for p in parts)


def keys_of(line: bytes) -> list[str]:
    """The keys of a JSON line, for telling a user what there is."""
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return []
    return sorted(record) if isinstance(record, dict) else []


def content_hash(path: Path) -> str:
    """The xxh3-128 of a file's bytes on the disk."""
    import xxhash

    digest = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()

"""JSON over many lines: an array of records, or one record after the other, read without holding all of it.

The values of an array at the top are the records, and so are the values outside of one.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from mtl_common.errors import DataError
from mtl_prep.corpus.content import Content, discarded, spooled
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.long_json import INSIDE, add_long_json
from mtl_prep.corpus.parsing import Rules, add_all_json
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.source import Source

BETWEEN = re.compile(rb"[ \t\r\n,]*")
BODY = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
SCALAR_END = re.compile(rb'[ \t\r\n,\[\]{}"]')

Fragment = tuple[bytes, bool]  # some of a record, and whether the record ends with it


def _end(pattern: re.Pattern[bytes], piece: bytes, at: int) -> int:
    return cast(re.Match[bytes], pattern.match(piece, at)).end()


class _Splitter:
    """Tells where records begin and end in a stream of JSON."""

    def __init__(self) -> None:
        self.in_array = self.in_record = False
        self.in_scalar = self._in_string = False
        self._depth = 0
        self._held = b""  # a backslash whose character is in the next piece

    def fragments(self, piece: bytes) -> Iterator[Fragment]:
        """The records, and starts and ends of records, in the next piece of the stream."""
        piece = self._held + piece
        self._held = b""
        at = 0
        while at < len(piece):
            start = at
            if not self.in_record:
                at = start = self._begin(piece, at)
                if not self.in_record:
                    continue
            at, ended = self._go_on(piece, at)
            self.in_record = not ended
            yield piece[start:at], ended
            if not ended:
                self._held = piece[at:]
                return

    def _begin(self, piece: bytes, at: int) -> int:
        """Goes to the next record, or over what stands around records."""
        at = _end(BETWEEN, piece, at)
        first = piece[at : at + 1]
        if first == (b"]" if self.in_array else b"["):
            self.in_array = not self.in_array
            return at + 1
        self.in_record, self._depth = bool(first), 0
        self._in_string, self.in_scalar = False, first not in (b"{", b"[", b'"')
        return at

    def _go_on(self, piece: bytes, at: int) -> tuple[int, bool]:
        """Goes to the end of the record, or of what of it there is; tells which."""
        if self.in_scalar:
            end = SCALAR_END.search(piece, at if piece[at : at + 1].isalnum() else at + 1)
            return (end.start(), True) if end else (len(piece), False)
        while at < len(piece):
            at = _end(INSIDE if self._in_string else BODY, piece, at)
            mark = piece[at : at + 1]
            if mark in (b"", b"\\"):
                break
            at += 1
            if mark == b'"':
                self._in_string = not self._in_string
            else:
                self._depth += 1 if mark in b"{[" else -1
            if not self._depth and not self._in_string:
                return at, True
        return at, False


@dataclass
class _Run:
    """Records that follow each other, and one more after them if it is too long to hold."""

    records: list[bytes] = field(default_factory=list)
    size: int = 0
    long: Content | None = None

    def add(self, record: bytes) -> None:
        self.records.append(record)
        self.size += len(record)

    def read(self, source: int, rules: Rules) -> Documents:
        found = Documents(lines=len(self.records))
        add_all_json(found, source, self.records, rules)
        if self.long is not None:
            add_long_json(found, source, found.lines, self.long, rules)
            found.lines += 1
        return found


def _fragments(source: Source, position: list[int]) -> Iterator[Fragment]:
    """All fragments of a file; raises DataError when it ends in the middle."""
    splitter = _Splitter()
    for piece in source.pieces(position):
        yield from splitter.fragments(piece)
    if splitter.in_record and not splitter.in_scalar:
        raise DataError(f"{source.name} ends in the middle of a JSON record; mend it or leave it out")
    if splitter.in_array:
        raise DataError(f"{source.name} ends in the middle of its JSON array; mend it or leave it out")
    if splitter.in_record:
        yield b"", True


def _to_end(begun: bytes, fragments: Iterator[Fragment]) -> Iterator[bytes]:
    yield begun
    for fragment, ended in fragments:
        yield fragment
        if ended:
            return


def _runs(fragments: Iterator[Fragment], part: Part, reading: Reading) -> Iterator[_Run]:
    """The records in runs of at least `part_bytes`; a run ends after a long one."""
    run, begun, number = _Run(), bytearray(), 0
    for fragment, ended in fragments:
        begun += fragment
        if not ended and len(begun) > reading.giant:
            rest = _to_end(bytes(begun), fragments)
            run.long = spooled(rest, part.scratch) if part.wanted(number) else discarded(rest)
        elif ended and len(begun) > reading.giant:
            run.long = partial(iter, [bytes(begun)])
        elif ended:
            run.add(bytes(begun))
        else:
            continue
        begun.clear()
        if run.long is not None or run.size >= reading.part_bytes:
            yield run
            run, number = _Run(), number + 1
    if run.records:
        yield run


class JsonValues:
    """The format of JSON that is not a record a line."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Only the start tells where records begin."""
        return None

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of records."""
        source, position, told = reading.sources[part.source], [0], 0
        for run in _runs(_fragments(source, position), part, reading):
            read = partial(run.read, part.source, reading.rules)
            yield Block(position[0] - told, read, stays=run.long is not None)
            told = position[0]

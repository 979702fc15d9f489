"""Text in which ends tell records apart: JSON lines, and plain texts of a line or a paragraph."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mtl_prep.corpus.content import Content, discarded, spooled
from mtl_prep.corpus.cutting import BLANK_LINES, LINE_END, Cut, End, cuts, lines_of_part
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.long_json import add_long_json
from mtl_prep.corpus.long_text import add_long_text
from mtl_prep.corpus.parsing import BOM, Rules, add_all_json, add_plain
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.source import Source

LEADING = re.compile(rb"\A(?:[ \t\r\f\v]*\n)+")


class Records(Protocol):
    """What the records between ends are."""

    def add(self, found: Documents, source: int, data: bytes, rules: Rules) -> None:
        """Takes in whole records, numbered from 0, and counts them in `found.lines`."""

    def add_long(self, found: Documents, source: int, record: int, content: Content, rules: Rules) -> None:
        """Takes in one record that is too long to hold."""


class JsonLines:
    """A record a line; blank lines are counted, and are no records."""

    def add(self, found: Documents, source: int, data: bytes, rules: Rules) -> None:
        """Takes in lines."""
        lines = data.removeprefix(BOM).split(b"\n")
        found.lines = len(lines) - (not lines[-1])
        add_all_json(found, source, lines, rules)

    def add_long(self, found: Documents, source: int, record: int, content: Content, rules: Rules) -> None:
        """Takes in one line."""
        add_long_json(found, source, record, content, rules)


class TextLines:
    """A document a line, without its end; an empty line is an empty record."""

    def add(self, found: Documents, source: int, data: bytes, rules: Rules) -> None:
        """Takes in lines."""
        lines = data.removeprefix(BOM).split(b"\n")
        found.lines = len(lines) - (not lines[-1])
        for number, line in enumerate(lines[: found.lines]):
            add_plain(found, source, number, line.removesuffix(b"\r"), rules)

    def add_long(self, found: Documents, source: int, record: int, content: Content, rules: Rules) -> None:
        """Takes in one line."""
        add_long_text(found, source, record, content, rules, "line")


class Paragraphs:
    """A document a paragraph: what stands between lines with nothing but white space on them."""

    def add(self, found: Documents, source: int, data: bytes, rules: Rules) -> None:
        """Takes in paragraphs."""
        pieces = BLANK_LINES.split(LEADING.sub(b"", data.removeprefix(BOM)))
        paragraphs = [text for piece in pieces if (text := piece.strip(b"\r\n"))]
        found.lines = len(paragraphs)
        for number, paragraph in enumerate(paragraphs):
            add_plain(found, source, number, paragraph, rules)

    def add_long(self, found: Documents, source: int, record: int, content: Content, rules: Rules) -> None:
        """Takes in one paragraph."""
        add_long_text(found, source, record, content, rules, "paragraph")


def _read(cut: Cut, source: int, rules: Rules, records: Records) -> Documents:
    found = Documents()
    records.add(found, source, cut.data, rules)
    if cut.long is not None:
        records.add_long(found, source, found.lines, cut.long, rules)
        found.lines += 1
    return found


@dataclass(frozen=True)
class Ended:
    """The format of text whose records have ends."""

    records: Records
    end: End

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Lines that are not packed can be read from anywhere."""
        if self.end is LINE_END and source.is_plain:
            return -(-source.size // reading.part_bytes)
        return None

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """One block for a part of a file as it is; many for a stream."""
        source = reading.sources[part.source]
        if self.parts(source, reading) is None:
            return self._of_stream(part, reading)
        start = part.number * reading.part_bytes
        stop = min(start + reading.part_bytes, source.size)

        def read() -> Documents:
            cut = lines_of_part(source.open, start, stop, source.size, reading.giant)
            return _read(cut, part.source, reading.rules, self.records)

        return iter([Block(stop - start, read)])

    def _of_stream(self, part: Part, reading: Reading) -> Iterator[Block]:
        source, rules = reading.sources[part.source], reading.rules
        number, told, position = 0, 0, [0]

        def keep(pieces: Iterator[bytes]) -> Content:
            return spooled(pieces, part.scratch) if part.wanted(number) else discarded(pieces)

        for cut in cuts(source.pieces(position), self.end, reading.part_bytes, reading.giant, keep):
            read = partial(_read, cut, part.source, rules, self.records)
            yield Block(position[0] - told, read, stays=cut.long is not None)
            number, told = number + 1, position[0]


JSON_LINES = Ended(JsonLines(), LINE_END)
TEXT_LINES = Ended(TextLines(), LINE_END)
PARAGRAPHS = Ended(Paragraphs(), BLANK_LINES)

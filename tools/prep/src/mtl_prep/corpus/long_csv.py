"""The text of one row of CSV that is too long to hold, in pieces.

A row is scanned once for the places of its fields. Short ones are read as they are, and short names stand for
the long ones: so it is known where the text is, which is then read from its place.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, cast

from mtl_prep.corpus.content import Content, beginning, part
from mtl_prep.corpus.long_text import decoded, decoding
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import HAS_NUL, NOT_UTF8, SHOWN, BadRecordError, Documents, Giant

TOO_LARGE = "too large, and not by one text"
LONG = 1 << 10  # bytes of a field that is read from its place
INSIDE = re.compile(rb'(?:[^"]++|"")*+')
QUOTE, CR, LF = b'"\r\n'
NAME = "\0long"  # which no text has

Place = tuple[int, int]  # where in the row a field begins and ends, its quotes included


@dataclass
class RowScan:
    """Finds the end of a row that comes in pieces, and its fields, as the strict csv module does."""

    separator: bytes
    fields: list[Place] = field(default_factory=list)
    is_good: bool = True
    _state: Literal["start", "plain", "quoted", "quote", "bad"] = "start"
    _begun: int = 0
    _at: int = 0

    @property
    def is_open(self) -> bool:
        """Whether the row ends inside of quotes, if nothing comes any more."""
        return self._state == "quoted"

    def feed(self, piece: bytes) -> int | None:
        """Where in the next piece the row ends, its line end included; None when it goes on."""
        at = 0
        while at < len(piece):
            at, ended = self._step(piece, at)
            if ended:
                self.finish(self._at + at - 1)
                return at
        self._at += len(piece)
        return None

    def finish(self, at: int | None = None) -> None:
        """Takes the row to end at a place, or after all that came."""
        self.fields.append((self._begun, self._at if at is None else at))

    def _step(self, piece: bytes, at: int) -> tuple[int, bool]:
        """Goes on to where something may change; tells whether the row has ended there."""
        if self._state == "quoted":
            quote = cast(re.Match[bytes], INSIDE.match(piece, at)).end()
            self._state = "quoted" if quote == len(piece) else "quote"
            return min(quote + 1, len(piece)), False
        if self._state in ("start", "quote") and piece[at] == QUOTE:
            self._state = "quoted"
            return at + 1, False
        if self._state == "quote" and piece[at] not in (CR, LF, self.separator[0]):
            self._state, self.is_good = "bad", False
        stop = rb"[\r\n]" if self._state == "bad" else b"[\r\n" + re.escape(self.separator) + b"]"
        end = re.compile(stop).search(piece, at)
        if not end:
            self._state = "bad" if self._state == "bad" else "plain"
            return len(piece), False
        if piece[end.start()] in (CR, LF):
            return end.end(), True
        self.fields.append((self._begun, self._at + end.start()))
        self._begun, self._state = self._at + end.end(), "start"
        return end.end(), False


@dataclass(frozen=True)
class LongRow:
    """A row that is not held: its bytes, and where its fields are."""

    content: Content
    fields: Sequence[Place]

    def pieces(self, place: Place, errors: str) -> Iterator[str]:
        """A field as text in pieces, without its quotes."""
        start, stop = place
        quoted = next(part(self.content, start, start + 1), b"") == b'"'
        held = ""
        for piece in decoded(part(self.content, start + quoted, stop - quoted), errors):
            text = held + piece
            half = quoted and (len(text) - len(text.rstrip('"'))) % 2
            held = '"' if half else ""
            yield text[: len(text) - half].replace('""', '"') if quoted else text

    def text(self, place: Place, errors: str) -> str:
        """All of a field."""
        return "".join(self.pieces(place, errors))

    def check(self, place: Place) -> None:
        """Raises BadRecordError for a field that is no text."""
        if any(b"\0" in piece for piece in part(self.content, *place)):
            raise BadRecordError(HAS_NUL)

    def errors(self, place: Place, rules: Rules) -> str:
        """How to decode a field; raises BadRecordError for one that is not UTF-8 and is not to be mended."""
        return decoding(partial(part, self.content, *place), rules)


def _whole(row: LongRow, fields: Mapping[str, tuple[Place, str]], without: str | None) -> dict[str, str]:
    """The fields of a row by name, and nothing for one of them."""
    return {name: "" if name == without else row.text(*field) for name, field in fields.items()}


def _add(found: Documents, at: Place, row: LongRow, header: Sequence[str], whole: bool, rules: Rules) -> None:
    places, key = dict(zip(header, row.fields, strict=True)), rules.key.columns(header)
    for name in key:
        row.check(places[name])
    kept = header if whole else key
    fields = {name: (places[name], row.errors(places[name], rules)) for name in kept}
    long = {f"{NAME}{i}": name for i, name in enumerate(key) if places[name][1] - places[name][0] > LONG}
    names = {name: named for named, name in long.items()}
    text = rules.key.of({name: names.get(name) or row.text(*fields[name]) for name in key})
    if text not in long and NAME in text:
        raise BadRecordError(TOO_LARGE)
    if any(errors == "replace" for _, errors in fields.values()):
        found.mend(at[0], NOT_UTF8)
    if text not in long:
        found.add(*at, text, _whole(row, fields, None))
        return
    start, end = places[long[text]]
    place = fields[long[text]]
    if end - start > rules.giant:
        found.giant = Giant(*at, partial(row.pieces, *place), partial(_whole, row, fields, long[text]))
    else:
        found.add(*at, row.text(*place), _whole(row, fields, None))


def add_long_row(
    found: Documents, source: int, record: int, row: LongRow, header: Sequence[str], whole: bool, rules: Rules
) -> None:
    """Takes in one row, with a field for each of the header, as the last one.

    With `whole` all fields are kept with its text, not only those of the key.
    """
    try:
        _add(found, (source, record), row, header, whole, rules)
    except BadRecordError as bad:
        found.refuse(source, record, str(bad), beginning(row.content, SHOWN))

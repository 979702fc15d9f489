"""The text of one JSON record that is too long to hold, in pieces.

The record is read once without its long strings: what is left, with a short name in the place of each, is
small, and is read as any other record is. So it is known where the text is, and that the record is good JSON;
the text is then read from its place, a piece at a time.
"""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import orjson

from mtl_prep.corpus.content import Content, beginning, part
from mtl_prep.corpus.long_text import decoded, decoding
from mtl_prep.corpus.parsing import Rules, json_text, mended
from mtl_prep.corpus.records import (
    LONE_SURROGATE,
    NOT_JSON,
    NOT_UTF8,
    SHOWN,
    BadRecordError,
    Documents,
    Giant,
)

QUOTE = ord('"')
LONGEST_UNIT = 11  # characters of an escape and the one it needs to be followed by, less one
LEAST = 64  # long strings' worth of JSON around them that is always read
LONG = 1 << 10  # bytes of a string that is left out at first
TOO_LARGE = "too large, and not by one text"
SPACE = re.compile(rb"[ \t\r\n]+")
INSIDE = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
# whole characters and escapes; the first half of a surrogate pair only with what follows it
UNITS = re.compile(
    r"(?:[^\\]++|\\[^u]|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\u[dD][89abAB]..(?=[^\\]|\\[^u]|\\u.{4}))*+",
    re.DOTALL,
)


@dataclass
class _Outline:
    """A record without its long strings: the JSON around them, and where in the record they are."""

    around: list[bytes]
    strings: list[tuple[int, int]]

    def named(self) -> tuple[bytes, str]:
        """The record with names for its long strings, and what those names start with."""
        name = "long"
        while any(name.encode() in piece for piece in self.around):
            name += "-"
        names = [b"%s%d" % (name.encode(), i) for i in range(len(self.strings))]
        return b"".join(a + b for a, b in zip(self.around, [*names, b""], strict=True)), name


class _Scan:
    """Makes an outline of JSON that comes in pieces; `limit` is how large it may become."""

    def __init__(self, long: int, limit: int) -> None:
        self._long, self._limit = long, limit
        self._around, self._strings = [bytearray()], list[tuple[int, int]]()
        self._string: bytearray | None = None  # the start of the string that a piece ended in
        self._begun = self._size = 0

    def outline(self, pieces: Iterator[bytes]) -> _Outline:
        """Reads all pieces; raises BadRecordError for an open string, or too much beside long ones."""
        window, at = b"", 0
        for piece in pieces:
            window += piece
            done = 0
            while done < len(window) and (step := self._step(window, done, at)) > done:
                done = step
            window, at = window[done:], at + done
            if sum(map(len, self._around)) > self._limit:
                raise BadRecordError(TOO_LARGE)
        if self._string is not None:
            raise BadRecordError(NOT_JSON)
        return _Outline([bytes(piece) for piece in self._around], self._strings)

    def _step(self, window: bytes, done: int, at: int) -> int:
        """Takes in what is outside of strings up to the next one, or inside of one; gives where that ends."""
        if self._string is None:
            stop = window.find(b'"', done) + 1 or len(window)
            self._around[-1] += SPACE.sub(b" ", window[done:stop])
            if window[stop - 1] == QUOTE:
                self._string, self._begun, self._size = bytearray(), at + stop, 0
            return stop
        stop = cast(re.Match[bytes], INSIDE.match(window, done)).end()
        self._size += stop - done
        self._string += window[done : min(stop, done + self._long + 1 - len(self._string))]
        if window[stop : stop + 1] != b'"':
            return stop
        self._close(at + stop)
        return stop + 1

    def _close(self, end: int) -> None:
        if self._size > self._long:
            self._strings.append((self._begun, end))
            self._around.append(bytearray())
        else:
            self._around[-1] += cast(bytearray, self._string)
        self._around[-1] += b'"'
        self._string = None


def _plain(escaped: str, mends: set[str]) -> str:
    """A piece of a JSON string as text."""
    try:
        return str(orjson.loads(f'"{escaped}"'))
    except orjson.JSONDecodeError:
        pass
    try:
        text = str(json.loads(f'"{escaped}"'))
    except ValueError:
        raise BadRecordError(NOT_JSON) from None
    mends.add(LONE_SURROGATE)
    return mended(text)


def _unescaped(content: Content, place: tuple[int, int], errors: str, mends: set[str]) -> Iterator[str]:
    """The text of a JSON string that stands at `place`, in pieces."""
    rest = ""
    for piece in decoded(part(content, *place), errors):
        rest += piece
        end = cast(re.Match[str], UNITS.match(rest)).end()
        if end:
            yield _plain(rest[:end], mends)
        rest = rest[end:]
        if len(rest) > LONGEST_UNIT:
            raise BadRecordError(NOT_JSON)
    yield _plain(rest, mends)


def _checked(content: Content, place: tuple[int, int], errors: str) -> set[str]:
    """Reads a long string through; gives what has to be mended in it."""
    mends = set[str]()
    for _ in _unescaped(content, place, errors, mends):
        pass
    return mends


def _filled(value: Any, strings: Mapping[str, str]) -> Any:
    """A value with the long strings in the place of their names."""
    if isinstance(value, str):
        return strings.get(value, value)
    if isinstance(value, list):
        return [_filled(inner, strings) for inner in value]
    if isinstance(value, dict):
        return {strings.get(key, key): _filled(inner, strings) for key, inner in value.items()}
    return value


def _whole(
    record: dict[str, Any], content: Content, places: Mapping[str, tuple[int, int]], errors: str
) -> Any:
    """A record with the long strings that stand at some places, and nothing for the others."""
    strings = {
        name: "".join(_unescaped(content, place, errors, set())) if place[1] else ""
        for name, place in places.items()
    }
    return _filled(record, strings)


def _add(found: Documents, place: tuple[int, int], content: Content, rules: Rules, long: int) -> None:
    (source, record), errors = place, decoding(content, rules)
    outline = _Scan(long, max(rules.giant, LEAST * long)).outline(content())
    mends = [_checked(content, string, errors) for string in outline.strings]
    named, name = outline.named()
    good = json_text(named, rules)
    number = int(good.text.removeprefix(name)) if good.text.startswith(name) else -1
    if number < 0 and name in good.text:
        raise BadRecordError(TOO_LARGE)
    mended_here = good.mends if number < 0 else mends[number]
    for what in sorted(mended_here if errors == "strict" else mended_here | {NOT_UTF8}):
        found.mend(source, what)
    places = {f"{name}{i}": (0, 0) if i == number else string for i, string in enumerate(outline.strings)}
    whole = partial(_whole, good.whole, content, places, errors)
    if number < 0:
        found.add(source, record, good.text, whole())
    else:
        pieces = partial(_unescaped, content, outline.strings[number], errors, set())
        found.giant = Giant(source, record, pieces, whole)


def add_long_json(
    found: Documents, source: int, record: int, content: Content, rules: Rules, long: int = LONG
) -> None:
    """Takes in one record as the last one; strings of more than `long` bytes are read in pieces."""
    try:
        _add(found, (source, record), content, rules, long)
    except BadRecordError as bad:
        found.refuse(source, record, str(bad), beginning(content, SHOWN))

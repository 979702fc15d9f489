"""A plain text too long to hold, piece by piece: UTF-8, no mark, LF at line ends, no NUL."""

import codecs
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Literal

from mtl_prep.corpus.content import Content, beginning
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import EMPTY, HAS_NUL, NOT_UTF8, SHOWN, BadRecordError, Documents, Giant

LEADING = re.compile(r"\A(?:[ \t\r\f\v]*\n)+")

Unit = Literal["file", "line", "paragraph"]


def decoded(pieces: Iterable[bytes], errors: str) -> Iterator[str]:
    """Text of UTF-8 in pieces; raises BadRecordError for what is not UTF-8, unless `errors` is `replace`."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors)
    try:
        for piece in pieces:
            yield decoder.decode(piece)
        yield decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        raise BadRecordError(NOT_UTF8) from None


def decoding(content: Content, rules: Rules) -> str:
    """How to decode a content: `strict`, or `replace` where there is something to mend.

    Raises BadRecordError for what is not UTF-8 and is not to be mended.
    """
    try:
        for _ in decoded(content(), "strict"):
            pass
    except BadRecordError:
        if not rules.replace:
            raise
        return "replace"
    return "strict"


def _line_ends(pieces: Iterable[str]) -> Iterator[str]:
    """CRLF made LF, also where a piece ends between the two."""
    held = ""
    for piece in pieces:
        text = held + piece
        held = "\r" if text.endswith("\r") else ""
        yield text.removesuffix("\r").replace("\r\n", "\n") if held else text.replace("\r\n", "\n")
    yield held


def _without_end(pieces: Iterable[str]) -> Iterator[str]:
    """A line without its end."""
    held = ""
    for piece in filter(None, pieces):
        yield held + piece.removesuffix("\n")
        held = "\n" if piece.endswith("\n") else ""


def _without_blank_lines(pieces: Iterable[str]) -> Iterator[str]:
    """A paragraph without the line ends and blank lines around it."""
    held, begun = "", False
    for piece in pieces:
        text = held + piece if begun else LEADING.sub("", held + piece).lstrip("\n")
        solid = len(text.rstrip())
        begun = begun or solid > 0
        yield text[:solid]
        held = text[solid:]
    yield held.partition("\n")[0] if "\n" in held else held


TRIMS: dict[Unit, Callable[[Iterable[str]], Iterator[str]]] = {
    "file": iter,
    "line": _without_end,
    "paragraph": _without_blank_lines,
}


def _texts(content: Content, errors: str, unit: Unit) -> Iterator[str]:
    """The pieces of a text; raises BadRecordError when it is none."""
    pieces = decoded(content(), errors)
    first = next(pieces, "").removeprefix("\ufeff")
    for piece in TRIMS[unit](_line_ends(itertools.chain([first], pieces))):
        if "\0" in piece:
            raise BadRecordError(HAS_NUL)
        yield piece


def add_long_text(
    found: Documents, source: int, record: int, content: Content, rules: Rules, unit: Unit = "file"
) -> None:
    """Takes in one text as the last document: a file, or a line or paragraph with its end."""
    try:
        errors = decoding(content, rules)
        characters = sum(map(len, _texts(content, errors, unit)))
    except BadRecordError as bad:
        found.refuse(source, record, str(bad), beginning(content, SHOWN))
        return
    if errors == "replace":
        found.mend(source, NOT_UTF8)
    if characters:
        found.giant = Giant(source, record, partial(_texts, content, errors, unit))
    else:
        found.refuse(source, record, EMPTY)

"""From bytes to text: a JSON record or a plain text is a document, or is bad for a reason."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import orjson

from mtl_prep.corpus.keys import Key
from mtl_prep.corpus.records import (
    EMPTY,
    HAS_NUL,
    LONE_SURROGATE,
    NOT_JSON,
    NOT_UTF8,
    BadRecordError,
    Documents,
)

BOM = b"\xef\xbb\xbf"
WITHOUT_MARK = "utf-8-sig"


@dataclass(frozen=True)
class Rules:
    """What decides the text of a record: where it is, whether invalid UTF-8 is mended, how large is giant."""

    key: Key
    replace: bool
    giant: int


def mended(text: str) -> str:
    """Halves of surrogate pairs joined where they meet, and U+FFFD where they stand alone."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def decode(raw: bytes, replace: bool, encoding: str = WITHOUT_MARK) -> tuple[str, set[str]]:
    """Bytes as text, and what was mended; raises BadRecordError for no UTF-8."""
    try:
        return raw.decode(encoding), set()
    except UnicodeDecodeError:
        if not replace:
            raise BadRecordError(NOT_UTF8) from None
    return raw.decode(encoding, "replace"), {NOT_UTF8}


@dataclass(frozen=True)
class Found:
    """A text, the record that it stands in, and what was mended."""

    text: str
    whole: dict[str, Any]
    mends: set[str]


def json_text(raw: bytes, rules: Rules) -> Found:
    """The text of a JSON record; json reads more than orjson. Raises BadRecordError when there is none."""
    written, mends = decode(raw, rules.replace)
    try:
        record = json.loads(written)
    except (ValueError, RecursionError):
        raise BadRecordError(NOT_JSON) from None
    text = rules.key.of(record)
    if not text.isascii() and (whole := mended(text)) != text:
        return Found(whole, record, mends | {LONE_SURROGATE})
    return Found(text, record, mends)


def add_json(found: Documents, source: int, number: int, raw: bytes, rules: Rules) -> None:
    """Takes in one record in the way that misses nothing; a blank one is none."""
    if not raw.strip():
        return
    try:
        good = json_text(raw, rules)
    except BadRecordError as bad:
        found.refuse(source, number, str(bad), raw)
        return
    for what in sorted(good.mends):
        found.mend(source, what)
    found.add(source, number, good.text, good.whole)


def add_all_json(found: Documents, source: int, records: Iterable[bytes], rules: Rules) -> None:
    """Takes in JSON records, numbered from 0, blank ones counted."""
    texts, places, wholes, loads = found.texts, found.places, found.wholes, orjson.loads
    get: Any = itemgetter(rules.key.plain) if rules.key.plain else rules.key.of
    empty = 0
    for number, raw in enumerate(records):
        if not raw:
            continue
        try:
            record = loads(raw)
            text = get(record)
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError, BadRecordError):
            text = None
        if text.__class__ is not str:
            add_json(found, source, number, raw, rules)
        elif text:
            texts.append(text)
            places.append((source, number))
            wholes.append(record)
        else:
            empty += 1
    if empty:
        found.passed[source, EMPTY] += empty


def plain_text(raw: bytes, replace: bool) -> tuple[str, set[str]]:
    """A plain text with LF at its line ends, and what was mended; raises BadRecordError for what is none."""
    text, mends = decode(raw, replace)
    if "\0" in text:
        raise BadRecordError(HAS_NUL)
    return text.replace("\r\n", "\n"), mends


def add_plain(found: Documents, source: int, number: int, raw: bytes, rules: Rules) -> None:
    """Takes in one plain text."""
    try:
        text, mends = plain_text(raw, rules.replace)
    except BadRecordError as bad:
        found.refuse(source, number, str(bad), raw)
        return
    for what in sorted(mends):
        found.mend(source, what)
    found.add(source, number, text)


def keys_of(raw: bytes) -> list[str]:
    """The keys of a JSON record, for telling a user what there is."""
    try:
        record: Any = orjson.loads(raw)
    except orjson.JSONDecodeError:
        return []
    return sorted(record) if isinstance(record, dict) else []

"""Records as lines of JSON, and what in them tells where a document comes from."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from mtl_prep.curate.judged import Judged

ORIGIN = "curated_from"  # the key of the record that tells where it comes from, the first one
MARK = "the text stands here"  # with as many marks more as make it the only one


def is_traced(record: Mapping[str, Any]) -> bool:
    """Whether a record tells where it comes from, as one of a clean corpus does."""
    return ORIGIN in record


def json_line(record: Mapping[str, Any]) -> bytes:
    """A record as a line of JSON."""
    if is_traced(record):
        record = {ORIGIN: record[ORIGIN], **record}
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair in another key, or a number of more than 64 bits
        return json.dumps(record).encode() + b"\n"


def json_line_in_pieces(record: Mapping[str, Any], key: Judged, text: Iterable[str]) -> Iterator[bytes]:
    """A record with a text that comes in pieces, as a line of JSON that does."""
    mark = MARK
    while mark in repr(record):
        mark += "-"
    before, _, after = json_line(key.put(record, mark)).partition(mark.encode())
    yield before
    for piece in text:
        yield orjson.dumps(piece)[1:-1]
    yield after


def origin(source: str, record: int) -> bytes:
    """What stands in place of the first character of a line, so that it tells where it comes from.

    >>> origin("a.jsonl", 7) + b'{"text":"b"}'[1:]
    b'{"curated_from":{"source":"a.jsonl","record":7},"text":"b"}'
    """
    return orjson.dumps({ORIGIN: {"source": source, "record": record}})[:-1] + b","

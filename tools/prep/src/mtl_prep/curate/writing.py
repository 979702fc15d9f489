"""Records as lines of JSON."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from mtl_prep.curate.judged import Judged

MARK = "the text stands here"  # with as many marks more as make it the only one


def json_line(record: dict[str, Any]) -> bytes:
    """A record as a line of JSON."""
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half a surrogate pair in another key, or a number of more than 64 bits
        return json.dumps(record).encode() + b"\n"


def json_line_in_pieces(record: dict[str, Any], key: Judged, text: Iterable[str]) -> Iterator[bytes]:
    """A record with a text that comes in pieces, as a line of JSON that does."""
    mark = MARK
    while mark in repr(record):
        mark += "-"
    before, _, after = json_line(key.put(record, mark)).partition(mark.encode())
    yield before
    for piece in text:
        yield orjson.dumps(piece)[1:-1]
    yield after

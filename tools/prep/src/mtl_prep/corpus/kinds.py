"""Tells what files hold: by their first bytes, by suffixes with which the content agrees, or by content."""

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Literal

import orjson

from mtl_common.errors import DataError
from mtl_prep.corpus import places
from mtl_prep.corpus.languages import language_of
from mtl_prep.corpus.source import Kind, Source, suffix_of, within
from mtl_prep.corpus.unpack import Stream, encoding_of, packing_of, unpacked

Split = Literal["file", "paragraph", "line"]

LONG_LINE = 1 << 24
LOOKED_AT = 2  # lines of a text that tell whether it is JSON lines

LINES = frozenset({".jsonl", ".ndjson"})
TABLES: Mapping[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".warc": "warc",
    ".wet": "warc",
}
# in a directory these are more often something else than a corpus
NAMED: Mapping[str, Kind] = {".json": "json", ".csv": "csv", ".tsv": "csv", ".tab": "csv"}
MAGIC: Mapping[bytes, Kind] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"WARC/": "warc",
}
REFUSED = {b"PK\x03\x04": "zip", b"\x89HDF": "HDF5", b"SQLite": "SQLite"}
SPLIT: Mapping[Split, Kind] = {"file": "text", "paragraph": "paragraphs", "line": "text lines"}
ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")


def first_lines(source: Source, count: int) -> list[bytes]:
    """The first lines with something on them, the last one as far as it goes when it is very long."""
    return list(islice(_lines(source), count))


def _lines(source: Source) -> Iterator[bytes]:
    held = b""
    for piece in source.pieces():
        *lines, held = (held + piece).split(b"\n")
        yield from filter(None, map(bytes.strip, lines))
        if len(held) > LONG_LINE:
            break
    yield from filter(None, [held.strip()])


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _json_kind(source: Source, suffix: str) -> Kind | None:
    """Whether a file holds JSON lines, or JSON over many lines; None when it is no JSON."""
    try:
        lines = first_lines(source, LOOKED_AT if suffix == ".txt" else 1) or [b""]
    except DataError:
        if not source.encoding:
            raise
        return None  # a mark of UTF-16 begins other files than texts, too
    if all(map(_is_json_object, lines)):
        return "lines"
    line = lines[0]
    if suffix in LINES:
        return "json" if ARRAY_OF_OBJECTS.match(line) or line == b"[" else "lines"
    if suffix == ".json":
        return "json"
    return "json" if ARRAY_OF_OBJECTS.match(line) else None


def _misnamed(source: Source, suffix: str, what: str) -> DataError:
    return DataError(f"{source.name} is named as {suffix} but holds {what}; rename it, or leave it out")


def _kind(source: Source, split: Split) -> Kind:
    """The kind of a file by its suffix, where its content agrees; else by its content.

    Raises DataError where they disagree.
    """
    suffix = suffix_of(source.address)
    known = TABLES.get(suffix) or NAMED.get(suffix)
    if known in ("parquet", "arrow", "warc"):
        raise _misnamed(source, suffix, "something else")
    if suffix != ".txt" and language_of(within(source.address)):
        return SPLIT[split]
    json = _json_kind(source, suffix)
    if suffix in LINES or known == "json":
        return json or "lines"
    if json and (known == "csv" or suffix == ".txt"):
        raise _misnamed(source, suffix, "JSON lines" if json == "lines" else "JSON")
    return known or json or SPLIT[split]


def _content_start(source: Source) -> bytes:
    with source.open() as file:
        return io.BufferedReader(Stream(unpacked(file, source.name, source.packing))).read(8)


def looked_at(address: str, name: str, split: Split) -> Source:
    """A file with what it holds; raises DataError for what cannot be read, or is named otherwise."""
    found = places.facts(address)
    with places.open_file(address, found) as file:
        start = file.read(8)
    for magic, what in REFUSED.items():
        if start.startswith(magic):
            raise DataError(f"{name} is {what} data, which is not read; turn it into .jsonl or .parquet")
    source = Source(address, name, found.size, found.version, "text", packing_of(start))
    if source.packing:
        start = _content_start(source)
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if source.packing and kind in ("parquet", "arrow"):
        raise DataError(
            f"{name} is {kind} in {source.packing}, which cannot be read in parts; unpack it first"
        )
    source = replace(source, encoding=encoding_of(start))
    return replace(source, kind=kind or _kind(source, split))


def is_known(address: str) -> bool:
    """Whether the name of a file tells that it is read when it stands in a directory."""
    suffix = suffix_of(address)
    return suffix in LINES or suffix in TABLES or language_of(within(address)) is not None

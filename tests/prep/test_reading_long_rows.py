"""Rows of CSV and records of WARC that are too long to hold give the same documents as held ones."""

import csv
import gzip
import io
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import EMOJI
from mtl_common.errors import DataError
from mtl_prep.corpus import unpack
from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.units import documents
from preparing import Make, bad_of, texts_of

Found = tuple[list[tuple[str, int, dict[str, Any]]], list[Any], dict[Any, int], int]

WORDS = st.lists(
    st.sampled_from(
        ['"', '""', ",", ";", "\n", "\r\n", "\r", "a", "bc", EMOJI, "\u2028", "x" * 30, " ", "\udcff"]
    ),
    max_size=12,
)
FIELDS = WORDS.map("".join)


def read(path: Path, giant: int, part_bytes: int = 200, **options: Any) -> Found:
    """The documents with their record and the rest of it, bad records, mends, and how many were in pieces."""
    texts, bad, repaired, line, giants = [], list[Any](), dict[Any, int](), 0, 0
    for found in documents(Reading(find([path]).sources, "text", part_bytes, giant=giant, **options)):
        for text, (_, record), whole in zip(found.texts, found.places, found.wholes, strict=True):
            texts.append((text, line + record, {**whole, "text": ""}))
        if found.giant is not None:
            giants += 1
            rest = found.giant.whole()
            texts.append(("".join(found.giant.pieces()), line + found.giant.record, {**rest, "text": ""}))
        bad += [(line + record, reason) for _, record, reason, _ in found.bad]
        bad += [reason for (_, reason), count in found.passed.items() for _ in range(count)]
        for (_, what), count in found.repaired.items():
            repaired[what] = repaired.get(what, 0) + count
        line += found.lines
    return sorted(texts, key=lambda text: text[1]), sorted(bad, key=str), repaired, giants


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(FIELDS, FIELDS), max_size=6),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    st.sampled_from([",", ";", "\t"]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.integers(1, 9),
    st.sampled_from(["bad", "replace"]),
    st.booleans(),
)
def test_long_rows_are_read_as_short_ones(
    rows: list[tuple[str, str]],
    quoting: Any,
    separator: str,
    ending: str,
    piece: int,
    errors: str,
    whole: bool,
) -> None:
    out = io.StringIO(newline="")
    quoting = quoting if ending == "\r\n" else csv.QUOTE_ALL  # the other kind leaves a lone CR unquoted
    writer = csv.writer(out, delimiter=separator, lineterminator=ending, quoting=quoting)
    writer.writerows([("other", "text"), *rows, ("", "the end")])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        path = Path(directory) / "a.csv"
        path.write_bytes(out.getvalue().encode("utf-8", "surrogateescape"))
        held = read(path, 1 << 20, errors=errors, whole=whole)
        patch.setattr(unpack, "PIECE", piece)
        pieces = read(path, 320, errors=errors, whole=whole)
    assert pieces[:3] == held[:3]
    assert held[3] == 0


def test_long_fields_come_in_pieces(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = 'says "so", \n' * 30_000
    rows = [["1", "before"], ["2", long], ["3", "between"], [long, "beside a long one"], ["5", "after"]]
    out = io.StringIO(newline="")
    csv.writer(out).writerows([["id", "text"], *rows])
    path = tmp_path / "a.csv"
    path.write_bytes(out.getvalue().encode())
    monkeypatch.setattr(unpack, "PIECE", 1 << 12)
    texts, bad, _, giants = read(path, 100_000)
    assert [(text, record) for text, record, _ in texts] == [(text, i) for i, (_, text) in enumerate(rows)]
    assert (bad, giants) == ([], 1)
    bins = make(path)
    assert texts_of(bins) == [text for _, text in rows]
    assert not bad_of(bins)


@pytest.mark.parametrize("end", [b"", b'" and on,b\n', b'"\n'])
def test_a_quote_that_does_not_end_is_no_long_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: bytes
) -> None:
    monkeypatch.setattr(unpack, "PIECE", 1_000)
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,good\n2,"open\n' + b"3,swallowed\n" * 1000 + b'4,x"y,z' + end)
    with pytest.raises(DataError, match=r"a\.csv has an open quote, at its end or before over 625 bytes"):
        read(path, 5_000)


@pytest.mark.parametrize("kind", ["quoted", "one line"])
def test_memory_is_that_of_pieces(tmp_path: Path, kind: str) -> None:
    size = 48 << 20
    path = tmp_path / "a.csv"
    text = b'all ""work"" and no play\n' if kind == "quoted" else b"all work and no play "
    quote = b'"' if kind == "quoted" else b""
    path.write_bytes(b"id,text\n1," + quote + text * (size // len(text)) + quote + b"\n2,next\n")
    reading = Reading(find([path]).sources, "text", 1 << 18, giant=1 << 20)
    tracemalloc.start()
    characters = 0
    for found in documents(reading):
        characters += sum(map(len, found.texts)) + sum(map(len, found.giant.pieces() if found.giant else ()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters == len(text.replace(b'""', b'"')) * (size // len(text)) + len("next")
    assert most < 24 << 20


def record(text: bytes, media: str) -> bytes:
    head = f"WARC/1.0\r\nWARC-Type: conversion\r\nWARC-Target-URI: http://x/\r\nContent-Type: {media}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(text) + text + b"\r\n\r\n"


def test_long_payloads_come_in_pieces(tmp_path: Path) -> None:
    long = b"words in a row\r\n" * 2000
    payloads = [b"before", long, b"after", long + b"\xff", b"<p>last"]
    media = ["text/plain", "text/plain; charset=utf-8", "text/plain", "text/plain", "text/html"]
    path = tmp_path / "a.wet.gz"
    path.write_bytes(b"".join(gzip.compress(record(*pair)) for pair in zip(payloads, media, strict=True)))
    texts, bad, repaired, giants = read(path, 10_000, errors="replace")
    assert (texts, bad, repaired) == read(path, 1 << 20, errors="replace")[:3]
    assert [text for text, _, _ in texts][1] == long.decode().replace("\r\n", "\n")
    assert texts[1][2] == {"url": "http://x/", "text": ""}
    assert (giants, repaired) == (2, {"not UTF-8": 1})
    assert read(path, 10_000)[1] == [(3, "not UTF-8")]


@pytest.mark.parametrize("media", ["text/html", "text/plain; charset=latin-1"])
def test_long_payloads_to_be_worked_on_are_refused(tmp_path: Path, media: str) -> None:
    path = tmp_path / "a.warc"
    path.write_bytes(record(b"x" * 20_000, media) + record(b"after", "text/plain"))
    texts, bad, _, _ = read(path, 10_000)
    assert [text for text, _, _ in texts] == ["after"]
    assert bad == [(0, "too large")]


def test_a_long_payload_that_is_cut_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.wet"
    path.write_bytes(record(b"x" * 20_000, "text/plain")[:-5_000])
    with pytest.raises(DataError, match=r"a\.wet ends in the middle of a record"):
        read(path, 10_000)

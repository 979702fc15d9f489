"""Texts and records too long to hold are read in pieces, to the same documents as whole."""

import gzip
import json
import random
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import EMOJI
from mtl_common.bins import Bins
from mtl_prep.corpus import content, cutting, unpack
from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.keys import TextKey
from mtl_prep.corpus.long_json import add_long_json
from mtl_prep.corpus.parsing import Rules, add_json
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import documents
from preparing import Make, json_lines, texts_of

STRINGS = st.text(st.characters(codec="utf-8"), max_size=30) | st.sampled_from(
    [
        '"',
        "\\",
        '\\"',
        "\\\\u0041",
        "\ud83d",
        "\ude00\ud83d",
        "\U0001f600",
        "\0",
        "x" * 40,
        EMOJI,
        "]}",
        "long0",
    ]
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(STRINGS, inner, max_size=3),
    max_leaves=6,
)


def in_pieces(raw: bytes, sizes: list[int]) -> Callable[[], Any]:
    def pieces() -> Any:
        at, turn = 0, 0
        while at < len(raw):
            yield raw[at : at + sizes[turn % len(sizes)]]
            at, turn = at + sizes[turn % len(sizes)], turn + 1

    return pieces


def outcome(found: Documents) -> tuple[list[str], list[str], dict[str, int]]:
    """Texts, reasons and mends."""
    texts = found.texts + (["".join(found.giant.pieces())] if found.giant else [])
    return texts, list(found.reasons().elements()), {what: n for (_, what), n in found.repaired.items()}


def both_ways(raw: bytes, sizes: list[int], long: int, *, key: str = "text", replace: bool = False) -> None:
    rules = Rules(TextKey(key), replace, 1 << 20)
    whole, streamed = Documents(), Documents()
    add_json(whole, 0, 0, raw, rules)
    add_long_json(streamed, 0, 0, in_pieces(raw, sizes), rules, long)
    assert outcome(streamed) == outcome(whole)


def written(record: Any, *, escaped: bool) -> bytes:
    text = json.dumps(record, ensure_ascii=escaped)
    return text.encode("utf-8", "surrogatepass")


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(STRINGS | st.just("text"), VALUES | STRINGS, max_size=4),
    STRINGS,
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(4, 12),
    st.booleans(),
)
def test_records_in_pieces_are_read_as_whole(
    others: dict[str, Any], text: str, sizes: list[int], long: int, escaped: bool
) -> None:
    record = {**others, "text": text, "after": "x" * 20}
    raw = written(record, escaped=escaped)
    both_ways(raw, sizes, long)
    both_ways(raw, sizes, long, replace=True)


@settings(max_examples=400, deadline=None)
@given(st.data(), st.lists(st.integers(1, 7), min_size=1, max_size=3), st.integers(4, 9), st.booleans())
def test_damaged_records_in_pieces_are_refused_for_the_same_reason(
    data: Any, sizes: list[int], long: int, replace: bool
) -> None:
    raw = bytearray(
        written({"a": "\u20acb\\n" * 3, "text": 'q"\ud83d\u20ac ' * 2, "n": [1, {"b": ""}]}, escaped=False)
    )
    if data.draw(st.booleans()):
        raw = bytearray(json.dumps(json.loads(raw.decode("utf-8", "surrogatepass"))).encode())
    for _ in range(data.draw(st.integers(1, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(
            st.sampled_from(b'"\\{}[],:u0\x00\xff\xc3\n dD8 ')
        )
    both_ways(bytes(raw), sizes, long, replace=replace)


def giants_of(path: Path, **options: Any) -> tuple[list[str], int]:
    """The texts of a file read with tiny limits, and how many of them came in pieces."""
    split = options.pop("split", "file")
    found = list(documents(Reading(find([path], split).sources, "text", 40, giant=64, **options)))
    texts = [text for d in found for text in outcome(d)[0]]
    return texts, sum(d.giant is not None for d in found)


@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_giants_among_other_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes], name: str
) -> None:
    for module in (content, cutting, unpack):
        monkeypatch.setattr(module, "PIECE", 16)
    monkeypatch.setattr(cutting, "WIDEST", 8)
    chance = random.Random(7)
    texts = ["\u20ac\\\n" * chance.choice([1, 2, 5, 40, 400]) + str(i) for i in range(60)]
    raw = json_lines(texts) if name == "a.jsonl" else json.dumps([{"text": text} for text in texts]).encode()
    (tmp_path / name).write_bytes(pack(raw))
    found, giants = giants_of(tmp_path / name)
    assert found == texts
    assert giants > 10
    reading = Reading(find([tmp_path / name]).sources, "text", 40, giant=64)
    places = [p for d in documents(reading) for p in [*d.places, *([(0, d.giant.record)] if d.giant else [])]]
    assert len(places) == len(texts)


@pytest.mark.parametrize("split", ["file", "line", "paragraph"])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_giant_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pack: Callable[[bytes], bytes], split: str
) -> None:
    for module in (content, cutting, unpack):
        monkeypatch.setattr(module, "PIECE", 7)
    monkeypatch.setattr(cutting, "WIDEST", 8)
    long = "word\u20ac " * 50
    raw = f"\ufeffshort\r\n\r\n{long}\r\n \r\n\r\n\r\nmiddle\r\n\n{long}{long}\n\nlast".encode()
    (tmp_path / "a.txt").write_bytes(pack(raw))
    expected = {
        "file": [raw.decode("utf-8-sig").replace("\r\n", "\n")],
        "line": ["short", long, " ", "middle", long + long, "last"],
        "paragraph": ["short", long, "middle", long + long, "last"],
    }
    found, giants = giants_of(tmp_path / "a.txt", split=split)
    assert found == expected[split]
    assert giants == (1 if split == "file" else 2)


@pytest.mark.parametrize(("raw", "reason"), [(b"caf\xe9 " * 40, "not UTF-8"), (b"a\0b " * 40, "NUL bytes")])
def test_giant_texts_that_are_none(tmp_path: Path, raw: bytes, reason: str) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    [found] = documents(Reading(find([tmp_path / "a.txt"]).sources, "text", 40, giant=64))
    assert (found.texts, found.giant, list(found.reasons())) == ([], None, [reason])
    [found] = documents(Reading(find([tmp_path / "a.txt"]).sources, "text", 40, "replace", 64))
    mended = [raw.decode("utf-8", "replace")] if reason == "not UTF-8" else []
    assert outcome(found)[0] == mended


def test_tokens_do_not_depend_on_what_is_giant(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = ["before", "The quick brown fox \u20ac\n" * 300, "after"]
    (tmp_path / "a.jsonl").write_bytes(json_lines(texts))
    whole = make(tmp_path / "a.jsonl", name="whole")
    monkeypatch.setattr("mtl_prep.running.tokenize.Reading", partial(Reading, giant=1000))
    pieces = make(tmp_path / "a.jsonl", name="pieces", part_bytes=500)
    assert texts_of(pieces) == texts
    assert stream(pieces) == stream(whole)


def stream(bins: Bins) -> list[int]:
    return bins.window(0, bins.tokens).tolist()


@pytest.mark.parametrize("kind", ["text", "json", "line of spaces", "compressed zeros"])
def test_memory_is_that_of_pieces(tmp_path: Path, kind: str) -> None:
    size = 48 << 20
    unit = "all work and no play \\n"
    raw = {
        "text": lambda: (unit * (size // len(unit))).encode(),
        "json": lambda: b'{"text": "' + (unit * (size // len(unit))).encode() + b'"}\n{"text": "next"}',
        "line of spaces": lambda: b'{"text": "a"}' + b" " * size + b'\n{"text": "next"}',
        "compressed zeros": lambda: gzip.compress(b'{"text": "a"}' + b" " * size + b'\n{"text": "next"}'),
    }[kind]()
    path = tmp_path / ("a.txt" if kind == "text" else "a.jsonl")
    path.write_bytes(raw)
    del raw
    reading = Reading(find([path]).sources, "text", 1 << 18, giant=1 << 20)
    tracemalloc.start()
    characters = 0
    for found in documents(reading):
        characters += sum(map(len, found.texts))
        if found.giant:
            characters += sum(map(len, found.giant.pieces()))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters >= {"text": size - 100, "json": size - size // 20}.get(kind, 5)
    assert most < 24 << 20


def test_outline_agrees_with_orjson_on_what_is_json() -> None:
    for raw in (
        b'{"text": "a\\u00e9"}',
        b' {"text":"' + b"b" * 50 + b'"} \r\n',
        b'{"text": "\xf0\x9f\x98\x80"}',
    ):
        rules = Rules(TextKey("text"), False, 1 << 20)
        found = Documents()
        add_long_json(found, 0, 0, lambda raw=raw: iter([raw]), rules, 4)  # type: ignore[misc]
        assert outcome(found)[0] == [orjson.loads(raw)["text"]]

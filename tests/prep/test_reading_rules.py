"""What becomes of every odd byte: the same rule in every format, each case counted."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mtl_common.bins import Bins
from mtl_common.errors import DataError
from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import documents
from mtl_prep.running import beginning
from preparing import Make, bad_of, json_lines, prep, texts_of

GOOD = {"text": "good"}


def read(path: Path, content: bytes, **options: Any) -> Documents:
    path.write_bytes(content)
    [found] = documents(Reading(find([path]).sources, options.pop("key", "text"), 1 << 24, **options))
    return found


# name, line, what it is read as (a text, or why it is bad), and what is mended with --errors replace
LINES: list[tuple[str, bytes, str, str | None]] = [
    ("U+2028 ends no line", '{"text": "a\u2028b\u2029c\u0085d"}'.encode(), "a\u2028b\u2029c\u0085d", None),
    ("form feed", b'{"text": "a\\fb"}', "a\fb", None),
    ("NUL as an escape", b'{"text": "a\\u0000b"}', "a\0b", None),
    ("NUL byte", b'{"text": "a\0b"}', "bad: not JSON", None),
    ("CR in a string", b'{"text": "a\\rb"}', "a\rb", None),
    ("CR as white space", b'{"text":\r"a"}\r', "a", None),
    ("CR between records", b'{"text": "a"}\r{"text": "b"}', "bad: not JSON", None),
    ("invalid UTF-8", b'{"text": "caf\xe9"}', "bad: not UTF-8", "caf\ufffd"),
    ("overlong UTF-8", b'{"text": "\xc0\xaf"}', "bad: not UTF-8", "\ufffd\ufffd"),
    ("half a pair in UTF-8", b'{"text": "\xed\xa0\xbd"}', "bad: not UTF-8", "\ufffd\ufffd\ufffd"),
    ("half a pair", rb'{"text": "a\ud83d"}', "a\ufffd", None),
    ("the other half", rb'{"text": "\ude00a"}', "\ufffda", None),
    ("halves that meet", rb'{"text": "\ud83d\ude00"}', "\U0001f600", None),
    ("a key twice", b'{"text": "first", "text": "last"}', "last", None),
    ("NaN beside", b'{"score": NaN, "text": "a"}', "a", None),
    ("infinity beside", b'{"score": -Infinity, "text": "a"}', "a", None),
    ("a number too large", b'{"n": 1' + b"0" * 400 + b', "text": "a"}', "a", None),
    ("NaN as text", b'{"text": NaN}', "bad: text not a string", None),
    ("a number as text", b'{"text": 3}', "bad: text not a string", None),
    ("null as text", b'{"text": null}', "bad: text not a string", None),
    ("nested 500 deep", b'{"a": ' + b"[" * 500 + b"]" * 500 + b', "text": "a"}', "a", None),
    ("nested too deep", b'{"a": ' + b"[" * 90_000 + b"]" * 90_000 + b', "text": "a"}', "bad: not JSON", None),
    ("a mark inside", '{"text": "\ufeffa"}'.encode(), "\ufeffa", None),
    ("empty", b'{"text": ""}', "bad: empty", None),
    ("white space", b'{"text": " \\n"}', " \n", None),
]


def as_read(found: Documents) -> list[str]:
    return found.texts + [f"bad: {reason}" for reason in found.reasons().elements()]


@pytest.mark.parametrize(
    ("line", "wanted", "mended"), [case[1:] for case in LINES], ids=[case[0] for case in LINES]
)
def test_lines(tmp_path: Path, line: bytes, wanted: str, mended: str | None) -> None:
    assert as_read(read(tmp_path / "a.jsonl", line + b"\n")) == [wanted]
    found = read(tmp_path / "a.jsonl", line + b"\n", errors="replace")
    assert as_read(found) == [mended or wanted]
    if mended:
        assert found.repaired == {(0, "not UTF-8"): 1}
    # an array of JSON is read by the same rules, and so is the record after it
    if wanted != "bad: not JSON":
        both = read(tmp_path / "a.json", b"[" + line + b',{"text":"good"}]')
        assert sorted(as_read(both)) == sorted([wanted, "good"])


TEXTS: list[tuple[str, bytes, str]] = [
    ("CRLF", b"a\r\nb\r\n", "a\nb\n"),
    ("lone CR stays", b"a\rb\n\rc\r\r\n", "a\rb\n\rc\r\n"),
    ("form feed and U+2028 stay", "a\fb\u2028c".encode(), "a\fb\u2028c"),
    ("mark", b"\xef\xbb\xbfa", "a"),
    ("only the first mark", b"\xef\xbb\xbf\xef\xbb\xbfa", "\ufeffa"),
    ("only a mark", b"\xef\xbb\xbf", "bad: empty"),
    ("UTF-16", "a\u20ac\r\n\U0001f600".encode("utf-16"), "a\u20ac\n\U0001f600"),
    ("UTF-16 big-endian", b"\xfe\xff" + "a\u20ac".encode("utf-16-be"), "a\u20ac"),
    ("UTF-32", "a\U0001f600".encode("utf-32"), "a\U0001f600"),
    ("UTF-16 that is none", b"\xff\xfea\0b", "bad: not UTF-8"),
    ("UTF-16 without a mark", "ab".encode("utf-16-le"), "bad: NUL bytes"),
    ("NUL", b"a\0b", "bad: NUL bytes"),
    ("Latin-1", b"caf\xe9", "bad: not UTF-8"),
    ("empty", b"", "bad: empty"),
]


@pytest.mark.parametrize(("raw", "wanted"), [case[1:] for case in TEXTS], ids=[case[0] for case in TEXTS])
def test_texts(tmp_path: Path, raw: bytes, wanted: str) -> None:
    assert as_read(read(tmp_path / "a.txt", raw)) == [wanted]


def test_a_line_in_utf_16_is_a_line(tmp_path: Path) -> None:
    content = json_lines(["one \u0a0d", "two \u010a"]).decode()
    assert read(tmp_path / "a.jsonl", content.encode("utf-16")).texts == ["one \u0a0d", "two \u010a"]
    (tmp_path / "b.jsonl").write_bytes(content.encode("utf-16")[:-1])
    with pytest.raises(DataError, match=r"b\.jsonl is damaged utf-16-le text"):
        read(tmp_path / "b.jsonl", content.encode("utf-16")[:-1])


def test_bad_records_are_quarantined_with_what_they_hold(tokenizer: Path, tmp_path: Path) -> None:
    lines = [GOOD, b"{broken", b'{"text": 1}', GOOD, b'{"text": "caf\xe9"}', b"x" * 5000]
    (tmp_path / "a.jsonl").write_bytes(json_lines(lines))
    command = ("tokenize", "a.jsonl", "--tokenizer", tokenizer, "--out", "bins", "--workers", 1)
    done = prep(*command, "--max-bad", 3, cwd=tmp_path)
    assert done.returncode == 1
    assert "a.jsonl line 2 is not JSON" in done.stderr
    assert "all in bins/bad.jsonl" in done.stderr
    listed = [json.loads(line) for line in (tmp_path / "bins" / "bad.jsonl").read_text().splitlines()]
    assert [(bad["source"], bad["line"], bad["reason"], bad["raw"][:17]) for bad in listed] == [
        ("a.jsonl", 2, "not JSON", "{broken"),
        ("a.jsonl", 3, "text not a string", '{"text": 1}'),
        ("a.jsonl", 5, "not UTF-8", '{"text": "caf\\xe9'),
        ("a.jsonl", 6, "not JSON", "x" * 17),
    ]
    assert len(listed[3]["raw"]) == 1000
    done = prep(*command, "--max-bad", "67%", cwd=tmp_path)
    assert done.returncode == 0
    assert bad_of(Bins(tmp_path / "bins")) == {"not JSON": 2, "not UTF-8": 1, "text not a string": 1}
    assert "bins/bad.jsonl" in done.stdout


def test_millions_of_empty_records_are_only_counted(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":""}\n' * 300_000 + b"\n" * 300_000 + json_lines(["last"]))
    [found] = documents(Reading(find([tmp_path / "a.jsonl"]).sources, "text", 1 << 24))
    assert (found.texts, found.bad, found.passed) == (["last"], [], {(0, "empty"): 300_000})
    bins = make(tmp_path / "a.jsonl", max_bad="0", part_bytes=100_000)
    assert texts_of(bins) == ["last"]
    assert bins.origin(0)[1] == 600_000
    assert bad_of(bins) == {"empty": 300_000}


def test_a_key_that_is_missing_is_told_with_those_that_are_there(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([{"content": "x", "id": "y"}] * 3))
    with pytest.raises(
        DataError, match=r'the keys are content, id \(did you mean "content"\?\): name one with'
    ):
        make(tmp_path / "a.jsonl", text_key="contents")


@pytest.mark.parametrize("begins_with", [b"", b"first"])
def test_the_sample_before_the_work_is_bounded(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins_with: bytes
) -> None:
    monkeypatch.setattr(beginning, "CHECKED_BLOCKS", 3)
    looked_at: list[int] = []

    def counted(reading: Reading) -> Iterator[Documents]:
        for found in documents(reading):
            looked_at.append(found.records)
            yield found

    monkeypatch.setattr(beginning, "documents", counted)
    lines = [b'{"text": "%s"}' % begins_with, *[b'{"text": ""}'] * 500_000, b'{"text": "the last"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    bins = make(tmp_path / "a.jsonl")
    assert texts_of(bins) == [*filter(None, [begins_with.decode()]), "the last"]
    assert len(looked_at) <= 4
    assert sum(looked_at) < 400_000


def test_a_short_corpus_without_documents_is_refused_before_the_work(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n' * 9)
    with pytest.raises(DataError, match="no documents in the corpus, its records are: 9 empty"):
        make(tmp_path / "a.jsonl")

"""Input files as the world writes them: packed in members and frames, marked, cut, empty, misnamed."""

import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import EMOJI, END
from mtl_common.errors import DataError
from mtl_common.tokenizers import load
from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Part, format_of
from mtl_prep.corpus.source import Source
from mtl_prep.corpus.units import Reading, parts_of
from preparing import Make, bad_of, json_lines, shard_bytes, texts_of

TEXTS = ["one\n", f"two {EMOJI}", "  three\tthree"]
SKIPPABLE = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("texts", sorted(set(itertools.permutations(["", "", "a", "b"]))))
def test_an_empty_text_is_dropped_and_counted_wherever_it_stands(
    make: Make, tmp_path: Path, texts: list[str]
) -> None:
    bins = make(write(tmp_path / "a.jsonl", json_lines(texts)))
    assert texts_of(bins) == [text for text in texts if text]
    assert bad_of(bins) == {"empty": 2}
    assert [bins.origin(i)[1] for i in range(2)] == [i for i, text in enumerate(texts) if text]
    assert (bins.window(0, bins.tokens) == bins.eod).sum() == 2


def test_json_lines_are_known_by_content_and_named_anyhow(make: Make, tmp_path: Path) -> None:
    names = ["a.jsonl", "b.json", "c.JSONL", "d.ndjson", "e", "f.unknown", "g.jsonl.gz", "h.zst"]
    packings: list[Any] = [bytes, gzip.compress, zst]
    files = []
    for i, (name, pack) in enumerate(itertools.product(names, packings)):
        files.append(write(tmp_path / f"{i}{name}", pack(json_lines(TEXTS))))
    assert texts_of(make(*files)) == TEXTS * len(files)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("a.zip", b"PK\x03\x04\x14\x00", "zip"),
        ("a.jsonl", b"SQLite format 3\0", "SQLite"),
        ("a.h5", b"\x89HDF\r\n\x1a\n", "HDF5"),
    ],
)
def test_data_that_is_not_read_is_named(
    make: Make, tmp_path: Path, name: str, content: bytes, kind: str
) -> None:
    with pytest.raises(DataError, match=rf"{name} is {kind} data, which is not read"):
        make(write(tmp_path / name, content))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow", ".wet", ".csv", ".txt"])
def test_json_lines_under_another_name_are_refused(make: Make, tmp_path: Path, suffix: str) -> None:
    with pytest.raises(DataError, match=rf"a{suffix} is named as {suffix} but holds .*; rename it"):
        make(write(tmp_path / f"a{suffix}", json_lines(TEXTS)))


def test_a_text_that_begins_like_json_lines_is_a_text(make: Make, tmp_path: Path) -> None:
    content = b'{"DocLinkBaseURL": "https://pkg.go.dev"}\n-- input --\nBoth are [encoding/json].\n'
    bins = make(write(tmp_path / "doclink5.txt", content))
    assert texts_of(bins) == [content.decode()]


def test_manual_pages_of_a_directory_are_read(make: Make, tmp_path: Path) -> None:
    page = b".TH LS 1\n.SH NAME\nls - list\n"
    write(tmp_path / "man/de/man1/ls.1.gz", gzip.compress(page))
    write(tmp_path / "man/man3/printf.3posix", page)
    write(tmp_path / "man/libc.so.6", b"\x7fELF")
    assert texts_of(make(tmp_path / "man")) == [page.decode()] * 2


def packed_variants() -> dict[str, bytes]:
    plain = json_lines(TEXTS)
    a, b, cut = plain[:9], plain[9:], len(json_lines(TEXTS[:1]))
    gz = gzip.compress
    return {
        "plain.jsonl": plain,
        "one.gz": gz(plain),
        "members.gz": gz(plain[:cut]) + gz(plain[cut:]),
        "member-mid-line.gz": gz(a) + gz(b),
        "empty-member.gz": gz(b"") + gz(a) + gz(b"") + gz(b) + gz(b""),
        "zero-padding.gz": gz(a) + gz(b) + b"\0" * 1024,
        "one.zst": zst(plain),
        "frames.zst": b"".join(zst(json_lines([text])) for text in TEXTS),
        "frame-mid-line.zst": zst(a) + zst(b),
        "empty-frame.zst": zst(a) + zst(b"") + zst(b),
        "skippable-frame.zst": SKIPPABLE + zst(a) + SKIPPABLE + zst(b) + SKIPPABLE,
        "marked.jsonl": b"\xef\xbb\xbf" + plain,
        "crlf.jsonl": plain.replace(b"\n", b"\r\n"),
        "marked-crlf.jsonl": b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n"),
        "no-last-newline.jsonl": plain[:-1],
        "marked-crlf-packed.gz": gz(b"\xef\xbb\xbf" + plain.replace(b"\n", b"\r\n")),
    }


@pytest.mark.parametrize("name", packed_variants())
def test_the_same_lines_give_the_same_bytes(make: Make, tmp_path: Path, name: str) -> None:
    plain = make(write(tmp_path / "wanted.jsonl", packed_variants()["plain.jsonl"]), name="wanted")
    for part_bytes in (1 << 24, 11):
        bins = make(
            write(tmp_path / name, packed_variants()[name]), name=f"bins{part_bytes}", part_bytes=part_bytes
        )
        assert shard_bytes(bins) == shard_bytes(plain)
        assert bad_of(bins) == {}


def test_a_mark_at_the_start_of_the_second_file_is_no_text(make: Make, tmp_path: Path) -> None:
    files = [
        write(tmp_path / f"{i}.jsonl", b"\xef\xbb\xbf" + json_lines([text])) for i, text in enumerate(TEXTS)
    ]
    bins = make(*files)
    assert texts_of(bins) == TEXTS
    assert [bins.origin(i) for i in range(3)] == [(str(file), 0) for file in files]


@pytest.mark.parametrize("pack", [gzip.compress, zst], ids=["gzip", "zstd"])
@pytest.mark.parametrize("damage", ["cut", "cut-second", "flipped", "trailing"])
def test_damaged_packed_data_is_named(make: Make, tmp_path: Path, pack: Any, damage: str) -> None:
    whole = pack(json_lines([f"text {i}" for i in range(1000)]))
    content = {
        "cut": whole[: len(whole) // 2],
        "cut-second": whole + whole[:-1],
        "flipped": whole[:100] + bytes([whole[100] ^ 255]) + whole[101:],
        "trailing": whole + b"\x01garbage",
    }[damage]
    with pytest.raises(DataError, match=r"a\.jsonl is damaged (gzip|zstd) data"):
        make(write(tmp_path / "a.jsonl", content))


def blocks_of(source: Source, part_bytes: int) -> list[bytes]:
    """The lines of a source, block after block, as they are when they are no JSON."""
    reading = Reading((source,), "text", part_bytes)
    found = []
    for part in range(parts_of(0, reading) or 1):
        for block in format_of(source.kind).blocks(Part(0, part, lambda _: True, Path("/tmp")), reading):
            documents = block.read()
            found.append(b"".join(raw.encode() for *_, raw in documents.bad))
    return found


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text("abcx", max_size=12), max_size=12),
    st.integers(1, 40),
    st.booleans(),
)
def test_parts_of_a_file_hold_each_line_once(
    tmp_path_factory: pytest.TempPathFactory, content: list[str], part_bytes: int, ended: bool
) -> None:
    data = "\n".join(content).encode() + b"\n" * ended
    place = tmp_path_factory.mktemp("parts")
    for name, pack, packing in [("a", bytes, ""), ("b", zst, "zstd"), ("c", gzip.compress, "gzip")]:
        path = write(place / name, pack(data))
        source = Source(str(path), name, path.stat().st_size, "", "lines", packing)  # type: ignore[arg-type]
        assert b"".join(blocks_of(source, part_bytes)) == data.replace(b"\n", b"")


BAD_LINES: list[tuple[bytes, str]] = [
    (b'{"text": 3}', "text not a string"),
    (b'{"text": null}', "text not a string"),
    (b'{"text": ["a"]}', "text not a string"),
    (b'{"other": "a"}', "no text"),
    (b'["text"]', "not an object"),
    (b'"text"', "not an object"),
    (b"17", "not an object"),
    (b"{", "not JSON"),
    (b"plain words", "not JSON"),
    (b'{"text": "a"} {"text": "b"}', "not JSON"),
    (b"[" * 2000, "not JSON"),
    (b'{"text": "caf\xe9"}', "not UTF-8"),
    (b'{"text": "\xed\xa0\x80"}', "not UTF-8"),
    (b'{"text": ""}', "empty"),
]


def test_every_bad_line_is_counted_and_no_good_one_is_lost(make: Make, tmp_path: Path) -> None:
    good = [f"document {i}" for i in range(len(BAD_LINES) + 1)]
    mixed = [good[0]]
    for (line, _), text in zip(BAD_LINES, good[1:], strict=True):
        mixed += [line, text]  # type: ignore[list-item]
    for workers, part_bytes in [(1, 1 << 24), (1, 64), (2, 64)]:
        name = f"bins{workers}-{part_bytes}"
        bins = make(
            write(tmp_path / "a.jsonl", json_lines(mixed)), name=name, workers=workers, part_bytes=part_bytes
        )
        assert texts_of(bins) == good
        reasons = [reason for _, reason in BAD_LINES]
        assert bad_of(bins) == {reason: reasons.count(reason) for reason in reasons}
        listed = [json.loads(line) for line in (bins.path / "bad.jsonl").read_text().splitlines()]
        expected = [(2 * i + 2, reason) for i, (_, reason) in enumerate(BAD_LINES) if reason != "empty"]
        assert [(bad["line"], bad["reason"]) for bad in listed] == expected


def test_blank_lines_are_no_records_but_count_as_lines(make: Make, tmp_path: Path) -> None:
    bins = make(write(tmp_path / "a.jsonl", b'\n\n{"text": "a"}\r\n  \r\n{"text": "b"}\n\n'))
    assert [bins.origin(i)[1] for i in range(2)] == [2, 4]
    assert bins.manifest.sources[0].records == 2


def test_json_that_only_the_standard_library_reads(make: Make, tmp_path: Path) -> None:
    bins = make(write(tmp_path / "a.jsonl", b'{"score": NaN, "big": 1' + b"0" * 400 + b', "text": "a"}\n'))
    assert texts_of(bins) == ["a"]


@pytest.mark.parametrize("workers", [1, 2])
def test_surrogates_are_joined_or_replaced_and_counted(make: Make, tmp_path: Path, workers: int) -> None:
    written = [r"lone high \ud83d.", r"lone low \ude00.", r"reversed \ude00\ud83d.", r"pair \ud83d\ude00."]
    content = b"".join(b'{"text": "' + text.encode() + b'"}\n' for text in written)
    bins = make(write(tmp_path / "a.jsonl", content), workers=workers, part_bytes=40)
    assert texts_of(bins) == [
        "lone high \ufffd.",
        "lone low \ufffd.",
        "reversed \ufffd\ufffd.",
        "pair \U0001f600.",
    ]
    assert bins.manifest.sources[0].repaired == {"lone surrogate": 3}
    assert bad_of(bins) == {}


def test_a_million_repeats_leave_the_neighbours_alone(make: Make, tmp_path: Path) -> None:
    texts = ["before", "^" * 1_000_000, "after"]
    assert texts_of(make(write(tmp_path / "a.jsonl", json_lines(texts)))) == texts


def test_a_text_that_quotes_the_end_marker_is_text(make: Make, tmp_path: Path) -> None:
    texts = [f"it says {END} and {END}", END, "nothing"]
    bins = make(write(tmp_path / "a.jsonl", json_lines(texts)))
    assert texts_of(bins) == texts
    assert (bins.window(0, bins.tokens) == bins.eod).sum() == 3


def test_a_document_longer_than_a_part(make: Make, tmp_path: Path) -> None:
    texts = ["a" * 500, "b", "c" * 3000, "d"]
    for pack in (bytes, gzip.compress):
        bins = make(write(tmp_path / "a.jsonl", pack(json_lines(texts))), name=pack.__name__, part_bytes=100)
        assert texts_of(bins) == texts
        assert [bins.origin(i)[1] for i in range(4)] == [0, 1, 2, 3]


def test_a_tree_of_files_is_read_in_order_of_its_paths(make: Make, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name, content in {
        "b.py": b"print(1)\r\n",
        "a/z.c": b"\xef\xbb\xbfint x;\n",
        "a/data.jsonl": json_lines(["from lines", "more"]),
        "a/packed.txt.gz": gzip.compress(b"packed"),
        "empty.py": b"",
        "latin.txt": b"caf\xe9",
        "image.png": b"\x89PNG",
        "package.json": b"{}",
        ".hidden.py": b"hidden",
        "__pycache__/b.pyc": b"\0",
        ".git/config.txt": b"hidden",
        "site-packages/other.py": b"not ours",
    }.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        write(tree / name, content)
    bins = make(tree)
    assert texts_of(bins) == ["from lines", "more", "packed", "int x;\n", "print(1)\n"]
    assert bad_of(bins) == {"empty": 1, "not UTF-8": 1}
    assert [bins.origin(i)[0].rpartition("/")[2] for i in range(5)] == [
        "data.jsonl",
        "data.jsonl",
        "packed.txt.gz",
        "z.c",
        "b.py",
    ]
    assert find([tree]).skipped == {".png": 1, ".json": 1}


def test_sources_tell_size_and_hash(make: Make, tmp_path: Path) -> None:
    import xxhash

    files = [
        write(tmp_path / "a.jsonl", json_lines(TEXTS)),
        write(tmp_path / "b.jsonl.gz", gzip.compress(json_lines(TEXTS))),
        write(tmp_path / "c.py", b"print(1)\n"),
        write(tmp_path / "d.txt.gz", gzip.compress(b"text")),
        write(tmp_path / "e.jsonl", b""),
    ]
    sources = make(*files).manifest.sources
    for source, file in zip(sources, files, strict=True):
        content = file.read_bytes()
        assert (source.path, source.size) == (str(file), len(content))
        assert source.xxh3 == xxhash.xxh3_128_hexdigest(content)
    assert [source.documents for source in sources] == [3, 3, 1, 1, 0]


def test_several_files_hold_the_tokens_of_one(make: Make, tmp_path: Path) -> None:
    files = [write(tmp_path / f"{i}.jsonl", json_lines([text])) for i, text in enumerate(TEXTS)]
    several = make(*files, name="several")
    one = make(write(tmp_path / "one.jsonl", json_lines(TEXTS)), name="one")
    assert several.window(0, several.tokens).tolist() == one.window(0, one.tokens).tolist()
    assert several.bounds(1, 2) == one.bounds(1, 2)


@pytest.mark.parametrize(("size", "dtype"), [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32")])
def test_the_last_id_of_a_vocabulary_survives(make: Make, tmp_path: Path, size: int, dtype: str) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{i}": i for i in range(size - 1)}
    library = Tokenizer(models.WordLevel(words | {END: size - 1}, unk_token="w0"))
    library.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([END])
    library.save(str(tmp_path / "words.json"))
    assert load(tmp_path / "words.json").vocab_size == size
    bins = make(
        write(tmp_path / "a.jsonl", json_lines([f"w1 w{size - 2} w2"])), tokenizer=tmp_path / "words.json"
    )
    assert (bins.dtype.name, bins.eod, bins.vocab_size) == (dtype, size - 1, size)
    assert bins.document(0).tolist() == [1, size - 2, 2, size - 1]


def test_a_text_without_tokens_is_empty(make: Make, tokenizer: Path, tmp_path: Path) -> None:
    content = json.loads((tokenizer / "tokenizer.json").read_text("utf-8"))
    lost = chr(256 + 4)  # how a byte-level vocabulary writes byte 4
    del content["model"]["vocab"][lost]
    (tmp_path / "lossy.json").write_text(json.dumps(content), "utf-8")
    texts = ["a\x04b", "\x04\x04", "c"]
    bins = make(write(tmp_path / "a.jsonl", json_lines(texts)), tokenizer=tmp_path / "lossy.json")
    assert texts_of(bins) == ["ab", "c"]
    assert bad_of(bins) == {"empty": 1}

"""The same documents give the same tokens, whatever format and packing they are read from."""

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard

from corpus import EMOJI, stdlib_texts
from mtl_common.errors import DataError
from mtl_prep.corpus.find import find
from mtl_prep.corpus.formats import Reading
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import documents
from preparing import Make, bad_of, json_lines, texts_of

QUOTES = 'she said "no", then\nleft;\ttabs | bars, commas'
TEXTS = [
    "\ufeffa mark",
    QUOTES,
    EMOJI,
    " edges ",
    "CRLF\r\ninside",
    "one",
    "\u2028 and \u2029 end no line",
    *stdlib_texts(8),
]
RECORDS = [{"id": i, "text": text, "more": {"kind": [1, "a"]}} for i, text in enumerate(TEXTS)]


def as_csv(separator: str, ending: str = "\r\n") -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=separator, lineterminator=ending)
    writer.writerows([["id", "text"], *([str(i), text] for i, text in enumerate(TEXTS))])
    return out.getvalue().encode()


def table() -> Any:
    import pyarrow as pa

    return pa.table({"id": range(len(TEXTS)), "text": TEXTS, "more": [[1, 2]] * len(TEXTS)})


def as_arrow(opener: str, kind: str = "string") -> bytes:
    import pyarrow as pa

    whole = table()
    whole = whole.set_column(1, "text", whole["text"].cast(getattr(pa, kind)()))
    out = io.BytesIO()
    with getattr(pa.ipc, opener)(out, whole.schema) as writer:
        for batch in whole.to_batches(max_chunksize=3):
            writer.write_batch(batch)
    return out.getvalue()


def as_parquet(**options: Any) -> bytes:
    from pyarrow import parquet

    out = io.BytesIO()
    parquet.write_table(table(), out, **options)
    return out.getvalue()


def as_wet() -> bytes:
    from warcio.warcwriter import WARCWriter

    out = io.BytesIO()
    writer = WARCWriter(out, gzip=False)
    writer.write_record(writer.create_warcinfo_record("a.wet", {"software": "tests"}))
    for text in TEXTS:
        body = io.BytesIO(text.encode())
        writer.write_record(
            writer.create_warc_record("http://x/", "conversion", payload=body, warc_content_type="text/plain")
        )
    return out.getvalue()


FORMATS: dict[str, Callable[[], bytes]] = {
    "a.jsonl": lambda: b"".join(json.dumps(record).encode() + b"\n" for record in RECORDS),
    "array.json": lambda: json.dumps(RECORDS).encode(),
    "pretty.json": lambda: json.dumps(RECORDS, indent=2, ensure_ascii=False).encode(),
    "objects.json": lambda: b"\n".join(json.dumps(record, indent=1).encode() for record in RECORDS),
    "array.jsonl": lambda: json.dumps(RECORDS, indent=0).encode(),
    "array-of-no-name": lambda: json.dumps(RECORDS).encode(),
    "comma.csv": lambda: as_csv(","),
    "semicolon.csv": lambda: as_csv(";", "\n"),
    "tab.tsv": lambda: as_csv("\t"),
    "a.parquet": as_parquet,
    "groups.parquet": lambda: as_parquet(row_group_size=3, compression="zstd", use_dictionary=False),
    "no-suffix": as_parquet,
    "file.arrow": lambda: as_arrow("new_file"),
    "stream.arrow": lambda: as_arrow("new_stream"),
    "large.feather": lambda: as_arrow("new_file", "large_string"),
    "bytes.ipc": lambda: as_arrow("new_file", "binary"),
    "utf16.jsonl": lambda: json_lines(RECORDS).decode().encode("utf-16"),
    "utf32.jsonl": lambda: b"\0\0\xfe\xff" + json_lines(RECORDS).decode().encode("utf-32-be"),
}
PACKINGS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "xz": lzma.compress,
    "bzip2": bz2.compress,
}
IN_PARTS = ("parquet", "no-suffix", "arrow", "feather", "ipc")


def found_in(*paths: Path, part_bytes: int = 1 << 24, **options: Any) -> Documents:
    """All that is read from files, as one."""
    reading = Reading(find(paths).sources, options.pop("text_key", "text"), part_bytes, **options)
    whole = Documents()
    for found in documents(reading):
        whole.texts += found.texts
        if found.giant is not None:
            whole.texts.append("".join(found.giant.pieces()))
        whole.bad += found.bad
        whole.passed += found.passed
        whole.repaired += found.repaired
    return whole


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("packing", PACKINGS)
def test_every_format_in_every_packing_gives_the_same_documents(
    tmp_path: Path, name: str, packing: str
) -> None:
    path = tmp_path / name
    path.write_bytes(PACKINGS[packing](FORMATS[name]()))
    if packing != "plain" and name.endswith(IN_PARTS):
        with pytest.raises(DataError, match="which cannot be read in parts; unpack it first"):
            find([path])
        return
    for part_bytes in (1 << 24, 1 << 12, 7):
        found = found_in(path, part_bytes=part_bytes)
        assert found.texts == TEXTS
        assert (found.bad, found.passed, found.repaired) == ([], {}, {})


@pytest.mark.parametrize("name", ["pretty.json", "comma.csv", "groups.parquet", "stream.arrow"])
def test_every_format_gives_the_same_tokens(make: Make, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(FORMATS["a.jsonl"]())
    plain = make(tmp_path / "a.jsonl", name="plain")
    (tmp_path / name).write_bytes(FORMATS[name]())
    for workers, part_bytes in [(1, 1 << 24), (2, 5000)]:
        bins = make(tmp_path / name, name=f"bins{workers}", workers=workers, part_bytes=part_bytes)
        assert bins.window(0, bins.tokens).tolist() == plain.window(0, plain.tokens).tolist()
        assert [bins.origin(i)[1] for i in range(len(bins))] == list(range(len(TEXTS)))
        assert bad_of(bins) == {}


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # of the library that writes them
def test_wet_archives(tmp_path: Path) -> None:
    members = as_wet().split(b"WARC/1.0\r\n")[1:]
    files = {
        "a.wet": as_wet(),
        "b.wet.gz": b"".join(gzip.compress(b"WARC/1.0\r\n" + member) for member in members),
        "c": as_wet(),
    }
    plain = [text.removeprefix("\ufeff").replace("\r\n", "\n") for text in TEXTS]
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
        found = found_in(tmp_path / name, part_bytes=1000)
        assert found.texts == plain
        assert found.passed == {(0, "other content"): 1}  # the description of the archive
    (tmp_path / "cut.wet").write_bytes(as_wet()[:-30])
    with pytest.raises(DataError, match=r"cut\.wet ends in the middle of a record"):
        found_in(tmp_path / "cut.wet")
    (tmp_path / "broken.wet").write_bytes(as_wet() + b"nonsense\r\n" * 3)
    with pytest.raises(DataError, match=r"broken\.wet is damaged WARC"):
        found_in(tmp_path / "broken.wet")


@pytest.mark.filterwarnings("ignore:Unclosed file:ResourceWarning")  # of the library that writes them
def test_the_text_of_crawled_pages(tmp_path: Path) -> None:
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    body = "We met at the caf\u00e9 on the corner, and talked about the harvest until it was dark."
    page = f"<html><head><title>x</title></head><body><nav>Home</nav><article><p>{body}</p></article></body>"
    kinds = [
        ("text/html; charset=utf-8", page.encode()),
        ("text/html", page.replace("<title>", '<meta charset="iso-8859-1"><title>').encode("latin-1")),
        ("text/html; charset=windows-1252", page.encode("cp1252")),
        ("text/plain", body.encode()),
        ("text/plain; charset=utf-16", body.encode("utf-16")),
        ("image/png", b"\x89PNG"),
    ]
    with (tmp_path / "a.warc.gz").open("wb") as file:
        writer = WARCWriter(file, gzip=True)
        for kind, content in kinds:
            headers = StatusAndHeaders("200 OK", [("Content-Type", kind)], protocol="HTTP/1.1")
            payload = io.BytesIO(content)
            writer.write_record(
                writer.create_warc_record("http://x/", "response", payload=payload, http_headers=headers)
            )
    found = found_in(tmp_path / "a.warc.gz")
    assert found.texts == [body] * 5
    assert found.passed == {(0, "other content"): 1}


def test_rows_that_are_no_documents(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = b'id,text\n1,good\n2\n3,"a"b\n\n4,\n5,caf\xe9\n6,x,y\n7,a\0b\n8,last'
    (tmp_path / "a.csv").write_bytes(rows)
    found = found_in(tmp_path / "a.csv", part_bytes=10)
    assert found.texts == ["good", "last"]
    assert [reason for _, _, reason, _ in found.bad] == [
        "another number of fields",
        "not CSV",
        "not UTF-8",
        "another number of fields",
        "NUL bytes",
    ]
    assert found.passed == {(0, "empty"): 1}
    values = [b"good", None, b"", b"caf\xe9", "\u20ac".encode()]
    parquet.write_table(pa.table({"text": pa.array(values, pa.binary())}), tmp_path / "a.parquet")
    found = found_in(tmp_path / "a.parquet")
    assert found.texts == ["good", "\u20ac"]
    assert [(record, reason) for _, record, reason, _ in found.bad] == [
        (1, "text not a string"),
        (3, "not UTF-8"),
    ]
    assert found_in(tmp_path / "a.parquet", errors="replace").texts == ["good", "caf\ufffd", "\u20ac"]


@pytest.mark.parametrize("name", ["comma.csv", "a.parquet", "file.arrow", "stream.arrow"])
def test_a_column_that_is_not_there_is_named_with_those_that_are(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(FORMATS[name]())
    with pytest.raises(
        DataError, match=r'has no column txt; the keys are id, text.*\(did you mean "text"\?\)'
    ):
        found_in(tmp_path / name, text_key="txt")


def test_a_column_of_numbers_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(as_parquet())
    with pytest.raises(DataError, match=r"column id of .* holds int64, not text"):
        found_in(tmp_path / "a.parquet", text_key="id")


@pytest.mark.parametrize("name", ["a.parquet", "file.arrow", "stream.arrow", "array.json", "comma.csv"])
def test_files_that_are_cut_are_refused(tmp_path: Path, name: str) -> None:
    whole = FORMATS[name]()
    end = whole.rindex(b"left") if name == "comma.csv" else len(whole) * 2 // 3
    (tmp_path / name).write_bytes(whole[:end] if name != "comma.csv" else whole[: whole.index(b"left")])
    with pytest.raises(DataError, match=rf"{name} (is damaged|ends in|has an open quote)"):
        found_in(tmp_path / name)


def test_text_keys_in_every_format(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    records = [{"a": {"b": "inner"}, "list": [{"body": "first"}]}, {"a": {"b": "next"}, "list": []}]
    (tmp_path / "a.jsonl").write_bytes(json_lines(records))
    parquet.write_table(pa.Table.from_pylist(records), tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert found_in(tmp_path / name, text_key="a.b").texts == ["inner", "next"]
        found = found_in(tmp_path / name, text_key="list.0.body")
        assert (found.texts, [reason for *_, reason, _ in found.bad]) == (["first"], ["no text"])
    (tmp_path / "literal.jsonl").write_bytes(json_lines([{"a.b": "literal", "a": {"b": "path"}}]))
    assert found_in(tmp_path / "literal.jsonl", text_key="a.b").texts == ["literal"]
    (tmp_path / "two.jsonl").write_bytes(json_lines([{"content": "c"}, {"text": "t", "content": "c"}]))
    assert found_in(tmp_path / "two.jsonl", text_key="text,content").texts == ["c", "t"]


def test_only_the_column_with_the_text_is_read(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    noise = [random.Random(i).randbytes(1000) for i in range(3000)]
    parquet.write_table(pa.table({"text": ["x"] * 3000, "noise": noise}), tmp_path / "a.parquet")
    content = bytearray((tmp_path / "a.parquet").read_bytes())
    at = content.index(noise[1500])
    content[at : at + 500] = bytes(500)  # also the packing of a damaged column is not looked at
    (tmp_path / "a.parquet").write_bytes(content)
    assert found_in(tmp_path / "a.parquet").texts == ["x"] * 3000


@pytest.mark.parametrize(
    ("split", "texts"), [("line", ["a", "b  ", "c", "d", "e"]), ("paragraph", ["a\nb  ", "c", "d\ne"])]
)
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_lines_and_paragraphs_of_texts(tmp_path: Path, split: str, texts: list[str], ending: str) -> None:
    content = "\ufeff\n\na\nb  \n\n \t\n\nc\n\n\nd\ne\n\n".replace("\n", ending).encode()
    for name, pack in [("a.txt", bytes), ("b.txt.gz", gzip.compress)]:
        (tmp_path / name).write_bytes(pack(content))
        sources = find([tmp_path / name], split).sources  # type: ignore[arg-type]
        for part_bytes in (1, 3, 5, 100):
            found = [text for d in documents(Reading(sources, "text", part_bytes)) for text in d.texts]
            assert found == texts if split == "paragraph" else [t for t in found if t.strip()] == texts


def test_one_document_a_line_through_the_whole(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\nthree")
    assert texts_of(make(tmp_path / "a.txt")) == ["one\ntwo\n\nthree"]

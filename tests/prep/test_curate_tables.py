"""Curation of tables: every column stays, as JSON has its values, and can be asked for with `only`."""

import base64
import csv
import datetime
import decimal
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest

from curating import kept_records, make_words
from mtl_prep.curate.manifest import read_manifest
from mtl_prep.curate.request import Request
from mtl_prep.curate.run import curate

LONG = " ".join(make_words(1, 30))
ZONE = datetime.timezone(datetime.timedelta(0), "UTC")
COLUMNS: dict[str, tuple[pa.DataType, list[Any], list[Any]]] = {  # type, values, and how JSON has them
    "text": (pa.string(), [f"{LONG} a@b.org", "short", LONG], [f"{LONG} <EMAIL>", None, LONG]),
    "id": (pa.int64(), [1, 2, -(2**63)], [1, None, -(2**63)]),
    "large": (pa.uint64(), [2**64 - 1, 2, None], [2**64 - 1, None, None]),
    "score": (pa.float64(), [0.1, 0.2, float("nan")], [0.1, None, None]),
    "half": (pa.float16(), [1.5, 0.0, 2.0], [1.5, None, 2.0]),
    "good": (pa.bool_(), [True, False, None], [True, None, None]),
    "kind": (pa.dictionary(pa.int8(), pa.string()), ["en", "de", "code"], ["en", None, "code"]),
    "day": (pa.date32(), [datetime.date(2026, 11, 30)] * 2 + [None], ["2026-11-30", None, None]),
    "at": (
        pa.timestamp("ns"),
        [1_700_000_000_123_456_789, 0, None],
        ["2023-11-14 22:13:20.123456789", None, None],
    ),
    "price": (pa.decimal128(9, 2), [decimal.Decimal("1.50")] * 3, ["1.50", None, "1.50"]),
    "lasted": (pa.duration("ms"), [1500, 0, None], [1500, None, None]),
    "nothing": (pa.null(), [None, None, None], [None, None, None]),
    "raw": (pa.binary(), [b"utf-8 \xc3\xa4", b"", b"\xff\x00"], ["utf-8 \u00e4", None, "/wA="]),
    "meta": (
        pa.struct([("url", pa.string()), ("seen", pa.list_(pa.date32())), ("raw", pa.binary())]),
        [{"url": "u", "seen": [datetime.date(2026, 1, 2), None], "raw": b"\xfe"}, None, None],
        [{"url": "u", "seen": ["2026-01-02", None], "raw": "/g=="}, None, None],
    ),
    "labels": (
        pa.map_(pa.string(), pa.list_(pa.int32())),
        [[("a", [1, 2]), ("b", [])], [], []],
        [{"a": [1, 2], "b": []}, None, {}],
    ),
    "pair": (pa.list_(pa.float32(), 2), [[0.5, 1.5], [0, 0], None], [[0.5, 1.5], None, None]),
}
TABLE = pa.table({name: pa.array(values, kind) for name, (kind, values, _) in COLUMNS.items()})
EXPECTED = [{name: wanted[row] for name, (_, _, wanted) in COLUMNS.items()} for row in (0, 2)]
RECIPE = "[length]\nmin_characters = 10\n[pii]\n"


def stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue()


WRITERS: dict[str, Callable[[Path], Any]] = {
    "t.arrow": lambda path: pyarrow.feather.write_feather(TABLE, path, compression="uncompressed"),
    "s.arrow": lambda path: path.write_bytes(stream(TABLE)),
    # parquet has no half numbers and no such durations; arrow's schema in the file brings them back
    "t.parquet": lambda path: pyarrow.parquet.write_table(
        TABLE.drop_columns(["half", "lasted"]), path, row_group_size=2
    ),
}


def cleaned(path: Path, recipe: str = RECIPE, **options: Any) -> list[dict[str, Any]]:
    (path.parent / "r.toml").write_text(recipe, "utf-8")
    request = Request(path.parent / "r.toml", [path], path.parent / "clean", 1, max_bad="100%", **options)
    curate(request)
    return kept_records(path.parent / "clean")


@pytest.mark.parametrize("name", WRITERS)
def test_every_column_stays_with_values_of_json(tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / name)
    found = cleaned(tmp_path / name)
    assert [record.pop("curated_from")["record"] for record in found] == [0, 2]
    there = set(TABLE.column_names) - ({"half", "lasted"} if name == "t.parquet" else set())
    assert found == [{key: value for key, value in row.items() if key in there} for row in EXPECTED]


def test_columns_of_a_table_choose_documents_and_are_masked(tmp_path: Path) -> None:
    texts = [f"{LONG} {i}" for i in range(6)]
    table = pa.table({"kind": ["en", "en", "de"] * 2, "author": list("abcdef"), "body": texts, "n": range(6)})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    recipe = "[german]\nkind = 'length'\nmax_words = 3\nonly = { kind = 'd*' }\n[pii]\nkeys = ['author']\n"
    found = cleaned(tmp_path / "t.parquet", recipe, text_key="body")
    assert [(r["n"], r["author"], r["kind"]) for r in found] == [(i, "<NAME>", "en") for i in (0, 1, 3, 4)]


@pytest.mark.parametrize(("name", "separator"), [("t.csv", ","), ("t.tsv", "\t")])
def test_fields_of_csv_stay_as_strings(tmp_path: Path, name: str, separator: str) -> None:
    rows = [["1", f"{LONG} a@b.org", "\u00e4, \u00f6", ""], ["2", "short", "x", "y"], ["3", LONG, 'q"q', "0"]]
    with (tmp_path / name).open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=separator).writerows([["id", "text", "note", "last"], *rows])
    with (tmp_path / name).open("ab") as file:
        file.write(separator.join(["4", LONG + "4", "\xe4", ""]).encode("latin-1") + b"\r\n")
    found = cleaned(tmp_path / name)
    assert [record.pop("curated_from")["record"] for record in found] == [0, 2]
    assert found == [
        {"id": "1", "text": f"{LONG} <EMAIL>", "note": "\u00e4, \u00f6", "last": ""},
        {"id": "3", "text": LONG, "note": 'q"q', "last": "0"},
    ]
    assert read_manifest(tmp_path / "clean").sources[0].bad == {"not UTF-8": 1}


def test_a_string_that_is_no_utf8_is_kept_in_base64(tmp_path: Path) -> None:
    broken = pa.array([b"fine", b"\xff\xfe"], pa.binary()).view(pa.string())
    table = pa.table({"text": [LONG, LONG[::-1]], "other": broken})
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed")
    found = cleaned(tmp_path / "t.arrow")
    assert [record["other"] for record in found] == ["fine", base64.b64encode(b"\xff\xfe").decode()]


def test_a_text_inside_of_a_column_keeps_what_is_beside_it(tmp_path: Path) -> None:
    inner = pa.struct([("body", pa.binary()), ("at", pa.timestamp("s"))])
    table = pa.table({"data": pa.array([{"body": f"{LONG} a@b.org".encode(), "at": 0}], inner)})
    pyarrow.feather.write_feather(table, tmp_path / "t.arrow", compression="uncompressed")
    (found,) = cleaned(tmp_path / "t.arrow", text_key="data.body")
    assert found["data"] == {"body": f"{LONG} <EMAIL>", "at": "1970-01-01 00:00:00"}


def test_columns_of_pairs_and_what_stands_beside_them(tmp_path: Path) -> None:
    table = pa.table({"target": ["to a@b.org", LONG], "source": [LONG, LONG], "n": [1, 2]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    found = cleaned(tmp_path / "t.parquet", shape="pair")
    assert [{k: v for k, v in r.items() if k != "curated_from"} for r in found] == [
        {"target": "to <EMAIL>", "source": LONG, "n": 1},
        {"target": LONG, "source": LONG, "n": 2},
    ]


def test_texts_of_a_crawl_keep_their_address_and_date(tmp_path: Path) -> None:
    pytest.importorskip("warcio")
    from warcio.warcwriter import WARCWriter

    with (tmp_path / "a.wet").open("wb") as file:
        writer = WARCWriter(file, gzip=False, warc_version="WARC/1.0")
        for i in range(2):
            body, dated = io.BytesIO(f"{LONG} {i}".encode()), {"WARC-Date": f"2026-11-3{i}T19:00:00Z"}
            record = writer.create_warc_record(
                f"http://x/{i}",
                "conversion",
                payload=body,
                warc_headers_dict=dated,
                warc_content_type="text/plain",
            )
            writer.write_record(record)
            record.raw_stream.close()
    found = cleaned(tmp_path / "a.wet", "[length]\nonly = { url = '*/1' }\nmax_words = 1\n")
    assert [{k: v for k, v in r.items() if k != "curated_from"} for r in found] == [
        {"url": "http://x/0", "date": "2026-11-30T19:00:00Z", "text": f"{LONG} 0"}
    ]

"""mtl-prep convert: equal bit for bit both ways, as megatron-core itself reads and writes its files."""

import json
import struct
import warnings
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import make_bins, stdlib_texts
from mtl_common.bins import Bins, Writer, megatron
from mtl_common.errors import DataError, UsageError
from mtl_prep.finished.convert import export
from mtl_prep.finished.from_megatron import Request, from_megatron
from mtl_prep.finished.verify import verify
from preparing import Make, all_bytes, json_lines, prep, texts_of

TEXTS = [text[:6000] for text in stdlib_texts(12)]


@pytest.fixture(scope="module")
def core() -> Any:
    """megatron-core's own reader and writer of these files."""
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets import indexed_dataset
    return indexed_dataset


def export_to(bins: Bins, kind: str, out: Path) -> None:
    export(bins.path, kind, out)


def joined(sequences: Sequence[Sequence[int]]) -> list[int]:
    return [id for ids in sequences for id in ids]


def documents_of(dataset: Any) -> list[list[int]]:
    """Every document of a megatron-core dataset, its sequences end to end."""
    bounds = dataset.document_indices.tolist()
    sequences = [dataset[i].tolist() for i in range(len(dataset))]
    return [joined(sequences[a:b]) for a, b in pairwise(bounds)]


def lists(bins: Bins) -> list[list[int]]:
    return [bins.document(i).tolist() for i in range(len(bins))]


def test_megatron_core_reads_what_is_written(make: Make, tmp_path: Path, core: Any) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    bins = make(tmp_path / "a.jsonl", shard_tokens=9000)
    assert len(bins.manifest.shards) > 2
    export_to(bins, "megatron", tmp_path / "mg")
    dataset = core.IndexedDataset(str(tmp_path / "mg"))
    assert dataset.index.dtype is np.uint16
    assert documents_of(dataset) == lists(bins)
    assert dataset.sequence_lengths.tolist() == [len(ids) for ids in lists(bins)]
    assert dataset.get(3, offset=2, length=5).tolist() == bins.document(3)[2:7].tolist()


def test_the_files_are_those_that_megatron_core_writes(make: Make, tmp_path: Path, core: Any) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    bins = make(tmp_path / "a.jsonl", shard_tokens=9000)
    export_to(bins, "megatron", tmp_path / "ours")
    builder = core.IndexedDatasetBuilder(str(tmp_path / "theirs.bin"), dtype=np.uint16)
    for ids in lists(bins):
        builder.add_document(torch.tensor(ids), [len(ids)])
    builder.finalize(str(tmp_path / "theirs.idx"))
    for suffix in (".bin", ".idx"):
        assert (tmp_path / f"ours{suffix}").read_bytes() == (tmp_path / f"theirs{suffix}").read_bytes()


def build(
    core: Any,
    prefix: Path,
    documents: Sequence[Sequence[Sequence[int]]],
    dtype: Any,
    multimodal: bool = False,
) -> None:
    """Documents of sequences, as Megatron's preprocessing writes them."""
    torch = pytest.importorskip("torch")
    builder = core.IndexedDatasetBuilder(f"{prefix}.bin", dtype=dtype, multimodal=multimodal)
    for sequences in documents:
        for number, ids in enumerate(sequences):
            builder.add_item(torch.tensor(ids), mode=number % 2)
        builder.end_document()
    builder.finalize(f"{prefix}.idx")


@pytest.mark.parametrize("dtype", [np.int32, np.uint16, np.int64, np.int16])
def test_files_of_megatron_core_come_back_bit_for_bit(
    tmp_path: Path, core: Any, tokenizer: Path, dtype: Any
) -> None:
    documents = [[[5, 6, 7, 0]], [[8, 0]], [[0]], [list(range(1, 1024)), [9, 9, 0]], [[3], [4], [5, 0]]]
    build(core, tmp_path / "mg", documents, dtype)
    made = from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins", shard_tokens=8))
    bins = Bins(tmp_path / "bins")
    assert lists(bins) == [joined(sequences) for sequences in documents]
    assert list(verify(tmp_path / "bins")) == []
    assert made.several == 2
    assert bins.sentences(4).tolist() == [0, 1, 2]
    export_to(bins, "megatron", tmp_path / "again")
    again = core.IndexedDataset(str(tmp_path / "again"))
    assert [again[i].tolist() for i in range(len(again))] == [ids for d in documents for ids in d]
    assert documents_of(again) == lists(bins)
    if dtype is np.uint16:
        for suffix in (".bin", ".idx"):
            assert (tmp_path / f"again{suffix}").read_bytes() == (tmp_path / f"mg{suffix}").read_bytes()


SHAPES = st.lists(st.lists(st.lists(st.integers(1, 1023), max_size=4), max_size=4), min_size=1, max_size=8)


@settings(max_examples=25, deadline=None)
@given(SHAPES, st.sampled_from([np.int16, np.uint16, np.int32, np.int64]), st.booleans())
def test_any_grouping_of_sequences_is_what_megatron_core_reads(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Path,
    core: Any,
    documents: list[list[list[int]]],
    dtype: Any,
    has_modes: bool,
) -> None:
    """Documents without sequences, sequences without ids, and modes among them."""
    place = tmp_path_factory.mktemp("mg")
    documents = [[*d[:-1], [*d[-1], 0]] if d else d for d in documents] + [[[7, 0]]]
    build(core, place / "mg", documents, dtype, multimodal=has_modes)
    theirs = core.IndexedDataset(str(place / "mg"), multimodal=has_modes)
    sequences = [theirs[i][0] if has_modes else theirs[i] for i in range(len(theirs))]
    bounds = theirs.document_indices.tolist()
    expected = [[ids.tolist() for ids in sequences[a:b] if len(ids)] for a, b in pairwise(bounds)]
    made = from_megatron(Request(place / "mg", tokenizer, place / "bins", shard_tokens=9))
    bins = Bins(place / "bins")
    assert lists(bins) == [joined(document) for document in expected if document]
    assert list(verify(place / "bins")) == []
    assert (made.has_modes, made.empty_sequences) == (has_modes, sum(not len(ids) for ids in sequences))
    assert made.several == sum(len(document) > 1 for document in expected)
    export(place / "bins", "megatron", place / "again")
    again = core.IndexedDataset(str(place / "again"))
    assert again.index.dtype == np.uint16
    assert [again[i].tolist() for i in range(len(again))] == [ids for d in expected for ids in d]
    assert again.document_indices.tolist() == [0, *accumulate(len(d) for d in expected if d)]


def test_there_and_back_gives_the_same_shards(make: Make, tmp_path: Path, tokenizer: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    bins = make(tmp_path / "a.jsonl", shard_tokens=9000)
    done = prep("convert", "bins", "--to", "megatron", "--out", "mg", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "left out  the tokenizer, and which source and record" in done.stdout
    done = prep(
        "convert", "mg", "--tokenizer", tokenizer, "--out", "again", "--shard-tokens", 9000, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("next: mtl-prep verify again\n")
    again = Bins(tmp_path / "again")
    assert [s.xxh3 for s in again.manifest.shards] == [s.xxh3 for s in bins.manifest.shards]
    assert texts_of(again) == TEXTS
    assert again.manifest.sources[0].path == "mg.bin"
    assert list(verify(tmp_path / "again")) == []


@pytest.mark.parametrize("vocab_size", [65_536, 65_537, 200_019])
def test_wide_ids_are_int32(tmp_path: Path, core: Any, vocab_size: int) -> None:
    last = vocab_size - 1
    bins = Bins(make_bins(tmp_path / "bins", [[1, last, 2], [7]], vocab_size, eod=last))
    export_to(bins, "megatron", tmp_path / "mg")
    dataset = core.IndexedDataset(str(tmp_path / "mg"))
    assert dataset.index.dtype is (np.uint16 if vocab_size == 65_536 else np.int32)
    assert documents_of(dataset) == [[1, last, 2, last], [7, last]]


def test_the_index_field_by_field(tmp_path: Path) -> None:
    """Against the description of the format, without megatron-core."""
    place = make_bins(tmp_path / "bins", [[5, 6], [7], [8, 9, 10]], 100, shard_tokens=5)
    export(place, "megatron", tmp_path / "sub" / "mg")
    data = (tmp_path / "sub" / "mg.idx").read_bytes()
    assert data[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<QBQQ", data[9:34]) == (1, 8, 3, 4)
    assert struct.unpack("<3i3q4q", data[34:]) == (3, 2, 4, 0, 6, 10, 0, 1, 2, 3)
    assert np.fromfile(tmp_path / "sub" / "mg.bin", "<u2").tolist() == [5, 6, 0, 7, 0, 8, 9, 10, 0]


def raw(prefix: Path, documents: Sequence[Sequence[int]], code: int = 8, extra: bytes = b"") -> None:
    """A pair written by hand, a sequence a document."""
    kind = {8: "<u2", 4: "<i4", 7: "<f4"}[code]
    ids = np.concatenate([np.array(d, kind) for d in documents])
    lengths = np.array([len(d) for d in documents], "<i4")
    at = (np.cumsum([0, *lengths[:-1]]) * ids.itemsize).astype("<i8")
    ends = np.arange(len(documents) + 1, dtype="<i8")
    head = b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, code, len(documents), len(documents) + 1)
    prefix.with_suffix(".bin").write_bytes(ids.tobytes())
    prefix.with_suffix(".idx").write_bytes(head + lengths.tobytes() + at.tobytes() + ends.tobytes() + extra)


def test_documents_without_an_end_are_refused_or_ended(tmp_path: Path, tokenizer: Path) -> None:
    raw(tmp_path / "mg", [[5, 0], [6, 7], [8]])
    with pytest.raises(DataError, match=r"document 1 of .*mg\.bin does not end with .* id 0; .* --add-eod"):
        from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins"))
    assert not (tmp_path / "bins").exists()
    made = from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins", add_eod=True))
    assert made.ended == 2
    assert lists(Bins(tmp_path / "bins")) == [[5, 0], [6, 7, 0], [8, 0]]


def test_others_may_write_the_end_inside_a_document(tmp_path: Path, tokenizer: Path) -> None:
    raw(tmp_path / "mg", [[5, 0, 6, 0], [7, 0]])
    from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins"))
    assert lists(Bins(tmp_path / "bins")) == [[5, 0, 6, 0], [7, 0]]
    assert list(verify(tmp_path / "bins")) == []


def test_empty_documents_are_counted(tmp_path: Path, tokenizer: Path) -> None:
    raw(tmp_path / "mg", [[], [5, 0], [], [6, 0]])
    from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins"))
    bins = Bins(tmp_path / "bins")
    assert lists(bins) == [[5, 0], [6, 0]]
    assert [bins.origin(i)[1] for i in range(2)] == [1, 3]
    assert (bins.manifest.sources[0].records, bins.manifest.sources[0].bad) == (4, {"empty": 2})
    raw(tmp_path / "none", [[], []])
    with pytest.raises(DataError, match="holds no tokens"):
        from_megatron(Request(tmp_path / "none", tokenizer, tmp_path / "other"))


def test_modes_are_told_of(tmp_path: Path, tokenizer: Path) -> None:
    raw(tmp_path / "mg", [[5, 0], [6, 0]], extra=b"\x00\x01")
    done = prep("convert", tmp_path / "mg.idx", "--tokenizer", tokenizer, "--out", tmp_path / "bins")
    assert done.returncode == 0
    assert "left out   the modes of the sequences\n" in done.stdout


@pytest.mark.parametrize("code", [4, 8])
def test_ids_of_another_tokenizer_are_refused(tmp_path: Path, tokenizer: Path, code: int) -> None:
    raw(tmp_path / "mg", [[5, 0], [6, 1024, 0]], code)
    with pytest.raises(DataError, match=r"document 1 of .* holds the id 1024, none of the 1,024"):
        from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins"))


def damaged(kind: str, prefix: Path) -> None:
    raw(prefix, [[5, 0], [6, 7, 0]], 7 if kind == "floats" else 8)
    ids, index = prefix.with_suffix(".bin"), prefix.with_suffix(".idx")
    data = bytearray(index.read_bytes())
    if kind == "no index":
        index.unlink()
    elif kind == "short bin":
        ids.write_bytes(ids.read_bytes()[:-2])
    elif kind == "short index":
        index.write_bytes(data[:-8])
    elif kind == "no magic":
        index.write_bytes(b"x" + data[1:])
    elif kind == "pointer":
        data[34 + 8 + 8] += 2
        index.write_bytes(data)
    elif kind == "documents":
        data[-8] -= 1
        index.write_bytes(data)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        ("no index", r"mg\.idx is missing"),
        ("short bin", r"mg\.bin has 8 bytes, its index tells of 10"),
        ("short index", r"mg\.idx has 74 bytes, not 82"),
        ("no magic", r"mg\.idx is no index of a Megatron dataset"),
        ("floats", r"version 1 of float32; version 1 of an integer type is read"),
        ("pointer", r"do not follow one another in .*mg\.bin"),
        ("documents", r"the documents of .*mg\.idx are not its sequences"),
    ],
)
def test_damaged_pairs_are_named(tmp_path: Path, tokenizer: Path, kind: str, sentence: str) -> None:
    damaged(kind, tmp_path / "mg")
    with pytest.raises(DataError, match=sentence):
        from_megatron(Request(tmp_path / "mg", tokenizer, tmp_path / "bins"))
    assert not (tmp_path / "bins").exists()


def test_a_document_of_2_to_the_31_tokens_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bins = make_bins(tmp_path / "bins", [[1, 2], [3, 4, 5]], 100)
    monkeypatch.setattr(megatron, "LONGEST", 3)
    with pytest.raises(DataError, match=r"a document of .* has over 3 tokens"):
        export(bins, "megatron", tmp_path / "mg")
    assert [path.name for path in tmp_path.iterdir()] == ["bins"]


def test_large_files_in_small_pieces(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, core: Any
) -> None:
    """The same bins whatever is handled together."""
    generator = np.random.default_rng(5)
    documents = [
        [
            generator.integers(1, 1024, generator.integers(1, 30)).tolist()
            for _ in range(generator.integers(1, 4))
        ]
        for _ in range(80)
    ]
    documents = [[*sequences[:-1], [*sequences[-1], 0]] for sequences in documents]
    build(core, tmp_path / "mg", documents, np.int32)
    made = []
    for piece, run in [(1 << 22, 1 << 16), (50, 3), (7, 1)]:
        monkeypatch.setattr(megatron, "PIECE", piece)
        monkeypatch.setattr(megatron, "RUN", run)
        out = tmp_path / f"bins-{piece}"
        from_megatron(Request(tmp_path / "mg", tokenizer, out, shard_tokens=500))
        made.append(all_bytes(out))
        assert lists(Bins(out)) == [joined(sequences) for sequences in documents]
    assert made[0] == made[1] == made[2]


def test_parquet(make: Make, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    (tmp_path / "b.txt").write_text("one more")
    bins = make(tmp_path / "a.jsonl", tmp_path / "b.txt", shard_tokens=9000)
    export_to(bins, "parquet", tmp_path / "pq")
    table = polars.read_parquet(tmp_path / "pq" / "*.parquet")
    assert table["tokens"].to_list() == lists(bins)
    assert table["tokens"].dtype == polars.List(polars.UInt16)
    assert [(row[0], row[1]) for row in table.select("source", "record").rows()] == [
        bins.origin(i) for i in range(len(bins))
    ]
    with pytest.raises(UsageError, match="pq exists"):
        export_to(bins, "parquet", tmp_path / "pq")


def test_duckdb_opens_parquet(make: Make, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    (tmp_path / "a.jsonl").write_bytes(json_lines(TEXTS))
    (tmp_path / "b.txt").write_text("one more")
    bins = make(tmp_path / "a.jsonl", tmp_path / "b.txt", shard_tokens=9000)
    export_to(bins, "parquet", tmp_path / "pq")
    files = f"'{tmp_path}/pq/*.parquet'"
    found = duckdb.sql(f"select tokens, source, record from {files} order by source, record").fetchall()
    assert [(ids, (source, record)) for ids, source, record in found] == [
        (bins.document(i).tolist(), bins.origin(i)) for i in range(len(bins))
    ]
    sums = f"select source, sum(len(tokens))::bigint from {files} group by source order by source"
    assert duckdb.sql(sums).fetchall() == [
        (str(tmp_path / "a.jsonl"), bins.tokens - len(bins.document(len(bins) - 1))),
        (str(tmp_path / "b.txt"), len(bins.document(len(bins) - 1))),
    ]


def test_parquet_keeps_every_column(tmp_path: Path, tokenizer: Path) -> None:
    with Writer(tmp_path / "bins", tokenizer) as writer:
        writer.add([5, 6, 0], loss=[0, 1, 1])
        writer.add([7, 0], loss=[1, 0])
    export(tmp_path / "bins", "parquet", tmp_path / "pq")
    assert polars.read_parquet(tmp_path / "pq" / "*.parquet")["loss"].to_list() == [[0, 1, 1], [1, 0]]
    done = prep("convert", tmp_path / "bins", "--to", "megatron", "--out", tmp_path / "mg")
    assert "left out  which tokens count as labels, the tokenizer" in done.stdout


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.zst"])
def test_json_lines_tokenize_to_the_same_bins(make: Make, tmp_path: Path, name: str) -> None:
    (tmp_path / "a.jsonl").write_bytes(json_lines([*TEXTS, "h\u00e9 \U0001f600 \x00 \u2028"]))
    bins = make(tmp_path / "a.jsonl", shard_tokens=9000)
    export_to(bins, "jsonl", tmp_path / name)
    data = (tmp_path / name).read_bytes()
    data = zstandard.ZstdDecompressor().stream_reader(data).read() if name.endswith(".zst") else data
    records = [json.loads(line) for line in data.splitlines()]
    assert records[2] == {"text": TEXTS[2], "source": str(tmp_path / "a.jsonl"), "record": 2}
    again = make(tmp_path / name, name="again", shard_tokens=9000)
    assert [s.xxh3_tokens for s in again.manifest.shards] == [s.xxh3_tokens for s in bins.manifest.shards]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["bins", "--to", "megatrom", "--out", "x"],
            'no such form megatrom (did you mean "megatron"?); --to is one of',
        ),
        (["bins", "--out", "x"], "give --to for bins, or --tokenizer for Megatron's files"),
        (["bins", "--to", "parquet", "--tokenizer", "t", "--out", "x"], "give --to for bins, or --tokenizer"),
        (["nowhere", "--to", "parquet", "--out", "x"], "no token bins at nowhere"),
    ],
)
def test_wrong_requests(tmp_path: Path, arguments: list[str], sentence: str) -> None:
    make_bins(tmp_path / "bins", [[1]], 100)
    done = prep("convert", *arguments, cwd=tmp_path)
    assert done.returncode == (1 if arguments[0] == "nowhere" else 2)
    assert done.stderr.startswith(f"error: {sentence}")
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bins"]

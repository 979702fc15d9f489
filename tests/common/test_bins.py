"""Token bins: what is written is read back by us, by polars and by pyarrow; damage is named."""

import json
import pickle
from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import polars
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus import make_bins
from mtl_common.bins import Batch, Bins, dtype_for, write_shard
from mtl_common.errors import DataError

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14], [15], [16, 17, 18]]
STREAM = [id for document in DOCUMENTS for id in (*document, 0)]


@pytest.fixture(scope="module", params=[6, 12, 1000], ids=["4 shards", "2 shards", "1 shard"])
def bins(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bins:
    return Bins(make_bins(tmp_path_factory.mktemp("bins"), DOCUMENTS, 100, shard_tokens=request.param))


def test_sums_and_facts(bins: Bins) -> None:
    assert (len(bins), bins.tokens, bins.vocab_size, bins.eod, bins.dtype.name) == (6, 20, 100, 0, "uint16")
    assert bins.tokenizer == bins.path / "tokenizer"
    assert sum(shard.tokens for shard in bins.manifest.shards) == 20
    assert max(shard.largest_id for shard in bins.manifest.shards) == 18


def test_documents_come_back_with_their_end(bins: Bins) -> None:
    assert [bins.document(i).tolist() for i in range(len(bins))] == [[*ids, 0] for ids in DOCUMENTS]
    assert bins.origin(4) == ("x", 4)


def test_bounds_are_token_positions(bins: Bins) -> None:
    starts = [0, *accumulate(len(ids) + 1 for ids in DOCUMENTS)]
    for first in range(len(DOCUMENTS) + 1):
        for last in range(first, len(DOCUMENTS) + 1):
            assert bins.bounds(first, last) == (starts[first], starts[last])


def test_every_window_is_that_part_of_the_stream(bins: Bins) -> None:
    for start in range(len(STREAM) + 1):
        for n in range(len(STREAM) - start + 1):
            assert bins.window(start, n).tolist() == STREAM[start : start + n]
            assert bins.window(start, n).dtype == np.uint16


def test_a_window_inside_a_shard_is_a_view(bins: Bins) -> None:
    window = bins.window(1, 3)
    assert np.shares_memory(window, bins.window(2, 2))
    assert not window.flags.writeable


def test_what_is_outside_is_refused(bins: Bins) -> None:
    for start, n in [(-1, 2), (0, 21), (20, 1), (3, -1)]:
        with pytest.raises(IndexError, match="of 20"):
            bins.window(start, n)
    for document in (-1, 6):
        with pytest.raises(IndexError, match="of 6"):
            bins.document(document)


def test_pickle_carries_the_path_only(bins: Bins) -> None:
    bins.window(0, 20)
    data = pickle.dumps(bins)
    assert len(data) < 1000
    assert pickle.loads(data).window(0, 20).tolist() == STREAM


def test_polars_and_pyarrow_open_a_shard_as_it_is(bins: Bins) -> None:
    files = [str(bins.path / shard.file) for shard in bins.manifest.shards]
    table = polars.concat([polars.read_ipc(file) for file in files])
    assert table["tokens"].to_list() == [[*ids, 0] for ids in DOCUMENTS]
    assert table["record"].to_list() == list(range(6))
    assert table["tokens"].dtype == polars.List(polars.UInt16)
    with pa.memory_map(files[0]) as source:
        reader = pa.ipc.open_file(source)
        assert reader.num_record_batches == 1
        assert reader.schema.field("tokens").type.value_type == pa.uint16()
        assert reader.schema.metadata[b"mtl.tokens"] == str(bins.manifest.shards[0].tokens).encode()


def test_duckdb_reads_a_shard_through_pyarrow(bins: Bins) -> None:
    """Its arrow extension would have to be downloaded; a mapped shard is a table that it queries in place."""
    duckdb = pytest.importorskip("duckdb")
    readers = [pa.ipc.open_file(pa.memory_map(str(bins.path / shard.file))) for shard in bins.manifest.shards]
    shards = pa.concat_tables([reader.read_all() for reader in readers])
    connection = duckdb.connect()
    connection.register("shards", shards)
    found = connection.sql("select record, tokens, len(tokens) from shards order by record").fetchall()
    assert found == [(i, [*ids, 0], len(ids) + 1) for i, ids in enumerate(DOCUMENTS)]
    assert connection.sql("select sum(len(tokens)) from shards").fetchall() == [(20,)]


def as_batch(documents: Sequence[Sequence[int]], first: int, dtype: str) -> Batch:
    offsets = np.array([0, *accumulate(map(len, documents))], np.int64)
    ids = np.array([id for document in documents for id in document], dtype)
    records = np.arange(first, first + len(documents), dtype=np.uint64)
    return Batch(ids, offsets, np.full(len(documents), 3, np.uint32), records)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 70_000), max_size=6), min_size=1, max_size=8),
    st.lists(st.integers(0, 8), max_size=4),
)
def test_a_shard_does_not_depend_on_batches(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], cuts: list[int]
) -> None:
    place = tmp_path_factory.mktemp("shard")
    whole = write_shard(place / "a.arrow", "uint32", [as_batch(documents, 0, "uint32")])
    edges = sorted({0, len(documents), *(min(cut, len(documents)) for cut in cuts)})
    parts = [as_batch(documents[a:b], a, "uint32") for a, b in pairwise(edges)]
    cut = write_shard(place / "b.arrow", "uint32", parts)
    assert (place / "a.arrow").read_bytes() == (place / "b.arrow").read_bytes()
    assert whole.model_copy(update={"file": "b.arrow"}) == cut
    assert polars.read_ipc(place / "a.arrow")["tokens"].to_list() == documents
    assert sorted(p.name for p in place.iterdir()) == ["a.arrow", "b.arrow"]


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(65_535, "uint16"), (65_536, "uint16"), (65_537, "uint32"), (200_019, "uint32")]
)
def test_the_largest_possible_id_fits(tmp_path: Path, vocab_size: int, dtype: str) -> None:
    last = vocab_size - 1
    bins = Bins(make_bins(tmp_path / "bins", [[1, last, 2], [last]], vocab_size, eod=last))
    assert dtype_for(vocab_size) == dtype == bins.dtype.name
    assert bins.window(0, 6).tolist() == [1, last, 2, last, last, last]


def test_ids_are_never_narrowed_in_silence(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="uint32 for a shard of uint16"):
        write_shard(tmp_path / "a.arrow", "uint16", [as_batch([[70_000]], 0, "uint32")])
    assert not list(tmp_path.iterdir())


def test_damage_is_named(tmp_path: Path) -> None:
    place = make_bins(tmp_path / "bins", DOCUMENTS, 100)
    shard = place / "shard-00000.arrow"
    content = shard.read_bytes()
    shard.write_bytes(content[:-8])
    sizes = f"{len(content) - 8:,} bytes instead of {len(content):,}"
    with pytest.raises(DataError, match=rf"shard-00000\.arrow is cut off: {sizes}; restore it"):
        Bins(place)
    shard.unlink()
    with pytest.raises(DataError, match=r"shard-00000\.arrow is missing"):
        Bins(place)
    (place / "manifest.json").write_text('{"format"')
    with pytest.raises(DataError, match=r"manifest\.json is damaged"):
        Bins(place)


def test_a_directory_that_is_no_bins_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent: there is no such directory"):
        Bins(tmp_path / "absent")
    with pytest.raises(DataError, match=r"holds no finished token bins"):
        Bins(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: it is a file, bins are a directory"):
        Bins(tmp_path / "file")


def test_versions(tmp_path: Path) -> None:
    manifest = make_bins(tmp_path / "bins", DOCUMENTS, 100) / "manifest.json"
    content = json.loads(manifest.read_text())
    manifest.write_text(json.dumps(content | {"version": "1.9", "new_key": 3}))
    assert len(Bins(manifest.parent)) == 6
    manifest.write_text(json.dumps(content | {"version": "2.0"}))
    with pytest.raises(DataError, match=r"version 2\.0, but this mtl reads mtl-bins 1\.1"):
        Bins(manifest.parent)

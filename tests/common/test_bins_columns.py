"""The optional columns of token bins: which tokens count as labels, and where sentences begin."""

import json
from pathlib import Path

import numpy as np
import polars
import pyarrow as pa
import pytest

from corpus import make_bins
from mtl_common.bins import Batch, Bins, Sentences, write_shard
from mtl_common.errors import DataError

DOCUMENTS = [[5, 6, 7], [8], [9, 10, 11, 12], [13, 14]]
LOSS = [[0, 0, 1, 1], [0, 1], [1, 0, 0, 1, 0], [0, 0, 0]]
SENTENCES = [[0, 2], [0], [0, 1, 3], [0]]
FLAT = [flag for flags in LOSS for flag in flags]


@pytest.fixture(scope="module", params=[6, 1000], ids=["several shards", "1 shard"])
def bins(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Bins:
    place = tmp_path_factory.mktemp("bins")
    return Bins(make_bins(place, DOCUMENTS, 100, shard_tokens=request.param, loss=LOSS, sentences=SENTENCES))


def batch(ids: list[int], loss: list[int] | None, sentences: list[int] | None) -> Batch:
    starts = None if sentences is None else np.array(sentences, np.uint32)
    return Batch(
        ids=np.array(ids, np.uint16),
        offsets=np.array([0, len(ids)]),
        source=np.zeros(1, np.uint32),
        record=np.zeros(1, np.uint64),
        loss=None if loss is None else np.array(loss, np.uint8),
        sentences=None if starts is None else Sentences(starts, np.array([0, len(starts)])),
    )


def test_documents_come_back_with_both(bins: Bins) -> None:
    assert bins.has_loss
    assert bins.has_sentences
    assert [bins.loss(i).tolist() for i in range(len(bins))] == LOSS
    assert [bins.sentences(i).tolist() for i in range(len(bins))] == SENTENCES
    assert [bins.document(i).tolist() for i in range(len(bins))] == [[*ids, 0] for ids in DOCUMENTS]


def test_every_window_of_loss_is_that_part_of_the_stream(bins: Bins) -> None:
    for start in range(len(FLAT) + 1):
        for n in range(len(FLAT) - start + 1):
            assert bins.window_loss(start, n).tolist() == FLAT[start : start + n]
    with pytest.raises(IndexError, match=f"of {len(FLAT)}"):
        bins.window_loss(1, len(FLAT))


def test_the_manifest_adds_up(bins: Bins) -> None:
    shards = bins.manifest.shards
    assert sum(shard.loss_tokens or 0 for shard in shards) == sum(FLAT)
    assert sum(shard.sentences or 0 for shard in shards) == sum(map(len, SENTENCES))
    assert sum(shard.one_sentence or 0 for shard in shards) == 2


def test_other_readers_open_a_shard_as_it_is(bins: Bins) -> None:
    files = [str(bins.path / shard.file) for shard in bins.manifest.shards]
    table = polars.concat([polars.read_ipc(file) for file in files])
    assert table.columns == ["tokens", "source", "record", "loss", "sentences"]
    assert table["loss"].to_list() == LOSS
    assert table["sentences"].to_list() == SENTENCES
    with pa.memory_map(files[0]) as source:
        found = pa.ipc.open_file(source).get_batch(0)
        found.validate(full=True)
        assert found["loss"].offsets.equals(found["tokens"].offsets)


def test_bins_without_them_say_so_and_count_every_token(tmp_path: Path) -> None:
    place = make_bins(tmp_path / "bins", DOCUMENTS, 100)
    content = (place / "manifest.json").read_text()
    assert not {"loss_at", "sentences_at"} & json.loads(content)["shards"][0].keys()
    bins = Bins(place)
    assert not bins.has_loss
    assert not bins.has_sentences
    assert bins.loss(2).tolist() == [1] * 5
    assert bins.window_loss(3, 4).tolist() == [1] * 4
    with pytest.raises(DataError, match="does not say where sentences begin"):
        bins.sentences(0)


@pytest.mark.parametrize(
    "second", [batch([3, 0], None, [0]), batch([3, 0], [0, 1], None), batch([3, 0], None, None)]
)
def test_a_shard_has_a_column_for_all_documents_or_for_none(tmp_path: Path, second: Batch) -> None:
    first = batch([1, 2, 0], [0, 1, 1], [0, 1])
    for batches in ([first, second], [second, first]):
        with pytest.raises(TypeError, match="for a shard of"):
            write_shard(tmp_path / "a.arrow", "uint16", batches)
    assert not list(tmp_path.iterdir())

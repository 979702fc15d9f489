"""Documents in the order of a seed: all of them once, whatever the units, processes and memory."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mtl_common.bins import Batch, Bins, Sentences
from mtl_common.errors import DataError, UsageError
from mtl_prep.running.gather import gather
from mtl_prep.running.shuffle import keys
from mtl_prep.running.tokenize import tokenize
from preparing import all_bytes, bad_of
from scaling import SIZES, in_process, request, write_tree

MASK = (1 << 64) - 1


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture(scope="module")
def ordered(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Bins:
    out = tmp_path_factory.mktemp("ordered") / "bins"
    tokenize(request(corpus, tokenizer, out))
    return Bins(out)


@pytest.fixture(scope="module")
def shuffled(corpus: Path, tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Bins:
    out = tmp_path_factory.mktemp("shuffled") / "bins"
    tokenize(request(corpus, tokenizer, out, shuffle_documents=11))
    return Bins(out)


def places(bins: Bins) -> list[tuple[str, int]]:
    return [bins.origin(i) for i in range(len(bins))]


def mixed(bits: int) -> int:
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & MASK
    return bits ^ (bits >> 31)


def key(seed: int, source: int, record: int) -> int:
    """The key of a document, in Python's own integers."""
    state = seed
    for part in (source, record):
        state = mixed(mixed((state + 0x9E3779B97F4A7C15) & MASK) ^ part)
    return state


def test_all_documents_are_there_once_in_the_order_of_their_keys(ordered: Bins, shuffled: Bins) -> None:
    texts = {ordered.origin(i): ordered.document(i).tolist() for i in range(len(ordered))}
    numbers = {source.path: i for i, source in enumerate(ordered.manifest.sources)}
    wanted = sorted(texts, key=lambda place: key(11, numbers[place[0]], place[1]))
    assert places(shuffled) == wanted
    assert wanted != places(ordered)
    assert all(shuffled.document(i).tolist() == texts[place] for i, place in enumerate(wanted))
    assert bad_of(shuffled) == bad_of(ordered)
    assert [s for s in shuffled.manifest.sources] == [s for s in ordered.manifest.sources]


def test_shards_are_cut_by_tokens_in_the_new_order(shuffled: Bins) -> None:
    assert len(shuffled.manifest.shards) >= 4
    shards = [shard.tokens for shard in shuffled.manifest.shards]
    firsts = np.cumsum([0, *(shard.documents for shard in shuffled.manifest.shards)])
    for i, size in enumerate(shards[:-1]):
        assert size <= SIZES["shard_tokens"] or shuffled.manifest.shards[i].documents == 1
        assert size + len(shuffled.document(int(firsts[i + 1]))) > SIZES["shard_tokens"]


@pytest.mark.parametrize(
    "options",
    [{"workers": 3}, {"piece_tokens": 1 << 20}, {"piece_tokens": 4_000}, {"part_bytes": 1 << 24}],
    ids=str,
)
def test_the_order_depends_on_nothing_but_the_seed(
    corpus: Path, tokenizer: Path, shuffled: Bins, tmp_path: Path, options: dict[str, Any]
) -> None:
    tokenize(request(corpus, tokenizer, tmp_path / "bins", shuffle_documents=11, **options))
    assert all_bytes(tmp_path / "bins") == all_bytes(shuffled.path)


def test_the_seed_is_in_the_manifest_and_another_is_refused(
    corpus: Path, tokenizer: Path, shuffled: Bins, tmp_path: Path
) -> None:
    assert shuffled.manifest.options["shuffle_documents"] == 11
    with pytest.raises(UsageError, match="made with --shuffle-documents 11, not 12"):
        tokenize(request(corpus, tokenizer, shuffled.path, shuffle_documents=12))
    with pytest.raises(UsageError, match="made with --shuffle-documents 11; give the same option"):
        tokenize(request(corpus, tokenizer, shuffled.path))
    tokenize(request(corpus, tokenizer, tmp_path / "bins", shuffle_documents=12))
    assert places(Bins(tmp_path / "bins")) != places(shuffled)


def test_pieces_that_were_lost_are_made_again(
    corpus: Path, tokenizer: Path, shuffled: Bins, tmp_path: Path
) -> None:
    out = tmp_path / "bins"
    process = in_process(corpus, tokenizer, out, shuffle_documents=11)
    while process.poll() is None and not list(out.glob("_work/*/range-*.arrow")):
        pass
    process.kill()
    process.communicate()
    if not (out / "manifest.json").exists():
        for start in ("unit", "run", "range"):
            for path in sorted(out.glob(f"_work/*/{start}-*.arrow"))[:1]:
                path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(DataError, match="no finished"):
            Bins(out)
    tokenize(request(corpus, tokenizer, out, shuffle_documents=11))
    assert all_bytes(out) == all_bytes(shuffled.path)


def test_keys_are_spread_evenly_and_differ_by_seed() -> None:
    source, record = np.repeat(np.arange(16, dtype=np.uint32), 4096), np.tile(np.arange(4096), 16)
    found = keys(3, source, record.astype(np.uint64))
    assert len(np.unique(found)) == len(found)
    counts = np.bincount((found >> np.uint64(58)).astype(np.int64), minlength=64)
    expected = len(found) / 64
    assert ((counts - expected) ** 2 / expected).sum() < 120  # chi squared, 63 degrees of freedom
    order = np.argsort(found)
    assert abs(np.corrcoef(order, np.arange(len(order)))[0, 1]) < 0.02
    assert not np.intersect1d(found, keys(4, source, record.astype(np.uint64))).size


@given(st.integers(0, MASK), st.integers(0, 2**32 - 1), st.integers(0, MASK))
def test_keys_are_those_of_plain_integers(seed: int, source: int, record: int) -> None:
    found = keys(seed, np.array([source], np.uint32), np.array([record], np.uint64))
    assert int(found[0]) == key(seed, source, record)


def some_batch(chance: np.random.Generator, source: int) -> Batch:
    lengths = chance.integers(1, 9, chance.integers(1, 6))
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    counts = [int(chance.integers(1, length + 1)) for length in lengths]
    starts = [
        np.sort(np.r_[0, chance.permutation(np.arange(1, n))[: c - 1]])
        for n, c in zip(lengths, counts, strict=True)
    ]
    sentences = Sentences(np.concatenate(starts).astype(np.uint32), np.concatenate([[0], np.cumsum(counts)]))
    tokens = int(offsets[-1])
    return Batch(
        ids=chance.integers(0, 1000, tokens).astype(np.uint16),
        offsets=offsets,
        source=np.full(len(lengths), source, np.uint32),
        record=chance.integers(0, 1 << 40, len(lengths)).astype(np.uint64),
        loss=chance.integers(0, 2, tokens).astype(np.uint8),
        sentences=sentences,
    )


def documents_of(batch: Batch) -> list[tuple[Any, ...]]:
    """Every column of every document, as lists."""
    found = []
    for row in range(len(batch.record)):
        one = batch.part(row, row + 1)
        assert one.loss is not None
        assert one.sentences is not None
        columns = (one.ids, one.loss, one.sentences.starts, one.source, one.record)
        found.append(tuple(column.tolist() for column in columns))
    return found


@pytest.mark.parametrize("feed", [1, 7, 1 << 21])
def test_what_counts_and_sentences_go_with_their_documents(
    monkeypatch: pytest.MonkeyPatch, feed: int
) -> None:
    monkeypatch.setattr("mtl_prep.running.gather.FEED", feed)
    for seed in range(20):
        chance = np.random.default_rng(seed)
        batches = [some_batch(chance, source) for source in range(3)]
        piece = np.concatenate([np.full(len(b.record), i) for i, b in enumerate(batches)])
        row = np.concatenate([np.arange(len(b.record)) for b in batches])
        order = chance.permutation(len(row))
        known = [documents_of(batch) for batch in batches]
        found = [d for batch in gather(batches, piece[order], row[order]) for d in documents_of(batch)]
        assert found == [known[piece[i]][row[i]] for i in order]

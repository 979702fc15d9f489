"""Shards whose size is told beforehand: the bytes of those whose size is not, each written once."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import polars
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mtl_common.bins import Batch, Sentences, Shards, ShardWriter, Size, Sizes, size_of, write_shard

ABOUT = {"mtl.tokenizer": "0" * 32}


def documents(lengths: list[int], has_loss: bool = False, has_sentences: bool = False) -> Batch:
    """Documents of these many random ids."""
    generator, offsets = np.random.default_rng(sum(lengths)), np.cumsum([0, *lengths])
    starts = [np.arange(0, length, 3) for length in lengths]
    counts = [len(found) for found in starts]
    return Batch(
        ids=generator.integers(0, 70_000, offsets[-1]).astype(np.uint32),
        offsets=offsets,
        source=generator.integers(0, 5, len(lengths)).astype(np.uint32),
        record=np.arange(len(lengths), dtype=np.uint64),
        loss=generator.integers(0, 2, offsets[-1]).astype(np.uint8) if has_loss else None,
        sentences=Sentences(np.concatenate(starts).astype(np.uint32), np.cumsum([0, *counts]))
        if has_sentences
        else None,
    )


def pieces(batch: Batch, every: int) -> list[Batch]:
    count = len(batch.record)
    return [batch.part(first, min(first + every, count)) for first in range(0, count, every)]


def content(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.booleans(),
    st.booleans(),
    st.integers(1, 60),
    st.integers(1, 9),
)
def test_the_bytes_are_those_of_a_size_not_told(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    has_loss: bool,
    has_sentences: bool,
    limit: int,
    every: int,
) -> None:
    whole = documents(lengths, has_loss, has_sentences)
    sizes = Sizes(limit)
    for batch in pieces(whole, every):
        sizes.add_batch(batch)
    made, found = {}, {}
    for name, told in (("loose", None), ("placed", sizes.shards)):
        place = tmp_path_factory.mktemp(name)
        with Shards(place, "uint32", ABOUT, limit, told) as shards:
            for batch in pieces(whole, every + (told is None)):
                shards.append(batch)
            made[name] = shards.finish()
        found[name] = content(place)
    assert made["placed"] == made["loose"]
    assert found["placed"] == found["loose"]
    assert [(s.documents, s.tokens, s.sentences) for s in made["placed"]] == [
        (size.documents, size.tokens, size.sentences) for size in sizes.shards
    ]
    assert sum(size.tokens for size in sizes.shards) == sum(lengths)


def test_every_byte_is_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    batch, written = documents([1000] * 50, has_loss=True, has_sentences=True), []

    def noted(file: int, data: Any, at: int, write: Any = os.pwrite) -> int:
        written.append((at, at + len(data)))
        return int(write(file, data, at))

    monkeypatch.setattr(os, "pwrite", noted)
    shard = write_shard(tmp_path / "a.arrow", "uint32", pieces(batch, 7), ABOUT, size_of([batch]))
    ends = [0, *(stop for _, stop in sorted(written))]
    assert ends[:-1] == [start for start, _ in sorted(written)]
    assert ends[-1] == shard.size == (tmp_path / "a.arrow").stat().st_size
    assert polars.read_ipc(tmp_path / "a.arrow")["loss"].explode().sum() == shard.loss_tokens


@pytest.mark.parametrize("size", [Size(2, 7), Size(1, 9), Size(2, 8, has_loss=True), Size(2, 8, sentences=2)])
def test_another_size_than_was_told_makes_no_shard(tmp_path: Path, size: Size) -> None:
    with ShardWriter(tmp_path / "a.arrow", "uint32", ABOUT, size) as writer:
        writer.append(documents([4, 4]))
        assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
        with pytest.raises(ValueError, match=r"a\.arrow\S* was to hold"):
            writer.finish()
    assert not list(tmp_path.iterdir())

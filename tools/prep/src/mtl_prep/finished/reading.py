"""The documents of finished bins from the first to the last, in little memory."""

from collections.abc import Iterator
from pathlib import Path

from mtl_common.bins import Batch, Bins, Shard
from mtl_common.errors import DataError
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus.places import content_hash


def _check(path: Path, shard: Shard) -> None:
    if shard.xxh3 not in ("", content_hash(path)):  # bins of version 1.0 have none
        raise DataError(f"{path} is damaged, its hash is another; restore it or make the bins again")


def opened(path: Path, *, shuffled: bool = False) -> Bins:
    """Bins that hold something; raises DataError for others, and for what is none."""
    bins = Bins(path, shuffled=shuffled)
    if not len(bins):
        raise DataError(f"{path} holds no documents; make the bins again")
    return bins


def tokenizer_of(bins: Bins) -> Tokenizer:
    """The bins' own tokenizer; raises DataError when it is gone."""
    check_tokenizer(bins)
    return load(bins.tokenizer)


def check_tokenizer(bins: Bins) -> None:
    """Raises DataError when the directory of the bins' own tokenizer is gone."""
    if not bins.tokenizer.is_dir():
        raise DataError(
            f"{bins.tokenizer}, the bins' own tokenizer, is missing; restore it or make them again"
        )


def check(bins: Bins) -> None:
    """Hashes all shards; raises DataError for a damaged one."""
    for shard in bins.manifest.shards:
        _check(bins.path / shard.file, shard)


def batches(bins: Bins) -> Iterator[tuple[int, Batch]]:
    """All documents in order, some at a time, each time with the number of the first."""
    first = 0
    for index in range(len(bins.manifest.shards)):
        for batch in bins.shard(index).pieces():
            yield first, batch
            first += len(batch.record)


def checked(bins: Bins) -> Iterator[tuple[int, Batch]]:
    """As `batches`, of shards that are hashed before they are read; raises DataError for a damaged one."""
    first = 0
    for index, shard in enumerate(bins.manifest.shards):
        _check(bins.path / shard.file, shard)
        for batch in bins.shard(index).pieces():
            yield first, batch
            first += len(batch.record)

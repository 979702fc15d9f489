"""Whether bins may be merged: the same ids of the same tokenizer, the same columns, no document twice."""

import json
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Bins
from mtl_common.errors import UsageError
from mtl_prep.summary import several

DEFAULT = 1 << 27  # tokens of a shard


def _traits(bins: Bins) -> dict[str, Any]:
    """What must be the same of bins that are merged, under the name a user knows it by."""
    facts = bins.manifest.tokenizer
    return {
        "tokenizer": facts.fingerprint,
        "id type": bins.manifest.dtype,
        "--eod": facts.eod,
        "loss column": bins.has_loss,
        "sentences column": bins.has_sentences,
    }


def _remedy(name: str, first: Bins) -> str:
    if "column" in name:
        return "tokenize both corpora with the same --shape and --sentences"
    return f"tokenize the other corpus anew with --tokenizer {first.tokenizer}"


def check_traits(inputs: Sequence[Bins]) -> None:
    """Raises UsageError about the first thing in which bins differ."""
    first, expected = inputs[0], _traits(inputs[0])
    for bins in inputs[1:]:
        for name, value in _traits(bins).items():
            if value != expected[name]:
                pair, one, other = f"{first.path} and {bins.path}", expected[name], value
                differ = f"{name} is {json.dumps(one)} of one, {json.dumps(other)} of the other"
                raise UsageError(f"{pair} cannot be merged: {differ}; {_remedy(name, first)}")


def shard_tokens(inputs: Sequence[Bins]) -> int:
    """The size of shards that all bins have; raises UsageError when they differ."""
    sizes: list[int] = [bins.manifest.options.get("shard_tokens", DEFAULT) for bins in inputs]
    for (one, size), (other, another) in pairwise(zip(inputs, sizes, strict=True)):
        if size != another:
            raise UsageError(
                f"{one.path} has shards of {size:,} tokens, {other.path} of {another:,}; "
                "say which with --shard-tokens"
            )
    return sizes[0]


def _records(bins: Bins, source: int) -> Iterator[NDArray[np.uint64]]:
    """The records of one source."""
    for index in range(len(bins.manifest.shards)):
        view = bins.shard(index)
        yield view.record[view.source == source]


def check_documents(inputs: Sequence[Bins]) -> None:
    """Raises UsageError for a record of a source that two bins hold.

    Parts of the same bins share sources and no records. Sources without a hash are told apart by their size,
    and those that a program wrote by the bins that they are in.
    """
    owners = dict[tuple[str, str], list[tuple[Bins, int]]]()
    for bins in inputs:
        for number, source in enumerate(bins.manifest.sources):
            identity = source.xxh3 or str(source.size or bins.manifest.shards[0].xxh3_tokens)
            owners.setdefault((source.path, identity), []).append((bins, number))
    for (path, _), held in owners.items():
        if len(held) > 1:
            _check_records(path, held)


def _check_records(path: str, held: Sequence[tuple[Bins, int]]) -> None:
    seen = np.empty(0, np.uint64)
    for bins, number in held:
        found = np.concatenate(list(_records(bins, number)))
        twice = np.intersect1d(seen, found)
        if len(twice):
            raise UsageError(
                f"{path} is in {held[0][0].path} and in {bins.path}, with "
                f"{several(len(twice), 'document')} in both, such as record {twice[0]:,}; merge it once"
            )
        seen = np.concatenate([seen, found])

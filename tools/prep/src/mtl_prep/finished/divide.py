"""Writes chosen documents of bins as bins of their own, several at once and each complete in itself."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import (
    TOKENIZER,
    Batch,
    Bins,
    Manifest,
    Part,
    Shard,
    Shards,
    Sizes,
    about,
    write_manifest,
)
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_prep.finished.reading import batches, check_tokenizer, checked

# The documents of a batch, and the number of the first -> (documents,) the part of each, -1 for none.
Assign = Callable[[Batch, int], NDArray[np.int64]]
DEFAULT_SHARD_TOKENS = 1 << 27


@dataclass(frozen=True)
class _Plan:
    """What each part will get: how many documents and tokens of every source, and how large shards."""

    counts: NDArray[np.int64]  # (parts, sources)
    tokens: NDArray[np.int64]  # (parts, sources)
    sizes: tuple[Sizes, ...]


def _plan(bins: Bins, parts: int, assign: Assign, limit: int) -> _Plan:
    """Reads no ids."""
    sources = len(bins.manifest.sources)
    counts, tokens = np.zeros((2, parts, sources), np.int64)
    sizes = tuple(Sizes(limit) for _ in range(parts))
    for first, batch in batches(bins):
        part = assign(batch, first)
        taken = part >= 0
        lengths, sentences = np.diff(batch.offsets), batch.sentences
        np.add.at(counts, (part[taken], batch.source[taken]), 1)
        np.add.at(tokens, (part[taken], batch.source[taken]), lengths[taken])
        inner = None if sentences is None else np.diff(sentences.offsets)
        for number in np.unique(part[taken]).tolist():
            chosen = part == number
            kept = None if inner is None else inner[chosen]
            sizes[number].add(lengths[chosen], kept, batch.loss is not None)
    return _Plan(counts, tokens, sizes)


def _merged_of(
    whole: Manifest, counts: NDArray[np.int64], tokens: NDArray[np.int64]
) -> tuple[Part, ...] | None:
    """What bins that were merged say of their parts, of which (sources,) documents and tokens are left."""
    if whole.parts is None:
        return None
    left, first = [], 0
    for part in whole.parts:
        own = slice(first, first + part.sources)
        first += part.sources
        sums = {"documents": int(counts[own].sum()), "tokens": int(tokens[own].sum())}
        if sums["documents"]:
            update = {**sums, "sources": int((counts[own] > 0).sum())}
            left.append(part.model_copy(update=update))
    return tuple(left)


def _manifest(
    bins: Bins,
    counts: NDArray[np.int64],
    tokens: NDArray[np.int64],
    shards: Sequence[Shard],
    note: Mapping[str, Any],
) -> Manifest:
    """The manifest of a part, given (sources,) its documents and tokens of each; it lists those with any."""
    whole = bins.manifest
    sources = (
        source.model_copy(update={"records": n, "documents": n, "bad": {}, "repaired": {}})
        for source, n in zip(whole.sources, counts.tolist(), strict=True)
        if n
    )
    return Manifest(
        tool=f"mtl-prep {version('mtl-prep')}",
        dtype=whole.dtype,
        documents=int(counts.sum()),
        tokens=sum(shard.tokens for shard in shards),
        tokenizer=whole.tokenizer,
        options={**whole.options, **note},
        shards=tuple(shards),
        sources=tuple(sources),
        parts=_merged_of(whole, counts, tokens),
    )


def _write(
    bins: Bins, places: Sequence[Path], assign: Assign, plan: _Plan, limit: int
) -> list[tuple[Shard, ...]]:
    """Writes the shards of all parts in one pass; sources are numbered anew in each."""
    dtype, facts = bins.manifest.dtype, bins.manifest.tokenizer
    names = about(facts.fingerprint, dtype, facts.eod)
    numbers = np.cumsum(plan.counts > 0, axis=1, dtype=np.uint32) - np.uint32(1)
    with ExitStack() as stack:
        shown = stack.enter_context(progress("write", bins.tokens, "tokens"))
        parts = [
            stack.enter_context(Shards(place, dtype, names, limit, sizes.shards))
            for place, sizes in zip(places, plan.sizes, strict=True)
        ]
        for first, batch in checked(bins):
            part = assign(batch, first)
            for number in np.unique(part[part >= 0]).tolist():
                chosen = batch.keep(part == number)
                parts[number].append(replace(chosen, source=numbers[number][chosen.source]))
            shown.advance(len(batch.ids))
        return [part.finish() for part in parts]


def divide(
    bins: Bins, places: Sequence[Path], notes: Sequence[Mapping[str, Any]], assign: Assign
) -> list[Manifest]:
    """Fills new directories, `places`, with the documents that `assign` gives to each, in their order.

    `notes` go into the options of each part's manifest. Raises DataError for a part without documents, and
    for damaged bins.
    """
    check_tokenizer(bins)
    limit = bins.manifest.options.get("shard_tokens", DEFAULT_SHARD_TOKENS)
    plan = _plan(bins, len(places), assign, limit)
    for place, count in zip(places, plan.counts.sum(axis=1), strict=True):
        if not count:
            raise DataError(f"{place.name} would get none of the {len(bins):,} documents of {bins.path}")
        place.mkdir(exist_ok=True)
    made = _write(bins, places, assign, plan, limit)
    manifests = []
    for place, count, tokens, shards, note in zip(places, plan.counts, plan.tokens, made, notes, strict=True):
        shutil.copytree(bins.tokenizer, place / TOKENIZER)
        manifests.append(_manifest(bins, count, tokens, shards, note))
        write_manifest(place, manifests[-1])
    return manifests

"""Writes chosen documents of bins as bins of their own, several at once and each complete in itself."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import TOKENIZER, Batch, Bins, Manifest, Shard, Shards, about, write_manifest
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_prep.finished.draw import batches

# The documents of a batch, and the number of the first -> (documents,) the part of each, -1 for none.
Assign = Callable[[Batch, int], NDArray[np.int64]]
DEFAULT_SHARD_TOKENS = 1 << 27


def _counts(bins: Bins, assign: Assign, parts: int) -> NDArray[np.int64]:
    """(parts, sources) how many documents of every source each part gets."""
    sources = len(bins.manifest.sources)
    counts = np.zeros(parts * sources, np.int64)
    for first, batch in batches(bins):
        part = assign(batch, first)
        taken = part >= 0
        np.add.at(counts, part[taken] * sources + batch.source[taken], 1)
    return counts.reshape(parts, sources)


def _manifest(
    bins: Bins, counts: NDArray[np.int64], shards: Sequence[Shard], note: Mapping[str, Any]
) -> Manifest:
    """The manifest of a part: of the sources, those that have documents in it."""
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
    )


def _write(
    bins: Bins, places: Sequence[Path], assign: Assign, numbers: NDArray[np.uint32]
) -> list[list[Shard]]:
    """Writes the shards of all parts in one pass; `numbers` (parts, sources) number the sources there."""
    dtype, facts = bins.manifest.dtype, bins.manifest.tokenizer
    limit = bins.manifest.options.get("shard_tokens", DEFAULT_SHARD_TOKENS)
    with ExitStack() as stack:
        shown = stack.enter_context(progress("write", bins.tokens, "tokens"))
        names = about(facts.fingerprint, dtype, facts.eod)
        parts = [stack.enter_context(Shards(place, dtype, names, limit)) for place in places]
        for first, batch in batches(bins):
            part = assign(batch, first)
            for number in np.unique(part[part >= 0]).tolist():
                chosen = batch.keep(part == number)
                parts[number].append(replace(chosen, source=numbers[number][chosen.source]))
            shown.advance(len(batch.ids))
        return [list(part.finish()) for part in parts]


def divide(
    bins: Bins, places: Sequence[Path], notes: Sequence[Mapping[str, Any]], assign: Assign
) -> list[Manifest]:
    """Fills new directories, `places`, with the documents that `assign` gives to each, in their order.

    `notes` go into the options of each part's manifest. Raises DataError for a part without documents.
    """
    counts = _counts(bins, assign, len(places))
    for place, count in zip(places, counts.sum(axis=1), strict=True):
        if not count:
            raise DataError(f"{place.name} would get none of the {len(bins):,} documents of {bins.path}")
        place.mkdir(exist_ok=True)
    numbers = np.cumsum(counts > 0, axis=1, dtype=np.uint32) - np.uint32(1)
    made = _write(bins, places, assign, numbers)
    manifests = []
    for place, count, shards, note in zip(places, counts, made, notes, strict=True):
        shutil.copytree(bins.tokenizer, place / TOKENIZER)
        manifests.append(_manifest(bins, count, shards, note))
        write_manifest(place, manifests[-1])
    return manifests

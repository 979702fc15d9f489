"""Several bins as one: what tokenizing their corpora in one run would have made, byte for byte."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.bins import (
    BAD,
    TOKENIZER,
    Batch,
    Bins,
    Manifest,
    Shards,
    TokenizerFacts,
    about,
    staged,
    write_manifest,
)
from mtl_common.errors import UsageError
from mtl_common.log import progress

DEFAULT_SHARD_TOKENS = 1 << 27


def _traits(bins: Bins, shard_tokens: int | None) -> dict[str, Any]:
    """What must be the same of bins that are merged, under the name a user knows it by."""
    manifest = bins.manifest
    options = {f"--{name.replace('_', '-')}": value for name, value in manifest.options.items()}
    if shard_tokens is not None:
        options.pop("--shard-tokens", None)
    return {
        "id type": manifest.dtype,
        "tokenizer": manifest.tokenizer.fingerprint,
        **options,
        "--eod": manifest.tokenizer.eod,
        "loss column": bins.has_loss,
        "sentences column": bins.has_sentences,
    }


def _check(inputs: Sequence[Bins], shard_tokens: int | None) -> None:
    """Raises UsageError about the first thing in which bins differ, or a source that two of them share."""
    first, owners = inputs[0], dict[tuple[str, str], Bins]()
    expected = _traits(first, shard_tokens)
    for bins in inputs:
        if bins.manifest.shuffled:
            raise UsageError(f"{bins.path} was shuffled; merge bins in the order of their corpora")
        found = _traits(bins, shard_tokens)
        for name in {**expected, **found}:
            one, other = (json.dumps(traits.get(name)) for traits in (expected, found))
            if one != other:
                pair = f"{first.path} and {bins.path}"
                raise UsageError(f"{pair} cannot be merged: {name} is {one} of one, {other} of the other")
        for source in bins.manifest.sources:
            owner = owners.setdefault((source.path, source.xxh3), bins)
            if owner is not bins:
                raise UsageError(f"{source.path} is in {owner.path} and in {bins.path}; merge it once")


def _batches(inputs: Sequence[Bins]) -> Iterator[Batch]:
    """All documents in order, their sources numbered through."""
    before = 0
    for bins in inputs:
        for index in range(len(bins.manifest.shards)):
            for batch in bins.shard(index).pieces():
                yield replace(batch, source=batch.source + np.uint32(before))
        before += len(bins.manifest.sources)


def _facts(inputs: Sequence[Bins]) -> TokenizerFacts:
    """The tokenizer; several libraries may have encoded, each to the same ids."""
    all_facts = [bins.manifest.tokenizer for bins in inputs]
    distrusted = {name: where for facts in all_facts for name, where in facts.distrusted.items()}
    engines = ", ".join(dict.fromkeys(facts.engine for facts in all_facts))
    return all_facts[0].model_copy(update={"engine": engines, "distrusted": distrusted})


def _copy_beside(inputs: Sequence[Bins], place: Path) -> None:
    """The tokenizer's files, and the lists of bad records end to end."""
    shutil.copytree(inputs[0].tokenizer, place / TOKENIZER)
    lists = [bins.path / BAD for bins in inputs if (bins.path / BAD).exists()]
    if lists:
        with (place / BAD).open("wb") as target:
            for path in lists:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, target)


def merge(paths: Sequence[Path], out: Path, shard_tokens: int | None = None) -> Manifest:
    """Makes bins in `out` of the documents of all `paths`, in that order.

    Raises UsageError when `out` exists, for shuffled bins, for bins of another tokenizer, end of document or
    option (`shard_tokens` may differ when it is given here), or when they share a source.
    """
    if len(paths) < 2:
        raise UsageError("give at least two bins to merge")
    inputs = [Bins(path, shuffled=False) for path in paths]
    _check(inputs, shard_tokens)
    manifests, facts, dtype = [bins.manifest for bins in inputs], _facts(inputs), inputs[0].manifest.dtype
    limit = shard_tokens or manifests[0].options.get("shard_tokens", DEFAULT_SHARD_TOKENS)
    options = manifests[0].options | {"shard_tokens": limit}
    total = sum(manifest.tokens for manifest in manifests)
    with staged(out) as place:
        with (
            progress("merge", total, "tokens") as shown,
            Shards(place, dtype, about(facts.fingerprint, dtype, facts.eod), limit) as shards,
        ):
            for batch in _batches(inputs):
                shards.append(batch)
                shown.advance(len(batch.ids))
            made = shards.finish()
        _copy_beside(inputs, place)
        manifest = Manifest(
            tool=f"mtl-prep {version('mtl-prep')}",
            dtype=dtype,
            documents=sum(manifest.documents for manifest in manifests),
            tokens=total,
            tokenizer=facts,
            options=options,
            shards=made,
            sources=tuple(source for manifest in manifests for source in manifest.sources),
        )
        write_manifest(place, manifest)
    return manifest

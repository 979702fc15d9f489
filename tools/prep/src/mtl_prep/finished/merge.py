"""Several bins as one: their documents one after the other, or all in the order of a seed.

Of bins in the order of their corpora, either gives the shards of one run over these corpora, byte for byte.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.bins import (
    BAD,
    SHUFFLED,
    TOKENIZER,
    Batch,
    Bins,
    Manifest,
    Part,
    Shard,
    Shards,
    Sizes,
    TokenizerFacts,
    about,
    staged,
    write_manifest,
)
from mtl_common.errors import UsageError
from mtl_common.log import progress
from mtl_prep.finished.fitting import check_documents, check_traits, shard_tokens
from mtl_prep.finished.reading import batches, check, check_tokenizer, checked, opened
from mtl_prep.finished.reorder import Reordered


@dataclass(frozen=True)
class Request:
    """Bins to merge in the order wanted, or with a `shuffle_documents` in the order of that seed."""

    paths: Sequence[Path]
    out: Path
    shard_tokens: int | None = None  # that of the inputs
    shuffle_documents: int | None = None


def _shifted(batch: Batch, by: int) -> Batch:
    return replace(batch, source=batch.source + np.uint32(by))


def _in_order(inputs: Sequence[Bins]) -> Iterator[Batch]:
    """All documents one after the other, their sources numbered through; raises DataError for damage."""
    before = 0
    for bins in inputs:
        yield from (_shifted(batch, before) for _, batch in checked(bins))
        before += len(bins.manifest.sources)


def _sizes(inputs: Sequence[Bins], limit: int) -> Sizes:
    sizes = Sizes(limit)
    for bins in inputs:
        for _, batch in batches(bins):
            sizes.add_batch(batch)
    return sizes


def _facts(inputs: Sequence[Bins]) -> TokenizerFacts:
    """The tokenizer; several libraries may have encoded, each to the same ids."""
    all_facts = [bins.manifest.tokenizer for bins in inputs]
    distrusted = {name: where for facts in all_facts for name, where in facts.distrusted.items()}
    engines = dict.fromkeys(name for facts in all_facts for name in facts.engine.split(", "))
    return all_facts[0].model_copy(update={"engine": ", ".join(engines), "distrusted": distrusted})


def _parts(manifest: Manifest) -> tuple[Part, ...]:
    """What merged bins say of one input, or of the parts that it was merged of itself."""
    if manifest.parts is not None:
        order = {SHUFFLED: manifest.options[SHUFFLED]} if SHUFFLED in manifest.options else {}
        return tuple(part.model_copy(update={"options": part.options | order}) for part in manifest.parts)
    part = Part(
        documents=manifest.documents,
        tokens=manifest.tokens,
        sources=len(manifest.sources),
        tool=manifest.tool,
        engine=manifest.tokenizer.engine,
        options=manifest.options,
    )
    return (part,)


def _options(inputs: Sequence[Bins], request: Request, limit: int) -> dict[str, Any]:
    """The options that all inputs share, and those of this request."""
    first, *others = (bins.manifest.options for bins in inputs)
    shared = {
        name: value
        for name, value in first.items()
        if all(name in options and options[name] == value for options in others)
    }
    shared.pop(SHUFFLED, None)
    order = {} if request.shuffle_documents is None else {SHUFFLED: request.shuffle_documents}
    return shared | {"shard_tokens": limit} | order


def _copy_beside(inputs: Sequence[Bins], place: Path) -> None:
    """The tokenizer's files, and the lists of bad records end to end."""
    shutil.copytree(inputs[0].tokenizer, place / TOKENIZER)
    lists = [bins.path / BAD for bins in inputs if (bins.path / BAD).exists()]
    if lists:
        with (place / BAD).open("wb") as target:
            for path in lists:
                with path.open("rb") as part:
                    shutil.copyfileobj(part, target)


def _write(
    inputs: Sequence[Bins], request: Request, place: Path, facts: TokenizerFacts, limit: int
) -> tuple[Shard, ...]:
    """Writes all documents, every byte once."""
    dtype = inputs[0].manifest.dtype
    with ExitStack() as stack:
        shown = stack.enter_context(progress("merge", sum(bins.tokens for bins in inputs), "tokens"))
        if request.shuffle_documents is None:
            found, sizes = _in_order(inputs), _sizes(inputs, limit)
        else:
            for bins in inputs:
                check(bins)
            order = stack.enter_context(Reordered(inputs, request.shuffle_documents, place))
            found, sizes = order.batches(), order.sizes(limit)
        names = about(facts.fingerprint, dtype, facts.eod)
        shards = stack.enter_context(Shards(place, dtype, names, limit, sizes.shards))
        for batch in found:
            shards.append(batch)
            shown.advance(len(batch.ids))
        return shards.finish()


def merge(request: Request) -> Manifest:
    """Makes bins of the documents of all paths; what they said of themselves is kept as the manifest's parts.

    Raises UsageError when `out` exists, for bins of another tokenizer, end of document or columns, of other
    sizes of shards when none is given, or that share a document; DataError for damaged bins.
    """
    if len(request.paths) < 2:
        raise UsageError("give at least two bins to merge")
    inputs = [opened(path, shuffled=request.shuffle_documents is not None) for path in request.paths]
    check_traits(inputs)
    check_documents(inputs)
    check_tokenizer(inputs[0])
    limit = request.shard_tokens or shard_tokens(inputs)
    manifests, facts = [bins.manifest for bins in inputs], _facts(inputs)
    with staged(request.out) as place:
        shards = _write(inputs, request, place, facts, limit)
        _copy_beside(inputs, place)
        manifest = Manifest(
            tool=f"mtl-prep {version('mtl-prep')}",
            dtype=manifests[0].dtype,
            documents=sum(manifest.documents for manifest in manifests),
            tokens=sum(manifest.tokens for manifest in manifests),
            tokenizer=facts,
            options=_options(inputs, request, limit),
            shards=shards,
            sources=tuple(source for manifest in manifests for source in manifest.sources),
            parts=tuple(part for manifest in manifests for part in _parts(manifest)),
        )
        write_manifest(place, manifest)
    return manifest

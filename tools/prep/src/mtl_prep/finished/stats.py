"""Figures of bins: sizes, lengths, sources, and how the vocabulary is used."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from mtl_common.bins import Bins
from mtl_common.tokenizers import Tokenizer
from mtl_prep.finished.measure import Counts, Lengths, frequencies, lengths, tokens_by_source
from mtl_prep.finished.reading import check, opened, tokenizer_of

SHARES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 1.0)
FREQUENT = 20


@dataclass(frozen=True)
class Token:
    """One entry of the vocabulary: what it spells, a special one its name, and how often it occurs."""

    id: int
    piece: bytes  # may be part of a character
    count: int

    @property
    def text(self) -> str:
        """What it spells, U+FFFD for parts of characters."""
        return self.piece.decode("utf-8", "replace")


@dataclass(frozen=True)
class Stats:
    """The figures of one directory of bins; `text_bytes` is what all tokens spell, special ones nothing."""

    path: Path
    bins: Bins
    lengths: Lengths
    source_tokens: Counts  # (sources,)
    used: int  # entries of the vocabulary that occur
    text_bytes: int
    frequent: tuple[Token, ...]


def label_tokens(bins: Bins) -> int | None:
    """How many tokens count as labels, or None where all do."""
    if not bins.has_loss:
        return None
    return sum(shard.loss_tokens or 0 for shard in bins.manifest.shards)


def _text_bytes(tokenizer: Tokenizer, counts: Counts) -> int:
    used = np.flatnonzero(counts)
    sizes = np.fromiter((len(tokenizer.piece(id)) for id in used.tolist()), np.int64, len(used))
    return int((sizes * counts[used]).sum())


def _frequent(tokenizer: Tokenizer, counts: Counts) -> Iterable[Token]:
    for id in np.argsort(-counts, kind="stable")[:FREQUENT].tolist():
        if counts[id]:
            yield Token(id, tokenizer.piece(id, special=True), int(counts[id]))


def measured(path: Path) -> Stats:
    """Reads all of one directory of bins; raises DataError for what is none, or damaged."""
    bins = opened(path)
    check(bins)
    tokenizer, counts = tokenizer_of(bins), frequencies(bins)
    return Stats(
        path=path,
        bins=bins,
        lengths=lengths(bins),
        source_tokens=tokens_by_source(bins),
        used=int((counts > 0).sum()),
        text_bytes=_text_bytes(tokenizer, counts),
        frequent=tuple(_frequent(tokenizer, counts)),
    )


def as_dict(found: Stats) -> dict[str, Any]:
    """Everything, ready for JSON."""
    manifest = found.bins.manifest
    sources = [
        {"path": source.path, "documents": source.documents, "tokens": tokens, "bad": source.bad}
        for source, tokens in zip(manifest.sources, found.source_tokens.tolist(), strict=True)
    ]
    shards = [
        {"file": s.file, "documents": s.documents, "tokens": s.tokens, "bytes": s.size}
        for s in manifest.shards
    ]
    percentiles = {f"{share:.0%}": found.lengths.at(share) for share in SHARES}
    return {
        "path": str(found.path),
        "documents": manifest.documents,
        "tokens": manifest.tokens,
        "bytes": sum(shard.size for shard in manifest.shards),
        "text_bytes": found.text_bytes,
        "label_tokens": label_tokens(found.bins),
        "lengths": {"mean": found.lengths.mean, "shortest": int(found.lengths.tokens[0]), **percentiles},
        "vocabulary": {"entries": manifest.tokenizer.vocab_size, "used": found.used},
        "frequent": [{"id": t.id, "text": t.text, "count": t.count} for t in found.frequent],
        "shards": shards,
        "sources": sources,
    }


def as_json(found: Iterable[Stats]) -> str:
    """A line of JSON for each directory."""
    return "\n".join(orjson.dumps(as_dict(stats)).decode() for stats in found)

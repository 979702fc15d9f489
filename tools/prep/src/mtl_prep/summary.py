"""Words that several summaries share: aligned lines, and what a manifest says."""

from collections.abc import Iterable

from mtl_common.bins import Manifest, Source
from mtl_common.log import quantity
from mtl_prep.corpus.counts import counted, told


def lines(rows: Iterable[tuple[str, str]]) -> str:
    """A name and a text a line, aligned; those without a text are left out."""
    rows = [(name, text) for name, text in rows if text]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def several(count: int, what: str) -> str:
    """`1 source`, `31 sources`."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def sums(sources: Iterable[Source]) -> str:
    """`1,790 = 1,771 documents + 19 bad (17 empty, 2 not UTF-8)`."""
    sources = list(sources)
    records, documents = sum(s.records for s in sources), sum(s.documents for s in sources)
    bad = counted(source.bad for source in sources)
    reasons = f" ({told(bad)})" if bad else ""
    return f"{records:,} = {documents:,} documents + {bad.total():,} bad{reasons}"


def _labels(manifest: Manifest) -> str:
    """`1,204 of the tokens count, 38.2%`; nothing where all do."""
    if any(shard.loss_tokens is None for shard in manifest.shards):
        return ""
    counting = sum(shard.loss_tokens or 0 for shard in manifest.shards)
    return f"{counting:,} of the tokens count, {counting / max(manifest.tokens, 1):.1%}"


def _sentences(manifest: Manifest) -> str:
    """`45,088, only one in 12 documents`; nothing where they are not told apart."""
    if any(shard.sentences is None for shard in manifest.shards):
        return ""
    alone = sum(shard.one_sentence or 0 for shard in manifest.shards)
    found = sum(shard.sentences or 0 for shard in manifest.shards)
    return f"{found:,}, only one in {several(alone, 'document')}"


def what(manifest: Manifest) -> list[tuple[str, str]]:
    """What bins hold, a row for each kind of thing."""
    facts = manifest.tokenizer
    size = sum(shard.size for shard in manifest.shards)
    return [
        ("records", sums(manifest.sources)),
        ("mended", told(counted(source.repaired for source in manifest.sources))),
        ("tokens", f"{manifest.tokens:,} {manifest.dtype}, {manifest.documents:,} of them end a document"),
        ("labels", _labels(manifest)),
        ("sentences", _sentences(manifest)),
        ("shards", f"{len(manifest.shards):,}, {quantity(size, 'bytes')}"),
        (
            "tokenizer",
            f"{facts.vocab_size:,} entries, end of document {facts.eod}, encoded by {facts.engine}",
        ),
    ]

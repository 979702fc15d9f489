"""What the commands say when they are done: a few aligned lines that add up."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from mtl_common.bins import Manifest, Source
from mtl_common.log import duration, quantity
from mtl_prep.corpus import told
from mtl_prep.inspect import Inspection
from mtl_prep.tally import counted
from mtl_prep.tokenize import Outcome, Request
from mtl_prep.vocabulary import Trained

BAR = 40
SHOWN_SOURCES = 8


def _lines(rows: Iterable[tuple[str, str]]) -> str:
    rows = [(name, text) for name, text in rows if text]
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def _sums(sources: Iterable[Source]) -> str:
    """`1,790 = 1,771 documents + 19 bad (17 empty, 2 not UTF-8)`."""
    sources = list(sources)
    records, documents = sum(s.records for s in sources), sum(s.documents for s in sources)
    bad = counted(source.bad for source in sources)
    reasons = f" ({told(bad)})" if bad else ""
    return f"{records:,} = {documents:,} documents + {bad.total():,} bad{reasons}"


def _what(manifest: Manifest) -> list[tuple[str, str]]:
    facts = manifest.tokenizer
    size = sum(shard.size for shard in manifest.shards)
    return [
        ("records", _sums(manifest.sources)),
        ("mended", told(counted(source.repaired for source in manifest.sources))),
        ("tokens", f"{manifest.tokens:,} {manifest.dtype}, {manifest.documents:,} of them end a document"),
        ("shards", f"{len(manifest.shards)}, {quantity(size, 'bytes')}"),
        (
            "tokenizer",
            f"{facts.vocab_size:,} entries, end of document {facts.eod}, encoded by {facts.engine}",
        ),
    ]


def tokenized(outcome: Outcome, request: Request, seconds: float) -> str:
    """The summary of `tokenize`."""
    manifest, corpus = outcome.manifest, outcome.corpus
    if outcome.already:
        state = "finished before from files of these names and sizes; remove it to make it anew"
        return _lines([(str(request.out), state), *_what(manifest)])
    lost = outcome.tokenizer.facts.lost_bytes
    per_token = outcome.characters / max(manifest.tokens - manifest.documents, 1)
    return _lines(
        [
            (
                "read",
                f"{len(corpus.sources):,} files, {quantity(corpus.size, 'bytes')} in {duration(seconds)}",
            ),
            ("passed over", told(corpus.skipped)),
            *_what(manifest),
            ("text", f"{outcome.characters:,} characters, {per_token:.2f} a token"),
            (
                "lost",
                f"the vocabulary has no token for the bytes {lost.hex(' ')}; they are left out"
                if lost
                else "",
            ),
        ]
    )


def verified(path: Path, manifest: Manifest, seconds: float) -> str:
    """The summary of `verify`."""
    size = sum(shard.size for shard in manifest.shards)
    checked = "sizes, hashes, offsets, ids, ends of documents, sources and tokenizer"
    return _lines(
        [
            *_what(manifest),
            (
                "read",
                f"{quantity(size, 'bytes')} in {duration(seconds)}, {quantity(size / seconds, 'bytes')}/s",
            ),
            ("whole", f"{path}: {checked}"),
        ]
    )


def trained(result: Trained) -> str:
    """The summary of `train-tokenizer`."""
    short = f" of {result.asked:,} asked for: the sample has no more pairs to merge"
    return _lines(
        [
            ("learned from", f"{result.documents:,} documents, {result.characters:,} characters"),
            (
                "vocabulary",
                f"{result.vocab_size:,} entries{short if result.vocab_size < result.asked else ''}",
            ),
            ("compression", f"{result.bytes_per_token:.2f} bytes a token"),
            ("written", str(result.path)),
        ]
    )


def _histogram(found: Inspection) -> str:
    most = max(found.lengths.values())
    rows = []
    for power, count in found.lengths.items():
        bar = "#" * max(1, round(BAR * count / most))
        rows.append(f"  {power:>10,} to {2 * power - 1:>10,}  {count:>10,}  {bar}")
    return "\n".join(rows)


def _sources(sources: Sequence[Source]) -> list[str]:
    """A line a source; of many, a line for every reason why records were bad, with an example."""
    rows = [f"sources  {len(sources):,}"]
    if len(sources) <= SHOWN_SOURCES:
        return rows + [f"  {source.path}: {_sums([source])}" for source in sources]
    for reason, count in counted(source.bad for source in sources).most_common():
        example = next(source.path for source in sources if reason in source.bad)
        rows.append(f"  {count:,} {reason}, such as in {example}")
    return rows


def inspected(found: Inspection) -> str:
    """The page that `inspect` shows."""
    manifest, (origin, record) = found.bins.manifest, found.bins.origin(found.sample)
    options = ", ".join(f"{name} {value}" for name, value in manifest.options.items())
    made = ("made by", f"{manifest.tool}, {manifest.format} {manifest.version}, {options}")
    spread = f"shortest {found.shortest:,}, median {found.median:,}, longest {found.longest:,}"
    return "\n".join(
        [
            _lines([*_what(manifest), ("fingerprint", manifest.tokenizer.fingerprint), made]),
            *_sources(manifest.sources),
            f"tokens a document  {spread}",
            _histogram(found),
            f"document {found.sample:,} ({origin} line {record + 1}) begins",
            *(f"  | {line}" for line in found.text.splitlines()),
        ]
    )

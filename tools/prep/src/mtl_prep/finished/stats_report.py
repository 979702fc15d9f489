"""The page that `stats` shows."""

import json
from collections.abc import Iterator, Sequence
from os.path import commonprefix

from mtl_common.bins import Bins
from mtl_common.log import quantity
from mtl_common.tables import table
from mtl_prep.finished.measure import Counts, Lengths
from mtl_prep.finished.stats import Stats, label_tokens
from mtl_prep.summary import lines, several

SHOWN = 20  # sources or shards in a table
SPREAD = {"1%": 0.01, "10%": 0.1, "25%": 0.25, "median": 0.5, "75%": 0.75, "90%": 0.9, "99%": 0.99}

Row = tuple[str, ...]


def spread(lengths: Lengths) -> str:
    """How long documents are: the shortest, what shares of them do not exceed, the longest."""
    found = {name: lengths.at(share) for name, share in SPREAD.items()}
    found = {"shortest": int(lengths.tokens[0]), **found, "longest": int(lengths.tokens[-1])}
    rows = table([tuple(found), tuple(f"{length:,}" for length in found.values())])
    return f"tokens a document: 90% of documents have at most those under 90%\n{rows}"


def shares(head: Row, rows: Sequence[tuple[str, int, int]], total: int) -> str:
    """A table of names, documents and tokens; what is too many is one line, so that it adds up."""
    shown, rest = list(rows[:SHOWN]), rows[SHOWN:]
    if rest:
        shown.append((f"{len(rest):,} others", sum(row[1] for row in rest), sum(row[2] for row in rest)))
    cells = (
        (name, f"{documents:,}", f"{tokens:,}", f"{tokens / total:.1%}") for name, documents, tokens in shown
    )
    return table([head, *cells])


def shared_directory(paths: Sequence[str]) -> str:
    """The directory that several files lie in or below, `/` at its end; empty if there is none.

    >>> shared_directory(["go/src/net/ip.go", "go/src/os/exec.go"])
    'go/src/'
    """
    shared = commonprefix(paths) if len(paths) > 1 else ""  # noqa: RUF071, cut at a slash in the next line
    return shared[: shared.rfind("/") + 1]


def by_source(bins: Bins, source_tokens: Counts) -> str:
    """Documents and tokens of each source, the largest first."""
    sources, tokens = bins.manifest.sources, source_tokens.tolist()
    base = shared_directory([source.path for source in sources])
    rows = [(s.path.removeprefix(base), s.documents, t) for s, t in zip(sources, tokens, strict=True)]
    rows.sort(key=lambda row: -row[2])
    found = shares(("source", "documents", "tokens", "share"), rows, bins.tokens)
    return f"{len(sources):,} sources in {base}\n{found}" if base else found


def by_shard(bins: Bins) -> str:
    """Documents and tokens of each shard."""
    rows = [(shard.file, shard.documents, shard.tokens) for shard in bins.manifest.shards]
    return shares(("shard", "documents", "tokens", "share"), rows, bins.tokens)


def _quoted(piece: bytes) -> str:
    """Text in quotes, parts of characters as Python writes bytes."""
    try:
        return json.dumps(piece.decode(), ensure_ascii=False)
    except UnicodeDecodeError:
        return repr(piece)


def _frequent(stats: Stats) -> str:
    rows = [
        (
            str(t.id),
            _quoted(t.piece),
            f"{t.count:,}",
            f"{t.count / stats.bins.tokens:.1%}",
        )
        for t in stats.frequent
    ]
    return table([("id", "token", "count", "share"), *rows])


def labels(bins: Bins) -> str:
    """How many tokens count as labels, in words; nothing where all do."""
    count = label_tokens(bins)
    return "" if count is None else f"{count:,} tokens, {count / bins.tokens:.1%}"


def _facts(stats: Stats) -> str:
    manifest, tokens = stats.bins.manifest, stats.bins.tokens
    entries = manifest.tokenizer.vocab_size
    size = sum(shard.size for shard in manifest.shards)
    text_tokens = max(tokens - manifest.documents, 1)
    return lines(
        [
            ("documents", f"{manifest.documents:,}, from {several(len(manifest.sources), 'source')}"),
            ("tokens", f"{tokens:,} {manifest.dtype}, {stats.lengths.mean:,.1f} a document"),
            ("shards", f"{len(manifest.shards):,}, {quantity(size, 'bytes')}"),
            (
                "text",
                f"{quantity(stats.text_bytes, 'bytes')}, {stats.text_bytes / text_tokens:.2f} bytes a token",
            ),
            ("labels", labels(stats.bins)),
            (
                "vocabulary",
                f"{stats.used:,} of {entries:,} entries occur, {stats.used / entries:.1%}",
            ),
        ]
    )


def _overview(found: Sequence[Stats]) -> str:
    rows = [(str(s.path), len(s.bins), s.bins.tokens) for s in found]
    return shares(("bins", "documents", "tokens", "share"), rows, sum(row[2] for row in rows))


def _page(stats: Stats) -> Iterator[str]:
    yield _facts(stats)
    yield spread(stats.lengths)
    yield by_source(stats.bins, stats.source_tokens)
    yield by_shard(stats.bins)
    yield f"the most frequent tokens\n{_frequent(stats)}"


def page(found: Sequence[Stats]) -> str:
    """The tables of all bins, one after the other, an overview first when there are several."""
    if len(found) == 1:
        return "\n\n".join(_page(found[0]))
    parts = ("\n\n".join([f"== {stats.path}", *_page(stats)]) for stats in found)
    return "\n\n".join([_overview(found), *parts])

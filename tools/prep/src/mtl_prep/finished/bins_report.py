"""What the commands on finished bins say when they are done."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from mtl_common.bins import SHUFFLED, Manifest, Source
from mtl_common.log import duration, quantity
from mtl_common.tables import table
from mtl_prep.corpus.counts import counted
from mtl_prep.finished.convert import Exported
from mtl_prep.finished.from_megatron import Imported
from mtl_prep.finished.inspect import Inspection, powers
from mtl_prep.finished.measure import Lengths
from mtl_prep.finished.sample import Document
from mtl_prep.finished.stats_report import by_source, spread
from mtl_prep.summary import lines, several, what

BAR = 40
SHOWN = 8  # sources or files listed one by one


def verified(path: Path, manifest: Manifest, seconds: float) -> str:
    """The summary of `verify`."""
    size = sum(shard.size for shard in manifest.shards)
    checked = "sizes, hashes, offsets, ids, ends of documents, sources and tokenizer"
    read = f"{quantity(size, 'bytes')} in {duration(seconds)}"
    return lines([*what(manifest), ("read", read), ("whole", f"{path}: {checked}")])


def made(out: Path, manifest: Manifest, seconds: float) -> str:
    """The summary of bins made of bins."""
    sources = f"{len(manifest.sources):,}"
    return lines([*what(manifest), ("sources", sources), ("written", f"{out} in {duration(seconds)}")])


def _order(manifest: Manifest) -> str:
    """In which order documents stand; nothing where it is that of the corpus."""
    if (seed := manifest.options.get(SHUFFLED)) is not None:
        return f"that of seed {seed}"
    shuffled = sum(part.options.get(SHUFFLED) is not None for part in manifest.parts or ())
    return f"one part after the other, {shuffled:,} of them shuffled by themselves" if shuffled else ""


def _told(options: Mapping[str, Any]) -> str:
    """`text_key "text", eod 0`: strings in quotes, so that each is seen as it is."""
    return ", ".join(f"{name} {orjson.dumps(value).decode()}" for name, value in options.items())


def _parts(manifest: Manifest) -> str:
    """A line for each of the bins that these were merged of, with the options that are not those of all."""
    rows, first = [], 0
    for part in (manifest.parts or ())[:SHOWN]:
        own = {k: v for k, v in part.options.items() if manifest.options.get(k) != v}
        options = _told(own)
        sources = manifest.sources[first].path + (", ..." if part.sources > 1 else "")
        rows.append((sources, f"{part.documents:,}", f"{part.tokens:,}", part.engine, options))
        first += part.sources
    if rest := (manifest.parts or ())[SHOWN:]:
        documents, tokens = (sum(getattr(part, what) for part in rest) for what in ("documents", "tokens"))
        rows.append((f"{len(rest):,} others", f"{documents:,}", f"{tokens:,}", "", ""))
    return table([("merged of", "documents", "tokens", "encoded by", "options of its own"), *rows])


def merged(out: Path, manifest: Manifest, seconds: float) -> str:
    """The summary of `merge`."""
    written = f"{out} in {duration(seconds)}"
    facts = [*what(manifest), ("order", _order(manifest)), ("written", written)]
    return f"{lines(facts)}\n\n{_parts(manifest)}"


def split(out: Path, parts: Mapping[str, Manifest], seconds: float) -> str:
    """The summary of `split`: the parts, and their sum."""
    rows = [(name, f"{m.documents:,}", f"{m.tokens:,}", f"{len(m.shards):,}") for name, m in parts.items()]
    total = (f"{sum(getattr(m, what) for m in parts.values()):,}" for what in ("documents", "tokens"))
    shards = sum(len(m.shards) for m in parts.values())
    head = ("part", "documents", "tokens", "shards")
    written = f"written  {out} in {duration(seconds)}"
    return "\n".join([table([head, *rows, ("all", *total, f"{shards:,}")]), written])


def document(found: Document) -> str:
    """A document as people read it, what counts as labels set off."""
    head = f"document {found.number:,}: record {found.record:,} of {found.source}, {found.tokens:,} tokens"
    if not found.runs:
        return "\n".join([head, *(f"  | {line}" for line in found.text.splitlines())])
    shown = ((">" if run.counts else "|", line) for run in found.runs for line in run.text.splitlines())
    return "\n".join([f"{head}, those after > are labels", *(f"  {mark} {line}" for mark, line in shown)])


def document_line(found: Document) -> str:
    """A document as a line of JSON."""
    return orjson.dumps(found).decode()


def _files(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """A line for each of a few files, one for many."""
    sizes = {path: path.stat().st_size for path in paths}
    if len(sizes) > SHOWN:
        return [("written", f"{len(sizes):,} files, {quantity(sum(sizes.values()), 'bytes')}")]
    return [("written", f"{path}, {quantity(size, 'bytes')}") for path, size in sizes.items()]


def exported(result: Exported, seconds: float) -> str:
    """The summary of `convert` out of bins."""
    tokens = f"{result.bins.tokens:,} in {len(result.bins):,} documents, {duration(seconds)}"
    return lines([("tokens", tokens), *_files(result.files), ("left out", result.left_out)])


def imported(result: Imported, seconds: float) -> str:
    """The summary of `convert` into bins."""
    ended = f"{several(result.ended, 'document')} that had no end"
    grouped = f"{several(result.several, 'document')} of several, kept as beginnings of sentences"
    lost = [
        several(result.empty_sequences, "empty sequence") if result.empty_sequences else "",
        "the modes of the sequences" if result.has_modes else "",
    ]
    return lines(
        [
            *what(result.manifest),
            ("ended", ended if result.ended else ""),
            ("sequences", grouped if result.several else ""),
            ("left out", ", ".join(filter(None, lost))),
            ("done in", duration(seconds)),
        ]
    )


def _histogram(found: Lengths) -> str:
    """A line for each doubling of length, with a bar."""
    counts = powers(found)
    most = max(counts.values())
    rows = [(f"{p:,} to {2 * p - 1:,}", f"{n:,}", "#" * -(-BAR * n // most)) for p, n in counts.items()]
    return table([("tokens", "documents", ""), *rows])


def _bad(sources: Sequence[Source]) -> str:
    """A line for every reason why records were bad, with an example."""
    rows = [
        (reason, f"{count:,}", next(source.path for source in sources if reason in source.bad))
        for reason, count in counted(source.bad for source in sources).most_common()
    ]
    return table([("bad because", "records", "such as in"), *rows]) if rows else ""


def inspected(found: Inspection, plot: Path | None) -> str:
    """The page that `inspect` shows."""
    manifest = found.bins.manifest
    facts = [
        *what(manifest),
        ("fingerprint", manifest.tokenizer.fingerprint),
        ("made by", f"{manifest.tool}, in {manifest.format} {manifest.version}"),
        ("options", _told(manifest.options)),
        ("order", _order(manifest)),
        ("picture", str(plot) if plot else ""),
    ]
    parts = [
        lines(facts),
        _parts(manifest) if manifest.parts else "",
        by_source(found.bins, found.source_tokens),
        _bad(manifest.sources),
        spread(found.lengths),
        _histogram(found.lengths),
        *map(document, found.samples),
    ]
    return "\n\n".join(part for part in parts if part)

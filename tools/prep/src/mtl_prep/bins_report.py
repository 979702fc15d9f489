"""What the commands on finished bins say when they are done."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import orjson

from mtl_common.bins import Manifest, Source
from mtl_common.log import duration, quantity
from mtl_common.tables import table
from mtl_prep.convert import Exported
from mtl_prep.from_megatron import Imported
from mtl_prep.inspect import Inspection
from mtl_prep.sample import Document
from mtl_prep.summary import counted, lines, sums, what

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


def split(out: Path, parts: Mapping[str, Manifest], seconds: float) -> str:
    """The summary of `split`: the parts, and their sum."""
    rows = [(name, f"{m.documents:,}", f"{m.tokens:,}", f"{len(m.shards):,}") for name, m in parts.items()]
    total = (f"{sum(getattr(m, what) for m in parts.values()):,}" for what in ("documents", "tokens"))
    shards = sum(len(m.shards) for m in parts.values())
    head = ("part", "documents", "tokens", "shards")
    written = f"written  {out} in {duration(seconds)}"
    return "\n".join([table([head, *rows, ("all", *total, f"{shards:,}")]), written])


def document(found: Document) -> str:
    """A document as people read it."""
    head = f"document {found.number:,}: {found.source} record {found.record:,}, {found.tokens:,} tokens"
    return "\n".join([head, *(f"  | {line}" for line in found.text.splitlines())])


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
    ended = f"{result.ended:,} documents that had no end"
    several = f"{result.several:,} documents of several, kept as beginnings of sentences"
    return lines(
        [
            *what(result.manifest),
            ("ended", ended if result.ended else ""),
            ("sequences", several if result.several else ""),
            ("left out", "the modes of the sequences" if result.has_modes else ""),
            ("done in", duration(seconds)),
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
    if len(sources) <= SHOWN:
        return rows + [f"  {source.path}: {sums([source])}" for source in sources]
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
            lines([*what(manifest), ("fingerprint", manifest.tokenizer.fingerprint), made]),
            *_sources(manifest.sources),
            f"tokens a document  {spread}",
            _histogram(found),
            f"document {found.sample:,} ({origin} line {record + 1}) begins",
            *(f"  | {line}" for line in found.text.splitlines()),
        ]
    )

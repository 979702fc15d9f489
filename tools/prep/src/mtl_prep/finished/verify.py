"""Whether finished bins are what their manifest says: all bytes hashed, all rules of the format looked at."""

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import orjson

from mtl_common.bins import BAD, MANIFEST, TOKENIZER, Manifest, is_intact, read_manifest
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_common.tokenizers import load
from mtl_prep.corpus.records import EMPTY
from mtl_prep.finished.verify_shard import Done, Seen, shard_problems

TYPES = ("uint16", "uint32")


def _sums(manifest: Manifest) -> Iterator[str]:
    """What the manifest says that cannot be true whatever the shards hold."""
    facts, shards, sources = manifest.tokenizer, manifest.shards, manifest.sources
    if not manifest.documents:
        yield "it counts no documents"
    for name in ("documents", "tokens"):
        said, held = getattr(manifest, name), sum(getattr(shard, name) for shard in shards)
        if said != held:
            yield f"it counts {said:,} {name}, its shards {held:,}"
    for name in ("documents", "tokens", "sources") if manifest.parts else ():
        whole = len(sources) if name == "sources" else getattr(manifest, name)
        held = sum(getattr(part, name) for part in manifest.parts or ())
        if whole != held:
            yield f"it counts {whole:,} {name}, the parts that it was merged of {held:,}"
    of_sources = sum(source.documents for source in sources)
    if manifest.documents != of_sources:
        yield f"it counts {manifest.documents:,} documents, its sources {of_sources:,}"
    for source in sources:
        if source.records != source.documents + sum(source.bad.values()):
            yield f"the {source.records:,} records of {source.path} are not its documents and bad records"
    if manifest.dtype not in TYPES or facts.vocab_size - 1 > np.iinfo(manifest.dtype).max:
        yield f"ids of type {manifest.dtype} do not hold a vocabulary of {facts.vocab_size:,}"
    if not 0 <= facts.eod < facts.vocab_size:
        yield f"the end of a document, {facts.eod}, is no id of a vocabulary of {facts.vocab_size:,}"


def _files(path: Path, manifest: Manifest) -> Iterator[str]:
    """Shards that are listed and not there, and the other way round."""
    listed = Counter(shard.file for shard in manifest.shards)
    for name, times in listed.items():
        if times > 1:
            yield f"{path / MANIFEST}: it lists {name} {times} times"
    for found in sorted(path.glob("*.arrow")):
        if found.name not in listed:
            yield f"{found}: the manifest does not list it"


def _tokenizer(path: Path, manifest: Manifest) -> Iterator[str]:
    """What the bins' own tokenizer is, beside what the manifest says of it."""
    if not path.is_dir():
        yield f"{path}: it is missing"
        return
    try:
        tokenizer = load(path)
    except DataError as error:
        yield str(error)
        return
    if tokenizer.fingerprint != manifest.tokenizer.fingerprint:
        yield f"{path}: it is not the tokenizer that made the bins"
    elif tokenizer.vocab_size != manifest.tokenizer.vocab_size:
        yield (
            f"{path}: it has {tokenizer.vocab_size:,} entries, the manifest says "
            f"{manifest.tokenizer.vocab_size:,}"
        )


def _lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, none where there is no file."""
    if path.exists():
        with path.open("rb") as lines:
            yield from lines


def _bad(path: Path, manifest: Manifest) -> Iterator[str]:
    """Whether the list of bad records holds what the manifest counts; empty ones are not listed."""
    counted = Counter[tuple[str, str]]()
    for found in manifest.sources:
        counted.update({(found.path, reason): n for reason, n in found.bad.items() if reason != EMPTY})
    listed = Counter[tuple[str, str]]()
    for number, line in enumerate(_lines(path), 1):
        try:
            record = orjson.loads(line)
            listed[record["source"], record["reason"]] += 1
        except (orjson.JSONDecodeError, KeyError, TypeError):
            yield f"{path}: line {number:,} is no bad record"
    for source, reason in counted.keys() | listed.keys():
        said, held = counted[source, reason], listed[source, reason]
        if said != held:
            yield f"{path}: it lists {held:,} records of {source} as {reason}, the manifest {said:,}"


def _by_source(manifest: Manifest, seen: Seen) -> Iterator[str]:
    for source, held in zip(manifest.sources, seen.documents.tolist(), strict=True):
        if source.documents != held:
            yield f"{source.path}: the manifest counts {source.documents:,} documents, the shards {held:,}"


def _shards(path: Path, manifest: Manifest, done: Done) -> Iterator[str]:
    """What is wrong with the shards, and when nothing is with what the manifest says of sources."""
    seen, found = Seen(np.zeros(len(manifest.sources), np.int64)), False
    for shard in manifest.shards:
        for problem in shard_problems(path / shard.file, manifest, shard, seen, done):
            found = True
            yield f"{path / shard.file}: {problem}"
    if not found:
        yield from _by_source(manifest, seen)


def verify(path: Path, done: Done = lambda _: None) -> Iterator[str]:
    """What is wrong with bins, a sentence each, naming file and document; nothing when they are whole.

    `done` is told the bytes read since the last call. Raises DataError for what holds no bins at all.
    """
    manifest = read_manifest(path)
    if not is_intact(path):
        yield f"{path / MANIFEST}: it was changed after it was written"
    wrong = list(_sums(manifest))
    yield from (f"{path / MANIFEST}: {problem}" for problem in wrong)
    yield from _files(path, manifest)
    yield from _bad(path / BAD, manifest)
    if manifest.dtype in TYPES:
        yield from _shards(path, manifest, done)
    yield from _tokenizer(path / TOKENIZER, manifest)


def check(path: Path) -> Manifest:
    """Verifies bins and gives their manifest; raises DataError when anything is wrong, having printed it."""
    manifest = read_manifest(path)
    with progress("verify", sum(shard.size for shard in manifest.shards), "bytes") as shown:
        problems = list(verify(path, shown.advance))
    if len(problems) > 1:
        for problem in problems:
            print(f"problem: {problem}", file=sys.stderr)
        raise DataError(f"{path} has {len(problems)} problems; restore it or make it again")
    if problems:
        raise DataError(f"{problems[0]}; restore it or make the bins again")
    return manifest

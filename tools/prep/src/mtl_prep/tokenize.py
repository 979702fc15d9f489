"""From a corpus to token bins: encode units in any order, pack them in the order of the corpus, finish.

Every finished unit is journaled, so a run that was killed continues; the manifest, written last and by one
rename, makes the directory bins.
"""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import orjson

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep import pool
from mtl_prep.beginning import end_of_document, sample
from mtl_prep.corpus import Corpus, check_unchanged, find
from mtl_prep.cut import pack_tasks, unit_tasks
from mtl_prep.journal import Journal
from mtl_prep.plan import PLAN, Plan, begun, finished
from mtl_prep.tally import Tally, check, described, parse_max_bad, quarantined, tally
from mtl_prep.units import Reading
from mtl_prep.work import WORK, Job, shard_name

PART_BYTES = 1 << 24  # a unit: some tenths of a second of work, so that a kill loses little


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    corpus: Sequence[Path]
    tokenizer: Path
    out: Path
    workers: int
    text_key: str = "text"
    eod: str | None = None
    max_bad: str = "5%"
    shard_tokens: int = 1 << 27
    part_bytes: int = PART_BYTES


@dataclass(frozen=True)
class Outcome:
    """What was made, or `already` there before; `characters` are those of all documents."""

    manifest: bins.Manifest
    corpus: Corpus
    tokenizer: Tokenizer
    already: bool = False
    characters: int = 0


def _start(journal: Journal, plan: Plan, request: Request, tokenizer: Tokenizer) -> Tokenizer:
    """Begins a run, or finds what an earlier one decided: the tokenizer with the library to encode."""
    if not journal.has(PLAN):
        fast = tokenizer.exact_on(sample(plan.corpus, request.text_key))
        if not fast:
            print("warning: fastokens differs on this corpus; the slower library encodes it", file=sys.stderr)
        tokenizer.save(request.out / bins.TOKENIZER)
        journal.write(PLAN, plan.written() | {"fast": fast})
    return tokenizer if journal.read(PLAN)["fast"] else load(request.tokenizer, fast=False)


def _job(request: Request, plan: Plan, tokenizer: Tokenizer, eod: int) -> Job:
    dtype = bins.dtype_for(tokenizer.vocab_size)
    facts = {"version": bins.VERSION, "tokenizer": plan.fingerprint, "dtype": dtype, "eod": eod}
    about = tuple((f"mtl.{name}", str(value)) for name, value in facts.items())
    reading = Reading(plan.corpus.sources, request.text_key, request.part_bytes)
    return Job(request.out, reading, eod, dtype, fast, about)


def _forget_lost(journal: Journal, start: str, directory: Path) -> None:
    """Makes work undone whose file is gone or cut, as after a loss of power."""
    for name in journal.names(start):
        path, note = directory / f"{name}.arrow", journal.read(name)
        if not path.exists() or path.stat().st_size != note.get("shard", note)["size"]:
            journal.forget(name)


def _make_units(job: Job, journal: Journal, workers: int) -> None:
    _forget_lost(journal, "unit-", job.out / WORK)
    done = sum(journal.read(name)["size"] for name in journal.names("unit-"))
    sources = job.reading.sources
    tasks = unit_tasks(journal, sources, workers, job.reading.part_bytes)
    with progress("tokenize", sum(source.size for source in sources), "bytes", done=done) as shown:
        for size in pool.run(job, tasks, workers):
            shown.advance(size)


def _make_shards(job: Job, journal: Journal, sums: Tally, request: Request) -> list[bins.Shard]:
    _forget_lost(journal, "shard-", job.out)
    packs = pack_tasks(sums.units, job.out / WORK, job.dtype, request.shard_tokens)
    left = [pack for pack in packs if not journal.has(shard_name(pack.number))]
    with progress("pack", sum(unit.shard.tokens for unit in sums.units), "tokens") as shown:
        for tokens in pool.run(job, left, request.workers):
            shown.advance(tokens)
    return [bins.Shard.model_validate(journal.read(shard_name(pack.number))) for pack in packs]


def _write_bad(path: Path, sources: Sequence[bins.Source], journal: Journal) -> None:
    """Lists every bad record: file, line from 1, reason, and the start of what stands there."""
    with path.open("wb") as file:
        for source, record, reason, raw in quarantined(journal):
            line = {"source": sources[source].path, "line": record + 1, "reason": reason, "raw": raw}
            file.write(orjson.dumps(line) + b"\n")


def _manifest(
    job: Job, plan: Plan, tokenizer: Tokenizer, shards: Sequence[bins.Shard], sources: Sequence[bins.Source]
) -> bins.Manifest:
    """The manifest; raises DataError when its sums do not agree."""
    documents = sum(shard.documents for shard in shards)
    if documents != sum(source.documents for source in sources):
        raise DataError(
            f"{job.out} holds {documents:,} documents, not those of its sources; remove it and run again"
        )
    return bins.Manifest(
        tool=f"mtl-prep {version('mtl-prep')}",
        dtype=job.dtype,
        documents=documents,
        tokens=sum(shard.tokens for shard in shards),
        tokenizer=bins.TokenizerFacts(
            fingerprint=plan.fingerprint,
            vocab_size=tokenizer.vocab_size,
            eod=job.eod,
            engine=tokenizer.engine,
        ),
        options=dict(plan.options),
        shards=tuple(shards),
        sources=tuple(sources),
    )


def _carry_on(request: Request, plan: Plan, tokenizer: Tokenizer, eod: int, journal: Journal) -> Outcome:
    """Does what is left to do, and finishes."""
    tokenizer = _start(journal, plan, request, tokenizer)
    job = _job(request, plan, tokenizer, eod)
    _make_units(job, journal, request.workers)
    check_unchanged(plan.corpus.sources)
    sums = tally(journal)
    sources = list(described(plan.corpus.sources, sums))
    _write_bad(job.out / "bad.jsonl", sources, journal)
    check(sources, sums, request.max_bad)
    shards = _make_shards(job, journal, sums, request)
    manifest = _manifest(job, plan, tokenizer, shards, sources)
    for leftover in job.out.glob(".*.tmp"):  # of runs that were killed
        leftover.unlink()
    bins.write_manifest(job.out, manifest)
    shutil.rmtree(job.out / WORK)
    return Outcome(manifest, plan.corpus, tokenizer, characters=sums.characters)


def tokenize(request: Request) -> Outcome:
    """Makes token bins of a corpus in `request.out`, or goes on with them: the same bytes after any stop.

    Raises UsageError for a request that does not fit what is there, DataError for a corpus or tokenizer that
    cannot be used, RankError when a worker process was killed.
    """
    parse_max_bad(request.max_bad)
    corpus, tokenizer = find(request.corpus), load(request.tokenizer)
    eod = end_of_document(tokenizer, request.eod)
    options = {"text_key": request.text_key, "eod": eod, "shard_tokens": request.shard_tokens}
    plan = Plan(corpus, tokenizer.fingerprint, options, request.part_bytes)
    manifest = finished(request.out, plan)
    if manifest:
        shutil.rmtree(request.out / WORK, ignore_errors=True)
        return Outcome(manifest, corpus, tokenizer, already=True)
    with begun(request.out, plan) as journal:
        return _carry_on(request, plan, tokenizer, eod, journal)

"""The end of a run, when all units are done: sums, limits, shards, and the manifest."""

import os
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import orjson

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_common.tokenizers import Tokenizer
from mtl_prep.corpus.find import check_unchanged
from mtl_prep.encoding.engine import distrusted
from mtl_prep.journal import Journal
from mtl_prep.running.packing import pack_tasks
from mtl_prep.running.pieces import WORK, Pieces
from mtl_prep.running.plan import Plan
from mtl_prep.running.runners import Runner
from mtl_prep.running.shuffling import Order, shuffled
from mtl_prep.running.stages import do_all, forget_lost
from mtl_prep.running.tally import BAD, Tally, Unit, check, described, quarantined, tally
from mtl_prep.running.work import Job, shard_name


def _make_shards(
    job: Job, journal: Journal, units: Sequence[Unit], limit: int, runner: Runner
) -> list[bins.Shard]:
    def is_there(name: str) -> bool:
        path = job.out / f"{name}.arrow"
        return path.exists() and path.stat().st_size == journal.read(name)["shard"]["size"]

    forget_lost(journal, "shard-", is_there)
    pieces = Pieces(job.out, job.dtype, journal)
    packs = pack_tasks(units, limit, lambda unit: pieces.view(unit.name).offsets)
    with progress("pack", sum(unit.tokens for unit in units), "tokens") as shown:
        return do_all(job, journal, [(shard_name(pack.number), pack) for pack in packs], runner, shown)


def _list_bad(path: Path, sources: Sequence[bins.Source], journal: Journal) -> None:
    """Lists every bad record: file, line from 1, reason, and the start of what stands there."""
    staged = path.with_name(f".{path.name}.tmp")
    with staged.open("wb") as file:
        for source, record, reason, raw in quarantined(journal):
            line = {"source": sources[source].path, "line": record + 1, "reason": reason, "raw": raw}
            file.write(orjson.dumps(line) + b"\n")
    os.replace(staged, path)


def _manifest(
    job: Job,
    plan: Plan,
    tokenizer: Tokenizer,
    wrong: dict[str, str],
    shards: Sequence[bins.Shard],
    sources: Sequence[bins.Source],
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
            distrusted=wrong,
        ),
        options=dict(plan.options),
        shards=tuple(shards),
        sources=tuple(sources),
    )


def finish(
    job: Job,
    plan: Plan,
    tokenizer: Tokenizer,
    journal: Journal,
    max_bad: str,
    order: Order | None,
    runner: Runner,
) -> tuple[bins.Manifest, Tally]:
    """Makes bins of the finished units, in the order of the corpus or in another.

    After it nothing of the run is left but the bins. Raises DataError when they must not be made.
    """
    check_unchanged(plan.corpus.sources)
    sums = tally(journal)
    sources = list(described(plan.corpus.sources, sums))
    _list_bad(job.out / BAD, sources, journal)
    check(sources, sums, max_bad, job.out / BAD)
    units = sums.units if order is None else shuffled(job, journal, sums.units, order, runner)
    shards = _make_shards(job, journal, units, plan.options["shard_tokens"], runner)
    manifest = _manifest(job, plan, tokenizer, distrusted(journal), shards, sources)
    for leftover in job.out.glob(".*.tmp"):  # of runs that were killed
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    bins.write_manifest(job.out, manifest)
    shutil.rmtree(job.out / WORK)
    return manifest, sums

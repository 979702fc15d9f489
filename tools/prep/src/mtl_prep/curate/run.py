"""From a corpus to a clean one: read it to judge and compare, decide, read it again and write what stays.

Every piece of work depends on nothing but the corpus and the recipe, and is journaled when it is done, so a
run that was killed continues, and any number of processes writes the same bytes. The manifest is written
last.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path

import orjson

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_prep.corpus.cleaned import MANIFEST
from mtl_prep.corpus.find import Corpus, Split, check_unchanged
from mtl_prep.corpus.units import Errors, Reading
from mtl_prep.curate.clean import Clean
from mtl_prep.curate.decide import DECIDED, decide
from mtl_prep.curate.examine import Examine, begun_steps
from mtl_prep.curate.files import durable
from mtl_prep.curate.manifest import Manifest, Shard, Sum, read_manifest, write_manifest
from mtl_prep.curate.recipe import Recipe, read_recipe
from mtl_prep.curate.shards import Packing, cut, shard_name
from mtl_prep.curate.totals import Totals
from mtl_prep.journal import Journal
from mtl_prep.running import pool
from mtl_prep.running.cut import unit_tasks
from mtl_prep.running.pieces import WORK
from mtl_prep.running.plan import Plan, begun, compare, decided
from mtl_prep.running.plan import decide as write_down
from mtl_prep.running.shares import Share
from mtl_prep.running.stdin import found
from mtl_prep.running.tally import Tally, check, described, parse_max_bad, quarantined, tally

PART_BYTES = 1 << 24  # a unit
SHARD_BYTES = 1 << 28
REMOVED = "removed"
BAD = "bad.jsonl"


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    recipe: Path
    corpus: Sequence[str | Path]
    out: Path
    workers: int
    text_key: str = "text"
    max_bad: str = "5%"
    shard_bytes: int = SHARD_BYTES
    part_bytes: int = PART_BYTES
    split: Split = "file"
    errors: Errors = "bad"


@dataclass(frozen=True)
class Outcome:
    """What was made, or `already` there before."""

    manifest: Manifest
    corpus: Corpus
    already: bool = False


def _plan(request: Request, recipe: Recipe) -> Plan:
    options = {"text_key": request.text_key, "shard_bytes": request.shard_bytes, **recipe.written()}
    usual = {"split": "file", "errors": "bad"}
    options |= {name: getattr(request, name) for name in usual if getattr(request, name) != usual[name]}
    return Plan(found(request.corpus, request.split, request.out), "", options, request.part_bytes)


def _finished(request: Request, plan: Plan) -> Manifest | None:
    """The manifest if this very corpus is there already; raises UsageError when another one is."""
    if not (request.out / MANIFEST).exists():
        return None
    manifest = read_manifest(request.out)
    before = {
        "options": manifest.options,
        "tokenizer": "",
        "sources": {source.path: source.size for source in manifest.sources},
    }
    sources = {source.name: source.size for source in plan.corpus.sources}
    compare(request.out, before, plan.written() | {"sources": sources})
    return manifest


class _Run:
    """One corpus on its way through a recipe."""

    def __init__(self, request: Request, recipe: Recipe, plan: Plan) -> None:
        self._request, self._recipe, self._plan = request, recipe, plan
        self._reading = Reading(plan.corpus.sources, request.text_key, request.part_bytes, request.errors)
        self._examined, self._cleaned = (request.out / WORK / name for name in ("examined", "cleaned"))
        for directory in (self._examined, self._cleaned):
            directory.mkdir(exist_ok=True)

    def finish(self) -> Outcome:
        """Does what is left to do."""
        sums = self._examine()
        sources = self._check(sums)
        self._decide(sums)
        self._clean(sums)
        check_unchanged(self._plan.corpus.sources)
        totals = Totals(self._cleaned)
        shards = self._pack(totals.units)
        manifest = self._manifest(sums, sources, totals, shards)
        self._write_samples(totals)
        for leftover in self._request.out.rglob(".*.tmp"):  # of runs that were killed
            leftover.unlink()
        write_manifest(self._request.out, manifest)
        shutil.rmtree(self._request.out / WORK)
        return Outcome(manifest, self._plan.corpus)

    def _read(self, what: str, job: pool.Job[int], journal: Journal) -> None:
        """Has all units of the corpus worked on that the journal does not know yet."""
        done = sum(journal.read(name)["size"] for name in journal.names("unit-"))
        tasks, size = unit_tasks(journal, self._reading, self._request.workers, Share())
        with progress(what, size, "bytes", done=done) as shown:
            for amount in pool.run(job, tasks, self._request.workers):
                shown.advance(amount)

    def _examine(self) -> Tally:
        job = Examine(self._examined, self._reading, self._recipe)
        self._read("examine", job, Journal(self._examined))
        return tally(Journal(self._examined))

    def _check(self, sums: Tally) -> list[bins.Source]:
        """Lists what could not be read; raises DataError when it is too much."""
        sources = list(described(self._plan.corpus.sources, sums))
        with durable(self._request.out / BAD) as file:
            for source, record, reason, raw in quarantined(Journal(self._examined)):
                line = {"source": sources[source].path, "line": record + 1, "reason": reason, "raw": raw}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        check(sources, sums, self._request.max_bad, self._request.out / BAD)
        return sources

    def _decide(self, sums: Tally) -> None:
        if not (self._examined / DECIDED).exists():
            with progress("compare", sum(unit.documents for unit in sums.units), "documents"):
                decide(self._examined, self._recipe, sums.units)

    def _clean(self, sums: Tally) -> None:
        firsts = accumulate((unit.documents for unit in sums.units), initial=0)
        units = {unit.name: (first, unit.line) for unit, first in zip(sums.units, firsts, strict=False)}
        job = Clean(self._cleaned, self._examined, self._reading, self._recipe, units)
        self._read("clean", job, Journal(self._cleaned))

    def _pack(self, units: Sequence[tuple[str, int]]) -> tuple[Shard, ...]:
        journal = Journal(self._cleaned)
        packs = cut(units, self._request.shard_bytes)
        left = [pack for pack in packs if not journal.has(shard_name(pack.number))]
        with progress("pack", sum(size for _, size in units), "bytes") as shown:
            for amount in pool.run(Packing(self._request.out, self._cleaned), left, self._request.workers):
                shown.advance(amount)
        journal.refresh()
        return tuple(Shard.model_validate(journal.read(shard_name(pack.number))) for pack in packs)

    def _manifest(
        self, sums: Tally, sources: Sequence[bins.Source], totals: Totals, shards: tuple[Shard, ...]
    ) -> Manifest:
        """The manifest; raises DataError when its sums do not agree."""
        read = Sum(documents=sum(s.documents for s in sources), characters=sums.characters)
        steps = tuple(totals.steps(self._recipe, read.documents))
        kept = Sum(documents=sum(shard.records for shard in shards), characters=totals.characters)
        if read.documents != kept.documents + sum(step.documents for step in steps):
            raise DataError(f"the documents of {self._request.out} do not add up; remove it and run again")
        return Manifest(
            tool=f"mtl-prep {version('mtl-prep')}",
            options=dict(self._plan.options),
            read=read,
            kept=kept,
            steps=steps,
            shards=shards,
            sources=tuple(totals.described(i, source, steps) for i, source in enumerate(sources)),
        )

    def _write_samples(self, totals: Totals) -> None:
        directory = self._request.out / REMOVED
        directory.mkdir(exist_ok=True)
        for number, (name, _) in enumerate(self._recipe.steps, 1):
            with durable(directory / f"{name}.jsonl") as file:
                for _, shown in totals.drawn.get(number, []):
                    file.write(orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE))


def curate(request: Request) -> Outcome:
    """Makes a clean corpus in `request.out`, or goes on with it: the same bytes after any stop.

    Raises UsageError for a recipe or request that cannot be, or does not fit what is there, DataError for a
    corpus that cannot be used, RankError when a worker process was killed.
    """
    parse_max_bad(request.max_bad)
    recipe = read_recipe(request.recipe)
    plan = _plan(request, recipe)
    manifest = _finished(request, plan)
    if manifest:
        shutil.rmtree(request.out / WORK, ignore_errors=True)
        return Outcome(manifest, plan.corpus, already=True)
    begun_steps(recipe, range(1, len(recipe.steps) + 1))  # what they lack is told before the work
    with begun(request.out, Share()):
        if decided(request.out, plan) is None:
            write_down(request.out, plan, {})
        return _Run(request, recipe, plan).finish()

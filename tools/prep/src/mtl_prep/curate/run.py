"""From a corpus to a clean one: read it to judge and compare, decide, read it again and write what stays.

Every piece of work depends on nothing but the corpus and the recipe, and is journaled when it is done, so a
run that was killed continues, and any number of processes writes the same bytes, on one machine or as the
tasks of an array job. The manifest is written last.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate

import numpy as np
import orjson

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_prep.corpus.cleaned import MANIFEST
from mtl_prep.corpus.find import check_unchanged
from mtl_prep.curate.clean import Clean
from mtl_prep.curate.decide import DECIDED, decide, decision
from mtl_prep.curate.examine import Examine, begun_steps
from mtl_prep.curate.files import durable
from mtl_prep.curate.manifest import Manifest, Shard, Sum, read_manifest, write_manifest
from mtl_prep.curate.recipe import read_recipe
from mtl_prep.curate.request import Halfway, Outcome, Part, Request
from mtl_prep.curate.shards import Packing, cut, shard_name
from mtl_prep.curate.totals import Totals
from mtl_prep.journal import Journal
from mtl_prep.running import pool
from mtl_prep.running.handing import Handing
from mtl_prep.running.left import left_of, shown
from mtl_prep.running.pieces import WORK
from mtl_prep.running.plan import begun, compare, decided, undone_if_refused
from mtl_prep.running.plan import decide as write_down
from mtl_prep.running.runners import Runner, runner
from mtl_prep.running.shares import Share
from mtl_prep.running.tally import BAD, Tally, check, described, parse_max_bad, quarantined, tally
from mtl_prep.running.trouble import disk_told

REMOVED = "removed"
EXAMINE, CLEAN = "examine", "clean"  # the two readings


class Curating:
    """One corpus on its way through a recipe."""

    def __init__(self, request: Request, runner: Runner) -> None:
        parse_max_bad(request.max_bad)
        self.request, self.runner = request, runner
        self.recipe = read_recipe(request.recipe)
        self.plan = request.plan(self.recipe)
        self.reading = request.reading(self.plan.corpus)
        self.examined, self.cleaned = (request.out / WORK / name for name in ("examined", "cleaned"))

    def already(self) -> Outcome | None:
        """What an earlier run finished, if it was this one; raises UsageError when it was another."""
        out = self.request.out
        if not (out / MANIFEST).exists():
            return None
        manifest = read_manifest(out)
        before = {
            "options": manifest.options,
            "tokenizer": "",
            "sources": {source.path: source.size for source in manifest.sources},
        }
        sources = {source.name: source.size for source in self.plan.corpus.sources}
        compare(out, before, self.plan.written() | {"sources": sources})
        shutil.rmtree(out / WORK, ignore_errors=True)
        return Outcome(manifest, self.plan.corpus, already=True)

    def check_steps(self) -> None:
        """Raises what steps raise that lack a library or a file: before the work."""
        begun_steps(self.recipe, range(1, len(self.recipe.steps) + 1))

    def begin(self) -> None:
        """Begins a run, or finds one that was begun alike; raises UsageError for another one."""
        out = self.request.out
        if decided(out, self.plan) is None:
            write_down(out, self.plan, {"request": self.request.written()})
        for directory in (self.examined, self.cleaned):
            directory.mkdir(exist_ok=True)

    def _read(self, what: str, job: pool.Job[int], journal: Journal, share: Share) -> Part:
        """Has all units of a share worked on that the journal does not know yet."""
        left = left_of(journal, self.reading, self.runner.readers, share)
        with shown(what, left) as advance:
            for amount in self.runner.run(job, left.tasks, Handing(self.reading, journal.directory)):
                advance(amount)
        return Part(share, what, len(left.tasks), left.size)

    def examine(self, share: Share) -> Part:
        """The first reading."""
        job = Examine(self.examined, self.reading, self.recipe)
        return self._read(EXAMINE, job, Journal(self.examined), share)

    @cached_property
    def sums(self) -> Tally:
        """The sums of the first reading, when all of it is done."""
        return tally(Journal(self.examined))

    @property
    def is_decided(self) -> bool:
        """Whether the documents were compared."""
        return (self.examined / DECIDED).exists()

    def check(self) -> list[bins.Source]:
        """Lists what could not be read; raises DataError when it is too much."""
        sources = list(described(self.plan.corpus.sources, self.sums))
        with durable(self.request.out / BAD) as file:
            for source, record, reason, raw in quarantined(Journal(self.examined)):
                line = {"source": sources[source].path, "line": record + 1, "reason": reason, "raw": raw}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        check(sources, self.sums, self.request.max_bad, self.request.out / BAD)
        return sources

    def decide(self) -> Halfway:
        """Compares all documents, unless that is done."""
        documents = sum(unit.documents for unit in self.sums.units)
        if not self.is_decided:
            with progress("compare", documents, "documents"):
                decide(self.examined, self.recipe, self.sums.units)
        found = decision(self.examined)
        steps = np.bincount(found.fates[found.originals >= 0], minlength=len(self.recipe.steps) + 1)
        repeated = {name: int(steps[number]) for number, (name, _) in enumerate(self.recipe.steps, 1)}
        return Halfway(documents, self.sums.characters, {name: n for name, n in repeated.items() if n})

    def clean(self, share: Share) -> Part:
        """The second reading."""
        firsts = accumulate((unit.documents for unit in self.sums.units), initial=0)
        units = {unit.name: (first, unit.line) for unit, first in zip(self.sums.units, firsts, strict=False)}
        job = Clean(self.cleaned, self.examined, self.reading, self.recipe, units)
        return self._read(CLEAN, job, Journal(self.cleaned), share)

    def finish(self, sources: Sequence[bins.Source]) -> Outcome:
        """Makes a clean corpus of what both readings gave; `sources` are those that were checked."""
        out = self.request.out
        check_unchanged(self.plan.corpus.sources)
        totals = Totals(self.cleaned)
        shards = self._pack(totals.units)
        manifest = self._manifest(sources, totals, shards)
        self._write_samples(totals)
        for leftover in out.rglob(".*.tmp"):  # of runs that were killed
            leftover.unlink()
        write_manifest(out, manifest)
        shutil.rmtree(out / WORK)
        return Outcome(manifest, self.plan.corpus)

    def _pack(self, units: Sequence[tuple[str, int]]) -> tuple[Shard, ...]:
        journal = Journal(self.cleaned)
        packs = cut(units, self.request.shard_bytes)
        left = [pack for pack in packs if not journal.has(shard_name(pack.number))]
        with progress("pack", sum(size for _, size in units), "bytes") as shown:
            for amount in self.runner.run(Packing(self.request.out, self.cleaned), left):
                shown.advance(amount)
        journal.refresh()
        shards = [Shard.model_validate(journal.read(shard_name(pack.number))) for pack in packs]
        for shard in shards:
            if not shard.records:  # all of it is the rest of a record that begins in the one before
                (self.request.out / shard.file).unlink(missing_ok=True)
        return tuple(shard for shard in shards if shard.records)

    def _manifest(
        self, sources: Sequence[bins.Source], totals: Totals, shards: tuple[Shard, ...]
    ) -> Manifest:
        """The manifest; raises DataError when its sums do not agree."""
        read = Sum(documents=sum(s.documents for s in sources), characters=self.sums.characters)
        steps = tuple(totals.steps(self.recipe, read.documents))
        kept = Sum(documents=sum(shard.records for shard in shards), characters=totals.characters)
        if read.documents != kept.documents + sum(step.documents for step in steps):
            raise DataError(f"the documents of {self.request.out} do not add up; remove it and run again")
        return Manifest(
            tool=f"mtl-prep {version('mtl-prep')}",
            options=dict(self.plan.options),
            read=read,
            kept=kept,
            large=totals.large,
            steps=steps,
            shards=shards,
            sources=tuple(totals.described(i, source, steps) for i, source in enumerate(sources)),
        )

    def _write_samples(self, totals: Totals) -> None:
        directory = self.request.out / REMOVED
        directory.mkdir(exist_ok=True)
        for number, (name, _) in enumerate(self.recipe.steps, 1):
            with durable(directory / f"{name}.jsonl") as file:
                for _, shown in totals.drawn.get(number, []):
                    file.write(orjson.dumps(shown, option=orjson.OPT_APPEND_NEWLINE))


@contextmanager
def curating(request: Request) -> Iterator[Curating]:
    """A request on its way, with what does its work; raises DataError for trouble with the disk."""
    with (
        disk_told(request.out),
        runner(request.runs_on, request.workers, request.ray_address, request.out) as found,
        undone_if_refused(request.out),
    ):
        yield Curating(request, found)


def curate(request: Request) -> Outcome:
    """Makes a clean corpus in `request.out`, or goes on with it: the same bytes after any stop.

    Raises UsageError for a recipe or request that cannot be, or does not fit what is there, DataError for a
    corpus that cannot be used, RankError when a worker process was killed.
    """
    with curating(request) as work:
        already = work.already()
        if already:
            return already
        work.check_steps()
        with begun(request.out, Share()):
            work.begin()
            work.examine(Share())
            sources = work.check()
            work.decide()
            work.clean(Share())
            return work.finish(sources)

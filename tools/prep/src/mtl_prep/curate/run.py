"""From a corpus to a clean one: read it and judge, compare all documents, write those that stay.

Every piece of work depends on nothing but the corpus and the recipe, and is journaled when it is done, so a
run that was killed continues, and any number of processes writes the same bytes, on one machine or as the
tasks of an array job. The manifest is written last.
"""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import version

import numpy as np
import orjson

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_common.log import progress
from mtl_prep.corpus.cleaned import MANIFEST
from mtl_prep.corpus.find import check_unchanged
from mtl_prep.corpus.units import is_done
from mtl_prep.curate.batch import Batch
from mtl_prep.curate.decide import DECIDED, Decision, decide, decision
from mtl_prep.curate.examine import Examine, begun_steps
from mtl_prep.curate.files import durable
from mtl_prep.curate.manifest import Manifest, Shard, Sum, read_manifest, write_manifest
from mtl_prep.curate.recipe import read_recipe
from mtl_prep.curate.removed import Removed
from mtl_prep.curate.request import Outcome, Part, Request
from mtl_prep.curate.shards import Cut, Packing, shard_name, sizes_of
from mtl_prep.curate.step import GlobalStep
from mtl_prep.curate.totals import Totals, units_decided
from mtl_prep.journal import Journal
from mtl_prep.running.handing import Handing
from mtl_prep.running.left import left_of, shown
from mtl_prep.running.pieces import WORK
from mtl_prep.running.plan import begun, compare, decided, undone_if_refused
from mtl_prep.running.plan import decide as write_down
from mtl_prep.running.runners import Runner, runner
from mtl_prep.running.shares import Share
from mtl_prep.running.stages import catch_up
from mtl_prep.running.tally import BAD, Tally, check, described, parse_max_bad, quarantined, tally
from mtl_prep.running.trouble import disk_told

REMOVED = "removed"


class Curating:
    """One corpus on its way through a recipe."""

    def __init__(self, request: Request, runner: Runner) -> None:
        parse_max_bad(request.max_bad)
        self.request, self.runner = request, runner
        self.recipe = read_recipe(request.recipe)
        self.plan = request.plan(self.recipe)
        self.reading = request.reading(self.plan.corpus)
        self.examined = request.out / WORK / "examined"

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
        """Takes all steps once: what they lack is told, and loops are compiled, before the work.

        Raises what steps raise that lack a library or a file.
        """
        judges, text = begun_steps(self.recipe), Batch(["It is tried on this."])
        with progress("prepare rules (compiled once, then kept)", len(self.recipe.steps), "steps") as shown:
            for number, (_, step) in enumerate(self.recipe.steps, 1):
                if isinstance(step, GlobalStep):
                    step.sign(text)
                else:
                    judges[number].judge(text, np.ones(len(text), bool))
                shown.advance(1)

    def begin(self) -> None:
        """Begins a run, or finds one that was begun alike; raises UsageError for another one."""
        out = self.request.out
        if decided(out, self.plan) is None:
            write_down(out, self.plan, {"request": self.request.written()})
        self.examined.mkdir(exist_ok=True)

    def examine(self, share: Share) -> Part:
        """Has all units of a share read and judged that the journal does not know yet."""
        job, journal = Examine(self.examined, self.reading, self.recipe), Journal(self.examined)
        left = left_of(journal, self.reading, self.runner.readers, share)
        with shown("examine", left) as advance:
            for amount in self.runner.run(job, left.tasks, Handing(self.reading, journal.directory)):
                advance(amount)
        catch_up(journal, left.tasks, lambda task: is_done(task, journal))
        return Part(share, len(left.tasks), left.size)

    @cached_property
    def sums(self) -> Tally:
        """The sums over the corpus, when all of it is read."""
        return tally(Journal(self.examined))

    def check(self) -> list[bins.Source]:
        """Lists what could not be read; raises DataError when it is too much."""
        sources = list(described(self.plan.corpus.sources, self.sums))
        with durable(self.request.out / BAD) as file:
            for source, record, reason, raw in quarantined(Journal(self.examined)):
                line = {"source": sources[source].path, "line": record + 1, "reason": reason, "raw": raw}
                file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))
        check(sources, self.sums, self.request.max_bad, self.request.out / BAD)
        return sources

    def _decide(self) -> Decision:
        """Compares all documents, unless that is done."""
        if not (self.examined / DECIDED).exists():
            with progress("compare", sum(unit.documents for unit in self.sums.units), "documents"):
                decide(self.examined, self.recipe, self.sums.units)
        return decision(self.examined)

    def finish(self, sources: Sequence[bins.Source]) -> Outcome:
        """Makes a clean corpus of what was read; `sources` are those that were checked."""
        out, names = self.request.out, [source.name for source in self.reading.sources]
        check_unchanged(self.plan.corpus.sources)
        totals, cut = Totals(), Cut(self.request.shard_bytes)
        removed = Removed(self.examined, self.reading, self.recipe, self.sums.units)
        for unit in units_decided(self.examined, self.sums.units, self._decide()):
            totals.add(unit, self.examined)
            removed.add(unit)
            cut.add(unit, sizes_of(unit, names))
        manifest = self._manifest(sources, totals, self._pack(cut, names))
        self._write_samples(removed)
        for leftover in out.rglob(".*.tmp"):  # of runs that were killed
            leftover.unlink()
        write_manifest(out, manifest)
        shutil.rmtree(out / WORK)
        return Outcome(manifest, self.plan.corpus)

    def _pack(self, cut: Cut, names: Sequence[str]) -> tuple[Shard, ...]:
        journal, packs = Journal(self.examined), cut.packs
        left = [pack for pack in packs if not journal.has(shard_name(pack.number))]
        with progress("pack", cut.size, "bytes") as shown:
            for amount in self.runner.run(Packing(self.request.out, self.examined, names), left):
                shown.advance(amount)
        catch_up(journal, [shard_name(pack.number) for pack in packs], journal.has)
        return tuple(Shard.model_validate(journal.read(shard_name(pack.number))) for pack in packs)

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

    def _write_samples(self, removed: Removed) -> None:
        directory = self.request.out / REMOVED
        directory.mkdir(exist_ok=True)
        for number, (name, _) in enumerate(self.recipe.steps, 1):
            with durable(directory / f"{name}.jsonl") as file:
                for shown in removed.of(number):
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
            return work.finish(work.check())

"""The pieces of work of tokenizing, and how a process does one.

What a unit of the corpus gives depends on nothing but the corpus and the options, so it does not matter
which process does it, or in which run. Units are small shard files of their own; packing copies them, in
order, into the shards of the bins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from mtl_common.bins import Batch, Shard, ShardView, write_shard
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.encode import batches
from mtl_prep.journal import Journal
from mtl_prep.units import Reading, ReadTask, Unit, read

WORK = "_work"


@dataclass(frozen=True)
class Job:
    """What every piece of work needs to know."""

    out: Path
    reading: Reading
    eod: int
    dtype: str
    fast: bool
    about: tuple[tuple[str, str], ...]

    @property
    def journal(self) -> Journal:
        """The record of what is done."""
        return Journal(self.out / WORK)

    def worker(self) -> "Worker":
        """One process's means to do the work."""
        return Worker(self)


@dataclass(frozen=True)
class Span:
    """Documents `first:last` of a unit, whose lines begin at line `line` of their file."""

    unit: str
    first: int
    last: int
    line: int


@dataclass(frozen=True)
class Pack:
    """One shard of the bins, from parts of units in order."""

    number: int
    spans: tuple[Span, ...]


Task = ReadTask | Pack


def shard_name(number: int) -> str:
    """The name of a shard, without suffix."""
    return f"shard-{number:05d}"


class Worker:
    """Does pieces of work in one process."""

    def __init__(self, job: Job) -> None:
        self._job, self._journal = job, job.journal
        self._tokenizer: Tokenizer | None = None

    def run(self, task: Task) -> Iterator[int]:
        """Does the work and notes it; yields how many bytes (or tokens) each finished step stands for."""
        if isinstance(task, Pack):
            yield self._pack(task)
        else:
            for unit in read(task, self._job.reading, self._journal):
                self._encode(unit)
                yield unit.size

    def _encode(self, unit: Unit) -> None:
        """Writes a unit's documents, then notes the unit."""
        job, found, records = self._job, unit.documents, unit.documents.records
        if self._tokenizer is None:
            self._tokenizer = load(job.out / "tokenizer", fast=job.fast)
        characters = sum(map(len, found.texts))
        work = job.out / WORK
        made = batches(self._tokenizer, found, job.eod, job.dtype, work)
        shard = write_shard(work / f"{unit.name}.arrow", job.dtype, made)
        note = {
            "records": records,
            "documents": shard.documents,
            "lines": found.lines,
            "characters": characters,
            "size": unit.size,
            "bad": found.bad,
            "repaired": found.repaired,
            "shard": shard.model_dump(),
            "hashes": unit.hashes,
        }
        self._journal.write(unit.name, note)

    def _pack(self, task: Pack) -> int:
        job, name = self._job, shard_name(task.number)
        shard = write_shard(
            job.out / f"{name}.arrow", job.dtype, map(self._span, task.spans), dict(job.about)
        )
        self._journal.write(name, shard.model_dump())
        return shard.tokens

    def _span(self, span: Span) -> Batch:
        """The documents of a span, their records numbered by the line of the whole file."""
        shard = Shard.model_validate(self._journal.read(span.unit)["shard"])
        view = ShardView(self._job.out / WORK / shard.file, shard, self._job.dtype, shuffled=False)
        batch = view.batch(span.first, span.last)
        return replace(batch, record=batch.record + np.uint64(span.line))

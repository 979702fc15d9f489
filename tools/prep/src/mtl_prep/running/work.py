"""The pieces of work of tokenizing, and how a process does one.

What a unit of the corpus gives depends on nothing but the corpus and the options, so it does not matter
which process does it, or in which run. Units are small shard files of their own; packing copies them, in
order, into the shards of the bins.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtl_common.bins import size_of, write_shard
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus.units import Reading, ReadTask, Unit, read
from mtl_prep.encoding.composed import Composing
from mtl_prep.encoding.composers import Composition
from mtl_prep.encoding.encode import batches
from mtl_prep.encoding.engine import Watch
from mtl_prep.journal import Journal
from mtl_prep.running.pieces import WORK, Pieces, Span
from mtl_prep.running.shuffle import Range, Run, merge, sort


@dataclass(frozen=True)
class Job:
    """What every piece of work needs to know; `opened` stays in this process, others open it anew."""

    out: Path
    reading: Reading
    eod: int
    dtype: str
    engine: str
    about: tuple[tuple[str, str], ...]
    composition: Composition = field(default_factory=Composition)
    opened: Tokenizer | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}

    @property
    def journal(self) -> Journal:
        """The record of what is done."""
        return Journal(self.out / WORK)

    def worker(self) -> "Worker":
        """One process's means to do the work."""
        return Worker(self)


@dataclass(frozen=True)
class Pack:
    """One shard of the bins, from parts of units in order."""

    number: int
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Step:
    """Finished work: bytes of the corpus or tokens, and documents."""

    amount: int
    documents: int


Task = ReadTask | Pack | Run | Range


def shard_name(number: int) -> str:
    """The name of a shard, without suffix."""
    return f"shard-{number:05d}"


class Worker:
    """Does pieces of work in one process."""

    def __init__(self, job: Job) -> None:
        self._job, self._journal = job, job.journal
        self._pieces = Pieces(job.out, job.dtype, self._journal)
        self._tokenizer: Tokenizer | None = None
        self._composing: Composing | None = None

    def run(self, task: Task) -> Iterator[Step]:
        """Does the work and notes it; yields what each finished step stands for."""
        if isinstance(task, Pack):
            yield self._pack(task)
        elif isinstance(task, Run | Range):
            shard = sort(task, self._pieces) if isinstance(task, Run) else merge(task, self._pieces)
            yield Step(shard.tokens, shard.documents)
        else:
            for unit in read(task, self._job.reading, self._journal):
                yield self._encode(unit)

    def _encode(self, unit: Unit) -> Step:
        """Writes a unit's documents, then notes the unit."""
        job, found, records = self._job, unit.documents, unit.documents.by_source()
        if self._tokenizer is None:
            self._tokenizer = job.opened or load(job.out / "tokenizer", engine=job.engine, one_thread=True)
            self._composing = job.composition.composing(self._tokenizer, job.eod, job.dtype)
        path = self._pieces.path(unit.name)
        path.parent.mkdir(exist_ok=True)
        watch, composing = Watch(self._tokenizer), self._composing
        if composing is None:
            made = batches(watch, found, job.eod, job.dtype, path.parent)
        else:
            made = composing.batches(watch, found, path.parent)
        shard = write_shard(path, job.dtype, made)
        note = {
            "records": list(records.items()),
            "documents": shard.documents,
            "lines": found.lines,
            "characters": watch.characters,
            "watched": watch.counts,
            "engine": self._tokenizer.choices[0],
            "size": unit.size,
            "shard": shard.model_dump(),
            "hashes": unit.hashes,
        }
        self._journal.write(unit.name, note | found.trouble())
        return Step(unit.size, shard.documents)

    def _pack(self, task: Pack) -> Step:
        job, name = self._job, shard_name(task.number)
        size = size_of(map(self._pieces.batch, task.spans))
        spans = map(self._pieces.batch, task.spans)
        shard = write_shard(job.out / f"{name}.arrow", job.dtype, spans, dict(job.about), size)
        self._journal.write(name, {"shard": shard.model_dump()})
        return Step(shard.tokens, shard.documents)

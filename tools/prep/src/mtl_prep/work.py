"""The pieces of work that a corpus is cut into, and how a process does one.

A unit is the lines that start in one part of a file, parts being of fixed size, or a run of small texts.
What a unit gives depends on nothing but the corpus and the options, so it does not matter which process does
it, or in which run. Units are small shard files of their own; packing copies them, in order, into the shards
of the bins.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.bins import Batch, Shard, ShardView, write_shard
from mtl_common.tokenizers import Tokenizer, load
from mtl_prep.corpus import Source
from mtl_prep.encode import batches
from mtl_prep.journal import Journal
from mtl_prep.records import Block, Documents, content_hash, from_lines, from_texts, packed_lines, whole_lines

PART_BYTES = (
    1 << 24
)  # bytes of a unit: a second's tenth of work, so that little is lost and processes stay busy
WORK = "_work"


@dataclass(frozen=True)
class Job:
    """What every piece of work needs to know."""

    out: Path
    sources: tuple[Source, ...]
    text_key: str
    part_bytes: int
    eod: int
    dtype: str
    fast: bool
    about: tuple[tuple[str, str], ...]

    @property
    def journal(self) -> Journal:
        """The record of what is done."""
        return Journal(self.out / WORK)


@dataclass(frozen=True)
class Lines:
    """Parts of one file of JSON lines: those whose number leaves `stripe` when divided by `stripes`."""

    source: int
    stripe: int
    stripes: int


@dataclass(frozen=True)
class Texts:
    """A run of files that are a document each."""

    first: int
    last: int


@dataclass(frozen=True)
class Hash:
    """The hash of one file."""

    source: int


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


Task = Lines | Texts | Hash | Pack


def unit_name(source: int, part: int) -> str:
    """The name of a unit; names sort in the order of the corpus."""
    return f"unit-{source:08d}-{part:08d}"


def unit_number(name: str) -> int:
    """The first source of a unit.

    >>> unit_number(unit_name(7, 0))
    7
    """
    return int(name.split("-")[1])


def end_name(source: int) -> str:
    """The name of the note that all parts of a packed file are known."""
    return f"end-{source:08d}"


def hash_name(source: int) -> str:
    """The name of the note of a file's hash."""
    return f"hash-{source:08d}"


def hash_number(name: str) -> int:
    """The source of a note of a hash."""
    return int(name.split("-")[1])


def shard_name(number: int) -> str:
    """The name of a shard, without suffix."""
    return f"shard-{number:05d}"


class Worker:
    """Does pieces of work in one process."""

    def __init__(self, job: Job, tokenizer: Tokenizer | None = None) -> None:
        self._job, self._journal = job, job.journal
        self._tokenizer = tokenizer or load(job.out / "tokenizer", fast=job.fast)

    def run(self, task: Task) -> Iterator[int]:
        """Does the work and notes it; yields how many bytes of input each finished step stands for."""
        if isinstance(task, Lines):
            yield from self._lines(task)
        elif isinstance(task, Texts):
            yield self._texts(task)
        elif isinstance(task, Hash):
            self._journal.write(
                hash_name(task.source), {"xxh3": content_hash(self._job.sources[task.source].path)}
            )
        else:
            yield self._pack(task)

    def _lines(self, task: Lines) -> Iterator[int]:
        source = self._job.sources[task.source]
        parts = 0
        for block in self._blocks(task):
            parts = block.part + 1
            name = unit_name(task.source, block.part)
            if block.part % task.stripes == task.stripe and not self._journal.has(name):
                self._encode(name, from_lines(block.data, task.source, self._job.text_key), block.consumed)
                yield block.consumed
        if source.packing:
            self._journal.write(end_name(task.source), {"parts": parts})

    def _blocks(self, task: Lines) -> Iterator[Block]:
        source = self._job.sources[task.source]
        if source.packing:
            return packed_lines(source, self._job.part_bytes)
        size = self._job.part_bytes
        parts = range(task.stripe, -(-source.size // size), task.stripes)
        return (whole_lines(source, part, size) for part in parts)

    def _texts(self, task: Texts) -> int:
        import xxhash

        sources = [(i, self._job.sources[i]) for i in range(task.first, task.last)]
        hashes: list[str] = []
        found = from_texts(sources, lambda _, raw: hashes.append(xxhash.xxh3_128_hexdigest(raw)))
        size = sum(source.size for _, source in sources)
        self._encode(unit_name(task.first, 0), found, size, hashes=hashes)
        return size

    def _encode(self, name: str, found: Documents, size: int, **more: Any) -> None:
        """Writes a unit's documents, then notes the unit."""
        job, records = self._job, found.records
        characters = sum(map(len, found.texts))
        path = job.out / WORK / f"{name}.arrow"
        shard = write_shard(path, job.dtype, batches(self._tokenizer, found, job.eod, job.dtype))
        note = {
            "records": records,
            "documents": shard.documents,
            "lines": found.lines,
            "characters": characters,
            "size": size,
            "bad": found.bad,
            "repaired": found.repaired,
            "shard": shard.model_dump(),
        }
        self._journal.write(name, note | more)

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
        offsets = view.offsets[span.first : span.last + 1]
        rows = slice(span.first, span.last)
        return Batch(
            ids=view.tokens[offsets[0] : offsets[-1]],
            offsets=offsets - offsets[0],
            source=view.source[rows],
            record=view.record[rows] + np.uint64(span.line),
        )

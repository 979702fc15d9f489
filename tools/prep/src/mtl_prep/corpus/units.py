"""The units that a corpus is read in: fixed pieces that do not depend on who reads them, or when.

A unit is a block of one file, or a run of small files. Whoever makes something of a corpus reads it here, and
journals what it made of each unit under its name. The documents of a unit are its texts and then, if there is
one, its giant (`documents.giant`): a document too large to hold, whose text is asked for in pieces.

A source is cut by its format (see `formats`) into parts that can be read alone, and a part, while it is read,
into blocks of about `Reading.part_bytes`. A file that must be read from its start is one part. Machines that
share its work each take a stripe, every so many blocks; processes of one machine hand blocks to each other.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from mtl_prep.corpus.formats import Block, Errors, Part, Reading, format_of
from mtl_prep.corpus.formats.whole import runs
from mtl_prep.corpus.places import content_hash
from mtl_prep.corpus.records import Documents
from mtl_prep.journal import Journal

__all__ = [
    "Chunk",
    "Errors",
    "Files",
    "Handed",
    "Hash",
    "ReadTask",
    "Reading",
    "Stripe",
    "Unit",
    "blocks_of",
    "documents",
    "is_done",
    "parts_of",
    "read",
]


@dataclass(frozen=True)
class Chunk:
    """A part of a file."""

    source: int
    part: int


@dataclass(frozen=True)
class Stripe:
    """The blocks of a file of one part whose number leaves `stripe` when divided by `stripes`."""

    source: int
    stripe: int
    stripes: int


@dataclass(frozen=True)
class Handed:
    """The unit of that name: a block that one process has found, and any may read."""

    name: str
    block: Block = field(repr=False)


@dataclass(frozen=True)
class Files:
    """A run of small files, or of files that are a document each."""

    first: int
    last: int


@dataclass(frozen=True)
class Hash:
    """The hash of one file."""

    source: int


ReadTask = Chunk | Stripe | Handed | Files | Hash


@dataclass(frozen=True)
class Unit:
    """The documents of one unit, the bytes of input it stands for, and the hashes of files read whole."""

    name: str
    documents: Documents
    size: int
    hashes: tuple[str, ...] | None = None


def unit_name(source: int, part: int, block: int = 0) -> str:
    """The name of a unit; names sort in the order of the corpus."""
    return f"unit-{source:08d}-{part:08d}-{block:08d}"


def unit_number(name: str) -> int:
    """The first source of a unit.

    >>> unit_number(unit_name(7, 0))
    7
    """
    return int(name.split("-")[1])


def unit_place(name: str) -> tuple[int, int, int]:
    """The first source of a unit, its part and its block.

    >>> unit_place(unit_name(7, 0, 2))
    (7, 0, 2)
    """
    _, source, part, block = name.split("-")
    return int(source), int(part), int(block)


def end_name(source: int, part: int) -> str:
    """The name of the note that all units of a part are known."""
    return f"end-{source:08d}-{part:08d}"


def hash_name(source: int) -> str:
    """The name of the note of a file's hash."""
    return f"hash-{source:08d}"


def hash_number(name: str) -> int:
    """The source of a note of a hash."""
    return int(name.split("-")[1])


def parts_of(source: int, reading: Reading) -> int | None:
    """How many parts of a source can be read alone; None when it is read from its start.

    Raises DataError for a file that cannot be read.
    """
    found = reading.sources[source]
    return format_of(found.kind).parts(found, reading)


def _blocks(
    source: int, part: int, stripe: int, stripes: int, reading: Reading, journal: Journal
) -> Iterator[Handed]:
    def wanted(block: int) -> bool:
        return block % stripes == stripe and not journal.has(unit_name(source, part, block))

    names = list[str]()
    whole = Part(source, part, wanted, journal.directory)
    for number, block in enumerate(format_of(reading.sources[source].kind).blocks(whole, reading)):
        names.append(unit_name(source, part, number))
        if wanted(number):
            yield Handed(names[-1], block)
    journal.write(end_name(source, part), {"units": names})


def blocks_of(task: ReadTask, reading: Reading, journal: Journal) -> Iterator[Handed]:
    """The blocks of a task that the journal does not know yet, for any process to read.

    None of files that are read whole.
    """
    if isinstance(task, Chunk):
        yield from _blocks(task.source, task.part, 0, 1, reading, journal)
    elif isinstance(task, Stripe):
        yield from _blocks(task.source, 0, task.stripe, task.stripes, reading, journal)
    elif isinstance(task, Handed):
        yield task


def _files(task: Files, reading: Reading, journal: Journal) -> Iterator[Unit]:
    names = list[str]()
    for run in runs(task.first, task.last, reading, journal.directory):
        names.append(unit_name(run.first, 0, run.block))
        if not journal.has(names[-1]):
            yield Unit(names[-1], run.found, run.size, tuple(run.hashes))
    journal.write(end_name(task.first, 0), {"units": names})


def read(task: ReadTask, reading: Reading, journal: Journal) -> Iterator[Unit]:
    """The units of a task that the journal does not know yet; a hash is noted at once and gives no unit.

    A unit's work must be journaled under its name before the next one is asked for.
    """
    if isinstance(task, Files):
        yield from _files(task, reading, journal)
    elif isinstance(task, Hash):
        journal.write(hash_name(task.source), {"xxh3": content_hash(reading.sources[task.source].address)})
    else:
        for found in blocks_of(task, reading, journal):
            yield Unit(found.name, found.block.read(), found.block.size)


def is_done(task: ReadTask, journal: Journal) -> bool:
    """Whether the journal knows all of a task."""
    if isinstance(task, Handed):
        return journal.has(task.name)
    if isinstance(task, Hash):
        return journal.has(hash_name(task.source))
    end = end_name(
        task.first if isinstance(task, Files) else task.source, task.part if isinstance(task, Chunk) else 0
    )
    if not journal.has(end):
        return False
    names = journal.read(end)["units"]
    mine = names[task.stripe :: task.stripes] if isinstance(task, Stripe) else names
    return all(map(journal.has, mine))


def documents(reading: Reading) -> Iterator[Documents]:
    """All documents of a corpus in order, for whoever needs no journal."""
    scratch = Path(tempfile.gettempdir())
    for index, source in enumerate(reading.sources):
        if source.kind == "text":
            yield from (run.found for run in runs(index, index + 1, reading, scratch))
            continue
        for number in range(parts_of(index, reading) or 1):
            part = Part(index, number, lambda _: True, scratch)
            yield from (block.read() for block in format_of(source.kind).blocks(part, reading))

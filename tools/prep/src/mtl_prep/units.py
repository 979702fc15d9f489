"""The units that a corpus is read in: fixed pieces that do not depend on who reads them, or when.

A unit is the lines that start in one part of a file, parts being of fixed size, or a run of small texts.
Whoever makes something of a corpus reads it here, and journals what it made of each unit under its name.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from mtl_prep.corpus import Source
from mtl_prep.journal import Journal
from mtl_prep.records import Block, Documents, content_hash, from_lines, from_texts, packed_lines, whole_lines


@dataclass(frozen=True)
class Reading:
    """What decides the units of a corpus and the documents in them."""

    sources: tuple[Source, ...]
    text_key: str
    part_bytes: int


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


ReadTask = Lines | Texts | Hash


@dataclass(frozen=True)
class Unit:
    """The documents of one unit, the bytes of input it stands for, and the hashes of files read whole."""

    name: str
    documents: Documents
    size: int
    hashes: tuple[str, ...] | None = None


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


def _blocks(task: Lines, reading: Reading) -> Iterator[Block]:
    source, size = reading.sources[task.source], reading.part_bytes
    if source.packing:
        return packed_lines(source, size)
    parts = range(task.stripe, -(-source.size // size), task.stripes)
    return (whole_lines(source, part, size) for part in parts)


def _lines(task: Lines, reading: Reading, journal: Journal) -> Iterator[Unit]:
    parts = 0
    for block in _blocks(task, reading):
        parts = block.part + 1
        name = unit_name(task.source, block.part)
        if block.part % task.stripes == task.stripe and not journal.has(name):
            yield Unit(name, from_lines(block.data, task.source, reading.text_key), block.consumed)
    if reading.sources[task.source].packing:
        journal.write(end_name(task.source), {"parts": parts})


def _texts(task: Texts, reading: Reading) -> Unit:
    import xxhash

    sources = [(i, reading.sources[i]) for i in range(task.first, task.last)]
    hashes: list[str] = []
    found = from_texts(sources, lambda _, raw: hashes.append(xxhash.xxh3_128_hexdigest(raw)))
    size = sum(source.size for _, source in sources)
    return Unit(unit_name(task.first, 0), found, size, tuple(hashes))


def read(task: ReadTask, reading: Reading, journal: Journal) -> Iterator[Unit]:
    """The units of a task that the journal does not know yet; a hash is noted at once and gives no unit.

    A unit's work must be journaled under its name before the next one is asked for.
    """
    if isinstance(task, Lines):
        yield from _lines(task, reading, journal)
    elif isinstance(task, Texts):
        yield _texts(task, reading)
    else:
        journal.write(hash_name(task.source), {"xxh3": content_hash(reading.sources[task.source].path)})

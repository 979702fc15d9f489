"""The shards of a clean corpus: what stays of all units end to end, cut after a fixed number of bytes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from mtl_common.errors import DataError
from mtl_prep.corpus.places import content_hash
from mtl_prep.curate.decide import decision
from mtl_prep.curate.examine import lines_path
from mtl_prep.curate.facts import KEPT, Facts, facts_of
from mtl_prep.curate.files import durable
from mtl_prep.curate.manifest import Shard
from mtl_prep.curate.totals import Decided
from mtl_prep.curate.writing import origin
from mtl_prep.journal import Journal

LEVEL = 3  # zstandard's
PIECE = 1 << 20  # bytes of a line at a time
TENS = 10 ** np.arange(1, 20, dtype=np.uint64)


@dataclass(frozen=True)
class Part:
    """Documents of a unit, from `start` before `stop`; `first` is the place of its first in the corpus.

    `line` is the line of its file that the unit begins at.
    """

    unit: str
    first: int
    line: int
    start: int
    stop: int


@dataclass(frozen=True)
class Pack:
    """One shard."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Packing:
    """What every process needs to know to write shards; `names` are those of the sources."""

    out: Path
    examined: Path
    names: Sequence[str]

    def worker(self) -> "Packer":
        """One process's means to do it."""
        return Packer(self)


def shard_name(number: int) -> str:
    """The name of a shard, without suffix."""
    return f"shard-{number:05d}"


def _origin_sizes(facts: Facts, line: int, names: Sequence[str]) -> NDArray[np.int64]:
    """(documents,) bytes that telling where a document comes from adds to its line."""
    sources, which = np.unique(facts["source"], return_inverse=True)
    # with a record of one digit, and in place of the line's first character
    sizes = np.array([len(origin(names[source], 0)) - 1 for source in sources.tolist()], np.int64)
    more_digits = np.searchsorted(TENS, facts["record"] + np.uint64(line), "right")
    return np.where(facts["traced"], 0, sizes[which] + more_digits) if len(facts) else np.zeros(0, np.int64)


def sizes_of(unit: Decided, names: Sequence[str]) -> NDArray[np.int64]:
    """(documents,) bytes of each in a clean corpus, 0 for those that go."""
    sizes = unit.facts["size"].astype(np.int64) + _origin_sizes(unit.facts, unit.line, names)
    return np.where(unit.kept, sizes, 0)


class Cut:
    """Cuts documents into shards of so many bytes; one belongs to the shard that it begins in."""

    def __init__(self, limit: int) -> None:
        self._limit, self.size = limit, 0
        self._parts: dict[int, list[Part]] = {}

    def add(self, unit: Decided, sizes: NDArray[np.int64]) -> None:
        """Takes in the documents of the next unit with their bytes, 0 for those that go."""
        kept = np.flatnonzero(sizes)
        numbers = (self.size + np.cumsum(sizes)[kept] - sizes[kept]) // self._limit
        for number in np.unique(numbers).tolist():
            own = kept[numbers == number]
            part = Part(unit.name, unit.first, unit.line, int(own[0]), int(own[-1]) + 1)
            self._parts.setdefault(number, []).append(part)
        self.size += int(sizes.sum())

    @property
    def packs(self) -> list[Pack]:
        """The shards, all of which hold documents."""
        return [Pack(number, tuple(parts)) for number, parts in enumerate(self._parts.values())]


def _pieces(file: BinaryIO, size: int) -> Iterator[bytes]:
    """The next bytes of a file; raises DataError when there are fewer."""
    while size:
        piece = file.read(min(size, PIECE))
        if not piece:
            raise DataError("a file of the unfinished run ends too early; remove its directory and run again")
        yield piece
        size -= len(piece)


def lines_of(directory: Path, unit: str, wanted: Iterable[int]) -> Iterator[tuple[int, Iterator[bytes]]]:
    """Some documents of a unit, ascending, each with its line of JSON in pieces, to be read at once."""
    sizes = facts_of(directory, unit)["size"]
    begins = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)]).tolist()
    with lines_path(directory, unit).open("rb") as file:
        lines = BufferedReader(zstandard.ZstdDecompressor().stream_reader(file), PIECE)
        at = 0
        for document in wanted:
            for _ in _pieces(lines, begins[document] - at):
                pass
            yield document, _pieces(lines, int(sizes[document]))
            at = begins[document + 1]


class Packer:
    """Writes shards in one process."""

    def __init__(self, job: Packing) -> None:
        self._job, self._journal = job, Journal(job.examined)
        self._decision = decision(job.examined)

    def run(self, task: Pack) -> Iterator[int]:
        """Writes a shard and notes it; yields the bytes of JSON that it holds."""
        name = shard_name(task.number)
        path = self._job.out / f"{name}.jsonl.zst"
        size = records = 0
        with durable(path) as file:
            packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
            with packer.stream_writer(file, closefd=False) as packed:
                for part in task.parts:
                    for pieces in self._records(part):
                        records += 1
                        size += sum(packed.write(piece) for piece in pieces)
        digest = content_hash(path)
        shard = Shard(file=path.name, records=records, json_bytes=size, size=path.stat().st_size, xxh3=digest)
        self._journal.write(name, shard.model_dump())
        yield size

    def _records(self, part: Part) -> Iterator[Iterator[bytes]]:
        """The lines of what stays, in pieces, each telling where it comes from."""
        facts = facts_of(self._job.examined, part.unit)
        fates = self._decision.fates[part.first + part.start : part.first + part.stop]
        kept = part.start + np.flatnonzero(fates == KEPT)
        for document, pieces in lines_of(self._job.examined, part.unit, kept.tolist()):
            fact = facts[document]
            if fact["traced"]:
                yield pieces
            else:
                place = origin(self._job.names[int(fact["source"])], int(fact["record"]) + part.line)
                yield chain([place + next(pieces)[1:]], pieces)

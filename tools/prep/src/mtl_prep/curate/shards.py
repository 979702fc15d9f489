"""The shards of a clean corpus: what stays of all units end to end, cut after a fixed number of bytes."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from mtl_prep.corpus.places import content_hash
from mtl_prep.curate.clean import kept_path
from mtl_prep.curate.files import durable
from mtl_prep.curate.manifest import Shard
from mtl_prep.journal import Journal

LEVEL = 3  # zstandard's
PIECE = 1 << 20  # bytes unpacked at a time


@dataclass(frozen=True)
class Part:
    """Bytes of what stays of a unit; records that begin in them are meant."""

    unit: str
    start: int
    stop: int


@dataclass(frozen=True)
class Pack:
    """One shard."""

    number: int
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Packing:
    """What every process needs to know to write shards."""

    out: Path
    cleaned: Path

    def worker(self) -> "Packer":
        """One process's means to do it."""
        return Packer(self)


def shard_name(number: int) -> str:
    """The name of a shard, without suffix."""
    return f"shard-{number:05d}"


def cut(units: Sequence[tuple[str, int]], limit: int) -> list[Pack]:
    """Units with their bytes -> shards; a record belongs to the shard that it begins in.

    >>> [len(pack.parts) for pack in cut([("a", 5), ("b", 3), ("c", 9)], 10)]
    [3, 1]
    """
    packs: list[list[Part]] = []
    at = 0
    for name, size in units:
        done = 0
        while done < size:
            if at % limit == 0 and len(packs) == at // limit:
                packs.append([])
            step = min(size - done, limit - at % limit)
            packs[-1].append(Part(name, done, done + step))
            at, done = at + step, done + step
    return [Pack(number, tuple(parts)) for number, parts in enumerate(packs)]


def _next_line(piece: bytes, at: int, wanted: int) -> int | None:
    """Where the first line begins that does so at `wanted` or later, if a piece that stands at `at` tells."""
    if wanted == 0:
        return 0
    end = piece.find(b"\n", max(wanted - 1 - at, 0)) if wanted <= at + len(piece) else -1
    return None if end < 0 else at + end + 1


def records_in(pieces: Iterable[bytes], start: int, stop: int) -> Iterator[bytes]:
    r"""The lines that begin at start or later, and before stop, as they come in pieces.

    >>> list(records_in([b"ab\nc", b"d\nef\n"], 1, 6))
    [b'c', b'd\n']
    """
    at, first, last = 0, None, None
    for piece in pieces:
        first = _next_line(piece, at, start) if first is None else first
        last = _next_line(piece, at, stop)
        if first is not None:
            yield piece[max(first - at, 0) : None if last is None else last - at]
        if last is not None:
            return
        at += len(piece)


class Packer:
    """Writes shards in one process."""

    def __init__(self, job: Packing) -> None:
        self._job, self._journal = job, Journal(job.cleaned)

    def run(self, task: Pack) -> Iterator[int]:
        """Writes a shard and notes it; yields the bytes of JSON that it holds."""
        name = shard_name(task.number)
        path = self._job.out / f"{name}.jsonl.zst"
        size = records = 0
        with durable(path) as file:
            packer = zstandard.ZstdCompressor(level=LEVEL, write_checksum=True)
            with packer.stream_writer(file, closefd=False) as packed:
                for part in task.parts:
                    for lines in self._records(part):
                        packed.write(lines)
                        size, records = size + len(lines), records + lines.count(b"\n")
        digest = content_hash(path)
        shard = Shard(file=path.name, records=records, json_bytes=size, size=path.stat().st_size, xxh3=digest)
        self._journal.write(name, shard.model_dump())
        yield size

    def _records(self, part: Part) -> Iterator[bytes]:
        with kept_path(self._job.cleaned, part.unit).open("rb") as file:
            content = zstandard.ZstdDecompressor().stream_reader(file)
            pieces = iter(lambda: content.read(PIECE), b"")
            yield from records_in(pieces, part.start, part.stop)

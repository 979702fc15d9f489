"""How work is cut: a corpus into units, and the units' documents into shards."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from mtl_common.bins import ShardView
from mtl_prep.corpus import Source
from mtl_prep.journal import Journal
from mtl_prep.tally import Unit
from mtl_prep.units import Hash, Lines, ReadTask, Texts, end_name, hash_name, unit_name
from mtl_prep.work import Pack, Span

RUN_FILES = 4096  # small texts in one unit at most


def _packed(journal: Journal, i: int, stripes: int) -> Iterator[ReadTask]:
    """Shares of one packed file; each process that takes one reads through the whole file."""
    if journal.has(end_name(i)):
        parts = range(journal.read(end_name(i))["parts"])
        if all(journal.has(unit_name(i, part)) for part in parts):
            return
    yield from (Lines(i, stripe, stripes) for stripe in range(stripes))


def _plain(journal: Journal, i: int, parts: int) -> Iterator[ReadTask]:
    yield from (Lines(i, part, parts) for part in range(parts) if not journal.has(unit_name(i, part)))


def _line_tasks(
    journal: Journal, sources: Sequence[Source], workers: int, part_bytes: int
) -> Iterator[ReadTask]:
    total = sum(source.size for source in sources) or 1
    for i, source in enumerate(sources):
        if source.kind == "lines":
            # as many processes as the file's share of the corpus is worth
            stripes = max(1, -(-workers * source.size // total))
            parts = -(-source.size // part_bytes)
            yield from _packed(journal, i, stripes) if source.packing else _plain(journal, i, parts)
            if not journal.has(hash_name(i)):
                yield Hash(i)


def _text_runs(sources: Sequence[Source], part_bytes: int) -> Iterator[Texts]:
    """Neighbouring texts together, up to the size of a unit."""
    first, size = -1, 0
    for i, source in enumerate(sources):
        if first >= 0 and (source.kind != "text" or size >= part_bytes or i - first >= RUN_FILES):
            yield Texts(first, i)
            first, size = -1, 0
        if source.kind == "text":
            first, size = (i if first < 0 else first), size + source.size
    if first >= 0:
        yield Texts(first, len(sources))


def unit_tasks(journal: Journal, sources: Sequence[Source], workers: int, part_bytes: int) -> list[ReadTask]:
    """What is left to do of the units, the longest tasks first."""
    runs = _text_runs(sources, part_bytes)
    texts = (run for run in runs if not journal.has(unit_name(run.first, 0)))
    return [*_line_tasks(journal, sources, workers, part_bytes), *texts]


def pack_tasks(units: Iterable[Unit], work: Path, dtype: str, limit: int) -> list[Pack]:
    """Cuts the documents of all units into shards of at most `limit` tokens; a longer one stands alone."""
    shards: list[list[Span]] = [[]]
    room = limit
    for unit in units:
        first, count = 0, unit.shard.documents
        offsets = ShardView(work / unit.shard.file, unit.shard, dtype, shuffled=False).offsets
        while first < count:
            fitting = int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            last = max(fitting, first if shards[-1] else first + 1)
            if last > first:
                shards[-1].append(Span(unit.name, first, last, unit.line))
                room -= int(offsets[last] - offsets[first])
            if last < count:
                shards.append([])
                room = limit
            first = last
    return [Pack(number, tuple(spans)) for number, spans in enumerate(filter(None, shards))]

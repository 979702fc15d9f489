"""How work is cut: a corpus into tasks for one process or many, and the units' documents into shards."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtl_prep.corpus.find import Source
from mtl_prep.corpus.units import Chunk, Hash, Reading, ReadTask, Stripe, Texts, is_done, parts_of
from mtl_prep.journal import Journal
from mtl_prep.running.pieces import Span
from mtl_prep.running.shares import Share
from mtl_prep.running.tally import Unit
from mtl_prep.running.work import Pack

RUN_FILES = 4096  # small texts in one unit at most
HASHED_FASTER = 8  # a file is hashed so many times faster than it is read

Weighed = tuple[ReadTask, int]  # a task, and about how many bytes of reading it is worth


def _pieces(size: int, piece: int) -> int:
    return -(-size // piece)


def _chunks(reading: Reading, shares: int) -> Iterator[Weighed]:
    total = sum(source.size for source in reading.sources)
    for i, source in enumerate(reading.sources):
        if source.kind == "text":
            continue
        parts = parts_of(i, reading)
        if parts is None:
            # whoever takes a stripe of such a file reads through the whole of it
            stripes = max(_pieces(source.size, max(total // shares, 1)), 1)
            yield from ((Stripe(i, stripe, stripes), source.size // stripes) for stripe in range(stripes))
        else:
            yield from ((Chunk(i, part), source.size // parts) for part in range(parts))
        if not source.is_remote:
            yield Hash(i), source.size // HASHED_FASTER


def _text_runs(sources: Sequence[Source], part_bytes: int) -> Iterator[Weighed]:
    """Neighbouring texts together, up to the size of a unit."""
    first, size = -1, 0
    for i, source in enumerate(sources):
        if first >= 0 and (source.kind != "text" or size >= part_bytes or i - first >= RUN_FILES):
            yield Texts(first, i), size
            first, size = -1, 0
        if source.kind == "text":
            first, size = (i if first < 0 else first), size + source.size
    if first >= 0:
        yield Texts(first, len(sources)), size


def _all(reading: Reading, shares: int) -> Iterator[Weighed]:
    yield from _chunks(reading, shares)
    yield from _text_runs(reading.sources, reading.part_bytes)


def _dealt(tasks: Iterable[Weighed], shares: int) -> Iterator[tuple[int, Weighed]]:
    """Gives every task to the share that has least so far; depends on nothing else."""
    loads = [(0, number) for number in range(1, shares + 1)]
    for task, size in tasks:
        load, number = loads[0]
        yield number, (task, size)
        heapq.heapreplace(loads, (load + size, number))


def _split(task: ReadTask, pieces: int) -> Iterator[ReadTask]:
    """A stripe of a file as several; other tasks as they are."""
    if isinstance(task, Stripe):
        for piece in range(pieces):
            yield Stripe(task.source, task.stripe + piece * task.stripes, pieces * task.stripes)
    else:
        yield task


def unit_tasks(journal: Journal, reading: Reading, readers: int, share: Share) -> tuple[list[ReadTask], int]:
    """What is left to do of a share of the units, and the bytes of the whole share.

    Up to so many `readers` each read through a file that is read from its start, for stripes of it.
    Shares are disjoint, all together they are the corpus, and they depend on it and their number alone.
    """
    dealt = _dealt(_all(reading, share.of), share.of)
    mine = [(task, size) for number, (task, size) in dealt if number == share.number]
    total = sum(size for task, size in mine if not isinstance(task, Hash))
    # as many processes for a file that is read from its start as it is worth of the work
    pieces = ((task, max(1, _pieces(readers * size, max(total, 1)))) for task, size in mine)
    split = (part for task, count in pieces for part in _split(task, count))
    left = [task for task in split if not is_done(task, journal)]
    # who reads such a file has work for the others, so it is begun first
    return sorted(left, key=lambda task: not isinstance(task, Stripe)), total


def left_by_share(journal: Journal, reading: Reading, shares: int) -> Counter[int]:
    """How many tasks are left to do of each share; a share that is done is not there."""
    dealt = _dealt(_all(reading, shares), shares)
    return Counter(number for number, (task, _) in dealt if not is_done(task, journal))


def pack_tasks(
    units: Iterable[Unit], limit: int, offsets_of: Callable[[Unit], NDArray[np.int64]]
) -> list[Pack]:
    """Cuts the documents of all units into shards of at most `limit` tokens; a longer one stands alone.

    `offsets_of` gives a unit's (documents + 1,) offsets; it is asked only about units that are cut.
    """
    shards: list[list[Span]] = [[]]
    room = limit
    for unit in units:
        whole = unit.tokens <= room
        offsets = np.array([0, unit.tokens]) if whole else offsets_of(unit)
        first, count = 0, unit.documents
        while first < count:
            fitting = count if whole else int(np.searchsorted(offsets, offsets[first] + room, "right")) - 1
            last = max(fitting, first if shards[-1] else first + 1)
            if last > first:
                shards[-1].append(Span(unit.name, first, last, unit.line))
                room -= unit.tokens if whole else int(offsets[last] - offsets[first])
            if last < count:
                shards.append([])
                room = limit
            first = last
    return [Pack(number, tuple(spans)) for number, spans in enumerate(filter(None, shards))]

"""How work is cut: a corpus into tasks for one process or many, and the units' documents into shards."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from mtl_prep.corpus.find import Source, text_size
from mtl_prep.corpus.units import Chunk, Files, Hash, Reading, ReadTask, Stripe, is_done, parts_of
from mtl_prep.journal import Journal
from mtl_prep.running.pieces import Span
from mtl_prep.running.shares import Share
from mtl_prep.running.tally import Unit
from mtl_prep.running.work import Pack

RUN_FILES = 4096  # small files in one unit at most
SMALL = 4  # files of up to such a part of a unit share one
HASHED_FASTER = 8  # a file is hashed so many times faster than it is read

Weighed = tuple[ReadTask, int]  # a task, and about how many bytes of reading it is worth


def _pieces(size: int, piece: int) -> int:
    return -(-size // piece)


def _tasks(source: int, parts: int | None, reading: Reading, stripe_bytes: int) -> Iterator[Weighed]:
    """The tasks of one file of so many parts, or None."""
    size = reading.sources[source].size
    if parts is None:
        # whoever takes a stripe of such a file reads through the whole of it
        stripes = max(_pieces(size, stripe_bytes), 1)
        yield from ((Stripe(source, stripe, stripes), size // stripes) for stripe in range(stripes))
    else:
        yield from ((Chunk(source, part), size // parts) for part in range(parts))
    if not reading.sources[source].is_remote:
        yield Hash(source), size // HASHED_FASTER


def _files(first: int, last: int, sources: Sequence[Source]) -> Weighed:
    return Files(first, last), sum(source.size for source in sources[first:last])


def _all(reading: Reading, shares: int) -> Iterator[Weighed]:
    """The tasks of a corpus: neighbouring small files together, up to the size of a unit."""
    sources = reading.sources
    stripe_bytes = max(sum(source.size for source in sources) // shares, 1)
    first, held = 0, 0  # small files from `first` up to here, and about how much text they hold
    for i, source in enumerate(sources):
        is_text = source.kind == "text"
        text = text_size([source])
        parts = 1 if is_text else parts_of(i, reading)
        is_small = is_text or (parts in (None, 0, 1) and text <= reading.part_bytes // SMALL)
        if first < i and (not is_small or held >= reading.part_bytes or i - first >= RUN_FILES):
            yield _files(first, i, sources)
            first, held = i, 0
        if is_small:
            held += text
        else:
            yield from _tasks(i, parts, reading, stripe_bytes)
            first = i + 1
    if first < len(sources):
        yield _files(first, len(sources), sources)


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

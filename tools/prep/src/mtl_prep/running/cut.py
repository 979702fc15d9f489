"""How a corpus is cut into tasks of reading, and the tasks are dealt out to the shares of an array job."""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from mtl_prep.corpus.source import Source, text_size
from mtl_prep.corpus.units import Chunk, Files, Hash, Reading, ReadTask, Stripe, is_done, parts_of
from mtl_prep.journal import Journal
from mtl_prep.running.shares import Share

RUN_FILES = 4096  # small files in one unit at most
SMALL = 4  # files of up to such a part of a unit share one
HASHED_FASTER = 8  # a file is hashed so many times faster than it is read

Weighed = tuple[ReadTask, int]  # a task, and how many bytes of the corpus it is worth


def _pieces(size: int, piece: int) -> int:
    return -(-size // piece)


def _even(size: int, pieces: int) -> Iterator[int]:
    """The sizes of so many even pieces; they add up."""
    return (size * (n + 1) // pieces - size * n // pieces for n in range(pieces))


def _tasks(source: int, parts: int | None, reading: Reading, stripe_bytes: int) -> Iterator[Weighed]:
    """The tasks of one file of so many parts, or None."""
    size = reading.sources[source].size
    if parts is None:
        # whoever takes a stripe of such a file reads through the whole of it
        stripes = max(_pieces(size, stripe_bytes), 1)
        yield from zip(
            (Stripe(source, n, stripes) for n in range(stripes)), _even(size, stripes), strict=True
        )
    else:
        yield from zip((Chunk(source, n) for n in range(parts)), _even(size, parts), strict=True)
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


def tasks_of(reading: Reading, share: Share) -> list[Weighed]:
    """The tasks of a share; shares are disjoint and together the corpus, and depend on nothing else."""
    dealt = _dealt(_all(reading, share.of), share.of)
    return [weighed for number, weighed in dealt if number == share.number]


def left_by_share(journal: Journal, reading: Reading, shares: int) -> Counter[int]:
    """How many tasks are left to do of each share; a share that is done is not there."""
    dealt = _dealt(_all(reading, shares), shares)
    return Counter(number for number, (task, _) in dealt if not is_done(task, journal))

"""What is left to read of a corpus, or of a share of it, and how far the reading has come."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mtl_common.log import progress
from mtl_prep.corpus.units import Chunk, Files, Hash, Reading, ReadTask, Stripe, is_done, unit_place
from mtl_prep.journal import Journal
from mtl_prep.running.cut import tasks_of
from mtl_prep.running.shares import Share


@dataclass(frozen=True)
class Left:
    """The tasks that are left of a share; the share's bytes, and those of them that were done before."""

    tasks: list[ReadTask]
    size: int
    done: int


class _Noted:
    """How many bytes the noted units stand for."""

    def __init__(self, journal: Journal) -> None:
        self._units = defaultdict[int, list[tuple[int, int, int]]](list)  # source -> (part, block, size)
        for name in journal.names("unit-"):
            source, part, block = unit_place(name)
            self._units[source].append((part, block, journal.read(name)["size"]))

    def size_of(self, task: ReadTask) -> int:
        """Those of one task."""
        if isinstance(task, Files):
            found = (
                units for source in range(task.first, task.last) for units in self._units.get(source, ())
            )
            return sum(size for _, _, size in found)
        if isinstance(task, Stripe):
            blocks = self._units.get(task.source, ())
            return sum(size for _, block, size in blocks if block % task.stripes == task.stripe)
        if isinstance(task, Chunk):
            return sum(size for part, _, size in self._units.get(task.source, ()) if part == task.part)
        return 0


def _split(task: ReadTask, pieces: int) -> Iterator[ReadTask]:
    """A stripe of a file as several; other tasks as they are."""
    if isinstance(task, Stripe):
        for piece in range(pieces):
            yield Stripe(task.source, task.stripe + piece * task.stripes, pieces * task.stripes)
    else:
        yield task


def left_of(journal: Journal, reading: Reading, readers: int, share: Share) -> Left:
    """What the journal does not know yet of a share.

    Up to so many `readers` each read through a file that is read from its start, for stripes of it.
    """
    tasks, noted = tasks_of(reading, share), _Noted(journal)
    units = [(task, size) for task, size in tasks if not isinstance(task, Hash)]
    total = sum(size for _, size in units)
    done = sum(size if is_done(task, journal) else min(size, noted.size_of(task)) for task, size in units)
    # as many processes for a file that is read from its start as it is worth of the work
    pieces = ((task, max(1, -(-readers * size // max(total, 1)))) for task, size in tasks)
    split = (part for task, count in pieces for part in _split(task, count))
    left = [task for task in split if not is_done(task, journal)]
    # who reads such a file has work for the others, so it is begun first
    return Left(sorted(left, key=lambda task: not isinstance(task, Stripe)), total, done)


@contextmanager
def shown(what: str, left: Left) -> Iterator[Callable[..., None]]:
    """Shows the work inside the `with`: each call tells an amount, and perhaps a note.

    Units are worth about what they say, but it ends at the whole.
    """
    with progress(what, left.size, "bytes", done=left.done) as bar:

        def advance(amount: int, note: str | None = None) -> None:
            bar.advance(min(amount, bar.total - bar.done), note)

        yield advance
        advance(bar.total - bar.done)

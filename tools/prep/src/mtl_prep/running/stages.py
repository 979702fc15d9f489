"""What all stages of a run have in common: pieces of work that are done once, by whatever runs them."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from mtl_common.bins import Shard
from mtl_common.errors import DataError
from mtl_common.log import Progress
from mtl_prep.journal import Journal
from mtl_prep.running.runners import Runner
from mtl_prep.running.work import Job, Task

LATE = (
    90.0  # seconds after which a file server shows what other machines wrote; NFS remembers listings for 60
)

Piece = TypeVar("Piece")


def catch_up(journal: Journal, pieces: Sequence[Piece], is_done: Callable[[Piece], bool]) -> None:
    """Takes in what all processes noted of pieces of work that they have done.

    Raises DataError when some notes cannot be seen: without them documents would be missing.
    """
    until = time.monotonic() + LATE
    journal.refresh()
    while unseen := sum(not is_done(piece) for piece in pieces):
        if time.monotonic() > until:
            raise DataError(
                f"notes of {unseen:,} finished pieces of work are not to be seen in {journal.directory}; "
                "see whether all machines write there, and run again to continue"
            )
        time.sleep(1)
        journal.refresh()


def forget_lost(journal: Journal, start: str, is_there: Callable[[str], bool]) -> None:
    """Makes work undone whose file is gone or cut, as after a loss of power."""
    for name in journal.names(start):
        if not is_there(name):
            journal.forget(name)


def do_all(
    job: Job, journal: Journal, tasks: Sequence[tuple[str, Task]], runner: Runner, shown: Progress
) -> list[Shard]:
    """Does the named tasks that the journal does not know; gives the shard files of all."""
    for name, _ in tasks:
        if journal.has(name):
            shown.advance(journal.read(name)["shard"]["tokens"])
    for step in runner.run(job, [task for name, task in tasks if not journal.has(name)]):
        shown.advance(step.amount)
    catch_up(journal, [name for name, _ in tasks], journal.has)
    return [Shard.model_validate(journal.read(name)["shard"]) for name, _ in tasks]

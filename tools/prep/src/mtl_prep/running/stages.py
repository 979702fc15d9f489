"""What all stages of a run have in common: pieces of work that are done once, by whatever runs them."""

from collections.abc import Callable, Sequence

from mtl_common.bins import Shard
from mtl_common.log import Progress
from mtl_prep.journal import Journal
from mtl_prep.running.runners import Runner
from mtl_prep.running.work import Job, Task


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
    journal.refresh()
    return [Shard.model_validate(journal.read(name)["shard"]) for name, _ in tasks]

"""A corpus cleaned by the tasks of an array job, on machines that share its files.

Each task reads and judges its share; `finish_shares` compares the documents of all, and writes what stays.
"""

import shutil
from collections import Counter
from pathlib import Path

from mtl_prep.corpus.cleaned import MANIFEST
from mtl_prep.corpus.find import Corpus
from mtl_prep.curate.manifest import read_manifest
from mtl_prep.curate.request import Outcome, Part, Request
from mtl_prep.curate.run import curating
from mtl_prep.journal import Journal
from mtl_prep.running.pieces import WORK
from mtl_prep.running.plan import asked_before, begun, decided
from mtl_prep.running.shares import Share
from mtl_prep.running.tasks import check_complete, check_directory, note_task

COMMAND = "mtl-prep curate"


def curate_share(request: Request, share: Share) -> Part:
    """Does one task of an array job. Raises like `curate`."""
    with curating(request) as work:
        if work.already():
            return Part(share, 0, 0)
        work.check_steps()
        with begun(request.out, share) as journal:
            decided(request.out, work.plan)  # refuses another request before anything is noted
            work.begin()
            note_task(journal, share)
            return work.examine(share)


def _asked(out: Path, workers: int, max_bad: str | None) -> Request:
    """The request that an unfinished run was begun with."""
    saved = asked_before(out)["request"]
    check_directory(out, saved)
    corpus, recipe, _ = (saved.pop(name) for name in ("corpus", "recipe", "directory"))
    saved["max_bad"] = max_bad or saved["max_bad"]
    return Request(Path(recipe), corpus, out, workers, **saved)


def finish_shares(out: Path, workers: int, max_bad: str | None) -> tuple[Outcome, Request]:
    """Ends what the tasks of an array job did, with the same bytes as without tasks.

    Raises UsageError when none was begun or one is running, DataError when some are not done.
    """
    if (out / MANIFEST).exists():
        shutil.rmtree(out / WORK, ignore_errors=True)
        outcome = Outcome(read_manifest(out), Corpus((), Counter()), already=True)
        return outcome, Request(Path(), (), out, workers)
    request = _asked(out, workers, max_bad)
    with curating(request) as work, begun(out, Share()) as journal:
        work.begin()
        check_complete(out, journal, Journal(work.examined), work.reading, COMMAND)
        return work.finish(work.check()), request

"""A corpus tokenized as the tasks of an array job, on machines that share its files."""

import os
import shutil
from collections import Counter
from pathlib import Path

from mtl_common import bins
from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import load
from mtl_prep.corpus.find import Corpus
from mtl_prep.corpus.places import is_anywhere
from mtl_prep.corpus.units import Reading
from mtl_prep.journal import Journal
from mtl_prep.running.cut import left_by_share
from mtl_prep.running.pieces import WORK, Pieces
from mtl_prep.running.plan import asked_before, begun, decided
from mtl_prep.running.shares import Share, ranges
from mtl_prep.running.stages import forget_lost
from mtl_prep.running.tokenize import Outcome, Part, Request, tokenizing

ARRAY = "array-"  # how notes of the number of tasks begin


def tokenize_share(request: Request, share: Share) -> Part:
    """Does one task of an array job; `finish_shares` makes bins when all are done. Raises like `tokenize`."""
    with tokenizing(request) as work:
        if work.already():
            return Part(share, 0, 0, 0)
        with begun(request.out, share) as journal:
            decided(request.out, work.plan)  # refuses another request before anything is noted
            if not journal.has(f"{ARRAY}{share.of}"):
                journal.write(f"{ARRAY}{share.of}", {})
            return work.make_units(journal, share)[0]


def _asked(out: Path, workers: int, max_bad: str | None) -> Request:
    """The request that an unfinished run was begun with."""
    saved = asked_before(out)["request"]
    corpus, directory = saved.pop("corpus"), saved.pop("directory")
    if directory != os.getcwd() and not all(map(is_anywhere, corpus)):
        raise UsageError(
            f"{out} was begun in {directory}, and its corpus is named from there; go there first"
        )
    saved["max_bad"] = max_bad or saved["max_bad"]
    return Request(corpus, out / bins.TOKENIZER, out, workers, **saved)


def _check_complete(out: Path, journal: Journal, reading: Reading) -> None:
    """Raises DataError that names the tasks with units left to do."""
    counts = [int(name.removeprefix(ARRAY)) for name in journal.names(ARRAY)] or [1]
    found = {of: left_by_share(journal, reading, of) for of in counts}
    of, left = min(found.items(), key=lambda item: len(item[1]))
    if left and of == 1:
        raise DataError(f"{left.total():,} units of {out} are not done; run the same mtl-prep tokenize again")
    if left:
        raise DataError(
            f"task {ranges(left)} of {of} of {out} is not done, {left.total():,} units are left; "
            f"run mtl-prep tokenize with --task {min(left)}/{of} and so on, then mtl-prep finish again"
        )


def finish_shares(out: Path, workers: int, max_bad: str | None) -> tuple[Outcome, Request]:
    """Makes bins of what the tasks of an array job did, the same as without tasks.

    Raises UsageError when none was begun or one is running, DataError when some are not done.
    """
    if (out / bins.MANIFEST).exists():
        shutil.rmtree(out / WORK, ignore_errors=True)
        tokenizer, nothing = load(out / bins.TOKENIZER), Corpus((), Counter())
        outcome = Outcome(bins.read_manifest(out), nothing, tokenizer, already=True)
        return outcome, Request((), out / bins.TOKENIZER, out, workers)
    request = _asked(out, workers, max_bad)
    with tokenizing(request) as work, begun(out, Share()) as journal:
        job = work.begin(journal)
        forget_lost(journal, "unit-", Pieces(out, job.dtype, journal).is_there)
        _check_complete(out, journal, job.reading)
        return work.finish(job, journal), request

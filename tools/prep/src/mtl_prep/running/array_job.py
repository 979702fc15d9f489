"""A corpus tokenized as the tasks of an array job, on machines that share its files."""

import shutil
from collections import Counter
from pathlib import Path

from mtl_common import bins
from mtl_common.tokenizers import load
from mtl_prep.corpus.find import Corpus
from mtl_prep.running.pieces import WORK, Pieces
from mtl_prep.running.plan import asked_before, begun, decided
from mtl_prep.running.shares import Share
from mtl_prep.running.stages import forget_lost
from mtl_prep.running.tasks import check_complete, check_directory, note_task
from mtl_prep.running.tokenize import Outcome, Part, Request, tokenizing


def tokenize_share(request: Request, share: Share) -> Part:
    """Does one task of an array job; `finish_shares` makes bins when all are done. Raises like `tokenize`."""
    with tokenizing(request) as work:
        if work.already():
            return Part(share, 0, 0, 0)
        with begun(request.out, share) as journal:
            decided(request.out, work.plan)  # refuses another request before anything is noted
            note_task(journal, share)
            return work.make_units(journal, share)[0]


def _asked(out: Path, workers: int, max_bad: str | None) -> Request:
    """The request that an unfinished run was begun with."""
    saved = asked_before(out)["request"]
    check_directory(out, saved)
    corpus, _ = saved.pop("corpus"), saved.pop("directory")
    saved["max_bad"] = max_bad or saved["max_bad"]
    return Request(corpus, out / bins.TOKENIZER, out, workers, **saved)


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
        check_complete(out, journal, journal, job.reading, "mtl-prep tokenize")
        return work.finish(job, journal), request

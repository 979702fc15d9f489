"""What an unfinished run knows of the tasks of an array job: how many there are, and which are not done."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.places import is_anywhere
from mtl_prep.corpus.units import Reading
from mtl_prep.journal import Journal
from mtl_prep.running.cut import left_by_share
from mtl_prep.running.shares import Share, ranges

ARRAY = "array-"  # how notes of the number of tasks begin


def note_task(journal: Journal, share: Share) -> None:
    """Notes of how many tasks one is."""
    if not journal.has(f"{ARRAY}{share.of}"):
        journal.write(f"{ARRAY}{share.of}", {})


def check_directory(out: Path, request: Mapping[str, Any]) -> None:
    """Raises UsageError when the corpus of a request was named from another working directory."""
    corpus, directory = request["corpus"], request["directory"]
    if directory != os.getcwd() and not all(map(is_anywhere, corpus)):
        raise UsageError(
            f"{out} was begun in {directory}, and its corpus is named from there; go there first"
        )


def check_complete(out: Path, journal: Journal, work: Journal, reading: Reading, command: str) -> None:
    """Raises DataError that names the tasks with units left to do, and the command that does them.

    `journal` has the notes of the run, `work` those of the units.
    """
    counts = [int(name.removeprefix(ARRAY)) for name in journal.names(ARRAY)] or [1]
    found = {of: left_by_share(work, reading, of) for of in counts}
    of, left = min(found.items(), key=lambda item: len(item[1]))
    if left and of == 1:
        raise DataError(f"{left.total():,} units of {out} are not done; run the same {command} again")
    if left:
        raise DataError(
            f"task {ranges(left)} of {of} of {out} is not done, {left.total():,} units are left; "
            f"run {command} with --task {min(left)}/{of} and so on, then mtl-prep finish again"
        )

"""Standard input as a file: it is written down before it is read, so that a run can go on after a stop.

A run that goes on is given the same input again, or none; other input is refused.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from mtl_common.bins import MANIFEST
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.find import STDIN, Corpus, find
from mtl_prep.corpus.kinds import Split
from mtl_prep.running.pieces import WORK
from mtl_prep.running.plan import check_place

NAME = "stdin"
PIECE = 1 << 20


def _same(path: Path, begun: bytes, rest: BinaryIO) -> bool:
    with path.open("rb") as file:
        if file.read(len(begun)) != begun:
            return False
        while piece := rest.read(PIECE):
            if file.read(len(piece)) != piece:
                return False
        return not file.read(1)


def _write(path: Path, begun: bytes, rest: BinaryIO) -> None:
    staged = path.with_name(f".{NAME}.tmp")
    with staged.open("wb") as file:
        file.write(begun)
        shutil.copyfileobj(rest, file, PIECE)
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, path)


def taken_in(corpus: Sequence[str | Path], directory: Path, *, anew: bool = False) -> Path | None:
    """The file in `directory` with the standard input, if the corpus names it: of this or an earlier run.

    With `anew` an earlier one does not count. Raises DataError for no input, UsageError for another one.
    """
    if STDIN not in map(str, corpus):
        return None
    directory.mkdir(parents=True, exist_ok=True)
    path, given = directory / NAME, sys.stdin.buffer
    there = path.exists() and not anew
    begun = b"" if there and sys.stdin.isatty() else given.read(PIECE)
    if there and begun and not _same(path, begun, given):
        raise UsageError(
            f"standard input is not that of the earlier run, see {path}; give the same, or another --out"
        )
    if not there and not begun:
        raise DataError("standard input is empty; pipe a corpus into it, or name files")
    if not there:
        _write(path, begun, given)
    return path


def found(corpus: Sequence[str | Path], split: Split, out: Path) -> Corpus:
    """The files of a corpus that `out` is made of; standard input is kept in it until it is finished.

    Raises DataError for files that cannot be read, UsageError where `out` holds something else.
    """
    finished = (out / MANIFEST).exists()
    if STDIN in map(str, corpus) and not finished:
        check_place(out)
    return find(corpus, split, taken_in(corpus, out / WORK, anew=finished))

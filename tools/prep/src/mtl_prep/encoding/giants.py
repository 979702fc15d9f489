"""One long document, in the memory of a piece of it: its ids are those of the text as a whole.

A tokenizer first cuts text into words, so a text may be cut between words and its parts encoded one by one.
Where words end depends on the tokenizer: places that look like the end of a word are tried, and one is taken
when the text around it has the same ids whole as in two parts.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import SHARD_TOKENS, Batch
from mtl_common.errors import DataError
from mtl_common.tokenizers import Tokenizer
from mtl_prep.corpus.records import EMPTY, NOT_ENCODABLE, BadRecordError

FEED = 1 << 22  # characters encoded at a time; libraries are fastest from one to eight million
UNCUT = 1 << 24  # characters without a place to cut that are still encoded as one, in up to a gigabyte
AROUND = 512  # characters on each side of a cut that show whether it changes ids
UNCUTTABLE = f"longer than {UNCUT:,} characters with no place to cut"
TOO_LONG = f"longer than {SHARD_TOKENS:,} tokens"
TRIED = 32  # places in one feed
WORD_END = re.compile(r"(?<=[^\W\d_])(?=[ \n][^\W\d_])")
OTHER_END = re.compile(r"(?<=[^\W\d_])(?=[^\w\s])|(?<=\S)(?=\n\S)")

Ids = NDArray[np.uint32]


def _ids(tokenizer: Tokenizer, text: str) -> Ids:
    try:
        return tokenizer.encode_batch([text])[0]
    except DataError:
        raise BadRecordError(NOT_ENCODABLE) from None


def _holds(tokenizer: Tokenizer, text: str, end: int, start: int) -> bool:
    """Whether cutting `text` into `text[:end]` and `text[start:]` leaves the ids around the cut alone."""
    low, high = max(end - AROUND, 0), start + AROUND
    parts = np.concatenate([_ids(tokenizer, text[low:end]), _ids(tokenizer, text[start:high])])
    return np.array_equal(parts, _ids(tokenizer, text[low:high]))


def _places(text: str) -> Iterator[int]:
    """Places near the end of a text where a word may end, the likeliest first."""
    last = len(text) - AROUND
    for pattern in (WORD_END, OTHER_END):
        size, first, found = AROUND, last, list[int]()
        while not found and first > 1:
            size *= TRIED
            first = max(last - size, 1)
            found = [place.start() for place in pattern.finditer(text, first, last)]
        yield from reversed(found[-TRIED:])


def _cut(tokenizer: Tokenizer, text: str) -> tuple[int, int] | None:
    """Where the first part of a text ends and the next begins; None when no place can be found.

    A tokenizer that puts a space before every text gets the second part without its own.
    """
    for place in _places(text):
        for start in (place, place + 1) if text[place] == " " else (place,):
            if _holds(tokenizer, text, place, start):
                return place, start
    return None


def streamed(tokenizer: Tokenizer, pieces: Iterable[str], feed: int = FEED) -> Iterator[Ids]:
    """The ids of the text that `pieces` make up, a feed of about `feed` characters at a time.

    Raises BadRecordError for more than UNCUT characters in which no place to cut is found, and for what the
    library cannot encode.
    """
    waiting, wanted = "", feed
    for piece in pieces:
        waiting += piece
        while len(waiting) >= wanted:
            found = _cut(tokenizer, waiting[:wanted])
            if found:
                yield _ids(tokenizer, waiting[: found[0]])
                waiting, wanted = waiting[found[1] :], feed
            elif wanted >= UNCUT:
                raise BadRecordError(UNCUTTABLE)
            else:
                wanted *= 2
    yield _ids(tokenizer, waiting)


@contextmanager
def stored(
    feeds: Iterable[Ids], place: tuple[int, int], eod: int, dtype: str, directory: Path
) -> Iterator[Batch]:
    """One document as a batch whose ids lie in a nameless file of `directory` until the context ends.

    `place` is its source and record. Raises BadRecordError when there is no such document.
    """
    with tempfile.TemporaryFile(dir=directory) as file:
        count = 0
        for ids in feeds:
            file.write(ids.astype(dtype).data)
            count += len(ids)
            if count >= SHARD_TOKENS:
                raise BadRecordError(TOO_LONG)
        if not count:
            raise BadRecordError(EMPTY)
        file.write(np.array([eod], dtype).data)
        file.flush()
        whole = np.memmap(file, dtype, "r")
        source, record = place
        yield Batch(
            whole, np.array([0, len(whole)]), np.array([source], np.uint32), np.array([record], np.uint64)
        )


def long_document(
    tokenizer: Tokenizer, pieces: Iterable[str], place: tuple[int, int], eod: int, dtype: str, directory: Path
) -> AbstractContextManager[Batch]:
    """One document of text that comes in pieces; see `stored`."""
    return stored(streamed(tokenizer, pieces), place, eod, dtype, directory)

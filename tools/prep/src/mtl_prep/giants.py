"""The ids of one long text that comes in pieces, in the memory of a piece: those of the text as a whole.

A tokenizer first cuts text into words, so a text may be cut between words and its parts encoded one by one.
Where words end depends on the tokenizer: places that look like the end of a word are tried, and one is taken
when the text around it has the same ids whole as in two parts.
"""

import re
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from mtl_common.tokenizers import Tokenizer

FEED = 1 << 22  # characters encoded at a time; libraries are fastest from one to eight million
UNCUT = 1 << 24  # characters without a place to cut that are still encoded as one, in up to a gigabyte
AROUND = 512  # characters on each side of a cut that show whether it changes ids
TRIED = 32  # places in one feed
WORD_END = re.compile(r"(?<=[^\W\d_])(?=[ \n][^\W\d_])")
OTHER_END = re.compile(r"(?<=[^\W\d_])(?=[^\w\s])|(?<=\S)(?=\n\S)")

Ids = NDArray[np.uint32]


class UncuttableError(Exception):
    """A text with a run of more than UNCUT characters that no tokenizer could be given in parts."""


def _ids(tokenizer: Tokenizer, text: str) -> Ids:
    return tokenizer.encode_batch([text])[0]


def _holds(tokenizer: Tokenizer, text: str, end: int, start: int) -> bool:
    """Whether cutting `text` into `text[:end]` and `text[start:]` leaves the ids around the cut alone."""
    low, high = max(end - AROUND, 0), start + AROUND
    parts = np.concatenate([_ids(tokenizer, text[low:end]), _ids(tokenizer, text[start:high])])
    return np.array_equal(parts, _ids(tokenizer, text[low:high]))


def _places(text: str) -> Iterator[int]:
    """Places near the end of a text where a word may end, the likeliest first."""
    for pattern in (WORD_END, OTHER_END):
        size = AROUND * TRIED
        while size < 4 * len(text):
            first = max(len(text) - size, 0)
            found = [place.start() for place in pattern.finditer(text, first + 1, len(text) - AROUND)]
            if found:
                yield from reversed(found[-TRIED:])
                break
            size *= 8


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

    Raises UncuttableError for more than UNCUT characters in which no place to cut is found, and what
    `encode_batch` raises.
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
                raise UncuttableError
            else:
                wanted *= 2
    yield _ids(tokenizer, waiting)

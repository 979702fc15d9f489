"""Some documents laid end to end, and views of all their words, lines and paragraphs at once.

Rules look at a batch through numpy arrays that are made once, when first asked for, and shared. A document
is followed by a line end that is not its own. "Characters" are code points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate import characters
from mtl_prep.curate.hashing import Hashes

Integers = NDArray[np.int64]
Mask = NDArray[np.bool_]
NEWLINE = 10


@dataclass(frozen=True)
class Spans:
    """Pieces of a batch in order, `start:stop` in characters, and where each document's pieces begin.

    starts, stops (pieces,); offsets (documents + 1,).
    """

    starts: Integers
    stops: Integers
    offsets: Integers

    @cached_property
    def lengths(self) -> Integers:
        """(pieces,) characters of each."""
        return self.stops - self.starts

    @cached_property
    def before(self) -> Integers:
        """(pieces + 1,) characters in all pieces before each."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @cached_property
    def counts(self) -> Integers:
        """(documents,) pieces of each."""
        return np.diff(self.offsets)

    @cached_property
    def document(self) -> Integers:
        """(pieces,) the document that each belongs to."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def where(self, mask: Mask) -> "Spans":
        """The pieces of a mask (pieces,)."""
        kept = np.concatenate([[0], np.cumsum(mask)])
        return Spans(self.starts[mask], self.stops[mask], kept[self.offsets])

    def sums(self, values: NDArray[Any]) -> Integers:
        """(pieces,) -> (documents,) the sum over each document's pieces."""
        total = np.concatenate([[0], np.cumsum(values, dtype=np.int64)])
        return np.diff(total[self.offsets])


class Batch:
    """The texts of some documents."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self.lengths = np.fromiter(map(len, texts), np.int64, len(texts))
        self.starts = np.concatenate([[0], np.cumsum(self.lengths + 1)])

    def __len__(self) -> int:
        return len(self.texts)

    @cached_property
    def codes(self) -> NDArray[np.uint32]:
        """(characters,) the code points of all documents, each document followed by a line end."""
        return np.frombuffer(("\n".join(self.texts) + "\n").encode("utf-32-le"), "<u4")

    @cached_property
    def kinds(self) -> NDArray[np.uint8]:
        """(characters,) the flags of `characters`."""
        return np.take(characters.kinds(), self.codes, mode="clip")

    @cached_property
    def small(self) -> NDArray[np.uint32]:
        """(characters,) the code points in small letters."""
        capitals = np.flatnonzero(self.has(characters.CAPITAL))
        small = self.codes.copy()
        small[capitals] = characters.lowered()[small[capitals]]
        return small

    @cached_property
    def plain(self) -> bytes:
        """The small letters as one byte a character, for `find` and patterns of bytes; 255 is any other."""
        return np.minimum(self.small, 255).astype(np.uint8).tobytes()

    def spans(self, starts: NDArray[Any], stops: NDArray[Any]) -> Spans:
        """Pieces in order, told by where they begin and end; none crosses from document to document."""
        return Spans(starts, stops, np.searchsorted(starts, self.starts))

    def per_document(self, positions: NDArray[Any]) -> Integers:
        """(n,) sorted positions -> (documents,) how many lie in each."""
        return np.diff(np.searchsorted(positions, self.starts))

    def has(self, flag: int) -> Mask:
        """(characters,) which are of a kind."""
        return np.asarray((self.kinds & np.uint8(flag)) != 0)

    @cached_property
    def words(self) -> Spans:
        """Runs between white space, as str.split gives them."""
        space = self.has(characters.SPACE)
        edges = np.flatnonzero(np.diff(space, prepend=True))  # the last character is a line end
        return self.spans(edges[0::2], edges[1::2])

    @cached_property
    def word_kinds(self) -> NDArray[np.uint8]:
        """(words,) the flags of all characters of each word together."""
        starts = self.words.starts
        return np.bitwise_or.reduceat(self.kinds, starts) if len(starts) else self.kinds[:0]

    @cached_property
    def terms(self) -> Spans:
        """Words as they are compared between documents: runs of letters and digits, ideographs one by one."""
        part, alone = self.has(characters.WORDLY), self.has(characters.ALONE)
        inside = _before(part)
        begins = part & (~inside | alone | _before(alone))
        return self.spans(np.flatnonzero(begins), np.flatnonzero(inside & (~part | begins)))

    @cached_property
    def lines(self) -> Spans:
        """What stands between line ends, empty lines too."""
        stops = np.flatnonzero(self.codes == NEWLINE)
        starts = np.concatenate([[0], stops[:-1] + 1])
        return self.spans(starts, stops)

    @cached_property
    def content(self) -> Spans:
        """The lines without the white space around them; those of white space alone are empty."""
        first, last = self._words_of_lines
        blank, words = first > last, self.words
        starts = np.where(blank, self.lines.stops, np.append(words.starts, 0)[first])
        stops = np.where(blank, self.lines.stops, np.append(words.stops, 0)[last])
        return Spans(starts, stops, self.lines.offsets)

    @cached_property
    def _words_of_lines(self) -> tuple[Integers, Integers]:
        """(lines,) the first and the last word of every line; first > last where there is none."""
        starts = self.words.starts
        return np.searchsorted(starts, self.lines.starts), np.searchsorted(starts, self.lines.stops) - 1

    @cached_property
    def words_a_line(self) -> Integers:
        """(lines,) how many words stand on each."""
        first, last = self._words_of_lines
        return last - first + 1

    @cached_property
    def paragraphs(self) -> Spans:
        """Runs of lines between empty lines, without white space around the whole document."""
        inner = self._inner_lines
        filled = inner.lengths > 0
        first = filled & ~(_before(filled) & (_before(inner.document, -1) == inner.document))
        last = filled & ~(_after(filled) & (_after(inner.document, -1) == inner.document))
        return self.spans(inner.starts[first], inner.stops[last])

    @cached_property
    def _inner_lines(self) -> Spans:
        """The lines from each document's first word to its last, cut to these."""
        lines, words = self.lines, self.words
        none = words.counts == 0
        at = np.append(words.starts, 0)[words.offsets[:-1]]
        end = np.append(words.stops, 0)[words.offsets[1:] - 1]
        low = np.where(none, self.starts[1:], at)[lines.document]
        high = np.where(none, self.starts[:-1], end)[lines.document]
        kept = (lines.stops >= low) & (lines.starts <= high)
        cut = Spans(np.maximum(lines.starts, low), np.minimum(lines.stops, high), lines.offsets)
        return cut.where(kept)

    @cached_property
    def hashes(self) -> Hashes:
        """Hashes of any piece, as it is written."""
        return Hashes(self.codes)

    @cached_property
    def word_hashes(self) -> NDArray[np.uint64]:
        """(words,) a hash of each word."""
        return self.hashes.of(self.words.starts, self.words.stops)

    @cached_property
    def term_hashes(self) -> NDArray[np.uint64]:
        """(terms,) a hash of each term in small letters."""
        return Hashes(self.small).of(self.terms.starts, self.terms.stops)


def _before(values: NDArray[Any], first: int = 0) -> NDArray[Any]:
    """(n,) each one's forerunner."""
    return np.concatenate([np.array([first], values.dtype), values[:-1]])


def _after(values: NDArray[Any], last: int = 0) -> NDArray[Any]:
    """(n,) each one's follower."""
    return np.concatenate([values[1:], np.array([last], values.dtype)])

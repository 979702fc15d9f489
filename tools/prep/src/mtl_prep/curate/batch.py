"""Some documents laid end to end, and views of all their words, lines and paragraphs at once.

Rules look at a batch through arrays that are made once, when first asked for, and shared. A document is
followed by a line end that is not its own. "Characters" are code points.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_common.errors import UsageError
from mtl_prep.curate import characters

Integers = NDArray[np.int64]
Hash = NDArray[np.uint64]
Mask = NDArray[np.bool_]


@cache
def compiled(name: str) -> ModuleType:
    """A module of loops of this package; raises UsageError when numba is not there to compile them."""
    try:
        return import_module(f"mtl_prep.curate.{name}")
    except ImportError:
        raise UsageError(
            'rules on texts need numba; install it with pip install "mtl-prep[curate]"'
        ) from None


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
        return np.frombuffer("\n".join([*self.texts, ""]).encode("utf-32-le"), "<u4")

    @cached_property
    def plain(self) -> bytes:
        """The small letters as one byte a character, for `find` and patterns of bytes; 255 is any other."""
        return bytes(compiled("loops").looked_up(self.codes, characters.plain()))

    def spans(self, starts: NDArray[Any], stops: NDArray[Any]) -> Spans:
        """Pieces in order, told by where they begin and end; none crosses from document to document."""
        return Spans(starts, stops, np.searchsorted(starts, self.starts))

    @cached_property
    def _words(self) -> tuple[NDArray[Any], ...]:
        return tuple(compiled("loops").words(self.codes, characters.kinds()))

    @cached_property
    def words(self) -> Spans:
        """Runs between white space, as str.split gives them."""
        return self.spans(*self._words[:2])

    @property
    def word_kinds(self) -> NDArray[np.uint8]:
        """(words,) the flags of all characters of each word together."""
        return self._words[2]

    @property
    def word_hashes(self) -> Hash:
        """(words,) a hash of each word."""
        return self._words[3]

    @cached_property
    def _terms(self) -> tuple[NDArray[Any], ...]:
        return tuple(compiled("loops").terms(self.codes, characters.kinds(), characters.lowered()))

    @cached_property
    def term_offsets(self) -> Integers:
        """(documents + 1,) where each document's terms begin.

        Terms are words as they are compared between documents: runs of letters and digits, ideographs one by
        one.
        """
        return np.searchsorted(self._terms[0], self.starts, "right")

    @property
    def term_hashes(self) -> Hash:
        """(terms,) a hash of each term in small letters."""
        return self._terms[1]

    @cached_property
    def lines(self) -> Spans:
        """What stands between line ends, empty lines too."""
        stops = self._words[4]
        return self.spans(np.concatenate([[0], stops + 1])[:-1], stops)

    @cached_property
    def content(self) -> Spans:
        """The lines without the white space around them; those of white space alone are empty."""
        starts, stops = self._words[5:7]
        return Spans(starts, stops, self.lines.offsets)

    @property
    def words_a_line(self) -> Integers:
        """(lines,) how many words stand on each."""
        return self._words[7]

    @cached_property
    def line_hashes(self) -> Hash:
        """(lines,) a hash of each line."""
        return self.hashes_of(self.lines)

    @cached_property
    def paragraphs(self) -> Spans:
        """Runs of lines between empty lines, without white space around the whole document."""
        lines, words = self.lines, self.words
        none = words.counts == 0
        lows = np.where(none, 0, np.append(words.starts, 0)[words.offsets[:-1]])
        highs = np.where(none, 0, np.append(words.stops, 0)[words.offsets[1:] - 1])
        return self.spans(
            *compiled("loops").paragraphs(lines.starts, lines.stops, lines.offsets, lows, highs)
        )

    def hashes_of(self, pieces: Spans) -> Hash:
        """(pieces,) a hash of each, equal wherever it stands."""
        return np.asarray(compiled("loops").hashes_of(self.codes, pieces.starts, pieces.stops))

    def later(self, hashes: Hash, pieces: Spans) -> Mask:
        """(pieces,) which ones have the hash of an earlier one of their document."""
        return np.asarray(compiled("loops").later(hashes, pieces.offsets))

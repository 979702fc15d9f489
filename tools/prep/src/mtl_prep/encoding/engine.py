"""Which library encodes a run: the fastest that is exact on the first documents and on a share of the others.

A fast engine is compared with the reference on some text of every feed. One difference means that anything it
gave may be wrong: the units are made anew with the next engine, with a warning, and the manifest says so.
"""

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_common.errors import DataError, UsageError
from mtl_common.tokenizers import AUTO, QUICK, REFERENCE, Flat, Tokenizer, load
from mtl_prep.corpus.source import Source, text_size
from mtl_prep.journal import Journal

NOTE = "engine"
COMPARED, LOST, UNKNOWN = "compared", "lost bytes", "unknown tokens"
SMALL_CORPUS = 1 << 26  # bytes; a faster engine's start would cost more than it saves
SHARE = 4096  # one character in so many is encoded twice; the reference may be 80 times slower
PIECE = 256  # characters of a document that are compared


class InexactError(DataError):
    """An engine gave other ids than the reference, in a document of a source."""

    def __init__(self, engine: str, source: int) -> None:
        super().__init__(f"{engine} gives other ids than the reference; choose another --encoder")
        self.engine, self.source = engine, source

    def __reduce__(self) -> tuple[type, tuple[str, int]]:
        return type(self), (self.engine, self.source)


class Watch:
    """Compares a tokenizer's engine with its reference, and counts what a vocabulary cannot say.

    `counts` are of pieces of text compared, bytes lost and unknown tokens; `characters` of all texts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.counts, self.characters = tokenizer, Counter[str](), 0

    def look(self, texts: Sequence[str], places: Sequence[tuple[int, int]], flat: Flat | None = None) -> None:
        """Compares pieces of some texts, chosen by their places; a short one whole, with the ids given to it.

        Raises InexactError.
        """
        self._count(texts, flat)
        if not texts or self.tokenizer.choices[0] == REFERENCE:
            return
        wanted = min(len(texts), 1 + sum(map(len, texts)) // (SHARE * PIECE))
        chance = xxhash.xxh3_64_intdigest(b"%d:%d" % tuple(places[0][:2]))
        for i in {(chance + k * len(texts) // wanted) % len(texts) for k in range(wanted)}:
            start = chance % max(1, len(texts[i]) - PIECE)
            piece = texts[i][start : start + PIECE]
            whole = flat is not None and len(piece) == len(texts[i])
            given = flat[0][flat[1][i] : flat[1][i + 1]] if flat is not None and whole else None
            self._compare(piece, given, places[i])

    def looking(self, pieces: Iterable[str], place: tuple[int, int]) -> Iterator[str]:
        """The pieces of one document, some text of each compared on the way."""
        for piece in pieces:
            self.characters += len(piece)
            if piece:
                self.look([piece], [place])
            yield piece

    def _count(self, texts: Sequence[str], flat: Flat | None) -> None:
        facts = self.tokenizer.facts
        if facts.lost_bytes:
            raws = (text.encode() for text in texts)
            self.counts[LOST] += sum(len(raw) - len(raw.translate(None, facts.lost_bytes)) for raw in raws)
        if facts.unknown is not None and flat is not None:
            self.counts[UNKNOWN] += int((flat[0] == facts.unknown).sum())

    def _compare(self, piece: str, given: NDArray[np.uint32] | None, place: tuple[int, int]) -> None:
        ids = self.tokenizer.encode_batch([piece])[0] if given is None else given
        self.counts[COMPARED] += 1
        if not np.array_equal(ids, self.tokenizer.reference([piece])[0]):
            raise InexactError(self.tokenizer.choices[0], place[0])


def fitting(asked: str, sources: Sequence[Source]) -> str:
    """The engine to load for a corpus."""
    return QUICK if asked == AUTO and text_size(sources) < SMALL_CORPUS else asked


def to_load(tokenizer: Tokenizer, asked: str, sources: Sequence[Source]) -> str:
    """The engine that processes load: by name, or the quick form of the same."""
    name = tokenizer.choices[0]
    return QUICK if name == "fastokens" and fitting(asked, sources) == QUICK else name


def distrusted(journal: Journal) -> dict[str, str]:
    """Engine -> where it was found to be wrong in this run."""
    return dict(journal.read(NOTE)) if journal.has(NOTE) else {}


def distrust(journal: Journal, engine: str, where: str) -> None:
    """Notes, and says, that an engine is wrong."""
    journal.write(NOTE, distrusted(journal) | {engine: where})
    print(
        f"warning: {engine} gives other ids than the reference in {where}; its units are made anew",
        file=sys.stderr,
    )


def forget_distrusted(journal: Journal) -> None:
    """Makes undone what engines have made that were found to be wrong, by this process or another."""
    wrong = distrusted(journal)
    for name in journal.names("unit-") if wrong else []:
        if journal.read(name)["engine"] in wrong:
            journal.forget(name)


def trusted(journal: Journal, path: Path, tokenizer: Tokenizer, texts: Sequence[str]) -> Tokenizer:
    """The tokenizer with the fastest engine that is not known to be wrong, and is right on `texts`."""
    for name in tokenizer.choices:
        if name in distrusted(journal):
            continue
        try:
            found = tokenizer if name == tokenizer.choices[0] else load(path, engine=name, one_thread=True)
        except UsageError:
            continue  # it does not read this vocabulary
        if found.exact_on(texts):
            return found
        distrust(journal, name, "the first documents")
    raise AssertionError("the reference is exact by definition")

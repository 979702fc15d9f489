"""What occurs more than once within a document: lines, paragraphs, n-grams of words."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mtl_prep.curate.batch import Integers, Mask, Spans
from mtl_prep.curate.hashing import BASE, Hash, mixed


@dataclass(frozen=True)
class Runs:
    """Equal keys together: `order` sorts the keys, run i is `order[starts[i]:starts[i] + counts[i]]`."""

    order: Integers
    starts: Integers
    counts: Integers

    @property
    def first(self) -> Integers:
        """(runs,) the first place of each key."""
        return np.minimum.reduceat(self.order, self.starts) if len(self.starts) else self.starts

    def repeated(self) -> "Runs":
        """The runs of more than one."""
        several = self.counts > 1
        inside = np.repeat(several, self.counts)
        counts = self.counts[several]
        return Runs(self.order[inside], np.cumsum(counts) - counts, counts)


def salted(hashes: Hash, pieces: Spans) -> Hash:
    """(pieces,) hashes that differ from document to document."""
    salts = mixed(np.arange(1, len(pieces.counts) + 1, dtype=np.uint64))
    return hashes + np.repeat(salts, pieces.counts)


def runs(keys: Hash) -> Runs:
    """Groups equal keys."""
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    return Runs(order, starts, np.diff(np.append(starts, len(keys))))


def later(hashes: Hash, pieces: Spans) -> Mask:
    """(pieces,) which ones are like an earlier one of their document."""
    mask = np.ones(len(hashes), bool)
    mask[runs(salted(hashes, pieces)).first] = False
    return mask


@dataclass(frozen=True)
class Grams:
    """The n-grams of words that occur more than once in their document.

    places (grams,) the word each begins at, ascending; hashes (grams,); runs group equal ones.
    """

    n: int
    places: Integers
    hashes: Hash
    runs: Runs


def _sieved(keys: Hash) -> Integers:
    """The places of keys that may occur more than once: all that do, and some others."""
    bits = max(int(4 * len(keys)).bit_length(), 8)
    bucket = (keys >> np.uint64(64 - bits)).astype(np.int64)
    return np.flatnonzero(np.bincount(bucket, minlength=1 << bits)[bucket] > 1)


def _repeated(n: int, places: Integers, hashes: Hash) -> Grams:
    likely = _sieved(mixed(hashes))
    places, hashes = places[likely], hashes[likely]
    found = runs(hashes).repeated()
    kept = np.zeros(len(places), bool)
    kept[found.order] = True
    renamed = np.cumsum(kept) - 1
    return Grams(n, places[kept], hashes[kept], Runs(renamed[found.order], found.starts, found.counts))


def repeated_grams(hashes: Hash, words: Spans, wanted: Mask, last: int) -> Iterator[Grams]:
    """The repeated n-grams of some documents for n = 2 to `last`.

    Only what repeats as an n-gram can do so as an n+1-gram, so there are fewer at each step. A document that
    is taken out of `wanted` (documents,) between two steps is looked at no longer.
    """
    document = words.document
    places = np.flatnonzero((document[1:] == document[:-1]) & wanted[document[1:]])
    values = salted(hashes, words)[places]
    for n in range(2, last + 1):
        found = _repeated(n, places, values * np.uint64(BASE) + hashes[places + n - 1])
        yield found
        follows = np.diff(found.places, append=-1) == 1
        follows &= document[np.minimum(found.places + n, len(document) - 1)] == document[found.places]
        follows &= wanted[document[found.places]]
        places, values = found.places[follows], found.hashes[follows]

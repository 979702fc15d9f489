"""Documents that are nearly equal to an earlier one: MinHash with locality-sensitive hashing.

Signatures of shingles: Broder 1997, "On the resemblance and containment of documents". Bands: Leskovec,
Rajaraman and Ullman, "Mining of Massive Datasets", section 3.4. Shingles are runs of `shingle` words in
small letters without punctuation; a signature of `permutations` numbers is made by rensa. It is cut into
bands of rows, and two documents with an equal band are candidates: of pairs with Jaccard similarity s this
finds 1 - (1 - s^rows)^bands. Rows are the most for which this is `recall` at the threshold. Candidates
whose signatures differ in more than the threshold and three standard errors allow are none. Documents
linked by candidates, however far, are one cluster, of which the first in the corpus stays.

A document costs 4 bytes a permutation and 8 a band on the disk (656 by default), and about 50 in the memory
of the one process that decides, which holds one band at a time.
"""

import math
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from mtl_common.errors import UsageError
from mtl_prep.curate.batch import Batch, Hash, Integers, compiled
from mtl_prep.curate.step import GlobalStep, Signatures

VERIFIED = 1 << 16  # pairs whose signatures are compared at a time
ERRORS = 3.0


def banding(threshold: float, permutations: int, recall: float) -> tuple[int, int]:
    """Bands and rows: the most rows for which pairs at the threshold are found with probability `recall`.

    >>> banding(0.8, 128, 0.98)
    (18, 7)
    """
    for rows in range(permutations, 1, -1):
        bands = permutations // rows
        if 1 - (1 - threshold**rows) ** bands >= recall:
            return bands, rows
    return permutations, 1


class NearDuplicates(GlobalStep):
    """How alike is too alike."""

    reason = "nearly equal to"

    threshold: Annotated[float, Field(gt=0, lt=1)] = 0.8  # Jaccard similarity of shingles
    shingle: Annotated[int, Field(ge=1)] = 5  # words
    permutations: Annotated[int, Field(ge=16, le=1024)] = 128
    recall: Annotated[float, Field(gt=0, lt=1)] = 0.98
    verify: bool = True
    seed: Annotated[int, Field(ge=0)] = 1

    @cached_property
    def banding(self) -> tuple[int, int]:
        """Bands and rows."""
        return banding(self.threshold, self.permutations, self.recall)

    @property
    def least(self) -> float:
        """The share of equal numbers from which on two signatures are alike."""
        error = math.sqrt(self.threshold * (1 - self.threshold) / self.permutations)
        return self.threshold - ERRORS * error if self.verify else 0.0

    def sign(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Signatures, and keys of their bands; a key is 0 for a document without words."""
        loops, (bands, size) = compiled("loops"), self.banding
        hashes, offsets = loops.n_grams(batch.term_hashes, batch.term_offsets, self.shingle, True)
        rows = _signatures(hashes, offsets, self.permutations, self.seed)
        keys = loops.band_keys(rows[:, : bands * size], bands)
        keys[:, np.diff(offsets) == 0] = 0
        return {"rows": rows.T, "keys": keys}

    def originals(self, signatures: Signatures, documents: Integers) -> Integers:
        """The first document of the cluster."""
        labels = np.arange(len(documents))
        for band in range(self.banding[0]):
            pairs = candidates(signatures.row("keys", band)[documents])
            pairs = pairs[labels[pairs[:, 0]] != labels[pairs[:, 1]]]
            alike = [
                part[self._alike(signatures, documents[part])]
                for part in np.split(pairs, range(VERIFIED, len(pairs), VERIFIED))
            ]
            labels = joined(labels, np.concatenate(alike))
        return documents[labels]

    def _alike(self, signatures: Signatures, pairs: Integers) -> NDArray[np.bool_]:
        """(pairs, 2) documents -> (pairs,) whether their signatures allow the threshold."""
        if not self.verify or not len(pairs):
            return np.ones(len(pairs), bool)
        known, place = np.unique(pairs, return_inverse=True)
        rows = signatures.columns("rows", known)
        first, second = place.reshape(pairs.shape).T
        return np.asarray((rows[:, first] == rows[:, second]).mean(0) >= self.least)


def _signatures(hashes: Hash, offsets: Integers, permutations: int, seed: int) -> NDArray[np.uint32]:
    """(documents, permutations) by rensa; raises UsageError without it."""
    try:
        from rensa import RMinHash
    except ImportError:
        raise UsageError(
            'the step near_duplicates needs rensa; install it with pip install "mtl-prep[curate]"'
        ) from None
    matrix = RMinHash.digest_matrix_from_flat_token_hashes(
        hashes, offsets.astype(np.uint64), num_perm=permutations, seed=seed
    )
    return np.array(matrix.to_rows(), np.uint32).reshape(len(offsets) - 1, permutations)


def candidates(keys: Hash) -> Integers:
    """(n,) keys of a band -> (pairs, 2) places of equal keys: each with the first and with the one before."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    follows = np.flatnonzero((keys[1:] == keys[:-1]) & (keys[1:] != 0)) + 1
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    first = starts[np.searchsorted(starts, follows, "right") - 1]
    pairs = np.stack([order[first], order[follows]], 1)
    neighbours = np.stack([order[follows - 1], order[follows]], 1)
    return np.concatenate([pairs, neighbours[first != follows - 1]])


def joined(labels: Integers, pairs: Integers) -> Integers:
    """Clusters, each labelled by its smallest member, after joining those of some pairs."""
    while len(pairs):
        ends = np.sort(labels[pairs], 1)
        apart = ends[:, 0] != ends[:, 1]
        pairs, ends = pairs[apart], ends[apart]
        np.minimum.at(labels, ends[:, 1], ends[:, 0])
        labels = _settled(labels)
    return labels


def _settled(labels: Integers) -> Integers:
    """Labels of labels, until each is its own."""
    further = labels[labels]
    while not np.array_equal(further, labels):
        labels, further = further, further[further]
    return labels

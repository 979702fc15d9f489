"""How long documents are, and how the tokens of bins spread over sources and vocabulary."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mtl_common.bins import Bins
from mtl_common.log import progress
from mtl_prep.finished.reading import batches

Counts = NDArray[np.int64]

PIECE = 1 << 20  # tokens counted together


@dataclass(frozen=True)
class Lengths:
    """Documents by their number of tokens, the end included: `documents[i]` have `tokens[i]`, which rise."""

    tokens: Counts  # (lengths,)
    documents: Counts  # (lengths,)

    def at(self, share: float) -> int:
        """The length that a share of the documents does not exceed; 0.5 is the median."""
        total = np.cumsum(self.documents)
        return int(self.tokens[np.searchsorted(total, share * total[-1])])

    @property
    def mean(self) -> float:
        """Tokens a document."""
        return float((self.tokens * self.documents).sum() / self.documents.sum())

    def between(self, edges: Counts) -> tuple[Counts, Counts]:
        """(n + 1,) rising edges -> (n,) documents from each edge up to the next, and (n,) tokens in them."""
        place = np.searchsorted(edges, self.tokens, "right") - 1
        count = len(edges) - 1
        sizes = self.tokens * self.documents
        documents = np.bincount(place, self.documents, count)[:count]
        return documents.astype(np.int64), np.bincount(place, sizes, count)[:count].astype(np.int64)


def _merged(one: Lengths, lengths: Counts) -> Lengths:
    """More documents, by their lengths (documents,)."""
    values, counts = np.unique(lengths, return_counts=True)
    tokens, place = np.unique(np.concatenate([one.tokens, values]), return_inverse=True)
    documents = np.bincount(place, np.concatenate([one.documents, counts]))
    return Lengths(tokens, documents.astype(np.int64))


def lengths(bins: Bins) -> Lengths:
    """The lengths of all documents; reads no tokens."""
    found = Lengths(np.empty(0, np.int64), np.empty(0, np.int64))
    for index in range(len(bins.manifest.shards)):
        found = _merged(found, np.diff(bins.shard(index).offsets))
    return found


def tokens_by_source(bins: Bins) -> Counts:
    """(sources,) the tokens of each source; reads no tokens."""
    found = np.zeros(len(bins.manifest.sources), np.int64)
    for _, batch in batches(bins):
        np.add.at(found, batch.source, np.diff(batch.offsets))
    return found


def frequencies(bins: Bins) -> Counts:
    """(vocabulary,) how often each id occurs; reads all tokens."""
    found = np.zeros(bins.vocab_size, np.int64)
    with progress("count", bins.tokens, "tokens") as shown:
        for index in range(len(bins.manifest.shards)):
            tokens = bins.shard(index).tokens
            for start in range(0, len(tokens), PIECE):
                ids = tokens[start : start + PIECE]
                found += np.bincount(ids, minlength=bins.vocab_size)
                shown.advance(len(ids))
    return found

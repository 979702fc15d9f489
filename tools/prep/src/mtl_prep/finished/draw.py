"""A number for every document, drawn by a seed from its source and record: the same in all bins."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_common.bins import Batch, Bins


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers spread over all of 64 bits (splitmix64, of Java's SplittableRandom)."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class Draw:
    """Numbers below 2^64 for documents, by seed, path of the source and record."""

    def __init__(self, bins: Bins, seed: int) -> None:
        sources = bins.manifest.sources
        names = (xxhash.xxh3_64_intdigest(source.path.encode(), seed=seed) for source in sources)
        self._sources = np.fromiter(names, np.uint64, len(sources))

    def __call__(self, batch: Batch) -> NDArray[np.uint64]:
        """(documents,) the number of each document."""
        return _mixed(self._sources[batch.source] ^ _mixed(batch.record.astype(np.uint64)))

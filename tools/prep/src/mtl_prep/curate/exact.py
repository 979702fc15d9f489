"""Documents that are equal to an earlier one, told by the xxh3-128 of their text.

The first in the order of the corpus stays. A document costs 16 bytes on the disk, and about 50 in the memory
of the one process that decides.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from mtl_prep.curate.batch import Batch
from mtl_prep.curate.step import GlobalStep, Signatures


def _signed(digests: Sequence[bytes]) -> dict[str, NDArray[Any]]:
    return {"digest": np.frombuffer(b"".join(digests), ">u8").reshape(-1, 2).T.astype(np.uint64)}


class ExactDuplicates(GlobalStep):
    """Which differences do not count."""

    reason = "equal to"

    any_space: bool = False  # white space of any kind and length is the same, and none at the ends
    any_case: bool = False

    def _compared(self, text: str) -> str:
        text = " ".join(text.split()) if self.any_space else text
        return text.casefold() if self.any_case else text

    def sign(self, batch: Batch) -> dict[str, NDArray[Any]]:
        """Two numbers of 64 bits for each text."""
        return _signed([xxhash.xxh3_128_digest(self._compared(text).encode()) for text in batch.texts])

    def sign_pieces(self, pieces: Iterator[str]) -> dict[str, NDArray[Any]] | None:
        """The same of a text in pieces, if every difference counts."""
        if self.any_space or self.any_case:
            return None
        digest = xxhash.xxh3_128()
        for piece in pieces:
            digest.update(piece.encode())
        return _signed([digest.digest()])

    def originals(self, signatures: Signatures, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first document with the same hash."""
        high, low = (signatures.row("digest", i)[documents] for i in range(2))
        order = np.lexsort((low, high))  # stable: equal ones stay in the order of the corpus
        high, low = high[order], low[order]
        new = np.concatenate([[True], (high[1:] != high[:-1]) | (low[1:] != low[:-1])])[: len(order)]
        found = np.empty_like(documents)
        found[order] = documents[order[np.maximum.accumulate(np.where(new, np.arange(len(order)), 0))]]
        return found

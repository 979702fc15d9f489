"""64-bit hashes of many pieces of a text at once, and of n-grams of them."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Hash = NDArray[np.uint64]

BASE = 0x9C5F_2E17_D3A8_4B6D  # odd, so that it has an inverse modulo 2^64
INVERSE = pow(BASE, -1, 1 << 64)
KEPT = 1 << 20  # powers that are kept between batches


def mixed(values: Hash) -> Hash:
    """(n,) -> (n,) values whose every bit depends on all bits (the finish of MurmurHash3)."""
    values = values ^ (values >> np.uint64(33))
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values *= np.uint64(factor)
        values ^= values >> np.uint64(33)
    return values


def _powers(base: int, count: int) -> Hash:
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.multiply.accumulate(powers)


@cache
def _kept_powers() -> tuple[Hash, Hash]:
    return _powers(BASE, KEPT), _powers(INVERSE, KEPT)


def powers(count: int) -> tuple[Hash, Hash]:
    """At least `count` powers of the base, and of its inverse."""
    return _kept_powers() if count <= KEPT else (_powers(BASE, count), _powers(INVERSE, count))


class Hashes:
    """Hashes of any pieces of a text by sums of code points times powers, modulo 2^64.

    A piece has the same hash wherever it stands: the power at its start is divided out.
    """

    def __init__(self, codes: NDArray[np.uint32]) -> None:
        up, self._down = powers(len(codes) + 1)
        self._sums = np.empty(len(codes) + 1, np.uint64)
        self._sums[0], inner = 0, self._sums[1:]
        np.cumsum(np.multiply(codes, up[: len(codes)], out=inner), out=inner)

    def of(self, starts: NDArray[Any], stops: NDArray[Any]) -> Hash:
        """(pieces,) the hash of each piece `start:stop`."""
        values = self._sums[stops]
        values -= self._sums[starts]
        values *= self._down[starts]
        values += (stops - starts).astype(np.uint64) * np.uint64(BASE)
        return mixed(values)


def n_grams(hashes: Hash, offsets: NDArray[np.int64], n: int) -> tuple[Hash, NDArray[np.int64]]:
    """The hashes of all n-grams that lie within a document, and the words they begin at.

    (words,) hashes, (documents + 1,) offsets -> (n-grams,), (n-grams,)
    """
    count = max(len(hashes) - n + 1, 0)
    grams = np.zeros(count, np.uint64)
    for i in range(n):
        grams = grams * np.uint64(BASE) + hashes[i : i + count]
    whole = np.ones(count, bool)
    for back in range(1, n):
        cut = offsets[1:-1] - back
        whole[cut[(cut >= 0) & (cut < count)]] = False
    begins = np.flatnonzero(whole)
    return mixed(grams[begins]), begins

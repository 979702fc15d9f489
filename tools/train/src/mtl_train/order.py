"""Which window of the token stream is sample i: arithmetic, with no index in memory or on disk.

A split is a run of whole documents, read as one stream of tokens. Windows of seq + 1 tokens tile it, each
sharing one token with the next: its last label. Every epoch visits all windows once, in the order of a keyed
permutation, so sample i is found in O(1) and the place of a run in its data is one integer: the number of
consumed samples.
"""

from dataclasses import dataclass
from hashlib import blake2b
from math import ceil, isqrt

from mtl_common.bins import Bins
from mtl_common.errors import DataError

ROUNDS = 4  # each mixes both halves


def _keyed(value: int, key: bytes, round: int) -> int:
    digest = blake2b(value.to_bytes(8, "little"), key=key, person=bytes([round]), digest_size=8).digest()
    return int.from_bytes(digest, "little")


def permute(index: int, count: int, key: bytes) -> int:
    """The place of `index` in a pseudo-random permutation of `range(count)`, another one for every key.

    A Feistel network over two halves whose sizes multiply to barely more than `count`; a result outside is
    permuted again until it falls inside (cycle walking). Black and Rogaway 2002, "Ciphers with Arbitrary
    Finite Domains". Takes some 20 microseconds at any `count`, a key at most 64 bytes.
    """
    lefts = isqrt(count - 1) + 1
    rights = -(-count // lefts)
    while True:
        right, left = divmod(index, lefts)
        for round in range(ROUNDS):
            left = (left + _keyed(right, key, 2 * round)) % lefts
            right = (right + _keyed(left, key, 2 * round + 1)) % rights
        index = right * lefts + left
        if index < count:
            return index


@dataclass(frozen=True)
class Order:
    """The windows of one split, and the order that samples take them in.

    Windows are `seq + 1` tokens long and lie in the tokens `start:stop` of the bins.
    """

    start: int
    stop: int
    seq: int
    seed: int

    @property
    def windows(self) -> int:
        """How many windows there are, which is how many samples an epoch has."""
        return max(0, self.stop - self.start - 1) // self.seq

    def epoch(self, sample: int) -> int:
        """Which pass over the data a sample belongs to, from 0."""
        return sample // self.windows

    def position(self, sample: int) -> int:
        """The first token of a sample's window."""
        epoch, index = divmod(sample, self.windows)
        key = f"{self.seed} {epoch}".encode()
        return self.start + permute(index, self.windows, key) * self.seq


def _cut(bins: Bins, share: float) -> int:
    """The first document of the last `share` of the tokens; the boundary nearest to it from below."""
    wanted = bins.tokens - ceil(bins.tokens * share)
    low, high = 0, len(bins)
    while low < high:
        middle = (low + high + 1) // 2
        if bins.bounds(0, middle)[1] <= wanted:
            low = middle
        else:
            high = middle - 1
    return low


def split(bins: Bins, seq: int, valid: float, seed: int) -> tuple[Order, Order | None]:
    """The orders of the training documents and of the validation documents, which are the last ones.

    Args:
        bins: the tokens.
        seq: tokens a sample predicts.
        valid: share of all tokens to hold back for validation; with 0 there is no second order.
        seed: of the permutations.

    Raises:
        DataError: when a split holds less than one window.
    """
    documents = len(bins)
    first = _cut(bins, valid) if valid else documents
    ranges = {"training": (0, first), "validation": (first, documents)}
    orders = [
        _order(bins, name, bounds, seq, seed)
        for name, bounds in ranges.items()
        if name == "training" or valid
    ]
    return orders[0], orders[1] if valid else None


def _order(bins: Bins, name: str, documents: tuple[int, int], seq: int, seed: int) -> Order:
    start, stop = bins.bounds(*documents)
    order = Order(start, stop, seq, seed)
    if not order.windows:
        remedy = "add text" if name == "training" else "add text or set data.valid=0"
        raise DataError(
            f"{bins.path} has {stop - start} tokens in {documents[1] - documents[0]} {name} documents, "
            f"but one sample takes {seq + 1}; choose a smaller --seq, {remedy}"
        )
    return order

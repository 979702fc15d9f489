"""Loops over the characters and words of a batch, compiled by numba when they are first used.

Each answers in one pass what numpy needs many for. Numba keeps what it compiled beside this file or, where
that cannot be written, in the user's cache. Code points, places and counts are whole numbers; hashes are
polynomials of code points modulo 2^64 whose every bit then depends on all bits (the finish of MurmurHash3).
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mtl_prep.curate.characters import ALONE, CAPITAL, SPACE, WORDLY

Integers = NDArray[np.int64]
Hash = NDArray[np.uint64]

BASE = np.uint64(0x9C5F_2E17_D3A8_4B6D)
NEWLINE, HASH, DOT, ELLIPSIS = 10, ord("#"), ord("."), 0x2026
FULL = 2  # slots of a table for each key at least


@njit(cache=True, inline="always")
def mixed(value: Any) -> Any:
    """A hash whose every bit depends on all bits."""
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@njit(cache=True)
def words(codes: NDArray[np.uint32], kinds: NDArray[np.uint8]) -> tuple[Any, ...]:
    """Runs between white space: starts, stops, the flags of all their characters together, hashes."""
    most = len(codes) // 2 + 1
    starts, stops = np.empty(most, np.int64), np.empty(most, np.int64)
    flags, hashes = np.empty(most, np.uint8), np.empty(most, np.uint64)
    count, inside, value, flag = 0, False, np.uint64(0), np.uint8(0)
    for i in range(len(codes)):  # the last character is a line end
        kind = kinds[codes[i]]
        if not kind & SPACE:
            if not inside:
                starts[count], value, flag, inside = i, np.uint64(0), np.uint8(0), True
            value = value * BASE + codes[i]
            flag |= kind
        elif inside:
            stops[count], flags[count], hashes[count] = i, flag, mixed(value)
            count += 1
            inside = False
    return starts[:count], stops[:count], flags[:count], hashes[:count]


@njit(cache=True)
def lines(codes: NDArray[np.uint32], word_starts: Integers) -> tuple[Integers, Integers]:
    """Where each line ends, and how many words begin before that."""
    count = 0
    for code in codes:
        count += code == NEWLINE
    stops, before = np.empty(count, np.int64), np.empty(count, np.int64)
    line = word = 0
    for i in range(len(codes)):
        if codes[i] == NEWLINE:
            while word < len(word_starts) and word_starts[word] < i:
                word += 1
            stops[line], before[line] = i, word
            line += 1
    return stops, before


@njit(cache=True)
def terms(
    codes: NDArray[np.uint32], kinds: NDArray[np.uint8], small: NDArray[np.uint32]
) -> tuple[Integers, Hash]:
    """Runs of letters and digits, and ideographs one by one: stops, and hashes of their small letters."""
    most = len(codes)
    stops, hashes = np.empty(most, np.int64), np.empty(most, np.uint64)
    count, inside, value = 0, False, np.uint64(0)
    for i in range(len(codes)):
        code, kind = codes[i], kinds[codes[i]]
        part = kind & WORDLY
        if inside and (not part or kind & ALONE):
            stops[count], hashes[count], inside = i, mixed(value), False
            count += 1
        if part:
            if kind & CAPITAL:
                code = small[code]
            value = value * BASE + code if inside else np.uint64(code)
            inside = not kind & ALONE
            if not inside:
                stops[count], hashes[count] = i + 1, mixed(value)
                count += 1
    return stops[:count], hashes[:count]


@njit(cache=True)
def hashes_of(codes: NDArray[np.uint32], starts: Integers, stops: Integers) -> Hash:
    """(pieces,) a hash of each piece `start:stop`, equal wherever it stands."""
    hashes = np.empty(len(starts), np.uint64)
    for piece in range(len(starts)):
        value = np.uint64(stops[piece] - starts[piece])
        for i in range(starts[piece], stops[piece]):
            value = value * BASE + codes[i]
        hashes[piece] = mixed(value)
    return hashes


@njit(cache=True)
def symbols(codes: NDArray[np.uint32], starts: Integers) -> tuple[Integers, Integers]:
    """(documents,) how many `#`, and how many ellipses: three dots, or the character."""
    documents = len(starts) - 1
    crosses, ellipses = np.zeros(documents, np.int64), np.zeros(documents, np.int64)
    for document in range(documents):
        dots = 0
        for i in range(starts[document], starts[document + 1]):
            code = codes[i]
            dots = dots + 1 if code == DOT else 0
            if dots == 3:
                dots = 0
                ellipses[document] += 1
            ellipses[document] += code == ELLIPSIS
            crosses[document] += code == HASH
    return crosses, ellipses


@njit(cache=True)
def different(hashes: Hash, offsets: Integers, wanted: Hash) -> Integers:
    """(documents,) how many of the wanted hashes each has."""
    found, seen = np.zeros(len(offsets) - 1, np.int64), np.full(len(wanted), -1, np.int64)
    sieve = np.zeros(1 << 12, np.bool_)  # lets few others pass
    for value in wanted:
        sieve[value >> np.uint64(52)] = True
    for document in range(len(offsets) - 1):
        for word in range(offsets[document], offsets[document + 1]):
            if sieve[hashes[word] >> np.uint64(52)]:
                for i in range(len(wanted)):
                    if wanted[i] == hashes[word] and seen[i] != document:
                        seen[i] = document
                        found[document] += 1
    return found


@njit(cache=True)
def largest(values: Integers, offsets: Integers) -> Integers:
    """(documents,) the largest value of each, 0 for one without any."""
    found = np.zeros(len(offsets) - 1, np.int64)
    for document in range(len(found)):
        for i in range(offsets[document], offsets[document + 1]):
            found[document] = max(found[document], values[i])
    return found


@njit(cache=True)
def n_grams(hashes: Hash, offsets: Integers, n: int, whole: bool) -> tuple[Hash, Integers]:
    """The hashes of all n-grams that lie within a document, and where each document's begin.

    With `whole`, what there is of a document with fewer words is one n-gram too.
    """
    found, gone = np.zeros(len(offsets), np.int64), np.uint64(1)
    for document in range(len(offsets) - 1):
        words = offsets[document + 1] - offsets[document]
        found[document + 1] = found[document] + max(words - n + 1, np.int64(whole and words > 0))
    for _ in range(n):
        gone *= BASE
    grams = np.empty(found[-1], np.uint64)
    for document in range(len(offsets) - 1):
        value, first = np.uint64(0), offsets[document]
        size = min(n, offsets[document + 1] - first)
        for i in range(size):
            value = value * BASE + hashes[first + i]
        for i in range(found[document + 1] - found[document]):
            if i:
                value = value * BASE + hashes[first + i + n - 1] - gone * hashes[first + i - 1]
            grams[found[document] + i] = mixed(value)
    return grams, found


@njit(cache=True)
def most(offsets: Integers) -> Any:
    """The largest count of pieces in a document."""
    found = np.int64(0)
    for document in range(len(offsets) - 1):
        found = max(found, offsets[document + 1] - offsets[document])
    return found


@njit(cache=True)
def slot_of(keys: Hash, stamps: Integers, stamp: int, key: Any) -> Any:
    """The place of a key in a table with 2^k slots, or the free one where it belongs.

    Keys of another stamp are none, so a table is emptied by going on to the next stamp.
    """
    last = len(keys) - 1
    slot = np.int64(mixed(key) & np.uint64(last))
    while stamps[slot] == stamp and keys[slot] != key:
        slot = (slot + 1) & last
    return slot


@njit(cache=True)
def slots_for(count: int) -> int:
    """How many slots a table for so many keys has: a power of two."""
    slots = 16
    while slots < FULL * count:
        slots *= 2
    return slots


@njit(cache=True)
def later(hashes: Hash, offsets: Integers) -> NDArray[np.bool_]:
    """(pieces,) which ones are like an earlier one of their document."""
    found = np.zeros(len(hashes), np.bool_)
    slots = slots_for(most(offsets))
    keys, stamps = np.empty(slots, np.uint64), np.full(slots, -1, np.int64)
    for document in range(len(offsets) - 1):
        size = slots_for(offsets[document + 1] - offsets[document])
        for i in range(offsets[document], offsets[document + 1]):
            slot = slot_of(keys[:size], stamps[:size], document, hashes[i])
            found[i] = stamps[slot] == document
            keys[slot], stamps[slot] = hashes[i], document
    return found


@njit(cache=True)
def band_keys(rows: NDArray[np.uint32], bands: int) -> Hash:
    """(documents, numbers) signatures -> (bands, documents) a hash, not 0, of the numbers of each band."""
    size = rows.shape[1] // bands
    keys = np.empty((bands, len(rows)), np.uint64)
    for document in range(len(rows)):
        for band in range(bands):
            value = np.uint64(0)
            for i in range(band * size, (band + 1) * size):
                value = mixed(value * BASE + rows[document, i] + np.uint64(1))
            keys[band, document] = max(value, np.uint64(1))
    return keys

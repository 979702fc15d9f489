"""Loops over the characters and words of a batch, compiled by numba when they are first used.

Each answers in one pass what numpy needs many for. Numba keeps what it compiled beside this file or, where
that cannot be written, in the user's cache. Code points, places and counts are whole numbers; hashes are
polynomials of code points modulo 2^64 whose every bit then depends on all bits (the finish of MurmurHash3).
"""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mtl_prep.curate.characters import ALONE, CAPITAL, LETTER, PLAIN, SPACE, WORDLY

Integers = NDArray[np.int64]
Hash = NDArray[np.uint64]

BASE = np.uint64(0x9C5F_2E17_D3A8_4B6D)
NEWLINE = 10
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
    """Runs between white space, and the lines they stand on.

    Of words: starts, stops, the flags of all their characters together, hashes. Of lines: stops, where their
    first word starts and their last one stops, how many words they have. `codes` ends in a line end.
    """
    starts, stops = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    flags, hashes = np.empty(len(codes), np.uint8), np.empty(len(codes), np.uint64)
    ends, counts = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    firsts, lasts = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
    count = before = line = 0
    inside, value, flag = False, np.uint64(0), np.uint8(0)
    for i in range(len(codes)):
        kind = kinds[codes[i]]
        if not kind & SPACE:
            if not inside:
                starts[count], value, flag, inside = i, np.uint64(0), np.uint8(0), True
            value = value * BASE + codes[i]
            flag |= kind
            continue
        if inside:
            stops[count], flags[count], hashes[count] = i, flag, mixed(value)
            count += 1
            inside = False
        if codes[i] == NEWLINE:
            ends[line], counts[line] = i, count - before
            firsts[line] = starts[before] if count > before else i
            lasts[line] = stops[count - 1] if count > before else i
            line, before = line + 1, count
    return (
        starts[:count].copy(),
        stops[:count].copy(),
        flags[:count].copy(),
        hashes[:count].copy(),
        ends[:line].copy(),
        firsts[:line].copy(),
        lasts[:line].copy(),
        counts[:line].copy(),
    )


@njit(cache=True)
def word_sums(lengths: Integers, flags: NDArray[np.uint8], offsets: Integers) -> tuple[Any, ...]:
    """(documents,) how many words are not all symbols, and of how many characters; how many have a letter."""
    documents = len(offsets) - 1
    plain, characters = np.zeros(documents, np.int64), np.zeros(documents, np.int64)
    letters = np.zeros(documents, np.int64)
    for document in range(documents):
        for word in range(offsets[document], offsets[document + 1]):
            if flags[word] & PLAIN:
                plain[document] += 1
                characters[document] += lengths[word]
            letters[document] += (flags[word] & LETTER) != 0
    return plain, characters, letters


@njit(cache=True)
def paragraphs(
    starts: Integers, stops: Integers, offsets: Integers, lows: Integers, highs: Integers
) -> tuple[Integers, Integers]:
    """Runs of lines between empty ones, (paragraphs,) starts and stops.

    starts, stops (lines,), offsets (documents + 1,) of lines; lows, highs (documents,) between which a
    document's lines count, and to which they are cut.
    """
    begins, ends = np.empty(len(starts), np.int64), np.empty(len(starts), np.int64)
    count = 0
    for document in range(len(lows)):
        inside = False
        for line in range(offsets[document], offsets[document + 1]):
            start, stop = max(starts[line], lows[document]), min(stops[line], highs[document])
            if start < stop:
                if not inside:
                    begins[count] = start
                    count += 1
                ends[count - 1] = stop
            inside = start < stop
    return begins[:count].copy(), ends[:count].copy()


@njit(cache=True)
def looked_up(codes: NDArray[np.uint32], table: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(characters,) what a table (code points,) has for each."""
    found = np.empty(len(codes), np.uint8)
    for i in range(len(codes)):
        found[i] = table[codes[i]]
    return found


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
def slots_for(count: int) -> int:
    """How many slots a table for so many keys has: a power of two."""
    slots = 16
    while slots < FULL * count:
        slots *= 2
    return slots


@njit(cache=True)
def emptied(count: int) -> NDArray[np.uint64]:
    """A table for so many keys at most, (slots, 2): a key, and the round in which it was put there."""
    return np.zeros((slots_for(count), 2), np.uint64)


@njit(cache=True)
def slot_of(table: NDArray[np.uint64], last: int, turn: Any, key: Any) -> Any:
    """The place of a key among the slots up to `last`, 2^k - 1, of a table, or the free one where it belongs.

    Keys of another turn are none, so a table is emptied by going on to the next turn, from 1.
    """
    slot = np.int64(mixed(key) & np.uint64(last))
    while table[slot, 1] == turn and table[slot, 0] != key:
        slot = (slot + 1) & last
    return slot


@njit(cache=True)
def later(hashes: Hash, offsets: Integers) -> NDArray[np.bool_]:
    """(pieces,) which ones are like an earlier one of their document."""
    found, table = np.zeros(len(hashes), np.bool_), emptied(most(offsets))
    for document in range(len(offsets) - 1):
        last, turn = slots_for(offsets[document + 1] - offsets[document]) - 1, np.uint64(document + 1)
        for i in range(offsets[document], offsets[document + 1]):
            slot = slot_of(table, last, turn, hashes[i])
            found[i] = table[slot, 1] == turn
            table[slot, 0], table[slot, 1] = hashes[i], turn
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

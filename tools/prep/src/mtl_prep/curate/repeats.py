"""The n-grams of words that occur more than once in a document, counted in a compiled loop (see `loops`)."""

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mtl_prep.curate.loops import BASE, Hash, Integers, emptied, most, slot_of, slots_for


@njit(cache=True)
def tally(table: NDArray[np.uint64], counts: Integers, turn: Any, keys: Hash, slots: Integers) -> None:
    """Counts keys (n,) in a table of this turn (see `loops.slot_of`), and tells the slot of each (n,)."""
    last = slots_for(len(keys)) - 1
    for i in range(len(keys)):
        slot = slot_of(table, last, turn, keys[i])
        counts[slot] = counts[slot] + 1 if table[slot, 1] == turn else 1
        table[slot, 0], table[slot, 1], slots[i] = keys[i], turn, slot


@njit(cache=True)
def repeating(counts: Integers, places: Integers, keys: Hash, slots: Integers) -> int:
    """Keeps those n-grams that occur more than once, at the front; how many these are."""
    kept = 0
    for i in range(len(slots)):
        if counts[slots[i]] > 1:
            places[kept], keys[kept], slots[kept] = places[i], keys[i], slots[i]
            kept += 1
    return kept


@njit(cache=True)
def most_often(counts: Integers, slots: Integers) -> tuple[int, int]:
    """How often the n-gram occurs that occurs most often, and which one (of n, in order) is its first."""
    best = first = 0
    for i in range(len(slots)):
        if counts[slots[i]] > best:
            best, first = counts[slots[i]], i
    return best, first


@njit(cache=True)
def again_characters(counts: Integers, places: Integers, slots: Integers, before: Integers, n: int) -> int:
    """Characters of the n-grams that are like an earlier one and overlap none that was counted.

    Sets the counts of those that have been met to 0.
    """
    free = total = 0
    for i in range(len(slots)):
        slot, place = slots[i], places[i]
        if place >= free:
            if counts[slot] == 0:
                total += before[place + n] - before[place]
                free = place + n
            counts[slot] = 0
    return total


@njit(cache=True)
def followed(places: Integers, keys: Hash) -> int:
    """Keeps those n-grams that another follows, for only they may repeat as n+1-grams; how many these are."""
    kept = 0
    for i in range(len(places) - 1):
        if places[i + 1] == places[i] + 1:
            places[kept], keys[kept] = places[i], keys[i]
            kept += 1
    return kept


@njit(cache=True)
def repeated_characters(
    hashes: Hash, before: Integers, offsets: Integers, wanted: NDArray[np.bool_], longest: int
) -> tuple[Integers, Integers]:
    """How many characters repeated n-grams of words make up, (longest + 1, documents) each; row n is of n.

    The first: those of all occurrences of the n-gram that occurs most often, one blank between words counted;
    of several such n-grams it is the first. The second: those of the words of n-grams that are like an
    earlier one and overlap none that was counted. hashes (words,), before (words + 1,) the characters of all
    words before each, offsets (documents + 1,) of words, wanted (documents,).
    """
    documents, size = len(offsets) - 1, most(offsets)
    top = np.zeros((longest + 1, documents), np.int64)
    again = np.zeros((longest + 1, documents), np.int64)
    table, turn = emptied(size), np.uint64(0)
    counts = np.empty(len(table), np.int64)
    places, keys, slots = np.empty(size, np.int64), np.empty(size, np.uint64), np.empty(size, np.int64)
    for document in range(documents):
        first, words = offsets[document], offsets[document + 1] - offsets[document]
        count = words - 1 if wanted[document] and words else 0
        for i in range(count):
            places[i], keys[i] = first + i, hashes[first + i]
        for n in range(2, min(longest, words * wanted[document]) + 1):
            for i in range(count):
                keys[i] = keys[i] * BASE + hashes[places[i] + n - 1]
            turn += np.uint64(1)
            tally(table, counts, turn, keys[:count], slots[:count])
            count = repeating(counts, places[:count], keys[:count], slots[:count])
            best, place = most_often(counts, slots[:count])
            at = places[place] if count else first
            top[n, document] = (before[at + n] - before[at] + n - 1) * max(best, 1)
            again[n, document] = again_characters(counts, places[:count], slots[:count], before, n)
            count = followed(places[:count], keys[:count])
    return top, again

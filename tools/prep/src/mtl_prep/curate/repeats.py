"""The n-grams of words that occur more than once in a document, counted in a compiled loop (see `loops`)."""

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from mtl_prep.curate.loops import BASE, Hash, Integers, most, slot_of, slots_for


class Table(NamedTuple):
    """A table of n-grams (see `loops.slot_of`): how often each occurs, and the round that met it last."""

    keys: Hash
    stamps: Integers
    counts: Integers
    marks: Integers


@njit(cache=True)
def tally(table: Table, stamp: int, keys: Hash, slots: Integers) -> None:
    """Counts keys (n,) in a table, and tells the slot of each (n,)."""
    size = slots_for(len(keys))
    known, stamps = table.keys[:size], table.stamps[:size]
    for i in range(len(keys)):
        slot = slot_of(known, stamps, stamp, keys[i])
        table.counts[slot] = table.counts[slot] + 1 if stamps[slot] == stamp else 1
        known[slot], stamps[slot], slots[i] = keys[i], stamp, slot


@njit(cache=True)
def most_often(table: Table, slots: Integers) -> tuple[int, int]:
    """How often the n-gram occurs that occurs most often, and which one (of n, in order) is its first."""
    best = first = 0
    for i in range(len(slots)):
        if table.counts[slots[i]] > best:
            best, first = table.counts[slots[i]], i
    return best, first


@njit(cache=True)
def again_characters(
    table: Table, stamp: int, places: Integers, slots: Integers, before: Integers, n: int
) -> int:
    """Characters of the n-grams that are like an earlier one and overlap none that was counted."""
    free = total = 0
    for i in range(len(slots)):
        slot, place = slots[i], places[i]
        if table.counts[slot] > 1 and place >= free:
            if table.marks[slot] == stamp:
                total += before[place + n] - before[place]
                free = place + n
            table.marks[slot] = stamp
    return total


@njit(cache=True)
def longer(table: Table, places: Integers, keys: Hash, slots: Integers) -> int:
    """Keeps those n-grams that can repeat as an n+1-gram, at the front; how many these are.

    They repeat as an n-gram, and are followed by one that does.
    """
    count = 0
    for i in range(len(slots) - 1):
        follows = places[i + 1] == places[i] + 1
        if follows and table.counts[slots[i]] > 1 and table.counts[slots[i + 1]] > 1:
            places[count], keys[count] = places[i], keys[i]
            count += 1
    return count


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
    empty = np.full(slots_for(size), -1, np.int64)
    table = Table(np.empty(len(empty), np.uint64), empty, np.empty_like(empty), empty.copy())
    places, keys, slots = np.empty(size, np.int64), np.empty(size, np.uint64), np.empty(size, np.int64)
    stamp = 0
    for document in range(documents):
        first, words = offsets[document], offsets[document + 1] - offsets[document]
        count = words - 1 if wanted[document] and words else 0
        for i in range(count):
            places[i], keys[i] = first + i, hashes[first + i]
        for n in range(2, min(longest, words * wanted[document]) + 1):
            for i in range(count):
                keys[i] = keys[i] * BASE + hashes[places[i] + n - 1]
            stamp += 1
            tally(table, stamp, keys[:count], slots[:count])
            best, place = most_often(table, slots[:count])
            at = places[place] if best > 1 else first
            top[n, document] = (before[at + n] - before[at] + n - 1) * max(best, 1)
            again[n, document] = again_characters(table, stamp, places[:count], slots[:count], before, n)
            count = longer(table, places[:count], keys[:count], slots[:count])
    return top, again

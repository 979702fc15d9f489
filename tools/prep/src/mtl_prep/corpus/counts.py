"""Counts of files and records by kind or reason: their sums, and how they are told."""

from collections import Counter
from collections.abc import Iterable, Mapping

TOLD = 6  # kinds that a message counts one by one


def counted(counts: Iterable[Mapping[str, int]]) -> Counter[str]:
    """The sum of several counts."""
    return sum(map(Counter, counts), Counter[str]())


def told(counts: Mapping[str, int]) -> str:
    """Counts in words, the largest first.

    >>> told({"empty": 2, "not JSON": 31})
    '31 not JSON, 2 empty'
    """
    largest = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in largest[TOLD:])
    return ", ".join(f"{n:,} {what}" for what, n in [*largest[:TOLD], ("others", rest)] if n)

"""A bounded sample of what each step removed, the same one whoever draws it."""

import heapq
from collections.abc import Iterable
from typing import Any

import xxhash

SIZE = 100  # documents a step
SHOWN = 400  # characters of a document

Drawn = tuple[int, dict[str, Any]]  # a number that decides, and what is shown of the document


def draw(source: str, record: int) -> int:
    """A number for each document; those with the smallest ones are the sample."""
    return xxhash.xxh3_64_intdigest(f"{source}\n{record}".encode())


def smallest(drawn: Iterable[Drawn]) -> list[Drawn]:
    """The sample of what was drawn."""
    return heapq.nsmallest(SIZE, drawn, key=lambda one: one[0])


def share_of(units: int) -> int:
    """How many of a unit's documents are kept until the sample is drawn of all.

    Four times what a unit gives on average, and more of few units: a unit that would give still more is rare,
    and then the sample is another one, but again the same one each time.
    """
    return min(SIZE, 8 + -(-4 * SIZE // max(units, 1)))

"""What rank 0 tells the other ranks: one int32 array of fixed length a step, so nobody waits for a size.

    header     operation, number of parts, number of tokens, number of pages
    parts      cached tokens, new tokens, pages, 1 if the next token is sampled
    tokens     the new tokens of every part, end to end
    pages      the pages of every part, end to end

Plain numbers only: a rank cannot be made to run anything by what arrives here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from mtl_serve.scheduler import Limits, Share

HEADER = PART = 4


class Operation(IntEnum):
    """What to do."""

    PULSE = 0  # nothing; shows that all ranks are there
    STEP = 1
    LEAVE = 2


@dataclass(frozen=True)
class Part:
    """One sequence in a step: `count` new tokens behind `cached` ones, in these pages."""

    cached: int
    count: int
    samples: bool
    pages: Sequence[int]


@dataclass(frozen=True)
class Message:
    """An operation, and for a step the flat tokens of its parts."""

    operation: Operation
    parts: Sequence[Part] = ()
    tokens: Sequence[int] = field(default=())

    @classmethod
    def step(cls, shares: Sequence[Share]) -> "Message":
        """The message that asks for a planned step."""
        tokens: list[int] = []
        parts = []
        for share in shares:
            sequence, start = share.sequence, share.sequence.cached
            tokens += sequence.tokens[start : start + share.count]
            parts.append(Part(start, share.count, share.samples, sequence.pages))
        return cls(Operation.STEP, parts, tokens)

    def pack(self, into: NDArray[np.int32]) -> None:
        """Writes the message to the start of an array of `length(limits)` entries."""
        pages = [page for part in self.parts for page in part.pages]
        entries = [self.operation, len(self.parts), len(self.tokens), len(pages)]
        for part in self.parts:
            entries += part.cached, part.count, len(part.pages), part.samples
        entries += self.tokens
        entries += pages
        into[: len(entries)] = entries

    @classmethod
    def unpack(cls, array: NDArray[np.int32]) -> "Message":
        """Reads what `pack` wrote."""
        operation, num_parts, num_tokens, num_pages = array[:HEADER].tolist()
        tokens_at = HEADER + PART * num_parts
        pages_at = tokens_at + num_tokens
        pages = array[pages_at : pages_at + num_pages].tolist()
        parts, used = [], 0
        for cached, count, held, samples in array[HEADER:tokens_at].reshape(-1, PART).tolist():
            parts.append(Part(cached, count, bool(samples), pages[used : used + held]))
            used += held
        return cls(Operation(operation), parts, array[tokens_at:pages_at].tolist())


def length(limits: Limits) -> int:
    """Entries of the longest message; every page has one holder at most, so their number bounds the page
    tables.
    """
    return HEADER + PART * limits.sequences + limits.step_tokens + limits.pages

"""The pages of the key-value cache: who holds which. Pure arithmetic, without torch.

A sequence reads its cache fastest when its pages follow one another in memory, because attention can then
use a view instead of a gather. So a new sequence starts where it has room to grow, and a growing one takes
the next page if it is free. Pages are not shared yet; sharing prompts needs a count of holders here and
nothing elsewhere.
"""

import re
from collections.abc import Sequence

FREE, HELD = b"\1", b"\0"
GAP = re.compile(FREE + b"+")


class Pages:
    """`total` pages, numbered from 0."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._state = bytearray(FREE * total)

    def allocate(self, count: int, held: Sequence[int] = ()) -> list[int]:
        """Takes `count` pages to follow `held`, the pages a sequence has already; there must be that many
        free.
        """
        assert count <= self.free, (count, self.free)
        taken = self._following(held[-1], count) if held else []
        while len(taken) < count:
            taken += self._run(count - len(taken))
        return taken

    def release(self, pages: Sequence[int]) -> None:
        """Gives pages back."""
        for page in pages:
            assert self._state[page] == HELD[0], f"page {page} is free already"
            self._state[page] = FREE[0]
        self.free += len(pages)

    def _take(self, start: int, stop: int) -> list[int]:
        self._state[start:stop] = HELD * (stop - start)
        self.free -= stop - start
        return list(range(start, stop))

    def _following(self, last: int, count: int) -> list[int]:
        gap = GAP.match(self._state, last + 1)
        return self._take(last + 1, min(last + 1 + count, gap.end())) if gap else []

    def _run(self, count: int) -> list[int]:
        """Up to `count` consecutive pages from the largest gap."""
        start, stop = max((m.span() for m in GAP.finditer(self._state)), key=lambda span: span[1] - span[0])
        middle = (start + stop) // 2
        # The page before the gap belongs to a sequence that may grow into it: leave it the first half.
        if start and middle + count <= stop:
            start = middle
        return self._take(start, min(start + count, stop))


def pages_for(tokens: int, page_size: int) -> int:
    """How many pages hold `tokens`.

    >>> pages_for(33, 32)
    2
    """
    return -(-tokens // page_size)

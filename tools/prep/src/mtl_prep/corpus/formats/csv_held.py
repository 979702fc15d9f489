"""The bytes of a CSV file on their way to the csv module, without a row that is too long to hold."""

import re
from collections import deque
from collections.abc import Iterator

from mtl_prep.corpus.long_csv import RowScan

LINE_END = re.compile(rb"\r\n?|\n")


class LongRowError(Exception):
    """The row that the csv module is at is too long to hold."""


def _ends(piece: bytes) -> int:
    """How many lines end in a piece, by CR, LF or both."""
    lone = piece.count(b"\r")
    return piece.count(b"\n") + (lone - piece.count(b"\r\n") if lone else 0)


def _whole_ends(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """The pieces, CR and LF of one line end never parted."""
    held = b""
    for piece in pieces:
        piece = held + piece
        held = b"\r" if piece.endswith(b"\r") else b""
        yield piece.removesuffix(b"\r") if held else piece
    yield held


class Held:
    """The bytes of a table, those of the row that the csv module is at held back.

    `row` is how many lines came before that row. Reading on in a row of over `limit` bytes raises
    LongRowError, after which the row is there in pieces, and reading begins anew after it.
    """

    def __init__(self, pieces: Iterator[bytes], limit: int) -> None:
        self._pieces, self._limit = _whole_ends(pieces), limit
        self._begin()

    def _begin(self, rest: bytes = b"") -> None:
        self.row = self._ends = self._size = 0
        self._next, self._held = rest, deque[tuple[int, bytes]]()  # line ends before a piece, and the piece

    def _more(self) -> bytes | None:
        """The next piece, None after the last one."""
        piece, self._next = self._next, b""
        return piece or next((piece for piece in self._pieces if piece), None)

    def __iter__(self) -> Iterator[bytes]:
        while (piece := self._more()) is not None:
            while len(self._held) > 1 and self._held[1][0] < self.row:
                self._size -= len(self._held.popleft()[1])
            if self._size > self._limit:
                self._next = piece
                raise LongRowError
            self._held.append((self._ends, piece))
            self._ends, self._size = self._ends + _ends(piece), self._size + len(piece)
            yield piece

    def row_in_pieces(self, scan: RowScan) -> Iterator[bytes]:
        """The row that is too long; `scan` tells where it ends."""
        for piece in self._from_row():
            end = scan.feed(piece)
            if end is not None:
                self._begin(piece[end:] + b"".join(piece for _, piece in self._held) + self._next)
                yield piece[:end]
                return
            yield piece
        scan.finish()

    def _from_row(self) -> Iterator[bytes]:
        """What was held of the row, and what follows."""
        while self._held:
            before, piece = self._held.popleft()
            skipped = self.row - before
            ends = [end.end() for end in LINE_END.finditer(piece)][:skipped] if skipped > 0 else []
            if skipped <= len(ends):
                yield piece[ends[-1] if ends else 0 :]
        while (more := self._more()) is not None:
            yield more

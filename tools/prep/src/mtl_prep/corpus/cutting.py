"""Cuts text into runs of whole records that end at a line end or at blank lines, without holding it all."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from mtl_prep.corpus.content import Content, stretch
from mtl_prep.corpus.unpack import PIECE

LINE_END = re.compile(rb"\n")
BLANK_LINES = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")
WIDEST = 1 << 12  # bytes of an end that are looked at together

End = re.Pattern[bytes]
Keep = Callable[[Iterator[bytes]], Content]


@dataclass(frozen=True)
class Cut:
    """Whole records end to end, and one more after them if it is too long to hold."""

    data: bytes
    long: Content | None = None


def _last_end(end: End, data: bytes | bytearray, stop: int) -> int:
    """Where the last record that starts in `data[:stop]` does so."""
    if end is LINE_END:
        return data.rfind(b"\n", 0, stop) + 1
    return max((found.end() for found in end.finditer(data, 0, stop)), default=0)


def _whole(end: End, data: bytes, giant: int) -> Cut:
    """Records that are all there; the last one alone when it is longer than `giant`."""
    if len(data) <= giant:
        return Cut(data)
    start = _last_end(end, data, len(data) - 1 if end is LINE_END else len(data.rstrip()))
    if len(data) - start <= giant:
        return Cut(data)
    return Cut(data[:start], partial(iter, [data[start:]]))


def _to_end(end: End, begun: bytes, pieces: Iterator[bytes], left: bytearray) -> Iterator[bytes]:
    """The rest of a record, its end included; what follows is put into `left`."""
    window = begun
    while not (found := end.search(window)):
        piece = next(pieces, None)
        if piece is None:
            yield window
            return
        yield window[:-WIDEST]
        window = window[-WIDEST:] + piece
    yield window[: found.end()]
    left += window[found.end() :]


def cuts(pieces: Iterator[bytes], end: End, part_bytes: int, giant: int, keep: Keep) -> Iterator[Cut]:
    """The records of a stream in runs of at least `part_bytes`, up to the first end there.

    A last record of more than `giant` bytes stands alone; if its end is far, `keep` takes it as it comes.
    """
    pending, seen = bytearray(), 0
    for piece in pieces:
        pending += piece
        while len(pending) >= part_bytes:
            found = end.search(pending, max(part_bytes - 1, seen))
            if found:
                with memoryview(pending) as view:
                    data = bytes(view[: found.end()])
                yield _whole(end, data, giant)
                del pending[: found.end()]
            elif len(pending) > part_bytes + giant + WIDEST:
                start = _last_end(end, pending, part_bytes)
                data, begun = bytes(pending[:start]), bytes(pending[start:])
                pending.clear()
                yield Cut(data, keep(_to_end(end, begun, pieces, pending)))
            else:
                seen = len(pending) - WIDEST
                break
            seen = 0
    if pending:
        yield _whole(end, bytes(pending), giant)


def _line_end(file: BinaryIO, at: int, stop: int) -> int:
    """Where the line at `at` ends, its line end included; not looked for after `stop`."""
    file.seek(at)
    while at < stop:
        piece = file.read(min(PIECE, stop - at))
        if not piece:
            break
        found = piece.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(piece)
    return at


def lines_of_part(open_file: Callable[[], BinaryIO], start: int, stop: int, size: int, giant: int) -> Cut:
    """The lines of a file of `size` bytes that start in `start:stop`."""
    with open_file() as file:
        begin = _line_end(file, start - 1, stop) if start else 0
        if begin >= stop:
            return Cut(b"")
        file.seek(begin)
        data = file.read(stop - begin)
        if data.endswith(b"\n"):
            return Cut(data)
        last = begin + data.rfind(b"\n") + 1
        end = _line_end(file, stop, size)
        if end - last > giant:
            return Cut(data[: last - begin], stretch(open_file, last, end - last))
        file.seek(stop)
        return Cut(data + file.read(end - stop))

"""Bytes too many to hold, read from their start as often as asked."""

import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import BinaryIO, cast

PIECE = 1 << 20  # bytes held at a time

Content = Callable[[], Iterator[bytes]]


def _read(file: BinaryIO, start: int, size: int) -> Iterator[bytes]:
    for at in range(start, start + size, PIECE):
        file.seek(at)
        yield file.read(min(PIECE, start + size - at))


def stretch(open_file: Callable[[], BinaryIO], start: int, size: int) -> Content:
    """Some bytes of a file."""

    def content() -> Iterator[bytes]:
        with open_file() as file:
            yield from _read(file, start, size)

    return content


class _Spool:
    """Bytes in a nameless file, which is gone when nobody may read them any more."""

    def __init__(self, pieces: Iterable[bytes], directory: Path) -> None:
        self._file = cast(BinaryIO, tempfile.TemporaryFile(dir=directory))  # noqa: SIM115 closed by __del__
        for piece in pieces:
            self._file.write(piece)
        self._size = self._file.tell()

    def __call__(self) -> Iterator[bytes]:
        return _read(self._file, 0, self._size)

    def __del__(self) -> None:
        self._file.close()


def spooled(pieces: Iterable[bytes], directory: Path) -> Content:
    """Bytes that come only once, kept on the disk in `directory`."""
    return _Spool(pieces, directory)


def discarded(pieces: Iterable[bytes]) -> Content:
    """Nothing, after all pieces have come."""
    for _ in pieces:
        pass
    return partial(iter, ())


def part(content: Content, start: int, stop: int) -> Iterator[bytes]:
    """The bytes `start:stop` of a content."""
    at = 0
    for piece in content():
        if at >= stop:
            break
        yield piece[max(start - at, 0) : stop - at]
        at += len(piece)


def beginning(content: Content, size: int) -> bytes:
    """The first bytes, at most `size` of them."""
    return next(part(content, 0, size), b"")

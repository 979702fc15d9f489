"""What a packed file holds: gzip, zstandard, xz and bzip2, told by content, every member, frame and stream.

Text in UTF-16 or UTF-32 that says so by a byte-order mark becomes UTF-8 here; a mark of UTF-8 is left out.
"""

import bz2
import codecs
import io
import itertools
import lzma
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Literal, cast

import zstandard
from isal import igzip_lib, isal_zlib

from mtl_common.errors import DataError

Packing = Literal["", "gzip", "zstd", "xz", "bzip2"]
Encoding = Literal["", "utf-16-le", "utf-16-be", "utf-32-le", "utf-32-be"]

DAMAGE: tuple[type[Exception], ...] = (
    cast(type[Exception], igzip_lib.IsalError),
    zstandard.ZstdError,
    lzma.LZMAError,
    EOFError,
    ValueError,
)
PIECE = 1 << 18  # bytes read at a time
FIRST_FEED = 1 << 10  # packed bytes unpacked at first; as many more as the last ones did not swell
SWOLLEN = 1 << 22  # what packed bytes may become at a time: a zstd frame of zeros swells 30,000-fold
MAGIC: dict[bytes, Packing] = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
}
SKIPPABLE = b"\x2a\x4d\x18"  # 0x184D2A50 to 0x184D2A5F begin a zstd frame to be skipped
BOM = codecs.BOM_UTF8
# UTF-32's mark begins with that of UTF-16
MARKS: dict[bytes, Encoding] = {
    codecs.BOM_UTF32_LE: "utf-32-le",
    codecs.BOM_UTF32_BE: "utf-32-be",
    codecs.BOM_UTF16_LE: "utf-16-le",
    codecs.BOM_UTF16_BE: "utf-16-be",
}


def damaged(name: str, what: str, error: Exception) -> DataError:
    """The error about a source whose bytes are not what they should be."""
    return DataError(f"{name} is damaged {what}: {str(error).rstrip('.')}; mend it or leave it out")


def packing_of(start: bytes) -> Packing:
    """How a file that starts so is packed."""
    if start[1:4] == SKIPPABLE and start[0] & 0xF0 == 0x50:
        return "zstd"
    return next((packing for magic, packing in MAGIC.items() if start.startswith(magic)), "")


def encoding_of(start: bytes) -> Encoding:
    """The encoding that a byte-order mark names, if it is not UTF-8."""
    return next((encoding for mark, encoding in MARKS.items() if start.startswith(mark)), "")


def _new(packing: Packing) -> Callable[[], Any]:
    if packing == "gzip":
        return lambda: isal_zlib.decompressobj(wbits=31)
    if packing == "zstd":
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj
    return lzma.LZMADecompressor if packing == "xz" else bz2.BZ2Decompressor


def _feeds(file: BinaryIO, size: list[int]) -> Iterator[bytes]:
    return iter(lambda: file.read(size[0]), b"")


def _members(file: BinaryIO, packing: Packing) -> Iterator[bytes]:
    """The content of all members, frames or streams, end to end."""
    new = _new(packing)
    member, begun, feed = new(), False, [FIRST_FEED]
    for read in _feeds(file, feed):
        data, swollen = read, 0
        while data:
            if not begun and packing in ("gzip", "xz") and not data.strip(b"\0"):
                break  # files on tape end in zeros, and streams of xz may be padded with them
            yield (piece := member.decompress(data))
            swollen += len(piece)
            begun, data = not member.eof, member.unused_data if member.eof else b""
            member = member if begun else new()
        feed[0] = max(feed[0] // 4, 64) if swollen > SWOLLEN else min(feed[0] * 2, PIECE)
    if begun:
        raise EOFError("it ends in the middle")


def unpacked(
    file: BinaryIO, name: str, packing: Packing, consumed: Callable[[int], None] = lambda _: None
) -> Iterator[bytes]:
    """The file's content in pieces; `consumed` is told the position in the file before each piece.

    Raises DataError for packed data that is cut or damaged.
    """
    pieces = _members(file, packing) if packing else iter(lambda: file.read(PIECE), b"")
    try:
        for piece in pieces:
            consumed(file.tell())
            yield piece
    except DAMAGE as error:
        raise damaged(name, f"{packing} data", error) from None
    except OSError as error:
        if packing != "bzip2" or error.errno is not None:
            raise
        raise damaged(name, f"{packing} data", error) from None


def in_utf8(pieces: Iterable[bytes], name: str, encoding: Encoding) -> Iterator[bytes]:
    """Text without its byte-order mark, in UTF-8; halves of surrogate pairs stay, and are no valid UTF-8.

    Raises DataError for what is not in the encoding.
    """
    if not encoding:
        yield from _without_mark(pieces)
        return
    decoder = codecs.getincrementaldecoder(encoding)("surrogatepass")
    first = True
    try:
        for piece in itertools.chain(filter(None, pieces), [b""]):
            text = decoder.decode(piece, final=not piece)
            if text:
                yield text.removeprefix("\ufeff" if first else "").encode("utf-8", "surrogatepass")
                first = False
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name} is damaged {encoding} text: {error.reason}; mend it or leave it out"
        ) from None


def _without_mark(pieces: Iterable[bytes]) -> Iterator[bytes]:
    start = b""
    rest = iter(pieces)
    for piece in rest:
        start += piece
        if len(start) >= len(BOM):
            break
    yield start.removeprefix(BOM)
    yield from rest


class Stream(io.RawIOBase):
    """Pieces of bytes as a file that can only be read on."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._rest = pieces, memoryview(b"")

    def readable(self) -> bool:
        """Says yes."""
        return True

    def readinto(self, into: Any) -> int:
        """Fills `into` as far as the next piece goes."""
        while not self._rest:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._rest = memoryview(piece)
        count = min(len(into), len(self._rest))
        into[:count] = self._rest[:count]
        self._rest = self._rest[count:]
        return count

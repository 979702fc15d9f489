"""Reads files as they are, or packed with gzip or zstandard: told by content, every member and frame."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

import zstandard

from mtl_common.errors import DataError

Packing = Literal["", "gzip", "zstd"]

PIECE = 1 << 18  # bytes read at a time
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_MAGIC = b"\x1f\x8b"
REFUSED = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PAR1": "parquet",
    b"ARROW1": "Arrow",
}


def packing_of(path: Path) -> Packing:
    """How a file is packed; raises DataError for a packing that is not read."""
    with path.open("rb") as file:
        start = file.read(8)
    for magic, name in REFUSED.items():
        if start.startswith(magic):
            raise DataError(
                f"{path} is {name} data, which is not read; turn it into .jsonl, .jsonl.gz or .jsonl.zst"
            )
    # 0x184D2A50 to 0x184D2A5F begin a frame to be skipped
    if start.startswith(ZSTD_MAGIC) or (start[1:4] == b"\x2a\x4d\x18" and start[0] & 0xF0 == 0x50):
        return "zstd"
    return "gzip" if start.startswith(GZIP_MAGIC) else ""


def _new(packing: Packing) -> Callable[[], Any]:
    if packing == "gzip":
        return lambda: zlib.decompressobj(wbits=31)
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj


def _members(file: BinaryIO, packing: Packing) -> Iterator[bytes]:
    """The content of all members or frames, end to end."""
    new = _new(packing)
    member, begun = new(), False
    while data := file.read(PIECE):
        while data:
            if not begun and packing == "gzip" and not data.strip(b"\0"):
                break  # files on tape end in zeros
            yield member.decompress(data)
            begun, data = not member.eof, member.unused_data if member.eof else b""
            member = member if begun else new()
    if begun:
        raise EOFError("it ends in the middle")


def unpacked(
    path: Path, packing: Packing, consumed: Callable[[int], None] = lambda _: None
) -> Iterator[bytes]:
    """The file's content in pieces; `consumed` is told the position in the file before each piece.

    Raises DataError for packed data that is cut or damaged.
    """
    with path.open("rb") as file:
        pieces = _members(file, packing) if packing else iter(lambda: file.read(PIECE), b"")
        try:
            for piece in pieces:
                consumed(file.tell())
                yield piece
        except (zlib.error, zstandard.ZstdError, EOFError) as error:
            raise DataError(f"{path} is damaged {packing} data: {error}; mend it or leave it out") from None

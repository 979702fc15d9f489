"""Files that are a document each, many of them a unit."""

from collections.abc import Iterator

import xxhash

from mtl_common.errors import DataError
from mtl_prep.corpus.find import Source
from mtl_prep.corpus.formats.interface import Reading
from mtl_prep.corpus.long_text import add_long_text
from mtl_prep.corpus.parsing import add_plain
from mtl_prep.corpus.places import content_hash
from mtl_prep.corpus.records import NOT_UTF8, Documents


def _content(source: Source, limit: int) -> bytes | None:
    """The content of a file of up to `limit` bytes; None for a larger one."""
    content = bytearray()
    for piece in source.pieces():
        content += piece
        if len(content) > limit:
            return None
    return bytes(content)


def _add_in_pieces(found: Documents, index: int, reading: Reading) -> None:
    """Takes in a file that is packed, in another encoding, or large."""
    source, rules = reading.sources[index], reading.rules
    try:
        content = _content(source, reading.giant)
    except DataError:
        if not source.encoding:
            raise
        # a mark of UTF-16 begins other files than texts, too
        found.refuse(index, 0, NOT_UTF8)
        return
    if content is None:
        add_long_text(found, index, 0, source.pieces, rules)
    else:
        add_plain(found, index, 0, content, rules)


def _add(found: Documents, index: int, reading: Reading) -> str:
    """Takes in a file; gives its hash, empty for one that would have to be fetched twice."""
    source = reading.sources[index]
    if not source.is_plain or source.size > reading.giant:
        _add_in_pieces(found, index, reading)
        return "" if source.is_remote else content_hash(source.address)
    with source.open() as file:
        content = file.read(source.size + 1)
    add_plain(found, index, 0, content, reading.rules)
    return xxhash.xxh3_128_hexdigest(content)


def texts(first: int, last: int, reading: Reading) -> Iterator[tuple[Documents, list[str]]]:
    """The documents of the files `first:last` and the files' hashes; after a giant new ones are begun."""
    found, hashes = Documents(), list[str]()
    for index in range(first, last):
        hashes.append(_add(found, index, reading))
        if found.giant is not None:
            yield found, hashes
            found, hashes = Documents(), []
    if hashes:
        yield found, hashes

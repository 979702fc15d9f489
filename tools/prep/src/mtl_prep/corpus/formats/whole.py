"""Small files, many of them a unit: texts that are a document each, and files with a few records."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import xxhash

from mtl_common.errors import DataError
from mtl_prep.corpus.formats import Part, Reading, format_of
from mtl_prep.corpus.long_text import add_long_text
from mtl_prep.corpus.parsing import add_plain
from mtl_prep.corpus.places import content_hash
from mtl_prep.corpus.records import NOT_UTF8, Documents
from mtl_prep.corpus.source import Source


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


@dataclass
class Run:
    """Documents of files that follow each other, from block `block` of the file `first` on.

    `hashes` are those of the file `first` and of the others that begin here, `size` is what was read of them.
    """

    first: int
    block: int
    found: Documents = field(default_factory=Documents)
    hashes: list[str] = field(default_factory=list)
    size: int = 0

    def is_full(self, part_bytes: int) -> bool:
        """Whether nothing should come after what it holds."""
        return self.found.giant is not None or sum(map(len, self.found.texts)) >= part_bytes


def _text(run: Run, index: int, reading: Reading) -> None:
    """Takes in a file that is one document."""
    run.hashes.append(_add(run.found, index, reading))
    run.size += reading.sources[index].size


def _records(run: Run, index: int, reading: Reading, scratch: Path) -> Iterator[Run]:
    """Takes in the records of a small file; gives the runs that get full before its end, and the last."""
    source, line = reading.sources[index], 0
    digest = "" if source.is_remote else content_hash(source.address)
    run.hashes.append(digest)
    blocks = format_of(source.kind).blocks(Part(index, 0, lambda _: True, scratch), reading)
    for number, block in enumerate(blocks):
        if run.is_full(reading.part_bytes):
            yield run
            run = Run(index, number, hashes=[digest])
        found = block.read()
        run.found.take(found, line)
        run.size, line = run.size + block.size, line + found.lines
    yield run


def runs(first: int, last: int, reading: Reading, scratch: Path) -> Iterator[Run]:
    """The documents of the files `first:last`; after a giant, or a unit's worth of text, a new run begins."""
    run = Run(first, 0)
    for index in range(first, last):
        if run.is_full(reading.part_bytes):
            yield run
            run = Run(index, 0)
        if reading.sources[index].kind == "text":
            _text(run, index, reading)
        else:
            *full, run = _records(run, index, reading, scratch)
            yield from full
    if run.hashes:
        yield run

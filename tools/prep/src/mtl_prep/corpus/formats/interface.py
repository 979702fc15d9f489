"""What a format is: how a file is cut into parts that can be read alone, and each part into blocks."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from mtl_prep.corpus.keys import Key, TextKey
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.source import Source

GIANT = 1 << 26

Errors = Literal["bad", "replace"]


@dataclass(frozen=True)
class Reading:
    """What decides the units of a corpus and the documents in them.

    A unit is about `part_bytes` of content. A document of more than `giant` bytes is not held in memory where
    it stands in text or JSON: it is offered in pieces. A `shape` is for more than a text, in place of a key.
    With `whole` all columns of tables are read, not only what the text stands in.
    """

    sources: tuple[Source, ...]
    text_key: str
    part_bytes: int
    errors: Errors = "bad"
    giant: int = GIANT
    shape: Key | None = None
    whole: bool = False

    @property
    def rules(self) -> Rules:
        """What decides the text of a record."""
        return Rules(self.shape or TextKey(self.text_key), self.errors == "replace", self.giant)


@dataclass(frozen=True)
class Block:
    """Some records of a file, not yet read; `size` is how much of the file they stand for.

    Another process can read it, too, unless it `stays` with a long record that lies on this one's disk.
    """

    size: int
    read: Callable[[], Documents]
    stays: bool = False


@dataclass(frozen=True)
class Part:
    """A part of a source to be read from its start to its end; parts are numbered from 0.

    Long records of blocks that are not `wanted`, told by their number, need not be kept; others are, in
    nameless files of `scratch`.
    """

    source: int
    number: int
    wanted: Callable[[int], bool]
    scratch: Path


class Format(Protocol):
    """How files of one kind are read."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """How many parts can be read alone; None for a file that has to be read from its start.

        Raises DataError for a file that cannot be read.
        """

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """The blocks of a part in order: the same ones at every call."""

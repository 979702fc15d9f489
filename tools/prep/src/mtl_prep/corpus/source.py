"""One input file: where it is, what is in it, and its content."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePath
from typing import BinaryIO, Literal

from mtl_prep.corpus import places
from mtl_prep.corpus.far import Facts
from mtl_prep.corpus.languages import language_of
from mtl_prep.corpus.unpack import Encoding, Packing, in_utf8, unpacked

Kind = Literal["lines", "text", "text lines", "paragraphs", "json", "csv", "parquet", "arrow", "warc"]

PACKED = frozenset({".gz", ".zst", ".zstd", ".xz", ".bz2"})
PACKED_RATIO = 4  # text is about four times its packed size
OTHER = "other"  # of no known language


def within(address: str) -> PurePath:
    """The path of what a file holds: `s3://b/a.JSONL.gz` -> `s3:/b/a.JSONL`."""
    path = PurePath(address.partition("?")[0] if places.is_url(address) else address)
    return path.with_suffix("") if path.suffix.lower() in PACKED else path


def suffix_of(address: str) -> str:
    """The suffix that tells the kind: `a.JSONL.gz` -> `.jsonl`.

    >>> suffix_of("s3://bucket/a.JSONL.gz"), suffix_of("README")
    ('.jsonl', '')
    """
    return within(address).suffix.lower()


@dataclass(frozen=True)
class Source:
    """One input file. `address` is where it is, `name` what people call it; `size` is bytes where it lies."""

    address: str
    name: str
    size: int
    version: str
    kind: Kind
    packing: Packing = ""
    encoding: Encoding = ""

    @property
    def language(self) -> str:
        """The kind of text that the suffix tells: `Python`, `Markdown`; `other` for an unknown one."""
        return language_of(within(self.address)) or OTHER

    @property
    def is_remote(self) -> bool:
        """Whether it lies in a store, where reading costs time and money."""
        return places.is_url(self.address)

    @property
    def facts(self) -> Facts:
        """What was found out about the file."""
        return Facts(self.size, self.version)

    @property
    def is_plain(self) -> bool:
        """Whether its bytes are those of its content, so that reading may start anywhere."""
        return not self.packing and not self.encoding

    def open(self) -> BinaryIO:
        """The bytes where they lie, from any position."""
        return places.open_file(self.address, self.facts)

    def pieces(self, tell: list[int] | None = None) -> Iterator[bytes]:
        """The content, unpacked and in UTF-8; `tell[0]` is kept at the position in the file.

        Raises DataError for packed data that is cut or damaged.
        """
        position = [0] if tell is None else tell

        def consumed(at: int) -> None:
            position[0] = at

        with self.open() as file:
            content = unpacked(file, self.name, self.packing, consumed)
            yield from in_utf8(content, self.name, self.encoding)


def text_size(sources: Iterable[Source]) -> int:
    """About how many bytes of text sources hold: packed ones four times their size."""
    return sum(source.size * (PACKED_RATIO if source.packing else 1) for source in sources)

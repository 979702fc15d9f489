"""Finds the files of a corpus, and tells what each one holds.

Files that are named, or match a pattern, are always read, or refused by name. In a directory, files of known
kinds are read in the order of their paths; others are passed over and counted. Hidden files, installed
packages, what .gitignore files name and links to directories are left alone.
"""

import io
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import BinaryIO, Literal

import orjson

from mtl_common.errors import DataError
from mtl_prep.corpus import places
from mtl_prep.corpus.cleaned import MANIFEST, clean_shards, shards_of
from mtl_prep.corpus.counts import told
from mtl_prep.corpus.far import Facts, changed
from mtl_prep.corpus.ignored import Ignored
from mtl_prep.corpus.languages import LANGUAGES
from mtl_prep.corpus.unpack import Encoding, Packing, Stream, encoding_of, in_utf8, packing_of, unpacked

Kind = Literal["lines", "text", "text lines", "paragraphs", "json", "csv", "parquet", "arrow", "warc"]
Split = Literal["file", "paragraph", "line"]

STDIN = "-"
LONG_LINE = 1 << 24
PACKED_RATIO = 4  # text is about four times its packed size

LINES = frozenset({".jsonl", ".ndjson"})
PACKED = frozenset({".gz", ".zst", ".zstd", ".xz", ".bz2"})
TABLES: Mapping[str, Kind] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".warc": "warc",
    ".wet": "warc",
}
# in a directory these are more often something else than a corpus
NAMED: Mapping[str, Kind] = {".json": "json", ".csv": "csv", ".tsv": "csv", ".tab": "csv"}
MAGIC: Mapping[bytes, Kind] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",
    b"WARC/": "warc",
}
REFUSED = {b"PK\x03\x04": "zip", b"\x89HDF": "HDF5", b"SQLite": "SQLite"}
SPLIT: Mapping[Split, Kind] = {"file": "text", "paragraph": "paragraphs", "line": "text lines"}
LEFT_ALONE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
ARRAY_OF_OBJECTS = re.compile(rb"\s*\[\s*\{")


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
        return LANGUAGES.get(suffix_of(self.address), "other")

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


@dataclass(frozen=True)
class Corpus:
    """The files to read, in order, and how many others were passed over, by suffix."""

    sources: tuple[Source, ...]
    skipped: Counter[str]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(source.size for source in self.sources)


def suffix_of(address: str) -> str:
    """The suffix that tells the kind: `a.JSONL.gz` -> `.jsonl`.

    >>> suffix_of("s3://bucket/a.JSONL.gz"), suffix_of("README")
    ('.jsonl', '')
    """
    path = PurePath(address.partition("?")[0] if places.is_url(address) else address)
    inner = PurePath(path.stem) if path.suffix.lower() in PACKED else path
    return inner.suffix.lower()


def first_line(source: Source) -> bytes:
    """The first line with something on it, or the start of one that is very long."""
    start = b""
    for piece in source.pieces():
        start = (start + piece).lstrip()
        if b"\n" in start or len(start) > LONG_LINE:
            break
    return start.partition(b"\n")[0]


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _json_kind(source: Source, suffix: str) -> Kind | None:
    """Whether a file holds JSON lines, or JSON over many lines; None when it is no JSON."""
    try:
        line = first_line(source)
    except DataError:
        if not source.encoding:
            raise
        return None  # a mark of UTF-16 begins other files than texts, too
    if _is_json_object(line):
        return "lines"
    if suffix in LINES:
        return "json" if ARRAY_OF_OBJECTS.match(line) or line.strip() == b"[" else "lines"
    if suffix == ".json":
        return "json"
    return "json" if ARRAY_OF_OBJECTS.match(line) else None


def _misnamed(source: Source, suffix: str, what: str) -> DataError:
    return DataError(f"{source.name} is named as {suffix} but holds {what}; rename it, or leave it out")


def _kind(source: Source, split: Split) -> Kind:
    """The kind of a file by its suffix, where its content agrees; else by its content.

    Raises DataError where they disagree.
    """
    suffix = suffix_of(source.address)
    known = TABLES.get(suffix) or NAMED.get(suffix)
    if known in ("parquet", "arrow", "warc"):
        raise _misnamed(source, suffix, "something else")
    if suffix in LANGUAGES and suffix != ".txt":
        return SPLIT[split]
    json = _json_kind(source, suffix)
    if suffix in LINES or known == "json":
        return json or "lines"
    if json and (known == "csv" or suffix == ".txt"):
        raise _misnamed(source, suffix, "JSON lines" if json == "lines" else "JSON")
    return known or json or SPLIT[split]


def _content_start(source: Source) -> bytes:
    with source.open() as file:
        return io.BufferedReader(Stream(unpacked(file, source.name, source.packing))).read(8)


def _source(address: str, name: str, split: Split) -> Source:
    found = places.facts(address)
    with places.open_file(address, found) as file:
        start = file.read(8)
    for magic, what in REFUSED.items():
        if start.startswith(magic):
            raise DataError(f"{name} is {what} data, which is not read; turn it into .jsonl or .parquet")
    source = Source(address, name, found.size, found.version, "text", packing_of(start))
    if source.packing:
        start = _content_start(source)
    kind = next((kind for magic, kind in MAGIC.items() if start.startswith(magic)), None)
    if source.packing and kind in ("parquet", "arrow"):
        raise DataError(
            f"{name} is {kind} in {source.packing}, which cannot be read in parts; unpack it first"
        )
    source = replace(source, encoding=encoding_of(start))
    return replace(source, kind=kind or _kind(source, split))


def _named(path: str) -> str:
    """A path as typed; bytes that are not UTF-8 are written as escapes."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _walk(directory: Path, ignored: Ignored, skipped: Counter[str]) -> Iterator[Path]:
    """Every file below, in the order of paths; of a clean corpus only the shards."""
    shards = clean_shards(directory)
    if shards is not None:
        yield from (directory / shard for shard in shards)
        return
    ignored = ignored.within(directory)
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in LEFT_ALONE:
            continue
        path = directory / entry.name
        if path in ignored:
            skipped["in .gitignore"] += 1
        elif entry.is_dir(follow_symlinks=False):
            yield from _walk(path, ignored, skipped)
        elif entry.is_file():
            yield path


def _below(address: str) -> Iterator[str]:
    """The same of a directory in a store, where .gitignore files are not looked for."""
    files = [file for file in places.below(address) if LEFT_ALONE.isdisjoint(file.split("/"))]
    shards = dict[str, set[str]]()  # of the clean corpora there
    for file in files:
        directory, _, name = file.rpartition("/")
        if name == MANIFEST:
            with places.open_file(file) as manifest:
                found = shards_of(manifest.read())
            if found is not None:
                shards[directory] = {f"{directory}/{shard}" for shard in found}
    for file in files:
        if all(file in mine or not file.startswith(f"{directory}/") for directory, mine in shards.items()):
            yield file


def _sources(addresses: Sequence[str], split: Split) -> list[Source]:
    return places.each(addresses, lambda address: _source(address, _named(address), split))


def _in_directory(address: str, skipped: Counter[str]) -> Iterator[str]:
    path = Path(places.local(address))
    found = _below(address) if places.is_url(address) else map(str, _walk(path, Ignored(), skipped))
    for file in found:
        suffix = suffix_of(file)
        if suffix in LINES or suffix in LANGUAGES or suffix in TABLES:
            yield file
        else:
            skipped[suffix or "no suffix"] += 1


def _found(address: str, split: Split, stdin: Path | None, skipped: Counter[str]) -> list[Source]:
    """The files of one argument; raises DataError when there are none."""
    if address == STDIN and stdin is not None:
        return [_source(str(stdin), STDIN, split)]
    if places.is_pattern(address):
        matching = places.matching(address)
        if not matching:
            raise DataError(f"no file matches {address}; check the pattern")
        return _sources(matching, split)
    if not places.exists(address):
        raise DataError(f"no corpus at {address}; check the path")
    if not places.is_directory(address):
        return _sources([address], split)
    found = list(_in_directory(address, skipped))
    if not found:
        others = f" among {sum(skipped.values())} files ({told(skipped)})" if skipped else ""
        raise DataError(f"{address} holds no .jsonl, text or source files{others}; name others one by one")
    return _sources(found, split)


def _once(sources: Sequence[Source], skipped: Counter[str]) -> Iterator[Source]:
    """The sources without links to others of them; raises DataError for one that was named twice."""
    real = [s.address if s.is_remote else os.path.realpath(places.local(s.address)) for s in sources]
    count = Counter(real)
    for source, path in zip(sources, real, strict=True):
        if count[path] > 1 and not source.is_remote and os.path.islink(places.local(source.address)):
            count[path] -= 1
            skipped["links to others"] += 1
        elif count[path] > 1:
            raise DataError(f"{source.name} is in the corpus twice; name it once")
        else:
            yield source


def find(arguments: Sequence[str | Path], split: Split = "file", stdin: Path | None = None) -> Corpus:
    """The files of a corpus; raises DataError for an argument that is absent, given twice or without files.

    An argument is a file, a directory, a pattern, a URL, or `-` for the input that lies in the file `stdin`.
    """
    sources: list[Source] = []
    skipped: Counter[str] = Counter()
    addresses = [os.fspath(argument) for argument in arguments]
    places.forget(addresses)
    for address in addresses:
        sources += _found(address, split, stdin, skipped)
    return Corpus(tuple(_once(sources, skipped)), skipped)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raises DataError about the first file that is not as it was found."""
    addresses = [source.address for source in sources]
    places.forget(addresses)
    found = places.each(addresses, places.facts)
    for source, now in zip(sources, found, strict=True):
        if now != source.facts:
            raise changed(source.name)

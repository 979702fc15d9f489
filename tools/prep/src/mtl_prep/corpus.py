"""Finds the files of a corpus, and tells what each one holds.

Files named on the command line are always read, or refused by name. In a directory, files of known kinds
are read in the order of their paths; others are passed over and counted. Hidden files, installed packages and
links to directories are left alone.
"""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import orjson

from mtl_common.errors import DataError
from mtl_prep.unpack import Packing, packing_of, unpacked

Kind = Literal["lines", "text"]

LONG_LINE = 1 << 24
TOLD = 6  # kinds that a message counts one by one

LINES = frozenset({".jsonl", ".ndjson"})
# A .json file is JSON lines only when it is named on the command line: a source tree is full of other JSON.
NAMED_LINES = LINES | {".json"}
PACKED = frozenset({".gz", ".zst"})
LEFT_ALONE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
SUFFIXES = """
.txt .text .md .markdown .rst .adoc .org .tex .pod .html .htm .xml
.py .pyi .pyx .c .h .cc .cpp .cxx .hpp .hh .cu .cuh .m .mm .rs .go .zig .nim .d .java .kt .scala .cs .fs
.js .mjs .jsx .ts .tsx .vue .css .scss .rb .php .pl .pm .lua .r .jl .hs .ml .clj .ex .erl .lisp .el .scm
.swift .dart .f90 .f .asm .s .sh .bash .zsh .fish .ps1 .sql .yaml .yml .toml .ini .cfg .cmake .mk .v .sv .vhd
"""
TEXT = frozenset(SUFFIXES.split())


@dataclass(frozen=True)
class Source:
    """One input file: JSON lines, or a text that is one document. Sizes are bytes on the disk."""

    path: Path
    size: int
    modified_ns: int
    kind: Kind
    packing: Packing

    @property
    def name(self) -> str:
        """The path as typed; bytes that are not UTF-8 are written as escapes."""
        return os.fsencode(self.path).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Corpus:
    """The files to read, in order, and how many others were passed over, by suffix."""

    sources: tuple[Source, ...]
    skipped: Counter[str]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(source.size for source in self.sources)


def _suffix(path: Path) -> str:
    """The suffix that tells the kind: `a.JSONL.gz` -> `.jsonl`."""
    inner = Path(path.stem) if path.suffix.lower() in PACKED else path
    return inner.suffix.lower()


def first_line(path: Path, packing: Packing) -> bytes:
    """The first line with something on it, or the start of one that is very long."""
    start = b""
    for piece in unpacked(path, packing):
        start = (start + piece).removeprefix(b"\xef\xbb\xbf").lstrip()
        if b"\n" in start or len(start) > LONG_LINE:
            break
    return start.partition(b"\n")[0]


def _is_json_object(line: bytes) -> bool:
    try:
        return isinstance(orjson.loads(line), dict)
    except orjson.JSONDecodeError:
        return False


def _kind(path: Path, packing: Packing) -> Kind:
    """The kind of a file named on the command line: by its suffix, else by its first line."""
    suffix = _suffix(path)
    if suffix in NAMED_LINES:
        return "lines"
    holds_json = suffix not in TEXT - {".txt"} and _is_json_object(first_line(path, packing))
    if holds_json and suffix == ".txt":
        raise DataError(f"{path} is named as a text but holds JSON lines; rename it to .jsonl")
    return "lines" if holds_json else "text"


def _source(path: Path, kind: Kind | None = None) -> Source:
    facts = path.stat()
    packing = packing_of(path)
    return Source(path, facts.st_size, facts.st_mtime_ns, kind or _kind(path, packing), packing)


def _walk(directory: Path) -> Iterator[Path]:
    """Every file below, in the order of paths."""
    for entry in sorted(os.scandir(directory), key=lambda entry: entry.name):
        if entry.name.startswith(".") or entry.name in LEFT_ALONE:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(directory / entry.name)
        elif entry.is_file():
            yield directory / entry.name


def _in_directory(directory: Path, skipped: Counter[str]) -> Iterator[Source]:
    for path in _walk(directory):
        suffix = _suffix(path)
        if suffix in LINES or suffix in TEXT:
            yield _source(path, "lines" if suffix in LINES else "text")
        else:
            skipped[suffix or "no suffix"] += 1


def find(arguments: Sequence[Path]) -> Corpus:
    """The files of a corpus; raises DataError for a path that is absent, given twice or without files."""
    sources: list[Source] = []
    skipped: Counter[str] = Counter()
    for path in arguments:
        if not path.exists():
            raise DataError(f"no corpus at {path}; check the path")
        found = list(_in_directory(path, skipped)) if path.is_dir() else [_source(path)]
        if not found:
            others = f" among {sum(skipped.values())} files ({told(skipped)})" if skipped else ""
            raise DataError(f"{path} holds no .jsonl, text or source files{others}; name others one by one")
        sources += found
    twice = [path for path, n in Counter(source.path.resolve() for source in sources).items() if n > 1]
    if twice:
        raise DataError(f"{twice[0]} is in the corpus twice; name it once")
    return Corpus(tuple(sources), skipped)


def check_unchanged(sources: Sequence[Source]) -> None:
    """Raises DataError about the first file that is not as it was found."""
    for source in sources:
        facts = source.path.stat()
        if (facts.st_size, facts.st_mtime_ns) != (source.size, source.modified_ns):
            raise DataError(
                f"{source.name} changed while it was read; remove what was made of it and run again"
            )


def told(counts: Mapping[str, int]) -> str:
    """Counts in words, the largest first.

    >>> told({"empty": 2, "not JSON": 31})
    '31 not JSON, 2 empty'
    """
    largest = sorted(counts.items(), key=lambda item: -item[1])
    rest = sum(count for _, count in largest[TOLD:])
    return ", ".join(f"{n:,} {what}" for what, n in [*largest[:TOLD], ("others", rest)] if n)

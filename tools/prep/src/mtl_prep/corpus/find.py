"""Finds the files of a corpus.

Files that are named, or match a pattern, are always read, or refused by name. In a directory, files of known
kinds are read in the order of their paths; others are passed over and counted. Hidden files, installed
packages, what .gitignore files name and links to directories are left alone.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from mtl_common.errors import DataError
from mtl_prep.corpus import places
from mtl_prep.corpus.cleaned import MANIFEST, clean_shards, shards_of
from mtl_prep.corpus.counts import told
from mtl_prep.corpus.far import changed
from mtl_prep.corpus.ignored import Ignored
from mtl_prep.corpus.kinds import Split, is_known, looked_at
from mtl_prep.corpus.source import Source, suffix_of

STDIN = "-"
LEFT_ALONE = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


@dataclass(frozen=True)
class Corpus:
    """The files to read, in order, and how many others were passed over, by suffix."""

    sources: tuple[Source, ...]
    skipped: Counter[str]

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(source.size for source in self.sources)


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
    return places.each(addresses, lambda address: looked_at(address, _named(address), split))


def _in_directory(address: str, skipped: Counter[str]) -> Iterator[str]:
    path = Path(places.local(address))
    found = _below(address) if places.is_url(address) else map(str, _walk(path, Ignored(), skipped))
    for file in found:
        if is_known(file):
            yield file
        else:
            skipped[suffix_of(file) or "no suffix"] += 1


def _found(address: str, split: Split, stdin: Path | None, skipped: Counter[str]) -> list[Source]:
    """The files of one argument; raises DataError when there are none."""
    if address == STDIN and stdin is not None:
        return [looked_at(str(stdin), STDIN, split)]
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
    links = [not s.is_remote and os.path.islink(places.local(s.address)) for s in sources]
    files = Counter(path for path, is_link in zip(real, links, strict=True) if not is_link)
    linked = set[str]()
    for source, path, is_link in zip(sources, real, links, strict=True):
        if not is_link and files[path] > 1:
            raise DataError(f"{source.name} is in the corpus twice; name it once")
        if is_link and (path in files or path in linked):
            skipped["links to others"] += 1
            continue
        if is_link:
            linked.add(path)
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

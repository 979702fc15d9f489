"""The documents that a tokenizer learns from: a sample drawn by a hash of each document's place.

The same corpus and size give the same sample, as often as it is read. Beside it some text of every kind is
kept, to measure on: kinds are those that records name (`lang`, `language` or `kind`), else those of suffixes.
"""

from collections.abc import Iterator
from dataclasses import replace

import xxhash

from mtl_common.log import progress
from mtl_prep.corpus.find import text_size
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.units import Reading, documents

MEASURED = 1 << 20  # characters of each kind that compression is measured on
MEASURED_OF_ONE = 1 << 16  # characters of one document
KINDS = 40  # more are measured together
OTHERS = "others"
KIND_KEYS = ("lang", "language", "kind")


def kind_of(found: Documents, index: int, reading: Reading) -> str:
    """What kind of text a document is, as its record or its file says."""
    whole = found.wholes[index]
    named = next((whole[key] for key in KIND_KEYS if isinstance(whole.get(key), str)), None)
    return named or reading.sources[found.places[index][0]].language


class Drawn:
    """The documents of a sample, counted on the way; `kept` are kind -> texts to measure on."""

    def __init__(self, reading: Reading, size: int) -> None:
        self._reading = replace(reading, part_bytes=1 << 24)
        text = text_size(reading.sources)
        self._share = min(1.0, size / max(text, 1))
        self._expected = min(size, text)
        self._forget()

    def _forget(self) -> None:
        self.documents = self.characters = 0
        self.kept: dict[str, list[str]] = {}
        self._sizes: dict[str, int] = {}

    def _is_drawn(self, source: int, record: int) -> bool:
        return (
            self._share == 1.0 or xxhash.xxh3_64_intdigest(b"%d:%d" % (source, record)) < self._share * 2**64
        )

    def _keep(self, kind: str, text: str) -> None:
        kind = kind if kind in self.kept or len(self.kept) < KINDS else OTHERS
        size = self._sizes.get(kind, 0)
        if size < MEASURED:
            part = text[:MEASURED_OF_ONE]
            self.kept.setdefault(kind, []).append(part)
            self._sizes[kind] = size + len(part)

    def _texts(self) -> Iterator[str]:
        for found in documents(self._reading):
            for index, text in enumerate(found.texts):
                if self._is_drawn(*found.places[index][:2]):
                    self.documents += 1
                    self._keep(kind_of(found, index, self._reading), text)
                    yield text
            giant = found.giant
            if giant is not None and self._is_drawn(giant.source, giant.record):
                self.documents += 1
                yield from giant.pieces()

    def __iter__(self) -> Iterator[str]:
        """The texts, a very long one in pieces, with a line of progress."""
        self._forget()
        with progress("read", self._expected, "bytes") as shown:
            for text in self._texts():
                self.characters += len(text)
                shown.advance(len(text))
                yield text

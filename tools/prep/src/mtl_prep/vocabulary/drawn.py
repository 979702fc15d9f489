"""The documents that a tokenizer learns from: a sample drawn by a hash of each document's place.

The same corpus and size give the same sample, as often as it is read. Beside it some text of every kind is
kept, to measure on, from all over the sample: kinds are those that records name (`lang`, `language` or
`kind`), else those of suffixes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import xxhash

from mtl_common.log import progress
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.source import text_size
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


@dataclass
class Kept:
    """Of the texts of one kind those with the lowest hashes, in about MEASURED characters."""

    size: int = 0
    _texts: list[tuple[int, str]] = field(default_factory=list)  # a heap, the highest hash first

    def offer(self, chance: int, text: str) -> None:
        """Takes the beginning of a text, and gives up what has become too much."""
        if self.size >= MEASURED and chance >= -self._texts[0][0]:
            return
        part = text[:MEASURED_OF_ONE]
        heappush(self._texts, (-chance, part))
        self.size += len(part)
        while self.size - len(self._texts[0][1]) >= MEASURED:
            self.size -= len(heappop(self._texts)[1])

    @property
    def texts(self) -> list[str]:
        """The texts, in the order of their hashes."""
        return [text for _, text in sorted(self._texts, reverse=True)]


class Drawn:
    """The documents of a sample, counted on the way, and texts to measure on.

    Attributes:
        share: how much of the corpus is drawn, 1.0 for all of it.
        documents: how many were drawn.
        characters: how many they have.
    """

    def __init__(self, reading: Reading, size: int) -> None:
        self._reading = replace(reading, part_bytes=1 << 24)
        text = text_size(reading.sources)
        self.share = min(1.0, size / max(text, 1))
        self._expected = min(size, text)
        self._forget()

    def _forget(self) -> None:
        self.documents = self.characters = 0
        self._kept: dict[str, Kept] = {}

    @property
    def kept(self) -> dict[str, list[str]]:
        """Kind -> texts to measure on."""
        return {kind: kept.texts for kind, kept in self._kept.items()}

    def _chance(self, source: int, record: int) -> int:
        return xxhash.xxh3_64_intdigest(b"%d:%d" % (source, record))

    def _keep(self, kind: str, chance: int, text: str) -> None:
        kind = kind if kind in self._kept or len(self._kept) < KINDS else OTHERS
        self._kept.setdefault(kind, Kept()).offer(chance, text)

    def _texts(self) -> Iterator[str]:
        limit = self.share * 2**64
        for found in documents(self._reading):
            for index, text in enumerate(found.texts):
                if (chance := self._chance(*found.places[index][:2])) < limit:
                    self.documents += 1
                    self._keep(kind_of(found, index, self._reading), chance, text)
                    yield text
            giant = found.giant
            if giant is not None and self._chance(giant.source, giant.record) < limit:
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

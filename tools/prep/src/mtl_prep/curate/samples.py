"""A bounded sample of what each step removed, the same one whoever draws it.

Every document has a number that depends on nothing but its place in the corpus; those with the smallest are
the sample.
"""

from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from mtl_prep.curate.files import durable

SIZE = 100  # documents a step
SHOWN = 400  # characters of a document
ONE, ODD = np.uint64(1), np.uint64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True, order=True)
class Drawn:
    """A removed document that may be in a sample: the number that decides, its place, and how it begins."""

    number: int
    unit: str
    place: int
    text: str


def numbers(unit: str, places: NDArray[np.int64]) -> NDArray[np.uint64]:
    """(n,) places of documents in a unit -> (n,) numbers (the finish of SplitMix64)."""
    mixed = np.uint64(xxhash.xxh3_64_intdigest(unit.encode())) + (places.astype(np.uint64) + ONE) * ODD
    for shift, factor in ((30, 0xBF58_476D_1CE4_E5B9), (27, 0x94D0_49BB_1331_11EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def smallest(drawn: list[Drawn]) -> list[Drawn]:
    """The sample of what was drawn."""
    return nsmallest(SIZE, drawn)


def share_of(units: int) -> int:
    """How many of a unit's documents are kept for each step until the sample is drawn of all.

    Four times what a unit gives on average, and more of few units: a unit that would give still more is rare,
    and then the sample is another one, but again the same one each time.
    """
    return min(SIZE, 8 + -(-4 * SIZE // max(units, 1)))


def _path(directory: Path, unit: str) -> Path:
    return directory / f"{unit}.removed.json"


def save_drawn(directory: Path, unit: str, drawn: dict[int, list[Drawn]]) -> None:
    """Puts what was drawn of a unit on the disk, by step."""
    with durable(_path(directory, unit)) as file:
        file.write(orjson.dumps({str(step): several for step, several in drawn.items()}))


def drawn_of(directory: Path, unit: str) -> dict[int, list[Drawn]]:
    """What was drawn of a unit, by step."""
    found = orjson.loads(_path(directory, unit).read_bytes())
    return {int(step): [Drawn(**one) for one in several] for step, several in found.items()}

"""The first reading of a corpus: what local steps make of every document, and the signatures to compare.

It goes up to the last comparison of the recipe. Texts are not kept; the second reading makes them again.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mtl_prep.corpus.records import Documents, Giant
from mtl_prep.corpus.units import Reading, ReadTask, Unit, read
from mtl_prep.curate.chunk import Chunk, chunks
from mtl_prep.curate.large import TOO_LARGE, signed
from mtl_prep.curate.recipe import Recipe
from mtl_prep.curate.signatures import path_of, save
from mtl_prep.curate.step import GlobalStep, Judge, LocalStep
from mtl_prep.journal import Journal

FATES = "fates"
PLACES = "places"

Arrays = dict[tuple[int, str], list[NDArray[Any]]]  # step and name -> an array for each chunk


@dataclass(frozen=True)
class Examine:
    """What every process needs to know for the first reading."""

    directory: Path
    reading: Reading
    recipe: Recipe

    def worker(self) -> "Examiner":
        """One process's means to do it."""
        return Examiner(self)


def _refuse_giant(found: Documents) -> None:
    """Makes a bad record of a document that is too large to be held with its views."""
    if found.giant is not None:
        found.refuse(found.giant.source, found.giant.record, TOO_LARGE)
        found.giant = None


def begun_steps(recipe: Recipe, numbers: Iterable[int]) -> dict[int, Judge]:
    """The local ones of some steps (counted from 1), at work."""
    steps = ((number, recipe.steps[number - 1][1]) for number in numbers)
    return {number: step.begin(recipe.base) for number, step in steps if isinstance(step, LocalStep)}


class Examiner:
    """Examines units in one process."""

    def __init__(self, job: Examine) -> None:
        self._job, self._journal = job, Journal(job.directory)
        self._names = [source.name for source in job.reading.sources]
        self._judges: dict[int, Judge] | None = None

    def run(self, task: ReadTask) -> Iterator[int]:
        """Does the work and notes it; yields the bytes of input that each unit stands for."""
        for unit in read(task, self._job.reading, self._journal):
            if self._job.recipe.large == "bad":
                _refuse_giant(unit.documents)
            self._examine(unit)
            yield unit.size

    def _examine(self, unit: Unit) -> None:
        arrays: Arrays = {}
        reasons: dict[str, int] = {"": 0}
        codes: list[int] = []
        for chunk in chunks(unit, self._names):
            self._judge(chunk, arrays)
            codes += [reasons.setdefault(reason, len(reasons)) for reason in chunk.reasons]
            arrays.setdefault((0, FATES), []).append(chunk.fates[np.newaxis])
        giant, places = unit.documents.giant, np.array(unit.documents.places, np.uint64).reshape(-1, 2)
        if giant is not None:
            self._sign(giant, arrays)
            codes.append(0)
            places = np.append(places, np.array([[giant.source, giant.record]], np.uint64), 0)
        save(path_of(self._job.directory, unit.name, 0, PLACES), places.T)
        for (number, name), parts in arrays.items():
            save(path_of(self._job.directory, unit.name, number, name), np.concatenate(parts, 1))
        self._note(unit, list(reasons), codes)

    def _judge(self, chunk: Chunk, arrays: Arrays) -> None:
        recipe = self._job.recipe
        if self._judges is None:
            self._judges = begun_steps(recipe, range(1, recipe.examined + 1))
        for number, (_, step) in enumerate(recipe.steps[: recipe.examined], 1):
            if isinstance(step, GlobalStep):
                for name, array in chunk.sign(step).items():
                    arrays.setdefault((number, name), []).append(array)
            else:
                chunk.judge(number, step, self._judges[number])

    def _sign(self, giant: Giant, arrays: Arrays) -> None:
        """Adds the signatures of a large document, which is not judged."""
        record, source = giant.whole(), self._names[giant.source]
        arrays.setdefault((0, FATES), []).append(np.zeros((1, 1), np.uint8))
        for number, (_, step) in enumerate(self._job.recipe.steps[: self._job.recipe.examined], 1):
            if isinstance(step, GlobalStep):
                for name, array in signed(giant, step, record, source).items():
                    arrays.setdefault((number, name), []).append(array)

    def _note(self, unit: Unit, reasons: list[str], codes: list[int]) -> None:
        found = unit.documents
        large = 0 if found.giant is None else sum(map(len, found.giant.pieces()))
        characters, documents = sum(map(len, found.texts)) + large, len(codes)
        note = {
            "records": list(found.by_source().items()),
            "documents": documents,
            "lines": found.lines,
            "characters": characters,
            "large": large,
            "size": unit.size,
            "shard": {"documents": documents, "tokens": characters},
            "watched": {},
            "hashes": unit.hashes,
            "reasons": reasons,
            "codes": codes,
        }
        self._journal.write(unit.name, note | found.trouble())

"""The reading of a corpus: what local steps make of every document, and the signatures to compare it by.

Documents that no local step removes are written down as they would stay, for only a comparison can remove
them yet. So a corpus is read once, and no text is judged twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from mtl_prep.corpus.records import Documents, Giant
from mtl_prep.corpus.units import Reading, ReadTask, Unit, read
from mtl_prep.curate.chunk import Chunk, chunks
from mtl_prep.curate.facts import KEPT, Sheet
from mtl_prep.curate.files import durable
from mtl_prep.curate.judged import judged
from mtl_prep.curate.large import TOO_LARGE, Passage, signed
from mtl_prep.curate.recipe import Recipe
from mtl_prep.curate.samples import SHOWN, Drawn, numbers, save_drawn, share_of
from mtl_prep.curate.signatures import path_of, save
from mtl_prep.curate.step import GlobalStep, Judge, LocalStep
from mtl_prep.curate.writing import is_traced, json_line
from mtl_prep.journal import Journal

QUICK = 1  # zstandard's level for what is read once more, and then removed

Arrays = dict[tuple[int, str], list[NDArray[Any]]]  # step and name -> an array for each chunk


@dataclass(frozen=True)
class Examine:
    """What every process needs to know for the reading."""

    directory: Path
    reading: Reading
    recipe: Recipe

    def worker(self) -> "Examiner":
        """One process's means to do it."""
        return Examiner(self)


def lines_path(directory: Path, unit: str) -> Path:
    """The file of what may stay of a unit."""
    return directory / f"{unit}.jsonl.zst"


def _refuse_giant(found: Documents) -> None:
    """Makes a bad record of a document that is too large to be held with its views."""
    if found.giant is not None:
        found.refuse(found.giant.source, found.giant.record, TOO_LARGE)
        found.giant = None


def begun_steps(recipe: Recipe) -> dict[int, Judge]:
    """The local steps at work, by their number from 1."""
    steps = enumerate((step for _, step in recipe.steps), 1)
    return {number: step.begin(recipe.base) for number, step in steps if isinstance(step, LocalStep)}


class Examiner:
    """Examines units in one process."""

    def __init__(self, job: Examine) -> None:
        self._job, self._journal = job, Journal(job.directory)
        self._names = [source.name for source in job.reading.sources]
        self._key = judged(job.reading)
        self._judges: dict[int, Judge] = {}
        units = sum(source.size for source in job.reading.sources) // job.reading.part_bytes
        self._share = share_of(units)

    def run(self, task: ReadTask) -> Iterator[int]:
        """Does the work and notes it; yields the bytes of input that each unit stands for."""
        self._judges = self._judges or begun_steps(self._job.recipe)
        for unit in read(task, self._job.reading, self._journal):
            if self._job.recipe.large == "bad":
                _refuse_giant(unit.documents)
            self._examine(unit)
            yield unit.size

    def _examine(self, unit: Unit) -> None:
        sheet, arrays, directory = Sheet(), Arrays(), self._job.directory
        with durable(lines_path(directory, unit.name)) as file:
            packer = zstandard.ZstdCompressor(level=QUICK)
            with packer.stream_writer(file, closefd=False) as packed:
                for chunk in chunks(unit, self._names):
                    self._take_steps(chunk, arrays)
                    self._write(unit, chunk, sheet, packed)
                if unit.documents.giant is not None:
                    self._pass(unit.documents.giant, sheet, arrays, packed)
        for (number, name), parts in arrays.items():
            save(path_of(directory, unit.name, number, name), np.concatenate(parts, 1))
        sheet.save(directory, unit.name)
        save_drawn(directory, unit.name, self._drawn(unit, sheet))
        self._note(unit, sheet)

    def _take_steps(self, chunk: Chunk, arrays: Arrays) -> None:
        for number, (_, step) in enumerate(self._job.recipe.steps, 1):
            if isinstance(step, GlobalStep):
                for name, array in chunk.sign(step).items():
                    arrays.setdefault((number, name), []).append(array)
            else:
                chunk.judge(number, step, self._judges[number])

    def _write(self, unit: Unit, chunk: Chunk, sheet: Sheet, packed: BinaryIO) -> None:
        """Writes what may stay of a chunk as lines of JSON, and notes all of it."""
        lines, texts = list[bytes](), unit.documents.texts
        for i, fate in enumerate(chunk.fates.tolist()):
            place, line, traced = chunk.first + i, b"", False
            if fate == KEPT:
                record = self._key.put(chunk.records[i], chunk.texts[i])
                line, traced = json_line(record), is_traced(record)
                lines.append(line)
                sheet.edited(place, chunk.edits.get(i, {}))
            source, record_number = unit.documents.places[place]
            read, written = len(texts[place]), len(chunk.texts[i])
            reason = sheet.reason(chunk.reasons[i])
            sheet.rows.append((fate, reason, False, traced, source, record_number, read, written, len(line)))
        packed.write(b"".join(lines))

    def _pass(self, giant: Giant, sheet: Sheet, arrays: Arrays, packed: BinaryIO) -> None:
        """Signs and writes a large document, which is not judged."""
        record, source, size = giant.whole(), self._names[giant.source], 0
        for number, (_, step) in enumerate(self._job.recipe.steps, 1):
            if isinstance(step, GlobalStep):
                for name, array in signed(giant, step, record, source).items():
                    arrays.setdefault((number, name), []).append(array)
        steps = [(n, self._job.recipe.steps[n - 1][1], judge) for n, judge in self._judges.items()]
        passage = Passage(giant, source, steps)
        for piece in passage.line(self._key):
            size += packed.write(piece)
        sheet.edited(len(sheet.rows), passage.edits)
        place = (giant.source, giant.record)
        sheet.rows.append((KEPT, 0, True, is_traced(record), *place, passage.read, passage.written, size))

    def _drawn(self, unit: Unit, sheet: Sheet) -> dict[int, list[Drawn]]:
        """Step -> those documents it removes that may be in its sample."""
        gone = [(row[0], place) for place, row in enumerate(sheet.rows) if row[0] != KEPT]
        found = numbers(unit.name, np.array([place for _, place in gone], np.int64)).tolist()
        drawn: dict[int, list[Drawn]] = {}
        for number, (step, place) in sorted(zip(found, gone, strict=True)):
            several = drawn.setdefault(step, [])
            if len(several) < self._share:
                text = unit.documents.texts[place][:SHOWN]
                several.append(Drawn(number, unit.name, place, text))
        return drawn

    def _note(self, unit: Unit, sheet: Sheet) -> None:
        found, characters = unit.documents, sum(row[6] for row in sheet.rows)
        note = {
            "records": list(found.by_source().items()),
            "documents": len(sheet.rows),
            "lines": found.lines,
            "characters": characters,
            "size": unit.size,
            "shard": {"documents": len(sheet.rows), "tokens": characters},
            "watched": {},
            "hashes": unit.hashes,
            "reasons": list(sheet.reasons),
            "edits": sheet.kinds,
        }
        self._journal.write(unit.name, note | found.trouble())

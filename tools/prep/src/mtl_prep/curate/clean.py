"""The second reading of a corpus: the documents that stay, as they stay, and an account of all others."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from pathlib import Path

import numpy as np
import zstandard

from mtl_prep.corpus.units import Reading, ReadTask, Unit, read
from mtl_prep.curate.account import KEPT, REPEATED, Account
from mtl_prep.curate.chunk import Chunk, chunks
from mtl_prep.curate.decide import Decision, decision
from mtl_prep.curate.examine import begun_steps
from mtl_prep.curate.files import durable
from mtl_prep.curate.judged import judged
from mtl_prep.curate.large import Passage
from mtl_prep.curate.places import Places
from mtl_prep.curate.recipe import Recipe
from mtl_prep.curate.samples import SHOWN, Drawn, draw, share_of
from mtl_prep.curate.step import GlobalStep, Judge, Step
from mtl_prep.curate.writing import json_line
from mtl_prep.journal import Journal

ORIGIN = "curated_from"  # the key of the record that tells where it comes from
QUICK = 1  # zstandard's level for what is read once more, and then removed


@dataclass(frozen=True)
class Clean:
    """What every process needs to know for the second reading.

    `units` tells of every unit the place of its first document in the corpus, and the line it begins at.
    """

    directory: Path
    examined: Path
    reading: Reading
    recipe: Recipe
    units: Mapping[str, tuple[int, int]]

    def worker(self) -> "Cleaner":
        """One process's means to do it."""
        return Cleaner(self)


def kept_path(directory: Path, unit: str) -> Path:
    """The file of what stays of a unit."""
    return directory / f"{unit}.jsonl.zst"


class Cleaner:
    """Cleans units in one process."""

    def __init__(self, job: Clean) -> None:
        self._job, self._journal, self._examined = job, Journal(job.directory), Journal(job.examined)
        self._names = [source.name for source in job.reading.sources]
        self._places = Places(job.examined, job.units, self._names)
        self._decision: Decision | None = None
        self._judges: dict[int, Judge] = {}
        self._numbers = [n for n, (_, step) in enumerate(job.recipe.steps, 1) if self._is_taken(n, step)]

    def _is_taken(self, number: int, step: Step) -> bool:
        """Whether a step changes texts, or was not taken in the first reading."""
        return number > self._job.recipe.examined or step.changes

    def run(self, task: ReadTask) -> Iterator[int]:
        """Does the work and notes it; yields the bytes of input that each unit stands for."""
        if self._decision is None:
            self._decision = decision(self._job.examined)
            self._judges = begun_steps(self._job.recipe, self._numbers)
        for unit in read(task, self._job.reading, self._journal):
            account = self._clean(unit, self._decision)
            note = {"size": unit.size, "drawn": self._drawn(unit, account, self._decision)}
            self._journal.write(unit.name, note | account.written())
            yield unit.size

    def _clean(self, unit: Unit, decided: Decision) -> Account:
        """Writes what stays of a unit."""
        account, note = Account(), self._examined.read(unit.name)
        first, _ = self._job.units[unit.name]
        with durable(kept_path(self._job.directory, unit.name)) as file:
            compressor = zstandard.ZstdCompressor(level=QUICK)
            with compressor.stream_writer(file, closefd=False) as packed:
                for chunk in chunks(unit, self._names):
                    places = slice(chunk.first, chunk.first + len(chunk.texts))
                    chunk.fates[:] = decided.fates[first + places.start : first + places.stop]
                    repeated = decided.originals[first + places.start : first + places.stop] >= 0
                    codes = zip(note["codes"][places], repeated.tolist(), strict=True)
                    chunk.reasons = [REPEATED if again else note["reasons"][code] for code, again in codes]
                    lengths = list(map(len, chunk.texts))
                    self._judge(chunk)
                    account.add(chunk, [source for source, _ in unit.documents.places[places]], lengths)
                    account.size += packed.write(self._lines(unit, chunk))
                for piece in self._large(unit, account, decided, note["large"]):
                    account.size += packed.write(piece)
        return account

    def _large(self, unit: Unit, account: Account, decided: Decision, length: int) -> Iterator[bytes]:
        """The large document at the end of a unit, if one is there and stays, as a line of JSON in pieces."""
        giant, place = unit.documents.giant, len(unit.documents.texts)
        if giant is None or not length:
            return
        fate = int(decided.fates[self._job.units[unit.name][0] + place])
        account.by_source[giant.source, fate] += 1
        account.large += fate == KEPT
        if fate != KEPT:
            account.lose(fate, (place, REPEATED), length)
            return
        source, record = self._places.of(unit, place)
        steps = [(n, self._job.recipe.steps[n - 1][1], judge) for n, judge in self._judges.items()]
        passage = Passage(giant, source, steps, account)
        yield from passage.line(judged(self._job.reading), {ORIGIN: {"source": source, "record": record}})

    def _judge(self, chunk: Chunk) -> None:
        for number in self._numbers:
            chunk.judge(number, self._job.recipe.steps[number - 1][1], self._judges[number])

    def _lines(self, unit: Unit, chunk: Chunk) -> bytes:
        """The documents that stay, as JSON lines."""
        key, lines = judged(self._job.reading), list[bytes]()
        for i in np.flatnonzero(chunk.fates == KEPT).tolist():
            record = key.put(chunk.records[i], chunk.texts[i])
            name, number = self._places.of(unit, chunk.first + i)
            lines.append(json_line({ORIGIN: {"source": name, "record": number}, **record}))
        return b"".join(lines)

    def _drawn(self, unit: Unit, account: Account, decided: Decision) -> dict[str, list[Drawn]]:
        """Step -> some of the unit's documents that it removed."""
        size, first = share_of(len(self._job.units)), self._job.units[unit.name][0]
        found: dict[str, list[Drawn]] = {}
        for number, gone in account.gone.items():
            step = self._job.recipe.steps[number - 1][1]
            drawn = []
            for _, place, reason in nsmallest(
                size, ((self._places.draw(unit, p), p, why) for p, why in gone)
            ):
                if isinstance(step, GlobalStep):
                    source, record = self._places.at(int(decided.originals[first + place]))
                    reason = f"{step.reason} {source} record {record}"
                drawn.append(self._shown(unit, place, reason))
            found[str(number)] = drawn
        return found

    def _shown(self, unit: Unit, place: int, reason: str) -> Drawn:
        source, record = self._places.of(unit, place)
        found = unit.documents
        if found.giant is not None and place == len(found.texts):
            text = next(found.giant.pieces())[:SHOWN]
        else:
            text = found.texts[place][:SHOWN]
        return draw(source, record), {"source": source, "record": record, "reason": reason, "text": text}

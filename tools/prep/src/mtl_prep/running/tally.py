"""The sums over all units: what every source gave, what was bad, and whether that is acceptable."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mtl_common import bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus.counts import counted, told
from mtl_prep.corpus.records import PASSED, Bad
from mtl_prep.corpus.source import Source
from mtl_prep.corpus.units import hash_number, unit_number
from mtl_prep.journal import Journal

BAD = "bad.jsonl"  # beside what was made: the bad records
TOLD_BAD = 3  # bad records that an error names

Reasons = dict[int, Counter[str]]  # source -> reason -> records


@dataclass(frozen=True, slots=True)
class Unit:
    """A finished unit, what it holds, and the line of its file that it begins at."""

    name: str
    documents: int
    tokens: int
    line: int


@dataclass
class Tally:
    """The sums over all units; `first_bad` are some bad records with their places in whole files."""

    units: list[Unit] = field(default_factory=list)
    records: Counter[int] = field(default_factory=Counter)
    bad: Reasons = field(default_factory=lambda: defaultdict(Counter))
    repaired: Reasons = field(default_factory=lambda: defaultdict(Counter))
    first_bad: list[Bad] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)
    characters: int = 0
    watched: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, note: dict[str, Any], line: int) -> None:
        """Counts a unit that begins at `line` of its file."""
        self.units.append(Unit(name, note["shard"]["documents"], note["shard"]["tokens"], line))
        for source, _, reason, _ in note["bad"]:
            self.bad[source][reason] += 1
        for counts, found in [(self.bad, note["passed"]), (self.repaired, note["repaired"])]:
            for source, reason, count in found:
                counts[source][reason] += count
        self.first_bad += _in_whole_files(note["bad"][: TOLD_BAD - len(self.first_bad)], line)
        self.characters += note["characters"]
        self.watched.update(note["watched"])
        self.records.update(dict(note["records"]))
        self.hashes |= {unit_number(name) + i: digest for i, digest in enumerate(note["hashes"] or [])}


def _in_whole_files(bad: Iterable[Bad], line: int) -> Iterator[Bad]:
    return ((source, record + line, reason, raw) for source, record, reason, raw in bad)


def _notes(journal: Journal) -> Iterator[tuple[str, dict[str, Any], int]]:
    """Every unit's name and note in the order of the corpus, and the line of its file that it begins at."""
    line, before = 0, -1
    for name in journal.names("unit-"):
        note, first = journal.read(name), unit_number(name)
        line = line if first == before else 0
        yield name, note, line
        line, before = line + note["lines"], first


def quarantined(journal: Journal) -> Iterator[Bad]:
    """Every bad record in the order of the corpus, numbered as in its whole file."""
    for _, note, line in _notes(journal):
        yield from _in_whole_files(note["bad"], line)


def tally(journal: Journal) -> Tally:
    """Adds up what all units hold, and finds the lines they begin at."""
    sums = Tally()
    for name, note, line in _notes(journal):
        sums.add(name, note, line)
    sums.hashes |= {hash_number(name): journal.read(name)["xxh3"] for name in journal.names("hash-")}
    return sums


def described(sources: Sequence[Source], sums: Tally) -> Iterator[bins.Source]:
    """The sources as the manifest lists them."""
    for i, source in enumerate(sources):
        reasons = sums.bad.get(i, Counter())
        yield bins.Source(
            path=source.name,
            size=source.size,
            xxh3=sums.hashes.get(i, ""),
            records=sums.records[i],
            documents=sums.records[i] - reasons.total(),
            bad=dict(sorted(reasons.items())),
            repaired=dict(sorted(sums.repaired.get(i, {}).items())),
        )


def parse_max_bad(text: str) -> tuple[float, bool]:
    """`"1%"` -> (0.01, True), a share; `"9"` -> (9, False), a count; raises UsageError for anything else."""
    number, percent, rest = text.partition("%")
    try:
        value = float(number) / 100 if percent else int(number)
    except ValueError:
        value = -1
    if rest or not 0 <= value <= (1 if percent else float("inf")):
        raise UsageError(f"--max-bad {text} is neither a count nor a share such as 5%")
    return value, bool(percent)


def check(sources: Sequence[bins.Source], sums: Tally, max_bad: str, listed: Path) -> None:
    """Raises DataError when there are no documents or too many bad records, not counting empty ones.

    `listed` is the file that lists the bad ones.
    """
    records, reasons = sum(source.records for source in sources), counted(source.bad for source in sources)
    if records == reasons.total():
        raise DataError(
            f"the corpus holds no documents: {records:,} records, of them {told(reasons) or 'none'}"
        )
    limit, is_share = parse_max_bad(max_bad)
    for reason in PASSED:
        del reasons[reason]
    if reasons.total() > (limit * records if is_share else limit):
        first = [(sources[source].path, record + 1, reason) for source, record, reason, _ in sums.first_bad]
        raise DataError(
            f"{reasons.total():,} of {records:,} records are bad, more than --max-bad {max_bad}: "
            f"{told(reasons)}; "
            + "".join(f"{path} line {line} is {why}, " for path, line, why in first)
            + f"all in {listed}; mend them, or leave them out with a larger --max-bad"
        )

"""The sums over all units: what every source gave, what was bad, and whether that is acceptable."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mtl_common import bins
from mtl_common.errors import DataError, UsageError
from mtl_prep.corpus import Source, told
from mtl_prep.journal import Journal
from mtl_prep.records import EMPTY
from mtl_prep.units import hash_number, unit_number

Event = tuple[int, int, str]  # source, record, what is the matter


@dataclass
class Unit:
    """A finished unit, and the line of its file that it begins at."""

    name: str
    shard: bins.Shard
    line: int


@dataclass
class Tally:
    """The sums over all units."""

    units: list[Unit] = field(default_factory=list)
    records: Counter[int] = field(default_factory=Counter)
    bad: list[Event] = field(default_factory=list)
    repaired: list[Event] = field(default_factory=list)
    hashes: dict[int, str] = field(default_factory=dict)
    characters: int = 0

    def add(self, name: str, first: int, note: dict[str, Any], line: int) -> None:
        """Counts a unit of the source `first` (or of the texts from there on) that begins at `line`."""
        self.units.append(Unit(name, bins.Shard.model_validate(note["shard"]), line))
        for events, found in [(self.bad, note["bad"]), (self.repaired, note["repaired"])]:
            events += [(source, record + line, what) for source, record, what in found]
        self.characters += note["characters"]
        hashes = note["hashes"]
        self.records.update({first: note["records"]} if hashes is None else range(first, first + len(hashes)))
        self.hashes |= {first + i: digest for i, digest in enumerate(hashes or [])}


def tally(journal: Journal) -> Tally:
    """Adds up what all units hold, and finds the lines they begin at."""
    sums, line, before = Tally(), 0, -1
    for name in journal.names("unit-"):
        note, first = journal.read(name), unit_number(name)
        line = line if first == before else 0
        sums.add(name, first, note, line)
        line, before = line + note["lines"], first
    sums.hashes |= {hash_number(name): journal.read(name)["xxh3"] for name in journal.names("hash-")}
    return sums


def _by_source(events: Iterable[Event]) -> dict[int, Counter[str]]:
    counts: dict[int, Counter[str]] = {}
    for source, _, what in events:
        counts.setdefault(source, Counter())[what] += 1
    return counts


def described(sources: Sequence[Source], sums: Tally) -> Iterator[bins.Source]:
    """The sources as the manifest lists them."""
    bad, repaired = _by_source(sums.bad), _by_source(sums.repaired)
    for i, source in enumerate(sources):
        reasons = bad.get(i, Counter())
        yield bins.Source(
            path=source.name,
            size=source.size,
            xxh3=sums.hashes[i],
            records=sums.records[i],
            documents=sums.records[i] - reasons.total(),
            bad=dict(sorted(reasons.items())),
            repaired=repaired.get(i, {}),
        )


def counted(counts: Iterable[dict[str, int]]) -> Counter[str]:
    """The sum of several counts."""
    return sum(map(Counter, counts), Counter[str]())


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


def check(sources: Sequence[bins.Source], sums: Tally, max_bad: str) -> None:
    """Raises DataError when there are no documents or too many bad records; empty ones do not count."""
    records, reasons = sum(source.records for source in sources), counted(source.bad for source in sources)
    if records == reasons.total():
        raise DataError(
            f"the corpus holds no documents: {records:,} records, of them {told(reasons) or 'none'}"
        )
    limit, is_share = parse_max_bad(max_bad)
    del reasons[EMPTY]
    if reasons.total() > (limit * records if is_share else limit):
        first = [(sources[s].path, r + 1, why) for s, r, why in sums.bad if why != EMPTY][:3]
        raise DataError(
            f"{reasons.total():,} of {records:,} records are bad, more than --max-bad {max_bad}: "
            f"{told(reasons)}; "
            + "".join(f"{path} line {line} is {why}, " for path, line, why in first)
            + "all in bad.jsonl; mend them, or leave them out with a larger --max-bad"
        )

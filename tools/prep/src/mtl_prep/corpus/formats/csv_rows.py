"""CSV and TSV by RFC 4180, quoted line ends included: the first row names the columns.

Fields are parted by commas, or by `;`, a tab or `|` where these part the header into the text's column.
"""

import csv
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mtl_common.errors import DataError
from mtl_prep.corpus.content import Content, discarded, spooled
from mtl_prep.corpus.formats.csv_held import Held, LongRowError
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.formats.rows import add_rows, columns_of
from mtl_prep.corpus.long_csv import LongRow, RowScan, add_long_row
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import HAS_NUL, NOT_ROW, BadRecordError, Documents
from mtl_prep.corpus.source import Source, suffix_of
from mtl_prep.corpus.unpack import Stream

SEPARATORS = {".tsv": "\t,;|", ".tab": "\t,;|"}
NOT_CSV = "not CSV"
WIDE = 8  # bytes that the csv module holds for a character at most
LARGEST_FIELD = 2**31 - 1  # what the csv module takes as a limit everywhere

Row = list[str] | str  # fields, or why there are none
Keep = Callable[[Iterator[bytes]], Content]


@dataclass
class _Table:
    """Rows of text, one after the other; one of over `limit` bytes is not held."""

    source: Source
    limit: int
    position: list[int] = field(default_factory=lambda: [0])

    def rows(self, separator: str, keep: Keep = discarded) -> Iterator[Row | LongRow]:
        """All rows, the header first; `keep` takes one that is too long to hold.

        Raises DataError when a quote is open at the end, or seems to be.
        """
        csv.field_size_limit(LARGEST_FIELD)
        held = Held(self.source.pieces(self.position), self.limit)
        while True:
            raw = io.BufferedReader(Stream(iter(held)), 1 << 16)
            # only CR and LF end a row; bytes that are not UTF-8 come out again as they are
            text = io.TextIOWrapper(raw, "utf-8", errors="surrogateescape", newline="")
            try:
                yield from self._held(csv.reader(text, delimiter=separator, strict=True), held)
                return
            except LongRowError:
                yield self._long(held, RowScan(separator.encode()), keep)

    def _held(self, reader: Any, held: Held) -> Iterator[Row]:
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                if "unexpected end" in str(error):
                    raise self._open() from None
                row = NOT_CSV
            held.row = reader.line_num
            if row is None:
                return
            if row:
                yield row

    def _long(self, held: Held, scan: RowScan, keep: Keep) -> LongRow:
        content = keep(held.row_in_pieces(scan))
        if scan.is_open or not scan.is_good:
            raise self._open()
        return LongRow(content, scan.fields)

    def check(self, row: LongRow, header: list[str]) -> None:
        """Raises DataError for a long row that is none: many rows may stand in it."""
        if len(row.fields) != len(header):
            raise self._open()

    def _open(self) -> DataError:
        return DataError(
            f"{self.source.name} has an open quote, at its end or before over {self.limit:,} bytes; "
            "mend it or leave it out"
        )


def _header(table: _Table, rules: Rules) -> tuple[str, list[str]]:
    """What parts fields, and the names of the columns; raises DataError when the text's is not among them."""
    names: list[str] = []
    for separator in SEPARATORS.get(suffix_of(table.source.address), ",;\t|"):
        found = next(table.rows(separator), [])
        header = found if isinstance(found, list) else []
        if rules.key.columns(header):
            return separator, header
        names = names or header
    columns_of(table.source, names, rules.key)
    raise AssertionError


def _record(row: Row, header: list[str], key: list[str], whole: bool) -> dict[str, Any]:
    """The fields of a key or all, as bytes where they may be no UTF-8; raises BadRecordError for no row."""
    if isinstance(row, str):
        raise BadRecordError(row)
    if len(row) != len(header):
        raise BadRecordError(NOT_ROW)
    fields = {name: value for name, value in zip(header, row, strict=True) if whole or name in key}
    if any("\0" in fields[name] for name in key):
        raise BadRecordError(HAS_NUL)
    return {k: v if v.isascii() else v.encode("utf-8", "surrogateescape") for k, v in fields.items()}


@dataclass
class _Run:
    """Rows that follow each other, and one more after them if it is too long to hold."""

    rows: list[Row] = field(default_factory=list)
    long: LongRow | None = None

    def read(self, source: int, header: list[str], whole: bool, rules: Rules) -> Documents:
        """The documents in them."""
        found, key = Documents(), rules.key.columns(header)
        for row in self.rows:
            try:
                record = _record(row, header, key, whole)
            except BadRecordError as bad:
                shown = b"" if isinstance(row, str) else repr(row).encode("utf-8", "backslashreplace")
                found.refuse(source, found.lines, str(bad), shown)
                found.lines += 1
            else:
                add_rows(found, source, [record], rules)
        if self.long is not None:
            add_long_row(found, source, found.lines, self.long, header, whole, rules)
            found.lines += 1
        return found


def _runs(table: _Table, separator: str, header: list[str], part_bytes: int, keep: Keep) -> Iterator[_Run]:
    """The rows after the header in runs of at least `part_bytes`; a run ends after a long one."""
    rows = table.rows(separator, keep)
    next(rows)
    run, held = _Run(), 0
    for row in rows:
        if isinstance(row, LongRow):
            table.check(row, header)
            run.long = row
        else:
            run.rows.append(row)
            held += sum(map(len, row))
        if run.long or held >= part_bytes:
            yield run
            run, held = _Run(), 0
    if run.rows:
        yield run


class Csv:
    """The format of CSV and TSV files."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Only the start tells which line ends are quoted."""
        _header(_Table(source, reading.giant // WIDE), reading.rules)
        return None

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of rows."""
        table = _Table(reading.sources[part.source], reading.giant // WIDE)
        separator, header = _header(table, reading.rules)
        number, told = 0, 0

        def keep(pieces: Iterator[bytes]) -> Content:
            return spooled(pieces, part.scratch) if part.wanted(number) else discarded(pieces)

        for run in _runs(table, separator, header, reading.part_bytes, keep):
            read = partial(run.read, part.source, header, reading.whole, reading.rules)
            yield Block(table.position[0] - told, read, stays=run.long is not None)
            number, told = number + 1, table.position[0]

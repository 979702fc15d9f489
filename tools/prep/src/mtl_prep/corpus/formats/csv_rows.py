"""CSV and TSV by RFC 4180, quoted line ends included: the first row names the columns.

Fields are parted by commas, or by `;`, a tab or `|` where these part the header into the text's column.
"""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from mtl_common.errors import DataError
from mtl_prep.corpus.find import Source, suffix_of
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.formats.rows import add_rows, columns_of
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import HAS_NUL, NOT_ROW, BadRecordError, Documents
from mtl_prep.corpus.unpack import Stream

SEPARATORS = {".tsv": "\t,;|", ".tab": "\t,;|"}
NOT_CSV = "not CSV"
LARGEST_FIELD = 2**31 - 1  # what the csv module takes as a limit everywhere

Row = list[str] | str  # fields, or why there are none


@dataclass
class _Table:
    """Rows of text, one after the other."""

    source: Source
    limit: int
    position: list[int] = field(default_factory=lambda: [0])

    def rows(self, separator: str) -> Iterator[Row]:
        """All rows, the header first; raises DataError when a quote is open at the end, or far before it."""
        csv.field_size_limit(min(self.limit, LARGEST_FIELD))
        raw = io.BufferedReader(Stream(self.source.pieces(self.position)), 1 << 16)
        # only CR and LF end a row; bytes that are not UTF-8 come out again as they are
        text = io.TextIOWrapper(raw, "utf-8", errors="surrogateescape", newline="")
        reader = csv.reader(text, delimiter=separator, strict=True)
        while True:
            try:
                row = next(reader, None)
            except csv.Error as error:
                yield self._failed(error, reader.line_num)
                continue
            if row is None:
                return
            if row:
                yield row

    def _failed(self, error: csv.Error, line: int) -> str:
        if "unexpected end" in str(error) or "field larger" in str(error):
            raise DataError(
                f"{self.source.name} has an open quote, or a field of over {self.limit:,} characters, before "
                f"line {line + 1}; mend it or leave it out"
            )
        return NOT_CSV


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


def _read(rows: list[Row], source: int, header: list[str], whole: bool, rules: Rules) -> Documents:
    found, key = Documents(), rules.key.columns(header)
    for row in rows:
        try:
            record = _record(row, header, key, whole)
        except BadRecordError as bad:
            shown = b"" if isinstance(row, str) else repr(row).encode("utf-8", "backslashreplace")
            found.refuse(source, found.lines, str(bad), shown)
            found.lines += 1
        else:
            add_rows(found, source, [record], rules)
    return found


class Csv:
    """The format of CSV and TSV files."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Only the start tells which line ends are quoted."""
        _header(_Table(source, reading.giant), reading.rules)
        return None

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of rows."""
        table = _Table(reading.sources[part.source], reading.giant)
        separator, header = _header(table, reading.rules)
        read = partial(_read, source=part.source, header=header, whole=reading.whole, rules=reading.rules)
        rows = table.rows(separator)
        next(rows)
        run, held, told = list[Row](), 0, 0
        for row in rows:
            run.append(row)
            held += sum(map(len, row))
            if held >= reading.part_bytes:
                yield Block(table.position[0] - told, partial(read, run))
                run, held, told = [], 0, table.position[0]
        if run:
            yield Block(table.source.size - told, partial(read, run))

"""What tables have in common: columns with what matters of each row, a document or bad for a reason."""

from collections.abc import Iterable, Sequence
from typing import Any

from mtl_common.errors import DataError
from mtl_prep.corpus.keys import Key
from mtl_prep.corpus.parsing import Rules, decode
from mtl_prep.corpus.records import BadRecordError, Documents
from mtl_prep.corpus.source import Source


def columns_of(source: Source, names: Sequence[str], key: Key) -> list[str]:
    """The names of the columns with what matters; raises DataError when there are none."""
    columns = key.columns(names)
    if not columns:
        raise DataError(f"{source.name} has no column {key}; {key.instead(names)}")
    return columns


def _text(row: dict[str, Any], rules: Rules) -> tuple[str, set[str]]:
    """The text of a row, and what was mended; raises BadRecordError when there is none."""
    mends = set[str]()
    for name, value in row.items():
        if isinstance(value, bytes):
            row[name], found = decode(value, rules.replace, "utf-8")
            mends |= found
    return rules.key.of(row), mends


def add_rows(found: Documents, source: int, rows: Iterable[dict[str, Any]], rules: Rules) -> None:
    """Takes in rows as the next records."""
    for row in rows:
        number, found.lines = found.lines, found.lines + 1
        try:
            text, mends = _text(row, rules)
        except BadRecordError as bad:
            found.refuse(source, number, str(bad), repr(row).encode("utf-8", "backslashreplace"))
            continue
        for what in mends:
            found.mend(source, what)
        found.add(source, number, text, row)

"""What parquet and Arrow files have in common: record batches with columns of text."""

import io
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from mtl_common.errors import DataError
from mtl_prep.corpus.formats.arrow_values import json_values
from mtl_prep.corpus.formats.interface import Block, Reading
from mtl_prep.corpus.formats.rows import add_rows, columns_of
from mtl_prep.corpus.parsing import Rules
from mtl_prep.corpus.records import Documents
from mtl_prep.corpus.source import Source


def _holds_text(kind: Any) -> bool:
    """Whether a type is text, bytes, or something with text inside."""
    import pyarrow.types as types

    if types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    tests = (
        types.is_string,
        types.is_large_string,
        types.is_string_view,
        types.is_binary,
        types.is_large_binary,
    )
    return types.is_nested(kind) or types.is_null(kind) or any(test(kind) for test in tests)


def text_columns(source: Source, schema: Any, reading: Reading) -> list[str]:
    """The names of the columns with the text; raises DataError when there are none, or they hold no text."""
    columns = columns_of(source, schema.names, reading.rules.key)
    for column in columns:
        kind = schema.field(column).type
        if not _holds_text(kind):
            raise DataError(f"column {column} of {source.name} holds {kind}, not text; name another column")
    return columns


def columns_to_read(source: Source, schema: Any, reading: Reading) -> list[str]:
    """The names of the columns to read; raises like `text_columns`."""
    columns = text_columns(source, schema, reading)
    return list(schema.names) if reading.whole else columns


def _values(column: Any) -> list[Any]:
    """The values of a column; strings as bytes when one is not UTF-8."""
    import pyarrow as pa

    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:
        return list(column.cast(pa.large_binary()).to_pylist())


def _unpickled(stream: bytes) -> "_Batches":
    import pyarrow as pa

    with pa.ipc.open_stream(stream) as reader:
        return _Batches(list(reader))


class _Batches(list[Any]):
    """Record batches that go to another process without what they are slices of."""

    def __reduce__(self) -> tuple[Any, ...]:
        import pyarrow as pa

        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, self[0].schema) as writer:
            for batch in self:
                writer.write_batch(batch)
        return _unpickled, (stream.getvalue(),)


def _columns(batch: Any, key: list[str], whole: bool) -> Iterator[list[Any]]:
    """The values of every column; of whole rows as JSON has them, but for the text itself."""
    import pyarrow.types as types

    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        as_json = whole and (name not in key or types.is_nested(column.type))
        yield json_values(column) if as_json else _values(column)


def _read(batches: list[Any], source: int, rules: Rules, whole: bool) -> Documents:
    found = Documents()
    for batch in batches:
        names = batch.schema.names
        values = _columns(batch, rules.key.columns(names), whole)
        add_rows(
            found, source, (dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)), rules
        )
    return found


def blocks(batches: Iterable[Any], a_row: float, source: int, reading: Reading) -> Iterator[Block]:
    """Blocks of about `part_bytes` from record batches; a row is worth `a_row` bytes of the file."""
    read = partial(_read, source=source, rules=reading.rules, whole=reading.whole)
    run, held, rows = _Batches(), 0, 0
    for batch in batches:
        run.append(batch)
        held, rows = held + batch.nbytes, rows + batch.num_rows
        if held >= reading.part_bytes:
            yield Block(round(a_row * rows), partial(read, run))
            run, held, rows = _Batches(), 0, 0
    if run:
        yield Block(round(a_row * rows), partial(read, run))

"""Arrow IPC: a file, whose record batches can be read alone, or a stream of them."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from mtl_prep.corpus.formats.arrow_batches import blocks, columns_to_read
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.source import Source
from mtl_prep.corpus.unpack import damaged

FILE_MAGIC = b"ARROW1"
ROWS = 1 << 10  # rows whose size is looked at together


@contextmanager
def _opened(source: Source, columns: list[int] | None = None) -> Iterator[Any]:
    """A reader of a file or stream, of all columns or some."""
    import pyarrow as pa

    options = pa.ipc.IpcReadOptions(included_fields=columns, use_threads=False)
    with source.open() as raw:
        is_file = raw.read(len(FILE_MAGIC)) == FILE_MAGIC
        raw.seek(0)
        try:
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(raw, options=options) as reader:
                yield reader
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise damaged(source.name, "Arrow", error) from None


def _count(reader: Any) -> int | None:
    """The record batches of a file; a stream does not tell."""
    return getattr(reader, "num_record_batches", None)


def _together(batches: int, source: Source, reading: Reading) -> int:
    """How many batches are about the size of a part."""
    return max(1, round(batches * reading.part_bytes / max(source.size, 1)))


def _slices(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        for start in range(0, batch.num_rows, ROWS):
            yield batch.slice(start, ROWS)


class Arrow:
    """The format of Arrow IPC files and streams."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Record batches of a file, small ones together; a stream has to be read from its start."""
        with _opened(source) as reader:
            columns_to_read(source, reader.schema, reading)
            count = _count(reader)
        return None if count is None else -(-count // _together(count, source, reading))

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of rows."""
        source = reading.sources[part.source]
        with _opened(source) as reader:
            schema = reader.schema
            columns = columns_to_read(source, schema, reading)
        with _opened(source, [i for i, name in enumerate(schema.names) if name in columns]) as reader:
            count = _count(reader)
            if count is None:
                yield from blocks(_slices(reader), 0, part.source, reading)
                return
            step = _together(count, source, reading)
            mine = range(part.number * step, min((part.number + 1) * step, count))
            size = source.size * len(mine) // count
            for block in blocks(_slices(map(reader.get_batch, mine)), 0, part.source, reading):
                yield Block(size, block.read)
                size = 0

"""Parquet: row groups are read alone, a few batches at a time, and of them only the columns needed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from mtl_prep.corpus.formats.arrow_batches import blocks, columns_to_read
from mtl_prep.corpus.formats.interface import Block, Part, Reading
from mtl_prep.corpus.source import Source
from mtl_prep.corpus.unpack import damaged

ROWS = 1 << 16  # rows of a batch at most
BATCHES = 4  # batches in a part of its size


@contextmanager
def _opened(source: Source) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    with source.open() as raw:
        try:
            with ParquetFile(raw) as file:
                yield file
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise damaged(source.name, "parquet", error) from None


def _sizes(file: Any, columns: list[str]) -> list[int]:
    """The bytes of some columns, not packed, in each row group."""
    sizes = []
    for group in map(file.metadata.row_group, range(file.num_row_groups)):
        leaves = map(group.column, range(group.num_columns))
        mine = [leaf for leaf in leaves if leaf.path_in_schema.startswith(tuple(columns))]
        sizes.append(sum(leaf.total_uncompressed_size for leaf in mine))
    return sizes


def _runs(sizes: list[int], part_bytes: int) -> list[list[int]]:
    """Neighbouring row groups together, up to the size of a part."""
    runs: list[list[int]] = []
    held = part_bytes
    for group, size in enumerate(sizes):
        if held + size > part_bytes:
            runs.append([])
            held = 0
        runs[-1].append(group)
        held += size
    return runs


class Parquet:
    """The format of parquet files."""

    def parts(self, source: Source, reading: Reading) -> int | None:
        """Row groups, small ones together."""
        with _opened(source) as file:
            columns = columns_to_read(source, file.schema_arrow, reading)
            return len(_runs(_sizes(file, columns), reading.part_bytes))

    def blocks(self, part: Part, reading: Reading) -> Iterator[Block]:
        """Blocks of rows."""
        source = reading.sources[part.source]
        with _opened(source) as file:
            columns = columns_to_read(source, file.schema_arrow, reading)
            sizes = _sizes(file, columns)
            groups = _runs(sizes, reading.part_bytes)[part.number]
            rows = sum(file.metadata.row_group(group).num_rows for group in groups)
            held = max(sum(sizes[group] for group in groups), 1)
            batches = file.iter_batches(
                batch_size=max(1, min(ROWS, reading.part_bytes * rows // held // BATCHES)),
                row_groups=groups,
                columns=columns,
                use_threads=False,
            )
            yield from blocks(batches, source.size / max(file.metadata.num_rows, 1), part.source, reading)

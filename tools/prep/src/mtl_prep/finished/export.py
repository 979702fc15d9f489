"""Bins as parquet files of ids, and as JSON lines of text."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import orjson

from mtl_common.bins import Batch, Bins, check_free, staged
from mtl_prep.finished.reading import tokenizer_of


def _table(batch: Batch, paths: Any) -> Any:
    """Some documents as a table: ids, the path of the source, the record, and what else there is of them."""
    import pyarrow as pa

    def lists(offsets: Any, values: Any) -> Any:
        return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values))

    source = pa.DictionaryArray.from_arrays(pa.array(batch.source.astype(np.int32)), paths)
    columns = {"tokens": lists(batch.offsets, batch.ids), "source": source, "record": pa.array(batch.record)}
    if batch.loss is not None:
        columns["loss"] = lists(batch.offsets, batch.loss)
    if batch.sentences is not None:
        columns["sentences"] = lists(batch.sentences.offsets, batch.sentences.starts)
    return pa.table(columns)


def to_parquet(bins: Bins, out: Path) -> Iterator[int]:
    """Writes a parquet file a shard, packed, into a new directory; yields the tokens of every step."""
    import pyarrow as pa
    import pyarrow.parquet

    paths = pa.array([source.path for source in bins.manifest.sources])
    with staged(out) as place:
        for index, shard in enumerate(bins.manifest.shards):
            path, writer = place / Path(shard.file).with_suffix(".parquet"), None
            for batch in bins.shard(index).pieces():
                table = _table(batch, paths)
                writer = writer or pa.parquet.ParquetWriter(path, table.schema, compression="zstd")
                writer.write_table(table)
                yield len(batch.ids)
            if writer:
                writer.close()


@contextmanager
def _new_file(out: Path) -> Iterator[BinaryIO]:
    """A file, packed if its name ends in .zst, that is there whole or not at all."""
    import zstandard

    check_free(out)
    part = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        with part.open("wb") as file:
            packed = zstandard.ZstdCompressor(level=3).stream_writer(file, closefd=False)
            with packed if out.suffix == ".zst" else nullcontext(file) as target:
                yield target
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def to_json_lines(bins: Bins, out: Path) -> Iterator[int]:
    """Writes every document as a line `{"text", "source", "record"}`; yields the tokens of every step.

    Special tokens, the end of the document among them, are left out of the text.
    """
    tokenizer, sources = tokenizer_of(bins), bins.manifest.sources
    with _new_file(out) as file:
        for index in range(len(bins.manifest.shards)):
            for batch in bins.shard(index).pieces():
                for row, record in enumerate(batch.record.tolist()):
                    ids = batch.ids[batch.offsets[row] : batch.offsets[row + 1]].tolist()
                    place = {"source": sources[batch.source[row]].path, "record": record}
                    file.write(orjson.dumps({"text": tokenizer.decode(ids), **place}) + b"\n")
                yield len(batch.ids)

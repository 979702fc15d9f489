"""The formats that a corpus may be in, by the kind of its files.

A format cuts files into parts and parts into blocks, and reads blocks into documents. All that is told of a
document but its place is its text, so the same documents give the same tokens in any format.
"""

from collections.abc import Mapping

from mtl_prep.corpus.formats.arrow import Arrow
from mtl_prep.corpus.formats.csv_rows import Csv
from mtl_prep.corpus.formats.interface import Block, Errors, Format, Part, Reading
from mtl_prep.corpus.formats.json_values import JsonValues
from mtl_prep.corpus.formats.lines import JSON_LINES, PARAGRAPHS, TEXT_LINES
from mtl_prep.corpus.formats.parquet import Parquet
from mtl_prep.corpus.formats.warc import Warc
from mtl_prep.corpus.source import Kind

__all__ = ["Block", "Errors", "Format", "Part", "Reading", "format_of"]

FORMATS: Mapping[Kind, Format] = {
    "lines": JSON_LINES,
    "text lines": TEXT_LINES,
    "paragraphs": PARAGRAPHS,
    "json": JsonValues(),
    "csv": Csv(),
    "parquet": Parquet(),
    "arrow": Arrow(),
    "warc": Warc(),
}


def format_of(kind: Kind) -> Format:
    """How files of a kind are read; files that are a document each have no format, see `whole`."""
    return FORMATS[kind]

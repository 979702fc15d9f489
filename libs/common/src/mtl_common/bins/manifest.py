"""The manifest: what a finished directory of bins holds, and the one rename that finishes it."""

import json
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from mtl_common.errors import DataError

FORMAT = "mtl-bins"
VERSION = "1.0"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
SHARD_TOKENS = 2**30  # more than 2^31 values in one array is refused by some Arrow implementations


class Record(BaseModel):
    """The base of what a manifest holds; keys that a newer minor version adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Shard(Record):
    """One shard file. `*_at` are the positions of its buffers in the file, in bytes; hashes are xxh3-128."""

    file: str
    size: int
    documents: int
    tokens: int
    largest_id: int
    xxh3_tokens: str
    xxh3_offsets: str
    tokens_at: int
    offsets_at: int
    source_at: int
    record_at: int


class Source(Record):
    """One input file: `records` = `documents` + all counts in `bad`, the reason `empty` among them."""

    path: str
    size: int
    xxh3: str
    records: int
    documents: int
    bad: dict[str, int]
    repaired: dict[str, int]


class TokenizerFacts(Record):
    """The tokenizer that made the bins, and the library that encoded them."""

    fingerprint: str
    vocab_size: int
    eod: int
    engine: str


class Manifest(Record):
    """What a finished directory of bins holds; shards in order make one stream of tokens."""

    format: str = FORMAT
    version: str = VERSION
    tool: str
    dtype: str
    documents: int
    tokens: int
    tokenizer: TokenizerFacts
    options: dict[str, Any]
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]


def dtype_for(vocab_size: int) -> str:
    """The smallest type that holds every id below `vocab_size`.

    >>> dtype_for(65_536), dtype_for(65_537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"


def read_manifest(directory: Path) -> Manifest:
    """The manifest of finished bins; raises DataError for a directory that is none, or of a newer version."""
    path = directory / MANIFEST
    if not directory.is_dir():
        raise DataError(f"no token bins at {directory}: there is no such directory")
    if not path.is_file():
        raise DataError(f"{directory} holds no finished token bins; make them with mtl-prep tokenize")
    try:
        content = json.loads(path.read_text("utf-8"))
        kind, version = content["format"], str(content["version"])
        if (kind, version.split(".")[0]) == (FORMAT, VERSION.split(".")[0]):
            return Manifest.model_validate(content)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} is damaged ({type(error).__name__}); make the bins again") from None
    raise DataError(f"{path} is {kind} version {version}, but this mtl reads {FORMAT} {VERSION}; update mtl")


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Makes the directory finished bins, by one rename."""
    staged = directory / f".{MANIFEST}.tmp"
    with staged.open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, directory / MANIFEST)

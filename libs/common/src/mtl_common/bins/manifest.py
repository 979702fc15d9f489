"""The manifest: what a finished directory of bins holds, and the one rename that finishes it."""

import os
import re
from pathlib import Path
from typing import Any

import xxhash
from pydantic import BaseModel, ConfigDict, ValidationError

from mtl_common.errors import DataError

FORMAT = "mtl-bins"
VERSION = "1.1"
MANIFEST = "manifest.json"
TOKENIZER = "tokenizer"
BAD = "bad.jsonl"  # bad records but the empty ones: source, line, reason
SHUFFLED = "shuffle_documents"  # the option whose value is the seed of the order of documents
SHARD_TOKENS = 2**30  # more than 2^31 values in one array is refused by some Arrow implementations


class Record(BaseModel):
    """The base of what a manifest holds; keys that a newer minor version adds are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Shard(Record):
    """One shard file. `*_at` are the positions of its buffers in the file, in bytes; hashes are xxh3-128.

    `xxh3` is of the whole file; bins older than 1.1 have none. What is None belongs to a column that the
    shard does not have. `loss_tokens` tokens count as labels; `one_sentence` documents have no second one.
    """

    file: str
    size: int
    documents: int
    tokens: int
    largest_id: int
    xxh3_tokens: str
    xxh3_offsets: str
    xxh3: str = ""
    tokens_at: int
    offsets_at: int
    source_at: int
    record_at: int
    loss_tokens: int | None = None
    xxh3_loss: str | None = None
    loss_at: int | None = None
    sentences: int | None = None
    one_sentence: int | None = None
    xxh3_sentences: str | None = None
    xxh3_sentence_offsets: str | None = None
    sentences_at: int | None = None
    sentence_offsets_at: int | None = None


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
    """The tokenizer that made the bins, and the library that encoded them.

    `distrusted` are libraries that gave other ids than the reference, and where; nothing they made is here.
    """

    fingerprint: str
    vocab_size: int
    eod: int
    engine: str
    distrusted: dict[str, str] = {}


class Part(Record):
    """Bins that others were merged of, as they said of themselves, and how much of the whole they are."""

    documents: int
    tokens: int
    sources: int  # as many of the manifest's, in their order
    tool: str
    engine: str
    options: dict[str, Any]


class Manifest(Record):
    """What a finished directory of bins holds; shards in order make one stream of tokens.

    `parts` are the bins that it was merged of, in order; they stand one after the other, each in the order
    that its options say, unless all documents were shuffled in the end.
    """

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
    parts: tuple[Part, ...] | None = None

    @property
    def shuffled(self) -> bool:
        """Whether some documents stand in the order of a seed, not in that of their sources."""
        options = (self.options, *(part.options for part in self.parts or ()))
        return any(found.get(SHUFFLED) is not None for found in options)


def dtype_for(vocab_size: int) -> str:
    """The smallest type that holds every id below `vocab_size`.

    >>> dtype_for(65_536), dtype_for(65_537)
    ('uint16', 'uint32')
    """
    return "uint16" if vocab_size <= 2**16 else "uint32"


def about(fingerprint: str, dtype: str, eod: int) -> dict[str, str]:
    """What the schema of every shard says of the bins that it belongs to."""
    named = {"version": VERSION, "tokenizer": fingerprint, "dtype": dtype, "eod": eod}
    return {f"mtl.{name}": str(value) for name, value in named.items()}


class _Head(Record):
    """What every manifest says, whatever its version."""

    format: str
    version: str


def read_manifest(directory: Path) -> Manifest:
    """The manifest of finished bins; raises DataError for a directory that is none, or of a newer version."""
    path = directory / MANIFEST
    if not directory.is_dir():
        why = "it is a file, bins are a directory" if directory.exists() else "there is no such directory"
        raise DataError(f"no token bins at {directory}: {why}")
    if not path.is_file():
        raise DataError(f"{directory} holds no finished token bins; make them with mtl-prep tokenize")
    content = path.read_bytes()
    try:
        head = _Head.model_validate_json(content)
        if (head.format, head.version.split(".")[0]) == (FORMAT, VERSION.split(".")[0]):
            return Manifest.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        what = ": ".join([*map(str, first["loc"]), first["msg"]])
        raise DataError(f"{path} is damaged ({what}); restore it or make the bins again") from None
    raise DataError(
        f"{path} is {head.format} version {head.version}, but this mtl reads {FORMAT} {VERSION}; update mtl"
    )


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Makes the directory finished bins, by one rename; its last line holds the hash of those before it."""
    staged = directory / f".{MANIFEST}.tmp"
    body = manifest.model_dump_json(indent=1, exclude_none=True).removesuffix("\n}").encode()
    with staged.open("wb") as file:
        file.write(body + b',\n "digest": "%s"\n}\n' % xxhash.xxh3_128_hexdigest(body).encode())
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, directory / MANIFEST)


def is_intact(directory: Path) -> bool:
    """Whether the manifest is as it was written; one of version 1.0 does not tell, and counts as intact."""
    content = (directory / MANIFEST).read_bytes()
    found = re.fullmatch(rb'(.*),\n "digest": "([0-9a-f]{32})"\n}\n', content, re.DOTALL)
    if found is None:
        return _Head.model_validate_json(content).version == "1.0"
    return xxhash.xxh3_128_hexdigest(found[1]).encode() == found[2]

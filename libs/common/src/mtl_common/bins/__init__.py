"""Token bins: documents as token ids in Arrow files, with a manifest that makes them a dataset.

A shard is an Arrow IPC file of one record batch, a row a document: `tokens` (its ids, the end-of-document id
last), `source` (which input file) and `record` (which line of it); where asked for, `loss` (which of the ids
count as labels) and `sentences` (where they begin). Any Arrow reader opens it. Our reader
knows from the manifest where the buffers lie in the file and slices the memory map itself: a window is a
view, with no Arrow call and no copy.

Leaves out compression: a compressed buffer cannot be mapped.
"""

from mtl_common.bins.arrow import Size, positions, size_of
from mtl_common.bins.batch import Batch, Sentences
from mtl_common.bins.making import Writer
from mtl_common.bins.manifest import (
    BAD,
    FORMAT,
    MANIFEST,
    SHARD_TOKENS,
    SHUFFLED,
    TOKENIZER,
    VERSION,
    Manifest,
    Part,
    Shard,
    Source,
    TokenizerFacts,
    about,
    dtype_for,
    is_intact,
    read_manifest,
    write_manifest,
)
from mtl_common.bins.reader import Bins, ShardView
from mtl_common.bins.shards import Shards, Sizes
from mtl_common.bins.staged import check_free, staged
from mtl_common.bins.writer import ShardWriter, write_shard

__all__ = [
    "BAD",
    "FORMAT",
    "MANIFEST",
    "SHARD_TOKENS",
    "SHUFFLED",
    "TOKENIZER",
    "VERSION",
    "Batch",
    "Bins",
    "Manifest",
    "Part",
    "Sentences",
    "Shard",
    "ShardView",
    "ShardWriter",
    "Shards",
    "Size",
    "Sizes",
    "Source",
    "TokenizerFacts",
    "Writer",
    "about",
    "check_free",
    "dtype_for",
    "is_intact",
    "positions",
    "read_manifest",
    "size_of",
    "staged",
    "write_manifest",
    "write_shard",
]

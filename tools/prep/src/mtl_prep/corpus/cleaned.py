"""Recognizes the directory of a clean corpus, in which only the shards are documents to read."""

from pathlib import Path
from typing import Final

import orjson

from mtl_common.errors import DataError

FORMAT: Final = "mtl-clean"
MANIFEST = "manifest.json"
UNFINISHED = Path("_work", "examined")


def is_clean(directory: Path) -> bool:
    """Whether a directory is that of a clean corpus, finished or not."""
    try:
        return FORMAT.encode() in (directory / MANIFEST).read_bytes()[:100]
    except OSError:
        return (directory / UNFINISHED).is_dir()


def shards_of(manifest: bytes) -> list[str] | None:
    """The files that a manifest of a clean corpus lists, in order; None for another one."""
    if FORMAT.encode() not in manifest[:100]:
        return None
    return [shard["file"] for shard in orjson.loads(manifest)["shards"]]


def clean_shards(directory: Path) -> list[str] | None:
    """The files to read in order, None for any other directory; raises DataError for an unfinished one."""
    try:
        content = (directory / MANIFEST).read_bytes()
    except OSError:
        if (directory / UNFINISHED).is_dir():
            raise DataError(
                f"{directory} is an unfinished clean corpus; run the same mtl-prep curate again to finish it"
            ) from None
        return None
    return shards_of(content)

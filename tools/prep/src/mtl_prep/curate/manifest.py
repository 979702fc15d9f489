"""The manifest of a clean corpus: what it was made of, by which recipe, and what became of every document."""

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from mtl_common import bins
from mtl_common.errors import DataError
from mtl_prep.corpus.cleaned import FORMAT, MANIFEST

VERSION: Literal[1] = 1


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Shard(_Frozen):
    """One file of JSON lines: its records, its bytes unpacked and on the disk, and the xxh3-128 of these."""

    file: str
    records: int
    json_bytes: int
    size: int
    xxh3: str


class Sum(_Frozen):
    """Documents, and their characters as they were read."""

    documents: int
    characters: int


class StepSums(_Frozen):
    """What one step removed, by reason, and how often it changed something, by kind."""

    name: str
    kind: str
    entered: int  # documents
    removed: dict[str, Sum]
    edits: dict[str, int]

    @property
    def documents(self) -> int:
        """How many it removed."""
        return sum(one.documents for one in self.removed.values())

    @property
    def characters(self) -> int:
        """How much it removed."""
        return sum(one.characters for one in self.removed.values())


class Source(bins.Source):
    """A file, and how many of its documents are kept, and removed by each step that did."""

    kept: int
    removed: dict[str, int]


class Manifest(_Frozen):
    """Everything about a clean corpus but its texts."""

    format: Literal["mtl-clean"] = FORMAT
    version: Literal[1] = VERSION
    tool: str
    options: dict[str, Any]
    read: Sum
    kept: Sum
    large: int = 0  # kept documents that were too large to be judged
    steps: tuple[StepSums, ...]
    shards: tuple[Shard, ...]
    sources: tuple[Source, ...]


def write_manifest(out: Path, manifest: Manifest) -> None:
    """Makes a directory a clean corpus, by one rename."""
    staged = out / f".{MANIFEST}.tmp"
    with staged.open("w", encoding="utf-8") as file:
        file.write(manifest.model_dump_json(indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(staged, out / MANIFEST)


def read_manifest(out: Path) -> Manifest:
    """The manifest of a clean corpus; raises DataError for what is none."""
    path = out / MANIFEST
    try:
        return Manifest.model_validate_json(path.read_bytes())
    except OSError:
        raise DataError(f"no clean corpus in {out}: it has no {MANIFEST}") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise DataError(f"{path} is no manifest of a clean corpus: {place}: {first['msg']}") from None

"""What the command line asks a clean corpus to be made of, and what was made."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from mtl_prep.corpus.find import Corpus
from mtl_prep.corpus.formats.interface import GIANT
from mtl_prep.corpus.kinds import Split
from mtl_prep.corpus.units import Errors, Reading
from mtl_prep.curate.judged import JudgedShape, check_steps
from mtl_prep.curate.manifest import Manifest
from mtl_prep.curate.recipe import Recipe
from mtl_prep.encoding.shapes import keys_asked, parse_shape
from mtl_prep.running.plan import Plan
from mtl_prep.running.shares import Share
from mtl_prep.running.stdin import found

PART_BYTES = 1 << 24  # a unit
SHARD_BYTES = 1 << 28
OF_A_MACHINE = frozenset({"out", "workers", "runs_on", "ray_address"})  # not kept


@dataclass(frozen=True)
class Request:
    """What the command line asked for; no `workers` are as many as Ray has cores."""

    recipe: Path
    corpus: Sequence[str | Path]
    out: Path
    workers: int
    text_key: str = "text"
    max_bad: str = "5%"
    shard_bytes: int = SHARD_BYTES
    part_bytes: int = PART_BYTES
    split: Split = "file"
    errors: Errors = "bad"
    runs_on: str = "local"
    ray_address: str | None = None
    shape: str = "text"
    keys: str | None = None
    giant: int = GIANT

    @property
    def judged_shape(self) -> JudgedShape | None:
        """What a record is, if more than a text; raises UsageError for what cannot be."""
        found = parse_shape(self.shape, keys_asked(self.shape, self.keys, self.text_key), "")
        return None if found is None else JudgedShape(found.name, found.keys)

    def plan(self, recipe: Recipe) -> Plan:
        """The files that are read, and all that decides the bytes of the clean corpus.

        Raises UsageError for what does not go together.
        """
        options: dict[str, Any] = {
            "text_key": self.text_key,
            "shard_bytes": self.shard_bytes,
            **recipe.written(),
        }
        usual = {"split": "file", "errors": "bad"}
        options |= {name: getattr(self, name) for name in usual if getattr(self, name) != usual[name]}
        corpus, shape = found(self.corpus, self.split, self.out), self.judged_shape
        if shape is not None:
            shape.check(corpus.sources)
            check_steps(recipe, shape)
            options |= {"shape": shape.name, "keys": ",".join(shape.keys)}
        return Plan(corpus, "", options, self.part_bytes)

    def reading(self, corpus: Corpus) -> Reading:
        """What decides the units of the corpus and the documents in them."""
        return Reading(
            corpus.sources,
            self.text_key,
            self.part_bytes,
            self.errors,
            giant=self.giant,
            shape=self.judged_shape,
            whole=True,
        )

    def written(self) -> dict[str, Any]:
        """What `finish` needs to know of it later, as JSON."""
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        kept = {name: value for name, value in asked.items() if name not in OF_A_MACHINE}
        there = {"corpus": list(map(str, self.corpus)), "recipe": str(self.recipe)}
        return kept | there | {"directory": os.getcwd()}


@dataclass(frozen=True)
class Outcome:
    """What was made, or `already` there before."""

    manifest: Manifest
    corpus: Corpus
    already: bool = False


@dataclass(frozen=True)
class Part:
    """What one task of an array job did: in how many tasks, of how many bytes of input."""

    share: Share
    tasks: int
    size: int

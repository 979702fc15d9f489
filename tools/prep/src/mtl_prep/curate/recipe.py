"""Recipes: TOML files with a table for each step, in the order in which the steps are taken.

A table is named for its step, or has any name and `kind = "step"`, so that a step may be taken twice.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import xxhash
from pydantic import create_model

from mtl_common.config import Settings, nearest, validate
from mtl_common.errors import ConfigError, DataError
from mtl_prep.curate.c4 import C4
from mtl_prep.curate.contamination import Contamination
from mtl_prep.curate.exact import ExactDuplicates
from mtl_prep.curate.fineweb import FineWeb
from mtl_prep.curate.gopher_quality import GopherQuality
from mtl_prep.curate.gopher_repetition import GopherRepetition
from mtl_prep.curate.language import Language
from mtl_prep.curate.length import Length
from mtl_prep.curate.near import NearDuplicates
from mtl_prep.curate.pii import Pii
from mtl_prep.curate.step import Step

KINDS: Mapping[str, type[Step]] = {
    "exact_duplicates": ExactDuplicates,
    "near_duplicates": NearDuplicates,
    "length": Length,
    "language": Language,
    "gopher_quality": GopherQuality,
    "gopher_repetition": GopherRepetition,
    "c4": C4,
    "fineweb": FineWeb,
    "contamination": Contamination,
    "pii": Pii,
}


Large = Literal["bad", "keep"]
LARGE = "large"  # its key, above the tables


@dataclass(frozen=True)
class Recipe:
    """The steps by name, in order; `base` is where the paths in them begin.

    `large` is what becomes of documents too large to be judged.
    """

    base: Path
    steps: tuple[tuple[str, Step], ...]
    large: Large = "bad"

    def written(self) -> dict[str, Any]:
        """Everything that decides what the recipe does, flat; raises DataError for a file that is absent."""
        facts: dict[str, Any] = {"recipe": [name for name, _ in self.steps], "recipe.large": self.large}
        for name, step in self.steps:
            for key, value in {"kind": kind_of(step), **step.model_dump(mode="json")}.items():
                facts[f"recipe.{name}.{key}"] = value
            for path in step.inputs(self.base):
                if not path.is_file():
                    raise DataError(f"no file {path}, which step {name} of the recipe names; check the path")
                facts[f"recipe.{name} {path.name}"] = xxhash.xxh3_128_hexdigest(path.read_bytes())
        return facts


def kind_of(step: Step) -> str:
    """The name of a step's kind."""
    return next(kind for kind, settings in KINDS.items() if type(step) is settings)


def _kind(file: Path, name: str, table: Any) -> type[Step]:
    if not isinstance(table, dict):
        raise ConfigError(
            f"{name} in {file} stands outside of a table; put it below the [step] it belongs to"
        )
    kind = table.pop("kind", name)
    if kind not in KINDS:
        hint = nearest(str(kind), KINDS)
        raise ConfigError(f"unknown step {kind} in {file}{hint}; there are {', '.join(KINDS)}")
    return KINDS[kind]


def read_recipe(file: Path) -> Recipe:
    """The steps of a recipe; raises ConfigError for what is unknown or impossible in it."""
    try:
        tables = tomllib.loads(file.read_text("utf-8-sig"))
    except FileNotFoundError:
        raise ConfigError(f"no recipe {file}; check the path") from None
    except IsADirectoryError:
        raise ConfigError(f"{file} is a directory; name the recipe, a TOML file, before the corpus") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ConfigError(f"{file} cannot be read as TOML: {error}") from None
    large = {} if isinstance(tables.get(LARGE), dict) else {LARGE: tables.pop(LARGE, "bad")}
    if not tables:
        raise ConfigError(f"{file} has no steps; add tables such as [exact_duplicates]")
    fields: dict[str, Any] = {name: (_kind(file, name, table), ...) for name, table in tables.items()}
    fields |= dict.fromkeys(large, (Large, ...))
    model = create_model("Recipe", __base__=Settings, **fields)
    settings = validate(model, tables | large, {(name,): str(file) for name in [*tables, *large]})
    steps = tuple((name, getattr(settings, name)) for name in tables)
    return Recipe(file.parent, steps, getattr(settings, LARGE) if large else "bad")

"""The one decision when all is read: which documents repeat others, in the order of the recipe."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mtl_prep.curate.facts import facts_of
from mtl_prep.curate.recipe import Recipe
from mtl_prep.curate.signatures import COMPARED, UnitSignatures, save
from mtl_prep.curate.step import GlobalStep
from mtl_prep.running.tally import Unit

DECIDED, ORIGINALS = "decided.npy", "originals.npy"


@dataclass(frozen=True)
class Decision:
    """What becomes of every document, in the order of the corpus.

    fates (documents,) 0 or the step at which each goes; originals (documents,) the one it repeats, or -1.
    """

    fates: NDArray[np.uint8]
    originals: NDArray[np.int64]


def decide(directory: Path, recipe: Recipe, units: Sequence[Unit]) -> None:
    """Compares documents, and writes the decision; the same signatures give the same one."""
    named = [(unit.name, unit.documents) for unit in units if unit.documents]
    parts = [facts_of(directory, name)["fate"] for name, _ in named]
    fates = np.concatenate([np.zeros(0, np.uint8), *parts])
    originals = np.full(len(fates), -1, np.int64)
    for number, (_, step) in enumerate(recipe.steps, 1):
        if isinstance(step, GlobalStep) and named:
            signatures = UnitSignatures(directory, named, number)
            there = (fates == 0) | (fates > number)  # who goes for a later step is still there at this one
            documents = np.flatnonzero(there & signatures.row(COMPARED, 0))
            found = step.originals(signatures, documents)
            repeats = found != documents
            fates[documents[repeats]] = number
            originals[documents[repeats]] = found[repeats]
    save(directory / ORIGINALS, originals)
    save(directory / DECIDED, fates)


def decision(directory: Path) -> Decision:
    """The decision, as it lies on the disk."""
    fates, originals = (np.load(directory / name, mmap_mode="r") for name in (DECIDED, ORIGINALS))
    return Decision(fates, originals)

"""Documents that hold text of evaluation sets: n-grams of words in common, n = 13 (Brown et al. 2020, arXiv
2005.14165, appendix C).

Words are compared in small letters and without punctuation. The whole document goes: a span cut out would
leave its context, which often is the evaluation set itself. An item of fewer words than n cannot be found.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from mtl_common.errors import ConfigError, DataError
from mtl_prep.curate.batch import Batch, Hash, Integers, Mask, compiled
from mtl_prep.curate.step import LocalStep, Verdict

SIEVE_BITS = 22


class Contamination(LocalStep):
    """The sets, name = path: .jsonl, whose strings are items, or any other text, which is one item."""

    sets: dict[str, str]
    n: Annotated[int, Field(ge=2)] = 13
    keys: tuple[str, ...] = ()  # of the lines of .jsonl; none: all strings
    min_shared: Annotated[int, Field(ge=1)] = 1  # n-grams in common, from which on a document goes

    def begin(self, base: Path) -> "ContaminationJudge":
        """The step at work; raises DataError for sets that cannot be read."""
        grams = {name: self._grams(base / path) for name, path in self.sets.items()}
        return ContaminationJudge(self, grams)

    def inputs(self, base: Path) -> list[Path]:
        """The evaluation sets; raises ConfigError when there is none."""
        if not self.sets:
            raise ConfigError('contamination.sets is empty; name files as in sets = {gsm8k = "gsm8k.jsonl"}')
        return [base / path for path in self.sets.values()]

    def _grams(self, path: Path) -> Hash:
        grams, _ = n_grams(Batch(list(_items(path, self.keys))), self.n)
        if not len(grams):
            raise DataError(f"{path} holds no item of {self.n} words; check it, its keys, and n")
        return np.unique(grams)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)


def _items(path: Path, keys: tuple[str, ...]) -> Iterator[str]:
    """The items of a set; raises DataError for a file that is absent or not what its name says."""
    try:
        text = path.read_text("utf-8-sig")
        if path.suffix not in (".jsonl", ".ndjson"):
            yield text
            return
        for line in filter(str.strip, text.split("\n")):
            record = json.loads(line)
            yield from _strings({key: record.get(key) for key in keys} if keys else record)
    except (OSError, ValueError, AttributeError) as error:
        raise DataError(f"the evaluation set {path} cannot be read: {error}") from None


def n_grams(batch: Batch, n: int) -> tuple[Hash, Integers]:
    """The hashes of all n-grams of words, and where each document's begin (documents + 1,)."""
    hashes, offsets = compiled("loops").n_grams(batch.term_hashes, batch.term_offsets, n, False)
    return hashes, offsets


class ContaminationJudge:
    """The search at work; a sieve of bits lets nearly all n-grams of a text pass at once."""

    def __init__(self, settings: Contamination, grams: dict[str, Hash]) -> None:
        self._settings, self._sets = settings, grams
        self._sieve = np.zeros(1 << SIEVE_BITS, bool)
        for values in grams.values():
            self._sieve[_sieved(values)] = True

    def judge(self, batch: Batch, wanted: Mask) -> Verdict:
        """The first set that shares enough with a document is the reason."""
        verdict = Verdict(len(batch))
        grams, offsets = n_grams(batch, self._settings.n)
        close = np.flatnonzero(self._sieve[_sieved(grams)])
        grams, document = grams[close], np.searchsorted(offsets, close, "right") - 1
        for name, known in self._sets.items():
            place = np.minimum(np.searchsorted(known, grams), len(known) - 1)
            shared = np.bincount(document[known[place] == grams], minlength=len(batch))
            verdict.remove(shared >= self._settings.min_shared, f"shared with {name}")
        return verdict


def _sieved(grams: Hash) -> np.ndarray[Any, np.dtype[np.int64]]:
    """(n,) the place of each n-gram in the sieve."""
    return (grams >> np.uint64(64 - SIEVE_BITS)).astype(np.int64)

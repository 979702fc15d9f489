"""The choice of the library that encodes in bulk: the fastest of those that give the reference's ids.

An engine may know texts on which its Unicode tables differ from the reference's; those go to the next one,
and what no engine is sure of goes to the reference itself.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from mtl_common.errors import UsageError
from mtl_common.tokenizers.flat import Encode, Flat, merged, same

Doubts = Callable[[Sequence[str]], NDArray[np.bool_]]

REFERENCE = "reference"
AUTO = "auto"
QUICK = "quick"
TURBO = "gigatoken"
CODE_POINTS = 0x110000
ENGINES = (AUTO, TURBO, "fastokens", "words", "bytes", REFERENCE)


@dataclass(frozen=True)
class Engine:
    """A library that encodes in bulk; `doubts` tells the texts it must not be given."""

    name: str
    encode: Encode
    doubts: Doubts | None = None


Build = Callable[[], Engine | None]


def matching(pattern: str) -> Doubts:
    """Which texts match a pattern in RE2's syntax."""

    def found(texts: Sequence[str]) -> NDArray[np.bool_]:
        import pyarrow
        from pyarrow import compute

        column = pyarrow.array(list(texts), pyarrow.large_string())
        matches = compute.match_substring_regex(column, pattern=pattern)
        return np.asarray(matches.to_numpy(zero_copy_only=False), bool)

    return found


def holding(ranges: str) -> Doubts:
    """Which texts hold a character, not of ASCII, of some ranges of code points: `"0295 1acf-1add"`."""
    known = np.zeros(CODE_POINTS, bool)
    for span in ranges.split():
        first, _, last = span.partition("-")
        known[int(first, 16) : int(last or first, 16) + 1] = True

    def found(texts: Sequence[str]) -> NDArray[np.bool_]:
        out = np.zeros(len(texts), bool)
        suspects = [i for i, text in enumerate(texts) if not text.isascii()]
        together = "\n".join([texts[i] for i in suspects])
        codes = np.frombuffer(together.encode("utf-32-le"), np.uint32)
        places = np.flatnonzero(known.take(codes, mode="clip"))
        if len(places):
            stops = np.cumsum([len(texts[i]) + 1 for i in suspects])
            out[np.array(suspects)[np.searchsorted(stops, places, "right")]] = True
        return out

    return found


@contextmanager
def one_core(asked: bool) -> Iterator[None]:
    """Keeps this thread on one core meanwhile, so that libraries see a machine of one and start no threads.

    fastokens sizes its pool so, at its first call, whatever RAYON_NUM_THREADS says.
    """
    if not asked or not hasattr(os, "sched_setaffinity"):
        yield
        return
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)


def _considered(builders: Mapping[str, Build], wanted: str) -> list[str]:
    """The engines to try, the fastest first; an engine asked for by name has the slower ones behind it."""
    names = list(builders)
    if wanted == REFERENCE:
        return []
    if wanted == QUICK:
        return [name for name in names if name != TURBO]
    return names if wanted == AUTO else names[names.index(wanted) :]


def _exact(engine: Engine, tried: Sequence[str], reference: Encode) -> bool:
    """Whether an engine gives the ids of the reference on texts that it has no doubts about."""
    doubted = engine.doubts(tried) if engine.doubts else np.zeros(len(tried), bool)
    sure = [text for text, no in zip(tried, doubted, strict=True) if not no]
    return same(engine.encode(sure), reference(sure))


class Chain:
    """Encodes what an engine is sure of by it, and the rest by the engines behind, made when first needed."""

    def __init__(self, engine: Engine, behind: Callable[[], Encode]) -> None:
        self._engine, self._behind = engine, behind
        self._rest: Encode | None = None

    def __call__(self, texts: Sequence[str]) -> Flat:
        """The ids of texts."""
        doubted = self._engine.doubts(texts) if self._engine.doubts else np.zeros(0, bool)
        if not doubted.any():
            return self._engine.encode(texts)
        self._rest = self._rest or self._behind()
        sure = [text for text, no in zip(texts, doubted, strict=True) if not no]
        unsure = [text for text, no in zip(texts, doubted, strict=True) if no]
        return merged(~doubted, self._engine.encode(sure), self._rest(unsure))


@dataclass(frozen=True)
class Choice:
    """The engines that could encode a vocabulary, the fastest first, and which of them is wanted.

    `wanted` is the name of one, `auto`, or `quick` for one that starts at once.
    """

    builders: Mapping[str, Build]
    wanted: str
    one_thread: bool

    def encode(self, tried: Sequence[str], reference: Encode) -> Encode:
        """How to encode, as `make` finds it."""
        return self.make(tried, reference)[1]

    def make(self, tried: Sequence[str], reference: Encode) -> tuple[list[str], Encode]:
        """The engines to encode with, the first one in front, and how; none when only the reference is exact.

        Raises UsageError when the one asked for by name cannot be had.
        """
        by_name = self.wanted not in (AUTO, QUICK, REFERENCE)
        if by_name and self.wanted not in self.builders:
            raise UsageError(f"--encoder {self.wanted} does not read this kind of tokenizer; leave it out")
        names = _considered(self.builders, self.wanted)
        for place, name in enumerate(names):
            with one_core(self.one_thread):
                engine = self.builders[name]()
                exact = engine is not None and _exact(engine, tried, reference)
            if engine and exact:
                behind = {other: self.builders[other] for other in names[place + 1 :]}
                rest = replace(self, builders=behind, wanted=AUTO)
                return [name, *behind], Chain(engine, partial(rest.encode, tried, reference))
            if by_name:
                what = "gives other ids than the reference" if engine else "cannot encode this vocabulary"
                raise UsageError(f"--encoder {name} {what}; leave it out")
        return [], reference

"""Cuts bins into parts by documents: by shares of a draw, by shares in order, or by patterns of sources."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np

from mtl_common.bins import Bins, Manifest, staged
from mtl_common.errors import DataError, UsageError
from mtl_prep.finished.divide import Assign, divide
from mtl_prep.finished.draw import Draw
from mtl_prep.finished.reading import opened

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Request:
    """Bins, and the parts to cut them into as typed: `train=0.98,valid=0.02` or `code=*.py,rest=*`."""

    path: Path
    out: Path
    parts: str
    seed: int = 0
    contiguous: bool = False


def parse_parts(text: str) -> dict[str, str]:
    """`"a=0.9,b=0.1"` -> `{"a": "0.9", "b": "0.1"}`; raises UsageError for anything else."""
    pairs = [part.partition("=") for part in text.split(",")]
    parts = {name.strip(): value.strip() for name, _, value in pairs}
    names = all(re.fullmatch(r"[A-Za-z0-9_][\w.-]*", name) for name in parts)
    if not names or not all(parts.values()) or not 1 < len(parts) == len(pairs):
        raise UsageError(
            f"--parts {text} is not two or more names with shares, such as train=0.98,valid=0.02"
        )
    return parts


def _shares(parts: Mapping[str, str]) -> list[float] | None:
    """The shares, or None when the values are patterns; raises UsageError when they do not add up to 1."""
    try:
        shares = [float(value) for value in parts.values()]
    except ValueError:
        return None
    if not (min(shares) > 0 and abs(sum(shares) - 1) <= TOLERANCE):
        raise UsageError(f"the shares {', '.join(parts.values())} are not above 0 with a sum of 1")
    return shares


def _drawn(bins: Bins, shares: list[float], seed: int) -> Assign:
    draw, edges = Draw(bins, seed), np.cumsum(shares)[:-1]
    return lambda batch, first: np.searchsorted(edges, draw(batch) / 2.0**64, "right")


def _in_order(bins: Bins, shares: list[float]) -> Assign:
    edges = np.rint(np.cumsum(shares)[:-1] * len(bins))
    return lambda batch, first: np.searchsorted(edges, first + np.arange(len(batch.record)), "right")


def _by_source(bins: Bins, patterns: list[str]) -> Assign:
    """The first pattern that the path of a document's source matches; raises DataError when none does."""
    sources = [source.path for source in bins.manifest.sources]
    matches = [[fnmatchcase(path, pattern) for pattern in patterns] for path in sources]
    for path, found in zip(sources, matches, strict=True):
        if not any(found):
            raise DataError(
                f"{path} matches none of {', '.join(patterns)}; add a part for it, such as rest=*"
            )
    part = np.array([found.index(True) for found in matches], np.int64)
    return lambda batch, first: part[batch.source]


def _assign(bins: Bins, request: Request, parts: Mapping[str, str]) -> tuple[Assign, str]:
    """Which document goes where, and the rule in words."""
    shares = _shares(parts)
    if shares is None:
        if request.contiguous:
            raise UsageError("--contiguous takes shares, such as train=0.98,valid=0.02")
        return _by_source(bins, list(parts.values())), "source"
    if request.contiguous:
        return _in_order(bins, shares), "order"
    return _drawn(bins, shares, request.seed), f"seed {request.seed}"


def split(request: Request) -> dict[str, Manifest]:
    """Makes a directory of bins for every part inside `request.out`; every document is in exactly one.

    Raises UsageError for parts that are none or an existing `out`, DataError for a part without documents.
    """
    parts, bins = parse_parts(request.parts), opened(request.path)
    assign, rule = _assign(bins, request, parts)
    notes = [{"part": f"{name} of {request.parts} by {rule}"} for name in parts]
    with staged(request.out) as place:
        manifests = divide(bins, [place / name for name in parts], notes, assign)
    return dict(zip(parts, manifests, strict=True))

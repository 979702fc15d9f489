"""Draws how long the documents of bins are; needs matplotlib, the extra `plot`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mtl_common.errors import UsageError
from mtl_prep.finished.inspect import Inspection

SUFFIXES = (".png", ".svg")
BARS = 4  # to a doubling of length
BAR, MARK = "#3b6ea5", "#b5442c"
MARKED = {"median": 0.5, "90%": 0.9, "99%": 0.99}


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError:
        raise UsageError("--plot needs matplotlib; pip install 'mtl-prep[plot]'") from None
    return Figure(figsize=(8, 6), layout="constrained")


def _panel(axes: Any, edges: Sequence[int], heights: Sequence[int], name: str, marks: dict[str, int]) -> None:
    """Bars over a logarithmic scale of lengths, with some lengths marked."""
    from matplotlib.ticker import FuncFormatter

    axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=BAR, edgecolor="white", linewidth=0.4)
    for length in marks.values():
        axes.axvline(length, color=MARK, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda length, _: f"{length:,.0f}"))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda height, _: f"{height:,.0f}"))
    axes.set_ylabel(name)
    axes.spines[["top", "right"]].set_visible(False)


def _label(axes: Any, marks: dict[str, int]) -> None:
    """Names the marked lengths above the bars."""
    for label, length in marks.items():
        where = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points"}
        axes.annotate(f"{label} {length:,}", (length, 1), (2, 2), **where, fontsize=8, color=MARK)


def draw(found: Inspection, path: Path) -> None:
    """Writes a picture of the documents, and of the tokens in them, by length.

    Raises UsageError for a name that is neither .png nor .svg, or without matplotlib.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path} is neither .png nor .svg; name one of them")
    figure, spread = _figure(), found.lengths
    first, last = np.log2(spread.tokens[0]), np.log2(spread.tokens[-1] + 1)
    edges = np.unique(np.ceil(2 ** (np.arange(np.floor(first * BARS), np.ceil(last * BARS) + 1) / BARS)))
    edges = edges.astype(np.int64)
    heights = spread.between(edges)
    marks = {label: spread.at(share) for label, share in MARKED.items()}
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, values, name in zip((upper, lower), heights, ("documents", "tokens in them"), strict=True):
        _panel(axes, edges.tolist(), values.tolist(), name, marks)
    bins = found.bins
    _label(upper, marks)
    figure.suptitle(f"{bins.path}: {len(bins):,} documents, {bins.tokens:,} tokens", fontsize=10)
    lower.set_xlabel("tokens a document")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)

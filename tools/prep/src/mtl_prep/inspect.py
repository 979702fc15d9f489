"""What token bins hold, for people and as JSON."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from mtl_common.bins import Bins
from mtl_common.tokenizers import load

SAMPLE_TOKENS = 60


@dataclass(frozen=True)
class Inspection:
    """Bins, how long their documents are, and the start of one."""

    bins: Bins
    lengths: dict[int, int]  # power of two -> documents of at least that many tokens, and fewer than twice
    shortest: int
    median: int
    longest: int
    sample: int
    text: str


def _lengths(bins: Bins) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """(documents,) tokens of each document, its end included."""
    return np.concatenate([np.diff(bins.shard(i).offsets) for i in range(len(bins.manifest.shards))])


def inspect(path: Path) -> Inspection:
    """Looks at bins; raises DataError for what is none."""
    bins = Bins(path, shuffled=False)
    lengths = _lengths(bins)
    powers, counts = np.unique(np.floor(np.log2(lengths)).astype(int), return_counts=True)
    sample = len(bins) // 2
    ids = bins.document(sample)[:SAMPLE_TOKENS].tolist()
    return Inspection(
        bins=bins,
        lengths={1 << int(p): int(n) for p, n in zip(powers, counts, strict=True)},
        shortest=int(lengths.min()),
        median=int(np.median(lengths)),
        longest=int(lengths.max()),
        sample=sample,
        text=load(bins.tokenizer).decode(ids),
    )


def as_json(found: Inspection) -> str:
    """Everything as one JSON object."""
    manifest = found.bins.manifest.model_dump()
    lengths = {"shortest": found.shortest, "median": found.median, "longest": found.longest}
    sample = {"document": found.sample, "origin": found.bins.origin(found.sample), "text": found.text}
    histogram = {str(power): count for power, count in found.lengths.items()}
    return orjson.dumps(manifest | {"lengths": lengths | {"from": histogram}, "sample": sample}).decode()

"""What token bins hold, for people and as JSON; only the samples' tokens are read."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import orjson

from mtl_common.bins import Bins
from mtl_prep.finished.measure import Counts, Lengths, lengths, tokens_by_source
from mtl_prep.finished.reading import opened
from mtl_prep.finished.sample import Document, Size, documents

SAMPLE_TOKENS = 60


@dataclass(frozen=True)
class Inspection:
    """Bins, how long their documents are, the tokens of each source, and how some documents begin."""

    bins: Bins
    lengths: Lengths
    source_tokens: Counts
    samples: tuple[Document, ...]


def inspect(path: Path, samples: int = 1, seed: int = 0) -> Inspection:
    """Looks at bins; raises DataError for what is none."""
    bins = opened(path)
    drawn = documents(bins, Size(samples), seed, SAMPLE_TOKENS) if samples else ()
    return Inspection(bins, lengths(bins), tokens_by_source(bins), tuple(drawn))


def powers(found: Lengths) -> dict[int, int]:
    """A power of two -> the documents of at least that many tokens, and fewer than twice as many."""
    first, last = (int(length).bit_length() for length in (found.tokens[0], found.tokens[-1]))
    edges = 2 ** np.arange(first - 1, last + 1)
    return dict(zip(edges[:-1].tolist(), found.between(edges)[0].tolist(), strict=True))


def as_json(found: Inspection) -> str:
    """Everything as one JSON object."""
    manifest, spread = found.bins.manifest.model_dump(exclude_none=True), found.lengths
    for source, tokens in zip(manifest["sources"], found.source_tokens.tolist(), strict=True):
        source["tokens"] = tokens
    lengths = {
        "shortest": int(spread.tokens[0]),
        "median": spread.at(0.5),
        "longest": int(spread.tokens[-1]),
        "from": {str(power): count for power, count in powers(spread).items()},
    }
    return orjson.dumps(
        manifest | {"lengths": lengths, "samples": [asdict(d) for d in found.samples]}
    ).decode()

"""The next token of each sequence from its logits.

A draw is a function of (seed, candidate, position) and the logits alone, so that neither the company in the
batch, nor a preemption, nor the cut of the prompt into chunks can change it.
"""

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from mtl_serve.request import Sampling

COLDEST = 1e-6  # a smaller temperature is as good as this one, and would overflow
NUCLEUS = 64  # how many of the likeliest tokens to look at first


def uniform(seed: int, candidate: int, position: int) -> float:
    """A number in [0, 1) with 53 random bits, the same for the same arguments on every machine."""
    digest = hashlib.blake2b(struct.pack("<3Q", seed, candidate, position), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) * 2.0**-53


def _likeliest(weights: Tensor, top_p: float) -> Tensor:
    """Ids of the fewest tokens that hold `top_p` of the weight, likeliest first."""
    wanted = top_p * weights.sum(dtype=torch.float64)
    count = NUCLEUS
    while True:
        top = weights.topk(
            min(count, len(weights))
        )  # a sort of the whole vocabulary costs thirty times as much
        held = top.values.cumsum(0, dtype=torch.float64)
        if held[-1] >= wanted or count >= len(weights):
            return top.indices[: int(torch.searchsorted(held, wanted)) + 1]
        count *= 8


def draw(logits: Tensor, sampling: Sampling, noise: float) -> int:
    """Draws one id from logits (V,) by inverting the cumulative distribution at `noise` in [0, 1).

    Filters apply as in transformers: temperature, then top_k, then top_p of what top_k left.
    """
    ids = None
    if 0 < sampling.top_k < len(logits):
        logits, ids = logits.topk(sampling.top_k)
    weights = ((logits - logits.max()) / max(sampling.temperature, COLDEST)).exp()
    if sampling.top_p < 1:
        kept = _likeliest(weights, sampling.top_p)
        weights, ids = weights[kept], kept if ids is None else ids[kept]
    held = weights.cumsum(0, dtype=torch.float64)
    # A token without weight is never met: the first entry above the target adds to the one before.
    found = torch.searchsorted(held, noise * held[-1], right=True)
    found = found.clamp_max(len(held) - 1)  # only logits that are not numbers get so far
    return int(found if ids is None else ids[found])


def sample(logits: Tensor, wanted: Sequence[tuple[Sampling, float]]) -> list[int]:
    """One id for each row of logits (R, V), fp32, given how to sample it and its noise."""
    likeliest: list[int] = logits.argmax(-1).tolist()
    return [
        first if sampling.greedy else draw(row, sampling, noise)
        for row, first, (sampling, noise) in zip(logits, likeliest, wanted, strict=True)
    ]

"""Token embedding cut by vocabulary rows, and learned positions.

The vocabulary is padded so that every rank holds the same number of rows, a multiple of 64 for fast matrix
products; padding rows are zero, stay zero, and are never stored.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_common.tensors import vocabulary_rows
from mtl_parallel import regions
from mtl_parallel.mesh import Axis
from mtl_parallel.sharding import cut_over, declare, whole


def vocabulary_weight(
    vocab: int, hidden: int, axis: Axis, dtype: torch.dtype, alias: str | None = None, tied: bool = False
) -> nn.Parameter:
    """This rank's rows `(Vp/tp, H)` of a table of `vocab` rows, declared."""
    weight = nn.Parameter(torch.empty(vocabulary_rows(vocab, axis.size), hidden, dtype=dtype))
    record = cut_over(axis, "vocabulary", (vocab, hidden), std=0.02, alias=alias, tied=tied)
    return declare(weight, record)


class VocabParallelEmbedding(nn.Module):
    """Looks up token vectors in a table whose rows are divided over the axis."""

    def __init__(
        self, vocab: int, hidden: int, axis: Axis, *, tied: bool = False, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.axis = axis
        self.weight = vocabulary_weight(vocab, hidden, axis, dtype, tied=tied)

    def forward(self, tokens: Tensor) -> Tensor:
        """`(B, T)` global token ids -> `(B, T, H)`, the same on all ranks."""
        if self.axis.size == 1:
            return F.embedding(tokens, self.weight)
        count = len(self.weight)
        local = tokens - self.axis.rank * count
        elsewhere = (local < 0) | (local >= count)
        found = F.embedding(local.masked_fill(elsewhere, 0), self.weight)  # (B, T, H)
        return regions.reduce(found.masked_fill(elsewhere.unsqueeze(-1), 0.0), self.axis)


class PositionEmbedding(nn.Module):
    """Looks up learned position vectors; every rank holds the whole table."""

    def __init__(self, seq: int, hidden: int, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        weight = nn.Parameter(torch.empty(seq, hidden, dtype=dtype))
        self.weight = declare(weight, whole((seq, hidden), std=0.02))

    def forward(self, positions: Tensor) -> Tensor:
        """`(T,)` or `(B, T)` -> the same with H behind."""
        return F.embedding(positions, self.weight)

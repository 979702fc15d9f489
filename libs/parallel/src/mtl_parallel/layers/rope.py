"""Rotary positions in the half-rotation form (Su et al. 2021, arXiv:2104.09864; GPT-NeoX, Llama).

Pairs are dims `(i, i + D/2)`; pair `i` turns by `position * base^(-2i/D)`. Angles are computed in fp32, as
everywhere else in the field, so that trained weights see the angles that they were trained with.
"""

import torch
from torch import Tensor, nn


class Rotary(nn.Module):
    """A table of cosines and sines for positions up to `seq`."""

    cos: Tensor
    sin: Tensor

    def __init__(self, head_dim: int, seq: int, base: float) -> None:
        super().__init__()
        speeds = 1.0 / base ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)  # (D/2,)
        angles = torch.outer(torch.arange(seq, dtype=torch.float32), speeds)  # (seq, D/2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """`(T,)` or `(B, T)` -> the factors of a head and of its swapped halves, `(..., T, 1, 1, D)`."""
        cos, sin = self.cos[positions], self.sin[positions]  # (..., T, D/2)
        factors = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return factors[0][..., None, None, :], factors[1][..., None, None, :]


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turns heads `(B, T, K, G, D)` by the angles of `Rotary`; fp32 inside."""
    cos, sin = turn
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    first, second = wide.chunk(2, dim=-1)  # (B, T, K, G, D/2) each
    swapped = torch.cat((second, first), dim=-1)
    return (wide * cos).addcmul_(swapped, sin).to(x.dtype)

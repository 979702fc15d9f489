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
        """`(T,)` or `(B, T)` -> cosines and sines `(..., T, 1, D/2)`, to meet a heads dim."""
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)


def rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Turns `(B, T, N, D)` by the angles of `Rotary`; fp32 inside."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)  # (B, T, N, D/2) each
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

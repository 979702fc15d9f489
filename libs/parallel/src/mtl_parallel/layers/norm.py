"""Norms over the hidden dim; all tp ranks hold the same weights and see the same input, so none talks."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_parallel.sharding import declare, whole


def _vector(size: int, mean: float, dtype: torch.dtype) -> nn.Parameter:
    return declare(nn.Parameter(torch.empty(size, dtype=dtype)), whole((size,), mean=mean, decay=False))


class LayerNorm(nn.Module):
    """Normalises to mean 0 and variance 1, then scales and shifts."""

    def __init__(
        self, hidden: int, *, eps: float, bias: bool = True, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _vector(hidden, 1.0, dtype)
        self.bias = _vector(hidden, 0.0, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """`(..., H)` -> `(..., H)`."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


class RMSNorm(nn.Module):
    """Divides by the root mean square, then scales."""

    def __init__(self, hidden: int, *, eps: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _vector(hidden, 1.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., H)` -> `(..., H)`."""
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)

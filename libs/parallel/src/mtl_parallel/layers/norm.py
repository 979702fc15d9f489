"""Norms over the hidden dim; all tp ranks hold the same weights and see the same input, so none talks."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
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


class _RMSNorm(Function):
    """Torch has no backward of its own on CPU; this takes half the time of what autograd puts together."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        ctx.eps = eps
        ctx.save_for_backward(x, weight)
        return F.rms_norm(x, weight.shape, weight, eps)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        x, weight = ctx.saved_tensors
        H, dtype = len(weight), x.dtype
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        dy, x, w = (part.reshape(-1, H).to(wide) for part in (grads[0], x, weight))  # (M, H), (M, H), (1, H)
        scale = x.square().mean(1, keepdim=True).add_(ctx.eps).rsqrt_()  # (M, 1)
        normed = x * scale
        product = dy * normed
        along = (product @ w.t()).div_(-H)  # (M, 1): what the gradient must lose in the direction of x
        dx = (dy * w).addcmul_(normed, along).mul_(scale)
        return dx.to(dtype).view_as(grads[0]), product.sum(0).to(dtype), None


class RMSNorm(nn.Module):
    """Divides by the root mean square, then scales."""

    def __init__(self, hidden: int, *, eps: float, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.eps = eps
        self.weight = _vector(hidden, 1.0, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., H)` -> `(..., H)`."""
        if not torch.is_grad_enabled():
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        y: Tensor = _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call]
        return y

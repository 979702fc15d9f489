"""Linear layers cut over an axis: by output rows, or by input columns.

A column-parallel layer followed by a row-parallel one needs one all-reduce forward and one backward for both
(Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from mtl_common.tensors import Cut
from mtl_parallel import regions
from mtl_parallel.collectives import start_all_reduce
from mtl_parallel.layers.bf16 import emulated
from mtl_parallel.mesh import Axis
from mtl_parallel.sharding import cut_over, declare, whole

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x (..., in), weight (out, in), bias (out) or None) -> (..., out)`; a layer's own may be replaced."""

_CACHED = 1 << 17  # elements of a weight to widen at a time: half a megabyte in fp32
_FEW = 4  # rows up to which widening the weight costs more than it saves


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`x W^T + b`, bf16 values multiplied in fp32 where that is faster."""
    flat = x.reshape(-1, x.shape[-1])  # (M, in)
    if len(flat) <= _FEW or not emulated(x):
        return F.linear(x, weight, bias)
    wide = flat.float()
    out = wide.new_empty(*x.shape[:-1], len(weight))
    height = max(1, _CACHED // weight.shape[1])
    parts = torch.split(out.view(-1, len(weight)), height, dim=1)
    for block, part in zip(torch.split(weight, height), parts, strict=True):
        torch.mm(wide, block.float().t(), out=part)
    if bias is not None:
        out += bias
    return out.to(x.dtype)


class _Linear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, copied: Axis | None) -> Tensor:
        ctx.copied, ctx.biased = copied, bias is not None
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        shape, dtype = x.shape, x.dtype
        dy, x = grads[0].reshape(-1, len(weight)), x.reshape(-1, shape[-1])  # (M, out), (M, in)
        if emulated(x):
            dy, x, weight = dy.float(), x.float(), weight.float()
        dx = (dy @ weight).to(dtype)
        finish = start_all_reduce(dx, ctx.copied) if ctx.copied else None
        dw = (dy.t() @ x).to(dtype)  # while dx travels
        db = dy.sum(0).to(dtype) if ctx.biased else None
        if finish:
            finish()
        return dx.view(shape), dw, db, None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, copied: Axis | None = None) -> Tensor:
    """`x W^T + b` with gradients: `(..., in)` -> `(..., out)`.

    `copied` is an axis whose ranks hold the same `x` and different rows of the weight: the copy region, the
    conjugate of `regions.reduce`. Backward sums the gradient of `x` over it while computing that of `W`.
    """
    y: Tensor = _Linear.apply(x, weight, bias, copied)  # type: ignore[no-untyped-call]
    return y


class ColumnParallelLinear(nn.Module):
    """`y = x W^T + b` with the output features divided over the axis.

    A `gated` layer joins two matrices of equal height in one weight, gate and up: each is divided alone, so
    that a rank holds one box of both. Raises ConfigError when they cannot be divided.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        axis: Axis,
        *,
        bias: bool,
        std: float = 0.02,
        gated: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.product: Product = product
        cut: Cut = "gated rows" if gated else "rows"
        record = cut_over(axis, cut, (outputs, inputs), std=std)
        weight = nn.Parameter(torch.empty(outputs // axis.size, inputs, dtype=dtype))  # (out/tp, in)
        self.weight = declare(weight, record)
        self.bias = None
        if bias:
            vector = nn.Parameter(torch.empty(outputs // axis.size, dtype=dtype))
            self.bias = declare(vector, cut_over(axis, cut, (outputs,), decay=False))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in)`, the same on all ranks -> `(..., out/tp)`."""
        if not torch.is_grad_enabled():
            return self.product(x, self.weight, self.bias)
        return linear(x, self.weight, self.bias, copied=self.axis)


class RowParallelLinear(nn.Module):
    """`y = x W^T + b` with the input features divided over the axis; the bias is added once, after the sum.

    Raises ConfigError when the inputs cannot be divided by the axis.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        axis: Axis,
        *,
        bias: bool,
        std: float = 0.02,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.product: Product = product
        record = cut_over(axis, "columns", (outputs, inputs), std=std)
        weight = nn.Parameter(torch.empty(outputs, inputs // axis.size, dtype=dtype))  # (out, in/tp)
        self.weight = declare(weight, record)
        self.bias = None
        if bias:
            vector = nn.Parameter(torch.empty(outputs, dtype=dtype))
            self.bias = declare(vector, whole((outputs,), decay=False))

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in/tp)` -> `(..., out)`, the same on all ranks."""
        multiply = linear if torch.is_grad_enabled() else self.product
        if self.axis.size == 1:
            return multiply(x, self.weight, self.bias)
        y = regions.reduce(multiply(x, self.weight, None), self.axis)  # (..., out)
        return y if self.bias is None else y + self.bias

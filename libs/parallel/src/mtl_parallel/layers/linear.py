"""Linear layers cut over an axis: by output rows, or by input columns.

A column-parallel layer followed by a row-parallel one needs one all-reduce forward and one backward for both
(Shoeybi et al. 2019, arXiv:1909.08053, section 3).
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_common.layout import divide
from mtl_parallel import regions
from mtl_parallel.mesh import Axis
from mtl_parallel.sharding import Sharding, columns, declare, rows, whole

Product = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""`(x (..., in), weight (out, in), bias (out) or None) -> (..., out)`; a layer's own may be replaced."""


class ColumnParallelLinear(nn.Module):
    """`y = x W^T + b` with the output features divided over the axis.

    `parts` joins several matrices of equal height in one weight (gate and up of a gated layer): each is
    divided alone, so that a rank holds one box of every part. Raises ConfigError when one cannot be.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        axis: Axis,
        *,
        bias: bool,
        std: float = 0.02,
        parts: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.axis = axis
        self.product: Product = F.linear
        height = outputs // parts
        local = divide(height, axis.size, "output features", axis.name)
        starts = [part * height + axis.rank * local for part in range(parts)]

        def record(shape: tuple[int, ...], std: float) -> Sharding:
            boxes = tuple(box for start in starts for box in rows(shape, start, start + local))
            return Sharding(shape, boxes, std=std, decay=len(shape) > 1)

        weight = nn.Parameter(torch.empty(parts * local, inputs, dtype=dtype))  # (out/tp, in)
        self.weight = declare(weight, record((outputs, inputs), std))
        self.bias = None
        if bias:
            self.bias = declare(
                nn.Parameter(torch.empty(parts * local, dtype=dtype)), record((outputs,), 0.0)
            )

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in)`, the same on all ranks -> `(..., out/tp)`."""
        return self.product(regions.copy(x, self.axis), self.weight, self.bias)


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
        self.product: Product = F.linear
        local = divide(inputs, axis.size, "input features", axis.name)
        box = columns((outputs, inputs), axis.rank * local, (axis.rank + 1) * local)
        weight = nn.Parameter(torch.empty(outputs, local, dtype=dtype))  # (out, in/tp)
        self.weight = declare(weight, Sharding((outputs, inputs), box, std=std))
        self.bias = None
        if bias:
            record = Sharding((outputs,), whole((outputs,)), copies=True, decay=False)
            self.bias = declare(nn.Parameter(torch.empty(outputs, dtype=dtype)), record)

    def forward(self, x: Tensor) -> Tensor:
        """`(..., in/tp)` -> `(..., out)`, the same on all ranks."""
        if self.axis.size == 1:
            return self.product(x, self.weight, self.bias)
        y = regions.reduce(self.product(x, self.weight, None), self.axis)  # (..., out)
        return y if self.bias is None else y + self.bias

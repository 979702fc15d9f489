"""The feed-forward layer, its width divided over the axis."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_common.shapes import ModelShape
from mtl_parallel.layers.linear import ColumnParallelLinear, RowParallelLinear
from mtl_parallel.mesh import Axis


def gelu(x: Tensor) -> Tensor:
    """GELU by the error function."""
    return F.gelu(x)


def gelu_tanh(x: Tensor) -> Tensor:
    """GELU by tanh, as GPT-2 has it."""
    return F.gelu(x, approximate="tanh")


def swiglu(x: Tensor) -> Tensor:
    """`(..., 2F)` of gate and up -> `silu(gate) * up`, `(..., F)`."""
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


ACTIVATIONS = {"gelu": gelu, "gelu_tanh": gelu_tanh, "swiglu": swiglu}


class MLP(nn.Module):
    """`linear_fc2(activation(linear_fc1(x)))`; a gated `linear_fc1` holds the gate's rows, then up's."""

    def __init__(self, shape: ModelShape, axis: Axis, *, std: float, dtype: torch.dtype) -> None:
        super().__init__()
        gated = shape.activation == "swiglu"
        self.activation = ACTIVATIONS[shape.activation]
        self.linear_fc1 = ColumnParallelLinear(
            shape.hidden,
            (2 if gated else 1) * shape.ffn,
            axis,
            bias=shape.bias,
            gated=gated,
            dtype=dtype,
        )
        self.linear_fc2 = RowParallelLinear(
            shape.ffn, shape.hidden, axis, bias=shape.bias, std=std, dtype=dtype
        )

    def forward(self, x: Tensor) -> Tensor:
        """`(B, T, H)` -> `(B, T, H)`."""
        return self.linear_fc2(self.activation(self.linear_fc1(x)))  # type: ignore[no-any-return]

"""One transformer block: norm, attention, norm, feed-forward, each added to the residual stream."""

import torch
from torch import Tensor, nn

from mtl_common.shapes import ModelShape
from mtl_parallel.layers.attention import Attend, SelfAttention
from mtl_parallel.layers.mlp import MLP
from mtl_parallel.layers.norm import LayerNorm, RMSNorm
from mtl_parallel.mesh import Axis


def norm(shape: ModelShape, dtype: torch.dtype) -> nn.Module:
    """The norm that the shape asks for."""
    if shape.norm == "rmsnorm":
        return RMSNorm(shape.hidden, eps=shape.norm_eps, dtype=dtype)
    return LayerNorm(shape.hidden, eps=shape.norm_eps, bias=shape.bias, dtype=dtype)


class Block(nn.Module):
    """A pre-norm block; `layer` is its global number."""

    def __init__(self, shape: ModelShape, axis: Axis, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        # The residual stream sums 2 L projections; this keeps its variance at the start (GPT-2).
        std = 0.02 / (2 * shape.layers) ** 0.5
        self.input_layernorm = norm(shape, dtype)
        self.self_attention = SelfAttention(shape, axis, layer=layer, std=std, dtype=dtype)
        self.pre_mlp_layernorm = norm(shape, dtype)
        self.mlp = MLP(shape, axis, std=std, dtype=dtype)

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        """`(B, T, H)` -> `(B, T, H)`."""
        x = x + self.self_attention(self.input_layernorm(x), turn, attend)
        return x + self.mlp(self.pre_mlp_layernorm(x))  # type: ignore[no-any-return]

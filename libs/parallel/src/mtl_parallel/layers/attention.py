"""Causal self-attention with its heads divided over the axis, in whole key-value groups."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_common.layout import divide
from mtl_common.shapes import ModelShape
from mtl_parallel.layers.bf16 import emulated
from mtl_parallel.layers.linear import ColumnParallelLinear, RowParallelLinear
from mtl_parallel.layers.rope import rotate
from mtl_parallel.mesh import Axis

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""`(layer, q (B, T, N/tp, D), k (B, T, K/tp, D), v like k) -> (B, T, N/tp, D)`, called after rotation."""


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of every position to itself and those before it; the default `Attend`."""
    grouped = q.shape[2] != k.shape[2]
    dtype = q.dtype
    if emulated(q):
        q, k, v = q.float(), k.float(), v.float()
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))  # (B, N/tp, T, D)
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    return out.transpose(1, 2).to(dtype)  # (B, T, N/tp, D)


class SelfAttention(nn.Module):
    """Queries, keys and values from one product, rotation, attention, output projection.

    The rows of `linear_qkv` go by key-value group: its query heads, then its key, then its value.
    """

    def __init__(self, shape: ModelShape, axis: Axis, *, layer: int, std: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.head_dim = shape.head_dim
        self.groups = divide(shape.kv_heads, axis.size, "kv_heads", axis.name)  # K/tp
        self.queries = shape.heads // shape.kv_heads  # query heads of a group
        rows = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.linear_qkv = ColumnParallelLinear(shape.hidden, rows, axis, bias=shape.bias, dtype=dtype)
        self.linear_proj = RowParallelLinear(
            shape.heads * shape.head_dim, shape.hidden, axis, bias=shape.bias, std=std, dtype=dtype
        )

    def forward(self, x: Tensor, turn: tuple[Tensor, Tensor] | None, attend: Attend) -> Tensor:
        """`(B, T, H)` -> `(B, T, H)`; `turn` holds the rotary angles, None when positions are learned."""
        B, T, _ = x.shape
        G, D = self.queries, self.head_dim
        qkv = self.linear_qkv(x).view(B, T, self.groups, G + 2, D)
        qk, v = qkv.split((G + 1, 1), dim=3)  # (B, T, K/tp, G+1, D) and (B, T, K/tp, 1, D)
        if turn is not None:
            qk = rotate(qk, turn)
        q, k = qk.split((G, 1), dim=3)
        q = q.reshape(B, T, self.groups * G, D)  # (B, T, N/tp, D)
        k, v = k.squeeze(3), v.squeeze(3)  # (B, T, K/tp, D)
        return self.linear_proj(attend(self.layer, q, k, v).reshape(B, T, -1))  # type: ignore[no-any-return]

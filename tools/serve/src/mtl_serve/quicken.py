"""A model rearranged for decoding on CPU: the same numbers, to rounding, from faster operations."""

import torch
from torch import Tensor, nn

from mtl_parallel.layers.bf16 import emulated
from mtl_parallel.layers.linear import ColumnParallelLinear, Product, RowParallelLinear
from mtl_parallel.layers.norm import RMSNorm
from mtl_parallel.models.gpt import GPT
from mtl_serve.columns import ColumnBlocks
from mtl_serve.norm import MirrorNorm
from mtl_serve.packed import packed


def _fast(weight: Tensor) -> Product | None:
    return ColumnBlocks(weight) if emulated(weight) else packed(weight)


def _give(layer: ColumnParallelLinear | RowParallelLinear) -> None:
    """A faster product, if there is one; the layer lets go of its plain weight, so that nothing is held
    twice.
    """
    product = _fast(layer.weight)
    if product is not None:
        layer.product = product
        layer.weight = nn.Parameter(torch.empty(0), requires_grad=False)


def quicken(model: GPT) -> None:
    """Changes the model for good: it can compute logits without gradients, and nothing else.

    On another device than the CPU nothing changes. A tied embedding is held twice.
    """
    if model.output_weight.device.type != "cpu":
        return
    model.product = _fast(model.output_weight) or model.product
    for module in list(model.modules()):
        if isinstance(module, ColumnParallelLinear | RowParallelLinear):
            _give(module)
        for name, child in module.named_children():
            if isinstance(child, RMSNorm):
                setattr(module, name, MirrorNorm(child))

"""Precisions of training: in which dtype parameters live, in which they are summed and updated.

`fp32` does everything in fp32. `bf16` keeps parameters and activations in bf16, sums gradients over
micro-batches and ranks in fp32, and updates fp32 master weights, of which the parameters are rounded
copies. bf16 has the range of fp32, so that no loss scale is needed. Left out: fp16, which needs one.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from mtl_parallel.settings import Precision

PARAMETER_DTYPES: Mapping[Precision, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16}

BLOCK = 1 << 20  # elements; a block in fp32 stays in the cache


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype of gradient sums and of the weights that are updated: fp32, or fp64 for fp64 parameters."""
    return torch.promote_types(dtype, torch.float32)


def accumulate(total: Tensor, gradient: Tensor) -> None:
    """Adds a gradient to the flat `total` of a wider dtype.

    On CPU `fp32.add_(bf16)` takes 5 to 8 times as long as adding blocks that were cast in the cache.
    """
    if total.is_cuda:
        total.add_(gradient.reshape(-1))
        return
    for into, block in zip(torch.split(total, BLOCK), torch.split(gradient.reshape(-1), BLOCK), strict=True):
        into.add_(block.to(total.dtype))

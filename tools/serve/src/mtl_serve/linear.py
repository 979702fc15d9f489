"""Matrix products with few rows, where decoding spends its time on CPU.

Packed: oneDNN's own blocked weights, for the types that this CPU multiplies itself. Faster from two rows on
(1.2 to 2 times in fp32, 1.3 to 2 in bf16), and a row's result does not depend on how many rows there are,
which torch's own product does. The two operators are private to torch (it uses them in compiled code);
where they are missing, nothing is replaced.

Widened: bf16 on a CPU without bf16 instructions. Torch's product goes at a sixth of the fp32 speed there;
blocks of the weight that are widened in the cache and multiplied in fp32 are twice as fast for 8 rows, five
times for 64.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mtl_parallel.layers.linear import ColumnParallelLinear, Product, RowParallelLinear
from mtl_parallel.models.gpt import GPT

EXPECTED_ROWS = 8  # a hint to oneDNN; any number of rows works
BLOCK_ELEMENTS = 1 << 17  # half a megabyte in fp32
WIDENED_ROWS = 5  # fewer are as fast with torch's product, row by row


def _pack(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where it does not take it."""
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), EXPECTED_ROWS)  # type: ignore[no-any-return]
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def packed(weight: Tensor) -> Product | None:
    """A product with this weight alone, whatever weight it is called with."""
    blocked = _pack(weight) if weight.device.type == "cpu" else None
    if blocked is None:
        return None
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda x, _, bias: product(x, blocked, bias, "none", [], "")


def widened(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """`F.linear` of bf16 values, multiplied and summed in fp32."""
    rows = x.flatten(0, -2)  # (M, in)
    if len(rows) < WIDENED_ROWS:
        return F.linear(x, weight, bias)
    wide = rows.float()
    out = wide.new_empty(len(rows), len(weight))
    height = max(1, BLOCK_ELEMENTS // weight.shape[1])
    for block, columns in zip(torch.split(weight, height), torch.split(out, height, dim=1), strict=True):
        torch.mm(wide, block.float().t(), out=columns)
    if bias is not None:
        out += bias
    return out.to(x.dtype).view(*x.shape[:-1], len(weight))


def quicken(model: GPT) -> None:
    """Gives every linear layer, and the logits, the fastest product for few rows. The model is for
    inference from here on: a packed layer lets go of its plain weight, so that nothing is held twice but a
    tied embedding.
    """
    layers = [m for m in model.modules() if isinstance(m, ColumnParallelLinear | RowParallelLinear)]
    slow = model.output_weight.device.type == "cpu" and model.output_weight.dtype == torch.bfloat16
    for layer in layers:
        if product := packed(layer.weight):
            layer.product, layer.weight = (
                product,
                nn.Parameter(layer.weight.new_empty(0), requires_grad=False),
            )
        elif slow:
            layer.product = widened
    model.product = packed(model.output_weight) or (widened if slow else F.linear)

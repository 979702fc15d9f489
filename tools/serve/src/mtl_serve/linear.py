"""Matrix products with few rows, where decoding spends its time on CPU: oneDNN's own blocked weights.

Faster than torch's product from two rows on (1.2 to 2 times in fp32), and a row's result does not depend on
how many rows there are, which that of torch does. Only for types that the CPU multiplies itself: bf16 on a
CPU without bf16 instructions stays with `mtl_parallel`'s product. The two operators are private to torch,
which uses them in compiled code; where they are missing, nothing is replaced.
"""

import torch
from torch import Tensor, nn

from mtl_parallel.layers.linear import ColumnParallelLinear, Product, RowParallelLinear
from mtl_parallel.models.gpt import GPT

EXPECTED_ROWS = 8  # a hint to oneDNN; any number of rows works


def _blocked(weight: Tensor) -> Tensor | None:
    """The weight in oneDNN's layout, or None where it does not take it."""
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.detach(), EXPECTED_ROWS)  # type: ignore[no-any-return]
    except (AttributeError, NotImplementedError, RuntimeError):
        return None


def packed(weight: Tensor) -> Product | None:
    """A product with this weight alone, whatever weight it is called with; None where there is no such
    thing.
    """
    blocked = _blocked(weight) if weight.device.type == "cpu" else None
    if blocked is None:
        return None
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda x, _, bias: product(x, blocked, bias, "none", [], "")


def quicken(model: GPT) -> None:
    """Packs every linear layer's weight, and that of the logits, for inference only.

    A packed layer lets go of its plain weight, so that nothing is held twice but a tied embedding.
    """
    for layer in model.modules():
        if isinstance(layer, ColumnParallelLinear | RowParallelLinear) and (product := packed(layer.weight)):
            layer.product = product
            layer.weight = nn.Parameter(layer.weight.new_empty(0), requires_grad=False)
    model.product = packed(model.output_weight) or model.product

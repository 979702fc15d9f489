"""The edge of a tensor-parallel region where partial results become one.

There are two kinds of edge, each the other's backward (Shoeybi et al. 2019, arXiv:1909.08053, section 3):
`reduce` here, called g there, and the copy, called f, which `layers.linear.linear` does together with its
product, so that the all-reduce of its backward overlaps with work.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from mtl_parallel.collectives import all_reduce
from mtl_parallel.mesh import Axis


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.mark_dirty(x)
        return all_reduce(x, axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def reduce(x: Tensor, axis: Axis) -> Tensor:
    """Sums every rank's partial `x` in place into a tensor that all hold. Backward: the gradient as it is."""
    return x if axis.size == 1 else _Reduce.apply(x, axis)  # type: ignore[no-untyped-call]

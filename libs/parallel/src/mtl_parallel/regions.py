"""Conjugate autograd pairs: what a tensor-parallel region does at its edges, forward and backward.

Each function is named by its forward; its backward is the forward of the other one. Source: Shoeybi et al.
2019 (arXiv:1909.08053), section 3, where `copy` is called f and `reduce` is called g.
"""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from mtl_parallel.collectives import all_reduce
from mtl_parallel.mesh import Axis


class _Copy(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return all_reduce(grads[0], ctx.axis), None


class _Reduce(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, axis: Axis) -> Tensor:
        return all_reduce(x.clone(), axis)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


def copy(x: Tensor, axis: Axis) -> Tensor:
    """Hands a replicated tensor to ranks that use it differently. Backward: all-reduce of the gradient."""
    return x if axis.size == 1 else _Copy.apply(x, axis)  # type: ignore[no-untyped-call]


def reduce(x: Tensor, axis: Axis) -> Tensor:
    """Sums every rank's partial result into a replicated tensor. Backward: the gradient as it is."""
    return x if axis.size == 1 else _Reduce.apply(x, axis)  # type: ignore[no-untyped-call]

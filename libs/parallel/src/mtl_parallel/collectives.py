"""The only calls of torch.distributed collectives. Every one does nothing on an axis of size 1.

Every rank of the axis must make the call, in the same order, with the same shape and dtype.
"""

from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mtl_parallel.mesh import Axis

Reduction = Literal["sum", "max", "min"]

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def all_reduce(x: Tensor, axis: Axis, op: Reduction = "sum") -> Tensor:
    """Reduces `x`, which must be contiguous, over the axis in place, and returns it."""
    if axis.size == 1:
        return x
    dist.all_reduce(x, op=_OPERATIONS[op], group=axis.group)
    return x


def all_gather(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """Joins every rank's `x` along `dim`, in rank order: `(.., n, ..)` -> `(.., n size, ..)`."""
    if axis.size == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(axis.size)]
    dist.all_gather(parts, x.contiguous(), group=axis.group)
    return torch.cat(parts, dim)


def reduce_scatter(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """Sums `x` over the axis, keeps this rank's equal part of `dim`: `(.., n, ..)` -> `(.., n/size, ..)`."""
    if axis.size == 1:
        return x
    total = all_reduce(x.clone(memory_format=torch.contiguous_format), axis)
    return total.chunk(axis.size, dim)[axis.rank].contiguous()


def broadcast(x: Tensor, axis: Axis, source: int = 0) -> Tensor:
    """Overwrites `x`, which must be contiguous, with that of the axis's rank `source`, and returns it."""
    if axis.size > 1:
        dist.broadcast(x, group=axis.group, group_src=source)
    return x


def send(x: Tensor, axis: Axis, to: int) -> dist.Work:
    """Starts sending `x` to the axis's rank `to`; `x` must stay as it is until the handle's `wait()`."""
    work = dist.isend(x.contiguous(), group=axis.group, group_dst=to)
    assert work is not None
    return work


def receive(x: Tensor, axis: Axis, source: int) -> dist.Work:
    """Starts receiving into the contiguous `x` from the axis's rank `source`; ready after `wait()`."""
    work = dist.irecv(x, group=axis.group, group_src=source)
    assert work is not None
    return work


def barrier(axis: Axis) -> None:
    """Returns when every rank of the axis has come here."""
    if axis.size > 1:
        dist.barrier(group=axis.group)

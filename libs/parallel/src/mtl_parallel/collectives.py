"""The only calls of torch.distributed collectives. Every one does nothing on an axis of size 1.

Every rank of the axis must make the call, in the same order, with the same shape and dtype.
"""

from collections.abc import Callable
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from mtl_parallel.mesh import Axis

Reduction = Literal["sum", "max", "min"]

Finish = Callable[[], object]
"""What makes the result of a started collective ready."""

_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _done() -> None:
    """Nothing to wait for."""


def _finish(work: dist.Work | None) -> Finish:
    assert work is not None
    return work.wait


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


def _exchange(outgoing: list[Tensor], incoming: list[Tensor], axis: Axis) -> list[dist.Work]:
    """Starts sending `outgoing[rank]` to every other rank, and receiving `incoming[rank]` from it."""
    works = []
    for step in range(1, axis.size):
        to, source = (axis.rank + step) % axis.size, (axis.rank - step) % axis.size
        works += [send(outgoing[to], axis, to), receive(incoming[source], axis, source)]
    return works


def barrier(axis: Axis) -> None:
    """Returns when every rank of the axis has come here."""
    if axis.size > 1:
        dist.barrier(group=axis.group)


def start_all_reduce(x: Tensor, axis: Axis) -> Finish:
    """Starts to sum `x`, flat and contiguous, over the axis in place; it is ready after the returned call."""
    if axis.size == 1:
        return _done
    return _finish(dist.all_reduce(x, group=axis.group, async_op=True))


def start_reduce_parts(x: Tensor, axis: Axis) -> Finish:
    """Starts to sum this rank's equal part of the flat `x` over the axis; the other parts are then undefined.

    Terms are added in rank order. gloo's own reduce-scatter takes 2.5 times as long as this exchange.
    """
    if axis.size == 1:
        return _done
    parts = list(x.chunk(axis.size))
    own = parts[axis.rank]
    if x.is_cuda:
        return _finish(dist.reduce_scatter_tensor(own, x, group=axis.group, async_op=True))
    terms = [own if rank == axis.rank else torch.empty_like(own) for rank in range(axis.size)]
    works = _exchange(parts, terms, axis)

    def finish() -> None:
        for work in works:
            work.wait()
        total, *others = terms
        for term in others:
            total.add_(term)
        own.copy_(total)

    return finish


def gather_parts(x: Tensor, axis: Axis) -> None:
    """Fills the flat `x` with every rank's own equal part of it: what `start_reduce_parts` left undefined.

    gloo's own all-gather takes 3 to 5 times as long as this exchange.
    """
    if axis.size == 1:
        return
    parts = list(x.chunk(axis.size))
    if x.is_cuda:
        dist.all_gather_into_tensor(x, parts[axis.rank], group=axis.group)
        return
    for work in _exchange([parts[axis.rank]] * axis.size, parts, axis):
        work.wait()

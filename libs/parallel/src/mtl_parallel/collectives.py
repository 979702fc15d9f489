"""The only calls of torch.distributed collectives. Every one does nothing on an axis of size 1.

Every rank of the axis must make the call, in the same order, with the same shape and dtype.

gloo, the CPU's back-end, is helped where its own calls are slow. Milliseconds by its own call and by ours,
medians of 12 rounds in fp32 between 2 and between 4 ranks of a busy two-core machine:

    all-reduce of 16 KiB       2.2 -> 1.5    10.1 ->  4.8   everybody's values to everybody, who adds them up
    all-gather to 16 MiB      29.3 -> 22.7   56.5 -> 45.9   direct exchange, all sends at once
    reduce-scatter of 16 MiB  61.1 -> 25.1  126.5 -> 87.6   the same, then everybody adds up its part
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

_SMALL = 128 << 10  # bytes up to which latency counts, and one round among all ranks is the quickest
_OPERATIONS = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _done() -> None:
    """Nothing to wait for."""


def _finish(work: dist.Work | None) -> Finish:
    assert work is not None
    return work.wait


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


def broadcast(x: Tensor, axis: Axis, source: int = 0) -> Tensor:
    """Overwrites `x`, which must be contiguous, with that of the axis's rank `source`, and returns it."""
    if axis.size > 1:
        dist.broadcast(x, group=axis.group, group_src=source)
    return x


def barrier(axis: Axis) -> None:
    """Returns when every rank of the axis has come here."""
    if axis.size > 1:
        dist.barrier(group=axis.group)


def _exchange(outgoing: list[Tensor], incoming: list[Tensor], axis: Axis) -> list[dist.Work]:
    """Starts sending `outgoing[rank]` to every other rank, and receiving `incoming[rank]` from it."""
    works = []
    for step in range(1, axis.size):
        to, source = (axis.rank + step) % axis.size, (axis.rank - step) % axis.size
        works += [send(outgoing[to], axis, to), receive(incoming[source], axis, source)]
    return works


def gather_parts(x: Tensor, axis: Axis) -> None:
    """Fills the flat `x` with every rank's own equal part of it: what `start_reduce_parts` left undefined."""
    if axis.size == 1:
        return
    parts = list(x.chunk(axis.size))
    if x.is_cuda:
        dist.all_gather_into_tensor(x, parts[axis.rank], group=axis.group)
        return
    for work in _exchange([parts[axis.rank]] * axis.size, parts, axis):
        work.wait()


def start_reduce_parts(x: Tensor, axis: Axis) -> Finish:
    """Starts to sum this rank's equal part of the flat `x` over the axis; the other parts are then undefined.

    Terms are added in rank order.
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


def _everyone(x: Tensor, axis: Axis) -> Tensor:
    """Every rank's `x`, stacked in rank order: `(..)` -> `(size, ..)`."""
    everyone = x.new_empty(axis.size, *x.shape)
    if not x.is_cuda and x.nbytes <= _SMALL:
        copies = x.expand(everyone.shape).contiguous()
        dist.all_to_all_single(everyone.view(-1), copies.view(-1), group=axis.group)
        return everyone
    everyone[axis.rank] = x
    gather_parts(everyone.view(-1), axis)
    return everyone


def all_gather(x: Tensor, axis: Axis, dim: int = 0) -> Tensor:
    """Joins every rank's `x` along `dim`, in rank order: `(.., n, ..)` -> `(.., n size, ..)`."""
    if axis.size == 1:
        return x
    return torch.cat(_everyone(x, axis).unbind(), dim)


def _combine(everyone: Tensor, op: Reduction) -> Tensor:
    if op == "sum":
        return everyone.sum(0)
    return everyone.amax(0) if op == "max" else everyone.amin(0)


def all_reduce(x: Tensor, axis: Axis, op: Reduction = "sum") -> Tensor:
    """Reduces `x`, which must be contiguous, over the axis in place, and returns it."""
    if axis.size == 1:
        return x
    if not x.is_cuda and x.nbytes <= _SMALL:
        return x.copy_(_combine(_everyone(x, axis), op))
    dist.all_reduce(x, op=_OPERATIONS[op], group=axis.group)
    return x


def start_all_reduce(x: Tensor, axis: Axis) -> Finish:
    """Starts to sum the contiguous `x` over the axis in place; it is ready after the returned call."""
    if axis.size == 1:
        return _done
    return _finish(dist.all_reduce(x, group=axis.group, async_op=True))

"""Collectives equal the same arithmetic on all ranks' tensors, at sizes on both sides of every threshold."""

import pytest
import torch
from torch import Tensor

from mtl_common.layout import Layout
from mtl_parallel import collectives
from mtl_parallel.launch import finish, start
from mtl_parallel.mesh import Axis, Mesh
from ranks import run_ranks

SHAPES = [(1,), (7, 3), (5, 1), (257, 129), (300, 251)]  # the last two lie around 128 KiB
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64]


def everyones(shape: tuple[int, ...], dtype: torch.dtype, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(sum(shape))
    return [
        torch.randint(-60, 60, shape, generator=generator).to(dtype) for _ in range(size)
    ]  # sums are exact


def check(axis: Axis, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    every = everyones(shape, dtype, axis.size)
    mine, total = every[axis.rank], torch.stack(every).sum(0).to(dtype)
    x = mine.clone()
    assert collectives.all_reduce(x, axis) is x
    assert torch.equal(x, total)
    assert torch.equal(collectives.all_reduce(mine.clone(), axis, "max"), torch.stack(every).amax(0))
    assert torch.equal(collectives.all_reduce(mine.clone(), axis, "min"), torch.stack(every).amin(0))
    for dim in range(len(shape)):
        assert torch.equal(collectives.all_gather(mine, axis, dim), torch.cat(every, dim))
    assert torch.equal(collectives.all_gather(mine.t(), axis), torch.cat([e.t() for e in every]))
    assert torch.equal(collectives.broadcast(mine.clone(), axis, axis.size - 1), every[-1])
    started = mine.clone()
    collectives.start_all_reduce(started, axis)()
    assert torch.equal(started, total)
    parts = everyones((axis.size * mine.numel(),), dtype, axis.size)
    flat = parts[axis.rank].clone()
    collectives.start_reduce_parts(flat, axis)()
    own = slice(axis.rank * mine.numel(), (axis.rank + 1) * mine.numel())
    assert torch.equal(flat[own], torch.stack(parts).sum(0).to(dtype)[own])
    collectives.gather_parts(flat, axis)
    assert torch.equal(flat, torch.stack(parts).sum(0).to(dtype))


def pass_on(axis: Axis) -> None:
    x, y = torch.full((3,), float(axis.rank)), torch.empty(3)
    works = [
        collectives.send(x, axis, (axis.rank + 1) % axis.size),
        collectives.receive(y, axis, (axis.rank - 1) % axis.size),
    ]
    for work in works:
        work.wait()
    assert y.tolist() == [float((axis.rank - 1) % axis.size)] * 3


def on_ranks(layout: Layout, name: str) -> None:
    mesh = start(layout, "cpu")
    axis: Axis = getattr(mesh, name)
    for dtype in DTYPES:
        for shape in SHAPES:
            check(axis, shape, dtype)
    pass_on(axis)
    collectives.barrier(axis)
    finish()


@pytest.mark.parametrize(
    ("layout", "axis"),
    [(Layout(tp=2), "tp"), (Layout(dp=3), "dp"), (Layout(tp=2, dp=2), "dp"), (Layout(pp=4), "world")],
    ids=str,
)
def test_collectives_equal_arithmetic(layout: Layout, axis: str) -> None:
    run_ranks(layout.world, on_ranks, layout, axis)


def test_an_axis_of_one_does_nothing() -> None:
    axis = Mesh.single().tp
    x = torch.arange(6.0)
    assert collectives.all_reduce(x, axis) is x
    assert collectives.all_gather(x, axis) is x
    assert collectives.broadcast(x, axis) is x
    collectives.start_all_reduce(x, axis)()
    collectives.start_reduce_parts(x, axis)()
    collectives.gather_parts(x, axis)
    collectives.barrier(axis)
    assert x.tolist() == [0, 1, 2, 3, 4, 5]

"""The optimizer's rules: decay, clipping, steps that are skipped, precision, and flat memory."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np
import pytest
import torch

from mtl_common.layout import Layout
from mtl_parallel.launch import start
from mtl_parallel.mesh import Mesh
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.precision import accumulate
from mtl_parallel.settings import OptimizerSettings
from mtl_parallel.sharding import sharded_parameters
from ranks import run_ranks
from training import LR, Case, build, global_batch, join, micro_batches, sharded, train_step


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_biases_and_norms_do_not_decay(family: str) -> None:
    mesh = Mesh.single()
    model = build(Case("tp1", family).shape, mesh, torch.float64)
    optimizer = Optimizer(model, mesh, OptimizerSettings(weight_decay=0.1))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer.zero_grad()
    assert optimizer.step(0.5) == 0.0
    for name, parameter in model.named_parameters():
        kept = 1.0 if "norm" in name or name.endswith("bias") else 1 - 0.5 * 0.1
        torch.testing.assert_close(parameter.detach(), before[name] * kept, rtol=1e-15, atol=0)


def test_parameters_and_gradients_lie_in_flat_memory_and_keep_their_values() -> None:
    mesh = Mesh.single()
    shape = Case("tp1").shape
    model, plain = build(shape, mesh, torch.float32), build(shape, mesh, torch.float32)
    parameters = list(model.parameters())
    optimizer = Optimizer(model, mesh, OptimizerSettings())
    assert all(a is b for a, b in zip(parameters, model.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(parameters, plain.parameters(), strict=True))
    for flat, views in (
        (optimizer.buckets.parameters, [p.data for p in parameters]),
        (optimizer.buckets.gradients, [p.grad for p in parameters]),
    ):
        assert {v.untyped_storage().data_ptr() for v in views if v is not None} == {
            flat.untyped_storage().data_ptr()
        }
        starts = sorted((v.storage_offset(), v.numel()) for v in views if v is not None)
        assert all(a + n <= b for (a, n), (b, _) in pairwise(starts))
        assert all(offset % 32 == 0 for offset, _ in starts)


def skip_one(case: Case, bad_rank: int, bad: float) -> tuple[list[float], int, int, bool]:
    """Three steps, the second of which has a bad gradient on one rank; whether it changed anything there."""
    mesh = start(Layout.parse(case.layout), "cpu")
    model = build(case.shape, mesh, case.dtype)
    optimizer = Optimizer(model, mesh, case.settings, case.zero)
    norms = []
    unchanged = True
    for step in range(3):
        train_step(model, mesh, optimizer, case, step)
        if step == 1 and mesh.world.rank == bad_rank:
            optimizer.shards[0].gradient[0] = bad
        before = [x.clone() for s in optimizer.shards for x in (s.master, s.exp_avg, s.exp_avg_sq)]
        norms.append(optimizer.step(LR))
        after = [x for s in optimizer.shards for x in (s.master, s.exp_avg, s.exp_avg_sq)]
        if step == 1:
            unchanged = all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    return norms, optimizer.steps, optimizer.skipped, unchanged


@pytest.mark.parametrize(("layout", "bad"), [("pp2", math.inf), ("dp2", math.nan), ("tp2", -math.inf)])
def test_a_gradient_that_is_not_finite_on_one_rank_skips_the_step_on_all(layout: str, bad: float) -> None:
    zero: Literal[0, 1] = 1 if layout == "dp2" else 0
    by_rank = run_ranks(2, skip_one, Case(layout, zero=zero), 1, bad)
    for norms, steps, skipped, unchanged in by_rank:
        assert [math.isfinite(norm) for norm in norms] == [True, False, True]
        assert (steps, skipped, unchanged) == (2, 1, True)


def test_tied_copies_stay_equal_to_the_bit() -> None:
    """Three dp ranks in fp32: sums depend on their order, which must be that of the other end."""
    case = Case("dp3pp2", zero=1, steps=5, dtype=torch.float32, micro=2)
    parameters = join(run_ranks(6, sharded, case)).parameters
    np.testing.assert_array_equal(
        parameters["output_layer.weight"], parameters["embedding.word_embeddings.weight"]
    )


@pytest.mark.parametrize(("layout", "zero"), [("tp1", 0), ("dp2", 0), ("dp2", 1), ("tp2", 0)])
def test_bf16_norms_are_near_fp32(layout: str, zero: Literal[0, 1]) -> None:
    case = Case(layout, zero=zero, micro=2, steps=3)
    world = Layout.parse(layout).world
    bf16, fp32 = (
        join(run_ranks(world, sharded, replace(case, dtype=dtype)))
        for dtype in (torch.bfloat16, torch.float32)
    )
    np.testing.assert_allclose(bf16.norms, fp32.norms, rtol=0.02)
    np.testing.assert_allclose(bf16.losses, fp32.losses, rtol=0.02)


def test_bf16_updates_smaller_than_its_resolution_add_up() -> None:
    """A hundred steps of 1e-4 take a weight of 1 to 0.99; bf16 alone would round each of them away."""
    mesh = Mesh.single()
    model = build(Case("tp1").shape, mesh, torch.bfloat16)
    optimizer = Optimizer(model, mesh, OptimizerSettings(clip=0, weight_decay=0))
    for _ in range(100):
        optimizer.zero_grad()
        optimizer.buckets.gradients.fill_(1.0)
        optimizer.step(1e-4)
    for name, parameter, record in sharded_parameters(model):
        if record.mean == 1:
            assert parameter.dtype == torch.bfloat16
            assert torch.all(parameter == torch.tensor(0.99, dtype=torch.bfloat16)), name


def test_gradients_are_summed_in_fp32_over_micro_batches() -> None:
    case = Case("tp1", dtype=torch.bfloat16)
    mesh = Mesh.single()
    model = build(case.shape, mesh, case.dtype)
    optimizer = Optimizer(model, mesh, case.settings)
    train_step(model, mesh, optimizer, case, 0)
    plain = build(case.shape, mesh, case.dtype)
    batches = micro_batches(global_batch(case.shape, 0), mesh, case.micro)
    valid = sum(float(batch.mask.sum()) for batch in batches)
    wanted = {name: torch.zeros(p.shape) for name, p in plain.named_parameters()}
    for batch in batches:
        loss = plain.loss(plain(batch.tokens), batch.labels, batch.mask)
        torch.autograd.backward(loss, torch.full_like(loss, 1 / valid))
        for name, parameter in plain.named_parameters():
            assert parameter.grad is not None
            wanted[name] += parameter.grad.float()
            parameter.grad = None
    for shard in optimizer.shards:
        assert shard.gradient.dtype == torch.float32
        assert torch.equal(shard.gradient, wanted[shard.name].flatten()[shard.start : shard.stop]), shard.name


@pytest.mark.parametrize("count", [1, 1000, (1 << 20) + 17])
def test_accumulate_adds_exactly(count: int) -> None:
    generator = torch.Generator().manual_seed(1)
    total = torch.randn(count, generator=generator)
    gradient = torch.randn(count, generator=generator).bfloat16()
    wanted = total + gradient.float()
    accumulate(total, gradient)
    assert torch.equal(total, wanted)


def test_clip_zero_does_not_clip() -> None:
    clipped, free = (
        join([sharded(Case("tp1", steps=2, settings=OptimizerSettings(clip=clip)))]) for clip in (0.01, 0.0)
    )
    assert clipped.norms[0] == free.norms[0]
    name = "decoder.final_layernorm.weight"
    assert not np.array_equal(clipped.parameters[name], free.parameters[name])

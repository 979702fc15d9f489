"""The executor: accumulation, freed activations, validation, and schedules that agree to the bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef

from mtl_common.layout import Layout
from mtl_parallel import pipeline
from mtl_parallel.launch import start
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.schedule import SCHEDULES
from ranks import run_ranks
from training import Case, build, global_batch, join, micro_batches, reference, sharded


def run_all(cases: list[Case]) -> list[object]:
    return [sharded(case) for case in cases]


def test_the_number_of_micro_batches_changes_nothing() -> None:
    """Eight samples in 1, 2, 3 (of 3, 3 and 2) and 8 micro-batches, with uneven masks in all of them."""
    cases = [Case("pp2", "llama", micro=micro) for micro in (1, 2, 3, 8)]
    wanted = reference(Case("tp1", "llama"))
    for results in zip(*run_ranks(2, run_all, cases), strict=True):
        outcome = join(results)
        np.testing.assert_allclose(outcome.losses, wanted.losses, rtol=1e-9)
        for name, full in wanted.gradients.items():
            np.testing.assert_allclose(outcome.gradients[name], full, atol=1e-9 * np.abs(full).max(), rtol=0)


def test_schedules_agree_to_the_bit() -> None:
    case = Case("pp4", dtype=torch.float32)
    ways = [case, replace(case, schedule="gpipe"), replace(case, overlap=False)]
    outcomes = [join(results) for results in zip(*run_ranks(4, run_all, ways), strict=True)]
    for outcome in outcomes[1:]:
        assert outcome.losses == outcomes[0].losses
        for name, full in outcomes[0].parameters.items():
            np.testing.assert_array_equal(outcome.parameters[name], full, err_msg=name)


def most_alive(schedule: str) -> int:
    """How many activations that this stage has sent, or is about to send, were in memory at once."""
    mesh = start(Layout.parse("pp2"), "cpu")
    case = Case("pp2")
    model = build(case.shape, mesh, torch.float32)
    Optimizer(model, mesh, case.settings)
    sent: list[StorageWeakRef] = []
    counts: list[int] = []

    def watch(*args: object) -> None:
        output = args[2]
        assert isinstance(output, torch.Tensor)
        sent.append(StorageWeakRef(output.untyped_storage()))  # type: ignore[no-untyped-call]
        counts.append(sum(not storage.expired() for storage in sent))  # type: ignore[no-untyped-call]

    model.register_forward_hook(watch)
    batches = micro_batches(global_batch(case.shape, 0), mesh, 8)
    pipeline.run(model, mesh, SCHEDULES[schedule](2, 8)[mesh.pp.rank], batches)
    return max(counts)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_a_sent_activation_is_freed(schedule: str) -> None:
    """All eight micro-batches wait for their backward under gpipe, but not their outputs."""
    assert run_ranks(2, most_alive, schedule)[0] <= 2


def evaluate(case: Case) -> tuple[float, bool]:
    mesh = start(Layout.parse(case.layout), "cpu")
    model = build(case.shape, mesh, case.dtype)
    batches = micro_batches(global_batch(case.shape, 0), mesh, case.micro)
    loss = pipeline.total(pipeline.evaluate(model, mesh, batches), mesh)
    has_gradients = any(p.grad is not None for p in model.parameters())
    return loss / pipeline.valid_tokens(batches, mesh), has_gradients


@pytest.mark.parametrize("layout", ["tp1", "tp2pp2", "dp2pp2"])
def test_validation_gives_the_loss_and_no_gradient(layout: str) -> None:
    wanted = reference(Case("tp1", steps=1)).losses[0]
    for loss, has_gradients in run_ranks(Layout.parse(layout).world, evaluate, Case(layout)):
        assert loss == pytest.approx(wanted, rel=1e-12)
        assert not has_gradients

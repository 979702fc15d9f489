"""A training run goes on after its checkpoint was resharded, as if nothing had happened."""

from pathlib import Path

import pytest

from mtl_ckpt.reshard import reshard
from mtl_common.checkpoint import Checkpoint, verify
from mtl_common.layout import Layout
from mtl_parallel.launch import start
from mtl_parallel.optimizer import Optimizer
from mtl_parallel.state import load, save
from ranks import run_ranks
from training import LR, Case, build, reference, train_step

BEFORE, STEPS = 3, 6


def losses(case: Case, first: int, last: int, out: Path, goes_on: bool) -> list[float]:
    """One rank of the steps `first:last`, from a checkpoint or to one."""
    mesh = start(Layout.parse(case.layout), "cpu")
    model = build(case.shape, mesh, case.dtype, seed=5 if not goes_on else 99)
    optimizer = Optimizer(model, mesh, case.settings, case.zero)
    if goes_on:
        assert load(out, model, optimizer, mesh)[0] == first
    found = []
    for step in range(first, last):
        found.append(train_step(model, mesh, optimizer, case, step)[0])
        optimizer.step(LR)
    if not goes_on:
        save(out, last, model, optimizer, mesh, config={"model": case.shape.model_dump()}, state={})
    return found


@pytest.mark.parametrize(
    ("written", "family", "tied", "then"),
    [("tp2", "gpt2", True, "tp1"), ("tp2dp2", "llama", False, "pp2"), ("pp2", "llama", True, "tp2dp2")],
)
def test_losses_go_on_as_if_unbroken(tmp_path, written, family, tied, then) -> None:
    options = {"family": family, "tied": tied, "zero": 1, "steps": STEPS}
    before, after = Case(written, **options), Case(then, **options)
    out = tmp_path / "out"
    start_ranks, end_ranks = Layout.parse(written).world, Layout.parse(then).world
    begun = run_ranks(start_ranks, losses, before, 0, BEFORE, out, False)[0]
    (path,) = out.glob("iter_*")
    resharded = reshard(Checkpoint(path), Layout.parse(then), tmp_path / "new", 64 << 20, lambda _: None)
    assert verify(resharded) == []
    ended = run_ranks(end_ranks, losses, after, BEFORE, STEPS, resharded, True)[0]
    assert begun + ended == pytest.approx(reference(before).losses, rel=1e-9)

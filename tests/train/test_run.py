"""Runs through the command: the same losses at any layout, and on resuming, to the bit at the same one."""

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mtl_common.checkpoint import Checkpoint, newest, verify

Metrics = Callable[..., list[dict[str, Any]]]
TWENTY = (
    "--save-every",
    10,
    "--validate-every",
    10,
    "--set",
    "schedule.steps=20",
    "--set",
    "data.mask_eod=true",
)
TP2PP2 = ("--tp", 2, "--pp", 2)


@pytest.fixture(scope="module")
def single(command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 steps of one process."""
    out = tmp_path_factory.mktemp("runs") / "single"
    command.train(out, *TWENTY, "--steps", 20)
    return out


@pytest.fixture(scope="module")
def unbroken(command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 steps at tp2pp2."""
    out = tmp_path_factory.mktemp("runs") / "unbroken"
    command.train(out, *TWENTY, *TP2PP2, "--steps", 20)
    return out


@pytest.fixture(scope="module")
def half(command: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 10 steps at tp2pp2."""
    out = tmp_path_factory.mktemp("runs") / "half"
    command.train(out, *TWENTY, *TP2PP2, "--steps", 10)
    return out


def same_curve(a: list[dict[str, Any]], b: list[dict[str, Any]], tolerance: float) -> None:
    assert [r["step"] for r in a] == [r["step"] for r in b]
    for key in ("loss", "lr", "grad_norm"):
        assert [r[key] for r in a] == pytest.approx([r[key] for r in b], rel=tolerance), key


def test_the_loss_falls(single: Path, read_metrics: Metrics) -> None:
    losses = [r["loss"] for r in read_metrics(single)]
    assert len(losses) == 20
    assert losses[0] > 5.6  # ln 301 = 5.71
    assert losses[-1] < losses[0] - 0.5


def test_four_ranks_have_the_losses_of_one(single: Path, unbroken: Path, read_metrics: Metrics) -> None:
    same_curve(read_metrics(unbroken), read_metrics(single), 1e-5)
    a, b = read_metrics(unbroken, "valid_loss"), read_metrics(single, "valid_loss")
    assert [r["step"] for r in a] == [10, 20]
    assert [r["valid_loss"] for r in a] == pytest.approx([r["valid_loss"] for r in b], rel=1e-5)


@pytest.mark.parametrize(
    "layout",
    [("--dp", 2, "--zero", 1), ("--pp", 4, "--schedule", "gpipe"), ()],
    ids=["dp2zero1", "pp4", "one"],
)
def test_a_run_goes_on_at_another_layout(
    command: Any, single: Path, half: Path, tmp_path: Path, read_metrics: Metrics, layout: tuple[object, ...]
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    result = command.train(out, *TWENTY, *layout, "--steps", 20)
    assert f"continues {out / 'checkpoints' / 'iter_0000010'}" in result.out
    assert "warning" not in result.err
    same_curve(read_metrics(out), read_metrics(single), 1e-5)


def test_a_run_goes_on_to_the_bit_at_the_same_layout(
    command: Any, unbroken: Path, half: Path, tmp_path: Path, read_metrics: Metrics
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    command.train(out, *TWENTY, *TP2PP2, "--steps", 20)
    assert read_metrics(out) == read_metrics(unbroken)
    assert read_metrics(out, "valid_loss") == read_metrics(unbroken, "valid_loss")
    a, b = (Checkpoint(run / "checkpoints" / "iter_0000020") for run in (out, unbroken))
    assert a.tensors.keys() == b.tensors.keys()
    assert any(key.startswith("exp_avg_sq/") for key in a.tensors)
    assert all(a.read_full(key) == b.read_full(key) for key, info in a.tensors.items() if not info.alias)


def test_bf16_goes_on_to_the_bit(command: Any, tmp_path: Path, read_metrics: Metrics) -> None:
    bf16 = ("--precision", "bf16", "--dp", 2, "--zero", 1, "--set", "schedule.steps=6", "--save-every", 3)
    command.train(tmp_path / "whole", *bf16, "--steps", 6)
    command.train(tmp_path / "parts", *bf16, "--steps", 3)
    command.train(tmp_path / "parts", *bf16, "--steps", 6)
    assert read_metrics(tmp_path / "parts") == read_metrics(tmp_path / "whole")


def test_a_run_directory_holds_what_the_run_was(half: Path, bins: Path) -> None:
    log = (half / "log.txt").read_text()
    assert "ranks     4 as tp2pp2" in log
    assert "step 10/10  loss" in log
    assert "pp = 2" in (half / "config.toml").read_text()
    path = newest(half / "checkpoints")
    assert path.name == "iter_0000010"
    assert verify(path) == []
    saved = Checkpoint(path)
    assert (saved.step, saved.state["samples"]) == (10, 80)
    assert saved.config["model"]["vocab"] == 301
    assert saved.tokenizer is not None
    kept = (saved.tokenizer / "tokenizer.json").read_bytes()
    assert kept == (bins / "tokenizer" / "tokenizer.json").read_bytes()


def test_the_written_settings_repeat_the_run(
    command: Any, half: Path, tmp_path: Path, read_metrics: Metrics
) -> None:
    result = command.call(["--config", str(half / "config.toml"), "--out", str(tmp_path / "run")])
    assert result.code == 0, result
    assert read_metrics(tmp_path / "run") == read_metrics(half)


def test_only_the_newest_checkpoints_are_kept(command: Any, tmp_path: Path) -> None:
    command.train(tmp_path, "--steps", 5, "--save-every", 1, "--set", "checkpoint.keep_last=2")
    kept = sorted(path.name for path in (tmp_path / "checkpoints").glob("iter_*"))
    assert kept == ["iter_0000004", "iter_0000005"]


def test_a_finished_run_has_nothing_to_do(command: Any, half: Path) -> None:
    before = (half / "metrics.jsonl").read_bytes()
    result = command.train(half, *TWENTY, *TP2PP2, "--steps", 10)
    assert "has its 10 steps already; ask for more with --steps" in result.out
    assert "next: mtl-serve run" in result.out
    assert (half / "metrics.jsonl").read_bytes() == before


def test_a_damaged_newest_checkpoint_is_passed_over(
    command: Any, tmp_path: Path, read_metrics: Metrics
) -> None:
    command.train(tmp_path, "--steps", 4, "--save-every", 2, "--set", "schedule.steps=6")
    (tmp_path / "checkpoints" / "iter_0000004" / "manifest.json").unlink()
    result = command.train(tmp_path, "--steps", 6, "--save-every", 2, "--set", "schedule.steps=6")
    assert "iter_0000002" in result.out
    assert [r["step"] for r in read_metrics(tmp_path)] == [1, 2, 3, 4, 5, 6]


def test_changed_settings_are_told_and_followed(
    command: Any, half: Path, tmp_path: Path, read_metrics: Metrics
) -> None:
    out = Path(shutil.copytree(half, tmp_path / "run"))
    result = command.train(out, *TWENTY, "--steps", 11, "--lr", "1e-4", "--set", "data.seed=5")
    assert "warning: schedule.lr is now 0.0001, and was 0.003 when iter_0000010 was saved" in result.err
    assert "warning: data.seed is now 5, and was 1234" in result.err
    assert result.err.count("warning") == 2
    expected = 1e-5 + 9e-5 * (1 + math.cos(math.pi * 10 / 19)) / 2  # 10 of 19 steps after the warm-up of 1
    assert read_metrics(out)[-1]["lr"] == pytest.approx(expected, rel=1e-12)


def test_steps_without_a_finite_loss_end_the_run(command: Any, tmp_path: Path) -> None:
    arguments = command.line(tmp_path, "--steps", 40, "--lr", "1e25", "--set", "run.bad_steps=3")
    result = command.call([*arguments, "--set", "schedule.warmup_steps=0", "--set", "optimizer.clip=0"])
    assert result.code == 1
    assert "loss or gradient was not finite for 3 steps in a row" in result.err
    assert "SKIPPED: not finite" in (tmp_path / "log.txt").read_text()


def test_a_save_that_fails_is_told_and_only_the_last_one_ends_the_run(command: Any, tmp_path: Path) -> None:
    (tmp_path / "checkpoints").write_text("in the way")
    result = command.call(command.line(tmp_path, "--steps", 3, "--save-every", 1))
    assert result.code == 1
    assert "step 3 cannot be saved in" in result.err
    log = (tmp_path / "log.txt").read_text()
    assert log.count("training goes on") == 2
    assert "step 3/3  loss" in log


def test_settings_without_effect_are_told(command: Any, tmp_path: Path) -> None:
    more = ("--zero", 1, "--schedule", "gpipe", "--set", "schedule.warmup_steps=9", "--steps", 1)
    result = command.train(tmp_path, *more, "--set", "data.valid=0")
    assert "warning: zero 1 has no effect at dp 1" in result.err
    assert "warning: schedule gpipe has no effect at pp 1" in result.err
    assert "warning: the learning rate never reaches 0.003" in result.err
    assert "none held back" in result.out
    assert "validation" not in result.out

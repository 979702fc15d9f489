"""Every wrong request is one sentence on stderr and the right exit code, before any rank starts."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from corpus import make_bins

CASES = [
    ("--model", "tinny", 2, 'no model preset "tinny" (did you mean "tiny"?)'),
    ("--tp", "3", 2, "heads 4 cannot be divided by tp 3"),
    ("--tp", "4", 2, "kv_heads 2 cannot be divided by tp 4"),
    ("--pp", "3", 2, "layers 4 cannot be divided by pp 3"),
    ("--tp", "0", 2, "layout.tp is 0"),
    ("--dp", "-1", 2, "layout.dp is -1"),
    ("--dp", "3", 2, "global batch 8 cannot be divided by micro-batch 2 x dp 3"),
    ("--micro-batch", "3", 2, "global batch 8 cannot be divided by micro-batch 3 x dp 1"),
    ("--micro-batch", "0", 2, "batch.micro_batch is 0"),
    ("--global-batch", "-8", 2, "batch.global_batch is -8"),
    ("--global-batch", "1", 2, "global batch 1 cannot be divided by micro-batch 2"),
    ("--zero", "5", 2, "layout.zero is 5"),
    ("--schedule", "zb", 2, "layout.schedule is"),
    ("--precision", "fp8", 2, "precision is"),
    ("--steps", "0", 2, "run.steps is 0"),
    ("--steps", "ten", 2, "--steps"),
    ("--lr", "nan", 2, "schedule.lr"),
    ("--lr", "0", 2, "schedule.lr is 0"),
    ("--set", "checkpoint.keep_last=0", 2, "checkpoint.keep_last is 0"),
    (
        "--set",
        "checkpoint.keep_lsat=1",
        2,
        'unknown key checkpoint.keep_lsat in --set (did you mean "keep_last"?)',
    ),
    ("--set", "data.valid=1.5", 2, "data.valid is 1.5"),
    ("--set", "data.valid=-1", 2, "data.valid is -1"),
    ("--set", "model.vocab=77", 2, "model.vocab is 77, but the tokenizer of"),
    ("--set", "noise", 2, '--set takes section.key=value, not "noise"'),
    ("--config", "no.toml", 2, "no settings file no.toml"),
    ("--stepz", "1", 2, 'no such option --stepz (did you mean "--steps"?)'),
    ("--data", "no/such", 1, "no token bins at no/such"),
    ("--seq", "100000", 1, "one sample takes 100001; choose a smaller --seq"),
]


@pytest.mark.parametrize(("option", "value", "code", "says"), CASES, ids=[f"{c[0]} {c[1]}" for c in CASES])
def test_a_wrong_request(command: Any, tmp_path: Path, option: str, value: str, code: int, says: str) -> None:
    result = command.call([*command.line(tmp_path / "run"), option, value])
    assert result.code == code
    assert says in result.err
    assert result.err.startswith("error: ")
    assert result.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_nothing_to_train_on(command: Any) -> None:
    assert "--data" in command.call(["--out", "x"]).err
    assert "--out" in command.call(["--data", str(command.bins)]).err


def test_another_model_or_tokenizer_cannot_continue_a_run(command: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command.train(out, "--steps", 1)
    result = command.call(command.line(out, "--set", "model.norm_eps=1e-6"))
    assert result.code == 2
    assert "was trained with model.norm_eps 1e-05, not 1e-06; take the same, or another --out" in result.err
    other = make_bins(tmp_path / "bins", [[1] * 50] * 20, 302)
    result = command.call([*command.line(out), "--data", str(other)])
    assert result.code == 2
    assert "model.vocab 301, not 302" in result.err
    shutil.rmtree(out / "checkpoints" / "iter_0000001" / "model")
    result = command.call(command.line(out))
    assert result.code == 1
    assert "holds no complete checkpoint" in result.err


def test_a_run_directory_has_one_writer(command: Any, tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / "log.txt").open("a") as log:
        fcntl.flock(log, fcntl.LOCK_EX)
        result = command.call(command.line(tmp_path, "--steps", 1))
    assert result.code == 1
    assert "is being written by another run" in result.err

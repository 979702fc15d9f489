"""A run that is refused before it begins leaves nothing behind."""

import fcntl
from pathlib import Path

import pytest

from preparing import json_lines, prep


@pytest.fixture
def files(tmp_path: Path, tokenizer: Path) -> dict[str, Path]:
    (tmp_path / "good.jsonl").write_bytes(json_lines(["a text"]))
    (tmp_path / "other.jsonl").write_bytes(json_lines([{"body": "a text"}]))
    (tmp_path / "recipe.toml").write_text("[exact_duplicates]\n")
    return {"tokenizer": tokenizer}


@pytest.mark.parametrize(
    ("corpus", "more", "told"),
    [
        ("missing", (), "no corpus at missing"),
        ("other.jsonl", (), "no documents in the corpus"),
        ("other.jsonl", ("--task", "1/2"), "no documents in the corpus"),
        ("good.jsonl", ("--eod", "none"), "--eod none is no token"),
        ("missing", ("--curate", "recipe.toml"), "no corpus at missing"),
        ("good.jsonl", ("--shape", "chat"), "chat template"),
    ],
)
@pytest.mark.parametrize("was_there", [False, True])
def test_nothing_is_left(
    tmp_path: Path, files: dict[str, Path], corpus: str, more: tuple[str, ...], told: str, was_there: bool
) -> None:
    out = tmp_path / "bins"
    if was_there:
        out.mkdir()
    command = ("tokenize", corpus, "--tokenizer", files["tokenizer"], "--out", out, *more)
    refused = prep(*command, cwd=tmp_path)
    assert refused.returncode in (1, 2)
    assert told in refused.stderr
    assert out.exists() == was_there
    assert not was_there or not list(out.iterdir())


@pytest.mark.parametrize(
    ("named", "given", "told"),
    [("missing.json", json_lines(["a text"]), "no tokenizer at"), ("", b'{"a": 1}\n', "no documents")],
)
def test_standard_input_is_not_kept(
    tmp_path: Path, files: dict[str, Path], named: str, given: bytes, told: str
) -> None:
    tokenizer = named or files["tokenizer"]
    refused = prep(
        "tokenize", "-", "--tokenizer", tokenizer, "--out", "bins", cwd=tmp_path, given=given.decode()
    )
    assert told in refused.stderr
    assert not (tmp_path / "bins").exists()


def test_what_was_begun_stays(tmp_path: Path, files: dict[str, Path]) -> None:
    command = ("tokenize", "good.jsonl", "--tokenizer", files["tokenizer"], "--out", "bins", "--task", "1/2")
    assert prep(*command, cwd=tmp_path).returncode == 0
    before = sorted(path.name for path in (tmp_path / "bins" / "_work").iterdir())
    other = ("tokenize", "other.jsonl", *command[2:])
    assert "is new since bins was begun" in prep(*other, cwd=tmp_path).stderr
    assert sorted(path.name for path in (tmp_path / "bins" / "_work").iterdir()) == before


def test_another_run_is_left_alone(tmp_path: Path, files: dict[str, Path]) -> None:
    work = tmp_path / "bins" / "_work"
    work.mkdir(parents=True)
    with (work / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ("tokenize", "other.jsonl", "--tokenizer", files["tokenizer"], "--out", "bins")
        assert "another mtl-prep is writing bins" in prep(*command, cwd=tmp_path).stderr
        assert (work / "lock").exists()

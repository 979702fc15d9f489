"""What is wrong with bins, or with the place to write to, is one sentence of every command on bins."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from mtl_common.bins import Bins, Writer, read_manifest, write_manifest
from mtl_prep.cli import main

READING = ("inspect", "stats", "sample", "verify")
WRITING = {
    "sample": ("--documents", "2"),
    "split": ("--parts", "a=0.5,b=0.5", "--contiguous"),
    "convert": ("--to", "megatron"),
    "convert ": ("--to", "parquet"),
    "convert  ": ("--to", "jsonl"),
}


@pytest.fixture(scope="module")
def bins(tmp_path_factory: pytest.TempPathFactory, tokenizer: Path) -> Path:
    path = tmp_path_factory.mktemp("finished") / "bins"
    with Writer(path, tokenizer) as writer:
        for number in range(1, 9):
            writer.add([number] * number)
    return path


Failure = Callable[..., tuple[int, str]]


@pytest.fixture
def failure(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Failure:
    """Runs a command in this process; gives its exit code and the one sentence."""

    def failure(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["mtl-prep", *map(str, arguments)])
        with pytest.raises(SystemExit) as stopped:
            main()
        done = capsys.readouterr()
        assert done.out == ""
        assert done.err.count("\n") == 1
        return int(stopped.value.code or 0), done.err.removeprefix("error: ").removesuffix("\n")

    return failure


@pytest.mark.parametrize("command", READING)
def test_a_file_is_no_bins(failure: Failure, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    told = f"no token bins at {tmp_path}/file: it is a file, bins are a directory"
    assert failure(command, tmp_path / "file") == (1, told)


@pytest.mark.parametrize("command", READING)
def test_a_damaged_manifest_says_where(failure: Failure, bins: Path, tmp_path: Path, command: str) -> None:
    copy = shutil.copytree(bins, tmp_path / "bins")
    content = json.loads((copy / "manifest.json").read_text())
    del content["shards"][0]["tokens_at"]
    (copy / "manifest.json").write_text(json.dumps(content))
    told = f"{copy}/manifest.json is damaged (shards: 0: tokens_at: Field required); restore it or make"
    assert failure(command, copy) == (1, f"{told} the bins again")


def test_bins_without_their_tokenizer(failure: Failure, bins: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bins, tmp_path / "bins")
    shutil.rmtree(copy / "tokenizer")
    told = f"{copy}/tokenizer, the bins' own tokenizer, is missing; restore it or make them again"
    parts = ("--parts", "a=0.5,b=0.5", "--contiguous", "--out", tmp_path / "parts")
    for arguments in (["inspect"], ["stats"], ["sample"], ["split", *parts]):
        assert failure(arguments[0], copy, *arguments[1:]) == (1, told)
    assert failure("verify", copy) == (
        1,
        f"{copy}/tokenizer: it is missing; restore it or make the bins again",
    )
    assert not (tmp_path / "parts").exists()


@pytest.mark.parametrize("command", READING)
def test_bins_of_nothing(failure: Failure, bins: Path, tmp_path: Path, command: str) -> None:
    copy = shutil.copytree(bins, tmp_path / "bins")
    shard, *_ = (manifest := read_manifest(copy)).shards
    source = manifest.sources[0].model_copy(update={"documents": 0, "records": 0})
    empty = {"documents": 0, "tokens": 0, "shards": (), "sources": (source,)}
    write_manifest(copy, manifest.model_copy(update=empty))
    (copy / shard.file).unlink()
    assert len(Bins(copy)) == 0
    told = "manifest.json: it counts no documents" if command == "verify" else "holds no documents"
    code, found = failure(command, copy)
    assert code == 1
    assert told in found


@pytest.mark.parametrize("command", WRITING)
def test_places_that_cannot_be_written(failure: Failure, bins: Path, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    arguments = (command.strip(), bins, *WRITING[command], "--out")
    suffix = {"convert": ".bin"}.get(command, "")
    told = f"cannot make {tmp_path}/file/x{suffix} below a file; choose another --out"
    assert failure(*arguments, tmp_path / "file" / "x") == (2, told)
    told = f"cannot make /proc/none/x{suffix}: no such file or directory; choose another --out"
    assert failure(*arguments, "/proc/none/x") == (2, told)
    if os.getuid():
        tmp_path.chmod(0o500)
        told = f"cannot make {tmp_path}/x{suffix}: nothing may be written there; choose another --out"
        assert failure(*arguments, tmp_path / "x") == (2, told)


def test_a_damaged_shard_is_not_passed_on(failure: Failure, bins: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(bins, tmp_path / "bins")
    shard = read_manifest(copy).shards[0]
    with (copy / shard.file).open("r+b") as file:
        file.seek(shard.tokens_at)
        file.write(b"\x02")
    told = f"{copy}/{shard.file} is damaged, its hash is another; restore it or make the bins again"
    for command, more in WRITING.items():
        assert failure(command.strip(), copy, *more, "--out", tmp_path / "out") == (1, told)
        assert [path.name for path in tmp_path.iterdir()] == ["bins"]

"""Curation as tasks of an array job and on Ray: any order, any kill, the same bytes."""

import json
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from curating import kept_records, request, write_curated
from mtl_common.errors import DataError, UsageError
from mtl_prep.curate.array_job import curate_share, finish_shares
from mtl_prep.curate.run import curate
from mtl_prep.journal import Journal
from mtl_prep.running.shares import Share
from preparing import all_bytes, prep
from scaling import descendants, doers, gone, kill, noted, wait_until

RUN = """
import json, sys, pathlib
from mtl_prep.curate.array_job import curate_share, finish_shares
from mtl_prep.curate.run import Request, curate
from mtl_prep.running.shares import Share
corpus, out = map(pathlib.Path, sys.argv[1:3])
options = json.loads(sys.argv[3])
share = options.pop("share", None)
request = Request(corpus.parent / "recipe.toml", [corpus], out, **options)
if share == "finish":
    finish_shares(out, options["workers"], None)
elif share:
    curate_share(request, Share(*share))
else:
    curate(request)
"""
SIZES = {"workers": 1, "part_bytes": 30_000, "shard_bytes": 50_000, "max_bad": "2"}

pytestmark = pytest.mark.skipif(
    not __import__("importlib.util").util.find_spec("rensa"), reason="rensa is not installed"
)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_curated(tmp_path_factory.mktemp("curated") / "tree")


@pytest.fixture(scope="module")
def unbroken(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("unbroken") / "clean"
    curate(request(corpus, out))
    return out


def run_tasks(corpus: Path, out: Path, shares: list[Share], **options: Any) -> None:
    for share in shares:
        curate_share(request(corpus, out, **options), share)


def in_process(corpus: Path, out: Path, **options: Any) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-c", RUN, str(corpus), str(out), json.dumps({**SIZES, **options})]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def units(out: Path) -> list[str]:
    return Journal(out / "_work/examined").names("unit-")


def done(out: Path) -> int:
    """How many pieces of work are finished."""
    return noted(out / "_work/examined")


@pytest.mark.parametrize("of", [1, 3, 8])
def test_tasks_in_any_order_twice_and_finish_give_the_same_bytes(
    corpus: Path, unbroken: Path, tmp_path: Path, of: int
) -> None:
    out, shares = tmp_path / "clean", [Share(number, of) for number in range(of, 0, -1)]
    run_tasks(corpus, out, shares)
    run_tasks(corpus, out, shares)
    outcome, _ = finish_shares(out, 1, None)
    assert not outcome.already
    assert all_bytes(out) == all_bytes(unbroken)


def test_shares_are_disjoint_and_together_the_whole(corpus: Path, tmp_path: Path) -> None:
    whole, found = tmp_path / "whole", Counter[str]()
    for number in (1, 2, 3):
        out = tmp_path / str(number)
        part = curate_share(request(corpus, out, workers=number), Share(number, 3))
        assert part.share == Share(number, 3)
        found.update(units(out))
    curate_share(request(corpus, whole), Share(1, 1))
    assert found == Counter(units(whole))


def test_finish_names_the_tasks_that_are_not_done(corpus: Path, unbroken: Path, tmp_path: Path) -> None:
    out = tmp_path / "clean"
    run_tasks(corpus, out, [Share(1, 6), Share(3, 6)])
    told = r"task 2,4-6 of 6 of .* run mtl-prep curate with --task 2/6 and so on, then mtl-prep finish again"
    with pytest.raises(DataError, match=told):
        finish_shares(out, 1, None)
    curate(request(corpus, out))  # without tasks it goes on, too
    assert all_bytes(out) == all_bytes(unbroken)
    again, _ = finish_shares(out, 1, None)
    assert again.already
    assert curate_share(request(corpus, out), Share(1, 6)).tasks == 0


def test_tasks_and_finish_killed_at_random_moments_run_again(
    corpus: Path, unbroken: Path, tmp_path: Path
) -> None:
    out, chance, kills = tmp_path / "clean", random.Random(7), 0
    for share in ([2, 2], [1, 2], "finish"):
        for turn in range(5):
            aim = done(out) + chance.randint(0, 2)
            process = in_process(corpus, out, share=share)
            while turn < 4 and process.poll() is None and done(out) < aim:
                time.sleep(0.01)
            if turn < 4 and process.poll() is None:
                assert gone(kill(process)), "processes outlived the one that started them"
                kills += 1
                continue
            _, told = process.communicate(timeout=100)
            assert process.returncode == 0, told
            break
    assert kills >= 3
    assert all_bytes(out) == all_bytes(unbroken)


def test_another_request_or_directory_is_refused(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "clean"
    with pytest.raises(UsageError, match="no unfinished run in"):
        finish_shares(out, 1, None)
    monkeypatch.chdir(corpus.parent)
    run_tasks(Path(corpus.name), out, [Share(1, 2)], recipe=Path("recipe.toml"))
    with pytest.raises(UsageError, match="made with --shard-bytes 50000, not 5"):
        run_tasks(Path(corpus.name), out, [Share(2, 2)], recipe=Path("recipe.toml"), shard_bytes=5)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=rf"begun in {corpus.parent}, and its corpus is named from there"):
        finish_shares(out, 1, None)


def test_the_commands(corpus: Path, tokenizer: Path, tmp_path: Path) -> None:
    recipe = corpus.parent / "recipe.toml"
    common = ("curate", recipe, corpus, "--out", "clean", "--workers", 1, "--max-bad", 2)
    for task in ("2/2", "1/2"):
        found = prep(*common, "--task", task, cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        assert f"task  {task[0]} of 2" in found.stdout
        assert found.stdout.endswith("next: mtl-prep finish clean, when all tasks are done\n")
    finished = prep("finish", "clean", cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert "exact_duplicates" in finished.stdout
    assert finished.stdout.rstrip().endswith("mtl-prep tokenize clean --tokenizer TOKENIZER --out bins")
    curate(request(corpus, tmp_path / "whole", part_bytes=1 << 24, shard_bytes=1 << 28))
    assert kept_records(tmp_path / "clean") == kept_records(tmp_path / "whole")
    options = ("--tokenizer", tokenizer, "--out", tmp_path / "bins", "--curate", recipe, "--task", "1/2")
    refused = prep("tokenize", corpus, *options)
    assert refused.returncode == 2
    assert "run mtl-prep curate with --task and mtl-prep finish first" in refused.stderr
    assert not (tmp_path / "bins").exists()


@pytest.mark.slow
@pytest.mark.timeout(280)
def test_on_ray_with_a_process_killed_the_bytes_are_the_same(
    corpus: Path, unbroken: Path, tmp_path: Path
) -> None:
    pytest.importorskip("ray")
    out = tmp_path / "clean"
    process = in_process(corpus, out, workers=2, runs_on="ray")
    assert wait_until(lambda: process.poll() is not None or (done(out) > 0 and bool(doers(process.pid))), 120)
    victims, below = doers(process.pid)[:1], descendants(process.pid)
    for pid in victims:
        subprocess.run(["kill", "-9", str(pid)], check=True)
    _, told = process.communicate(timeout=150)
    assert process.returncode == 0, told.decode()
    assert victims
    assert gone(below)
    assert all_bytes(out) == all_bytes(unbroken)


def test_without_ray_the_command_to_install_it_is_told(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"needs Ray; pip install 'mtl-prep\[ray\]'"):
        curate(request(corpus, tmp_path / "clean", runs_on="ray"))
    assert not (tmp_path / "clean").exists()
